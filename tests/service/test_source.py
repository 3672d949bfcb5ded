"""Cameras that die, come back, hang and end."""

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from pluto_edge.observe.sources import Frame, open_source
from pluto_edge.service import source as module
from pluto_edge.service.config import CameraConfig
from pluto_edge.service.source import FIRST_DELAY, LONGEST_DELAY, MAX_HUNG, Backoff, Source
from tests.service.conftest import PATIENCE, Scripted, wait_for


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def source(script: Scripted, told: list[str]) -> Iterator[Source]:
    config = CameraConfig("gate", "rtsp://192.0.2.1/gate", fps=100, stall_after=0.5)
    made = Source(config, script, lambda kind, text: told.append(f"{kind}: {text}"))
    yield made
    script.end.set()
    made.stop()


def test_the_newest_frame_and_what_was_dropped(source: Source) -> None:
    source.start()
    assert source.next(PATIENCE) is not None
    wait_for(lambda: source.taken > 10)
    dropped = source.dropped
    assert source.next(PATIENCE) is not None
    wait_for(lambda: source.taken > 20)
    assert dropped < source.dropped <= source.taken - 2
    assert source.state == "live" and source.delivering and source.reconnects == 0


def test_one_that_dies_and_comes_back(source: Source, script: Scripted, told: list[str]) -> None:
    source.start()
    wait_for(lambda: source.state == "live")
    script.dead.add("gate")
    wait_for(lambda: source.state == "lost" and source.reconnects > 2)
    assert source.why.startswith("the cable is out; trying again in ") and not source.delivering
    script.dead.clear()
    wait_for(lambda: source.state == "live")
    assert [t.partition(":")[0] for t in told] == ["live", "lost", "live"]  # the attempts between are no news


def test_one_that_hangs_is_left_and_opened_anew(source: Source, script: Scripted, told: list[str]) -> None:
    source.start()
    wait_for(lambda: source.state == "live")
    script.hung.add("gate")
    wait_for(lambda: source.watch() or len(script.opened) > MAX_HUNG)
    assert source.state == "stalled" and source.stalls == 1
    for _ in range(60):  # no more threads than that hang at a time
        source.watch()
        source.next(0.02)
    assert len(script.opened) == 1 + MAX_HUNG
    script.hung.clear()
    wait_for(lambda: source.state == "live")
    assert [t.partition(":")[0] for t in told] == ["live", "stalled", "live"]


def test_one_that_rests_is_not_stalled(source: Source, script: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_DELAY", 100.0)
    source._backoff = Backoff()
    script.dead.add("gate")
    source.start()
    wait_for(lambda: source.state == "lost")
    for _ in range(40):
        source.watch()
        source.next(0.02)
    assert source.state == "lost" and source.stalls == 0 and source.reconnects == 0


def files(folder: Path, count: int) -> CameraConfig:
    folder.mkdir()
    for number in range(count):
        Image.fromarray(np.full((8, 8, 3), number, np.uint8)).save(folder / f"{number}.png")
    return CameraConfig("files", str(folder), fps=200, stall_after=0.5)


def of_files(config: CameraConfig) -> Iterator[Frame]:
    return open_source(config.source)


def test_a_folder_ends_or_begins_anew(tmp_path: Path, told: list[str]) -> None:
    config = files(tmp_path / "a", 3)
    source = Source(config, of_files, lambda kind, text: told.append(kind))
    source.start()
    wait_for(lambda: source.state == "ended")
    assert source.taken == 3 and source.delivering and told == ["live", "ended"]
    source.watch()
    source.stop()
    again = Source(CameraConfig("files", config.source, fps=200, repeat=True), of_files, lambda kind, text: None)
    again.start()
    wait_for(lambda: again.taken > 10)
    again.stop()
    assert again.reconnects == 0


@pytest.mark.parametrize("live", [True, False])
def test_one_that_gives_nothing_is_lost_and_no_busy_loop(tmp_path: Path, live: bool) -> None:
    opened = []

    def nothing(config: CameraConfig) -> Iterator[Frame]:
        opened.append(config)
        return iter(())

    name = "rtsp://192.0.2.1/x" if live else str(tmp_path)
    source = Source(CameraConfig("x", name, repeat=True), nothing, lambda kind, text: None)
    source.start()
    wait_for(lambda: source.state == "lost")
    assert source.next(0.2) is None and len(opened) == 1
    source.stop()


@given(seed=st.integers(0, 2**32), worked=st.lists(st.floats(0, 1000), min_size=1, max_size=30))
def test_delays_grow_to_a_bound_and_start_again(seed: int, worked: list[float]) -> None:
    backoff = Backoff(random.Random(seed))
    most = FIRST_DELAY
    for seconds in worked:
        most = FIRST_DELAY if seconds > most else most
        delay = backoff.failed(seconds)
        assert most / 2 <= delay <= most <= LONGEST_DELAY
        most = min(2 * most, LONGEST_DELAY)
