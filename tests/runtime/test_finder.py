"""A device that finds modules by itself, within limits, and remembers what became of them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pluto_edge import Runtime, Stream
from pluto_edge.errors import ConfigError, RepositoryError, StoreError
from pluto_edge.repository.folder import FolderSource
from pluto_edge.repository.index import ModuleSource
from pluto_edge.runtime.finder import MAX_FETCHES, MAX_STARTS, Finder, Limits
from pluto_edge.runtime.stream.trial import Rules
from tests.digits import MODULES, device, draw
from tests.faults import every_fault

BATCH = 32


class Counted(FolderSource):
    """Counts what it is asked for; `broken` raises when it is fetched."""

    def __init__(self, broken: bool = False) -> None:
        super().__init__(MODULES)
        self.fetched: list[str] = []
        self.broken = broken

    def fetch(self, target: str) -> Path:
        self.fetched.append(target)
        if self.broken:
            raise RepositoryError("the network is away")
        return super().fetch(target)


def open_stream(runtime: Runtime) -> Stream:
    stream = runtime.stream(batch=BATCH, background=False)
    stream.trials.rules = Rules(every=1, least=24, patience=2 * BATCH)
    return stream


def feed(stream: Stream, condition: str, count: int = BATCH) -> None:
    for image in draw(condition, count)[0]:
        stream(image)


def test_fog_is_found_tried_and_joins(tmp_path: Path) -> None:
    source: ModuleSource = Counted()
    record = tmp_path / "found.json"
    with device("fog", "low_light") as runtime:
        stream = open_stream(runtime)
        finder = Finder(runtime, source, record)
        assert finder.suggest(stream).reason == "0 recent images, want 16"
        feed(stream, "clear", 3 * BATCH)
        told = finder.look(stream)
        assert not told.needed and told.tried == () and "nothing is missing" in told.reason
        feed(stream, "fog", 2 * BATCH)
        told = finder.look(stream)
        assert told.needed and told.unknown > 0.9 and told.tried == ("fog",)
        assert told.modules[0].name == "fog" and told.modules[0].fit > 0.5 and told.modules[0].ahead > 0
        assert {"clear", "generalist"}.isdisjoint(m.name for m in told.modules)
        assert [f.standing for f in finder.found] == ["trial"]
        assert finder.look(stream).tried == ()  # it is on trial
        feed(stream, "fog", 2 * BATCH)
        assert "fog" in runtime.modules and source.fetched == ["fog"]  # type: ignore[attr-defined]
        assert [(f.name, f.standing) for f in finder.found] == [("fog", "joined")]
    with device("fog") as again:  # after a restart
        finder = Finder(again, source, record)
        finder.resume()
        finder.resume()
        assert again.modules[-1] == "fog" and again.events[-1].reason == "fog was added"


def test_one_that_lost_is_not_tried_again(tmp_path: Path) -> None:
    with device("fog") as runtime:
        stream = open_stream(runtime)
        stream.trials.rules = replace(stream.trials.rules, least=1000)
        finder = Finder(runtime, Counted(), tmp_path / "found.json")
        feed(stream, "fog", 2 * BATCH)
        assert finder.look(stream).tried == ("fog",)
        feed(stream, "fog", 3 * BATCH)
        assert [f.standing for f in finder.found] == ["dropped"] and finder.found[0].reason
        assert finder.look(stream).tried == ()
        again = Finder(runtime, Counted(), tmp_path / "found.json")
        again.resume(stream)
        assert again.found == finder.found and stream.trials.names == ()


def test_a_trial_that_never_ends_is_not_begun_for_ever(tmp_path: Path) -> None:
    """As of a module that brings the device down."""
    record = tmp_path / "found.json"
    with device("fog") as runtime:
        stream = open_stream(runtime)
        feed(stream, "fog", 2 * BATCH)
        Finder(runtime, Counted(), record).look(stream)
        stream.close()
        for start in range(2, MAX_STARTS + 1):
            finder = Finder(runtime, Counted(), record)
            with runtime.stream("another", background=False) as other:
                finder.resume(other)
                assert other.trials.names == (), "it was on trial in a stream of another name"
            with runtime.stream(background=False) as again:
                finder.resume(again)
                assert again.trials.names == ("fog",) and finder.found[0].starts == start
        with runtime.stream(background=False) as again:
            finder = Finder(runtime, Counted(), record)
            finder.resume(again)
            assert again.trials.names == () and finder.found[0].standing == "dropped"
            assert again.events[-1].kind == "trial" and "never ended" in again.events[-1].reason


@pytest.mark.parametrize("limits", [Limits(bytes=10), Limits(seconds=1e-9)])
def test_limits(limits: Limits) -> None:
    source = Counted()
    with device("fog") as runtime:
        stream = open_stream(runtime)
        feed(stream, "fog", 2 * BATCH)
        assert Finder(runtime, source, limits=limits).look(stream).tried == () and source.fetched == []


def test_what_cannot_be_fetched_is_told() -> None:
    with device("fog") as runtime:
        stream = open_stream(runtime)
        feed(stream, "fog", 2 * BATCH)
        source = Counted(broken=True)
        finder = Finder(runtime, source)
        for _ in range(MAX_FETCHES + 2):
            assert finder.look(stream).tried == ()
        assert stream.events[-1].reason == "fog could not be fetched: the network is away"
        assert source.fetched == ["fog"] * MAX_FETCHES and finder.found == ()
        source.broken = False
        assert Finder(runtime, source).look(stream).tried == ("fog",)
        assert [e.reason.rpartition("; ")[2] for e in stream.events[-2:]] == ["found: fog", "fog is on trial"]


def test_a_source_that_is_away_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with device("fog") as runtime:
        stream = open_stream(runtime)
        feed(stream, "fog", 2 * BATCH)
        finder = Finder(runtime, Counted())
        with monkeypatch.context() as patch:
            patch.setattr(Counted, "index", lambda _: (_ for _ in ()).throw(OSError("no route")))
            finder.turn(stream)
            finder.turn(stream)
        told = [e.reason for e in stream.events if e.kind == "trial"]
        assert told == ["no module could be looked for: no route"]
        finder.turn(stream)
        assert stream.trials.names == ("fog",)


def test_suggest_of_a_runtime() -> None:
    with device("fog") as runtime:
        runtime.step(draw("fog", 48)[0])
        told = runtime.suggest(Counted())
        assert told.needed and told.modules[0].name == "fog" and len(told.modules) == 1
        with pytest.raises(ConfigError, match="give the stream that is to try them"):
            runtime.suggest(Counted(), auto=True)
        with pytest.raises(ConfigError, match="count: want at least 1"):
            runtime.suggest(Counted(), count=0)
        stream = open_stream(runtime)
        feed(stream, "fog", 2 * BATCH)
        assert runtime.suggest(Counted(), stream, auto=True).tried == ("fog",)


def test_a_damaged_record_raises(tmp_path: Path) -> None:
    (tmp_path / "found.json").write_text("{")
    with device() as runtime, pytest.raises(StoreError, match="not valid JSON"):
        Finder(runtime, Counted(), tmp_path / "found.json")


def test_the_record_survives_whatever_happens(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    with device("fog", "low_light") as runtime:
        stream = open_stream(runtime)
        feed(stream, "fog", 2 * BATCH)
        Finder(runtime, Counted(), file).look(stream)
        before = file.read_bytes()
        finder = Finder(runtime, Counted(), file)

        def check() -> None:
            assert {f.name: f.standing for f in Finder(runtime, Counted(), file).found} in (
                {"fog": "trial"},
                {"fog": "dropped"},
            )

        every_fault(
            lambda: file.write_bytes(before) and None,  # type: ignore[func-returns-value]
            lambda: finder._note(replace(finder.found[0], standing="dropped")),
            check,
        )


def test_limits_that_make_no_sense() -> None:
    for wrong in ({"modules": 0}, {"bytes": 0}, {"seconds": float("nan")}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            Limits(**wrong)  # type: ignore[arg-type]
    assert np.isfinite(Limits().seconds)
