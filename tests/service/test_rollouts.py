"""A bundle that takes over has been on trial; what cameras find is tried, too. On the meter digits."""

import shutil
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest

from pluto_edge.errors import BundleError, ConfigError
from pluto_edge.fleet.rollout import Bounds
from pluto_edge.observe.sources import Frame
from pluto_edge.service import rollouts
from pluto_edge.service.config import CameraConfig
from pluto_edge.service.instruments import INSTRUMENTS, Reading
from pluto_edge.service.service import Service
from tests.cli.test_found import without
from tests.digits import BUNDLE, MODULES, draw
from tests.fleet.conftest import make_other  # noqa: F401
from tests.service.conftest import PATIENCE, Scripted, Serve, Write, camera, frames, wait_for

Make = Callable[..., Path]
NEVER = 1_000_000  # frames


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch, script: Scripted) -> None:
    """Nothing here is about speed, and all cameras see a digit."""
    monkeypatch.setattr(rollouts, "Bounds", partial(Bounds, ratio=1e6))
    script.frame = draw("clear", 1)[0][0]


def stuck(tensors: dict[str, np.ndarray]) -> None:
    tensors["head_bias"][:] = 0
    tensors["head_bias"][(int(draw("clear", 1)[1][0]) + 1) % 10] = 1000.0


def broken(make: Make) -> Path:
    return make("broken", **dict.fromkeys((f.stem for f in (BUNDLE / "modules").glob("*.safetensors")), stuck))


def read(service: Service, name: str) -> dict[tuple[str, ...], float]:
    (instrument,) = [i for i in INSTRUMENTS if i.name == name]
    return dict(instrument.read(Reading.of(service)))


def test_a_good_bundle_takes_over_with_what_was_learned(serve: Serve, write: Write, make_other: Make) -> None:  # noqa: F811
    service = serve(write(camera("gate"), camera("yard"), bundle=str(BUNDLE), trial=8))
    old = service.runtime
    wait_for(lambda: service.cameras["gate"].stream.learner.state.samples > 8)
    new = make_other()
    write(camera("gate"), camera("yard"), bundle=str(new), trial=8)
    assert service.reload().endswith("on trial for 8 frames")
    wait_for(lambda: service.takeovers["taken"])
    assert service.runtime is not old and service.runtime.bundle.path == new and service.rollouts.trial is None
    gate = service.cameras["gate"]
    assert gate.stream.learner.state.samples > 8 and gate.set_aside == 0, "modules and backbone are the same"
    assert [h.kind for h in gate.happenings if h.kind in ("carried", "state")] == ["carried"]
    before = frames(service, "gate")
    wait_for(lambda: frames(service, "gate") > before + 3)
    service.close()
    assert serve(write(camera("gate"), bundle=str(new), trial=8)).runtime.bundle.path == new


def test_a_broken_one_is_taken_back(serve: Serve, write: Write, make_other: Make, caplog) -> None:  # noqa: F811
    service = serve(write(camera("gate"), bundle=str(BUNDLE), trial=8))
    old = service.runtime
    new = broken(make_other)
    write(camera("gate"), bundle=str(new), trial=8)
    service.reload()
    wait_for(lambda: service.takeovers["refused"])
    wait_for(lambda: service.rollouts.trial is None)
    assert service.runtime is old and service.takeovers == {"refused": 1}
    assert "was taken back: both agree on 0% of the frames" in service.status and "taken back" in caplog.text
    with pytest.raises(ConfigError, match="it was tried before and"):
        service.reload()
    refused = service.takeovers["refused"]
    service.update()
    assert service.takeovers["refused"] == refused, "nobody asked"
    service.close()
    again = serve(write(camera("gate"), bundle=str(new), trial=8))
    assert again.runtime.bundle.path == BUNDLE and "it was tried before" in again.status
    wait_for(lambda: frames(again, "gate") > 3)


def test_a_process_that_dies_during_a_trial_comes_up_with_the_old_one(
    serve: Serve,
    write: Write,
    make_other: Make,  # noqa: F811
    tmp_path: Path,
) -> None:
    service = serve(write(camera("gate"), bundle=str(BUNDLE), trial=NEVER))
    file = write(camera("gate"), bundle=str(make_other()), trial=NEVER)
    service.reload()
    wait_for(lambda: service.rollouts.trial is not None and service.rollouts.trial.frames > 1)
    ((labels, seen),) = read(service, "bundle_trial_frames").items()
    assert labels == (service.rollouts.trial.bundle,) and seen > 1  # type: ignore[union-attr]
    assert "is on trial" in service.status
    ledger = (tmp_path / "state" / rollouts.LEDGER).read_bytes()
    assert b"other" in ledger
    service.close()
    (tmp_path / "state" / rollouts.LEDGER).write_bytes(ledger)  # as after a kill: nobody put the trial off
    again = serve(file)
    assert again.runtime.bundle.path == BUNDLE
    assert again.rollouts.trial is not None, "it is tried once more"
    write(camera("gate"), bundle=str(BUNDLE), trial=NEVER)
    again.reload()
    assert again.rollouts.trial is None and again.status == "1 of 1 cameras deliver frames"
    assert read(again, "bundle_trial_frames") == {}


def test_what_does_not_open_is_refused_at_once(serve: Serve, write: Write, make_other: Make) -> None:  # noqa: F811
    service = serve(write(camera("gate"), bundle=str(BUNDLE), trial=8))
    new = make_other()
    with (new / "weights.bin").open("r+b") as weights:
        weights.write(b"damaged")
    write(camera("gate"), bundle=str(new), trial=8)
    with pytest.raises(BundleError, match=r"weights\.bin was changed"):
        service.reload()
    assert service.takeovers == {"refused": 1} and service.rollouts.trial is None


def test_a_trial_that_hangs_holds_up_no_camera(
    serve: Serve,
    write: Write,
    make_other: Make,  # noqa: F811
    script: Scripted,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = serve(write(camera("gate"), bundle=str(BUNDLE), trial=8))
    write(camera("gate"), bundle=str(make_other()), trial=8)
    service.reload()
    trial = service.rollouts.trial
    assert trial is not None and trial.rollout.new is not None
    monkeypatch.setattr(trial.rollout.new, "predict", lambda _: script.end.wait(60) and 1 / 0)
    before = frames(service, "gate")
    wait_for(lambda: frames(service, "gate") > before + 20)
    script.end.set()


def test_a_trial_that_hangs_is_left_and_not_begun_again_beside_itself(
    serve: Serve,
    write: Write,
    make_other: Make,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rollouts, "PATIENCE", 0.1)
    service = serve(write(camera("gate"), bundle=str(BUNDLE), trial=NEVER))
    new = make_other()
    write(camera("gate"), bundle=str(new), trial=NEVER)
    service.reload()
    first = service.rollouts.trial
    assert first is not None and first.rollout.new is not None
    hangs, lets_go = threading.Event(), threading.Event()

    def hang(frame: object) -> None:
        hangs.set()
        lets_go.wait(PATIENCE * 2)
        raise ValueError("it comes back")

    monkeypatch.setattr(first.rollout.new, "predict", hang)
    assert hangs.wait(PATIENCE)
    write(camera("gate"), bundle=str(BUNDLE), trial=NEVER)
    service.reload()
    assert service.rollouts.trial is None and first.alive
    write(camera("gate"), bundle=str(new), trial=NEVER)
    with pytest.raises(ConfigError, match="its last trial hangs in a prediction; restart the service"):
        service.reload()
    lets_go.set()
    wait_for(lambda: not first.alive)
    assert service.rollouts.ledger.verdicts == (), "nobody waited for it"
    service.reload()
    second = service.rollouts.trial
    assert second is not None and second is not first and second.bundle == first.bundle


def test_a_new_release_is_found_by_itself(serve: Serve, write: Write, make_other: Make, tmp_path: Path) -> None:  # noqa: F811
    place = tmp_path / "here"
    shutil.copytree(BUNDLE, place)
    service = serve(write(camera("gate"), bundle=str(place), trial=4, update_every=1))
    old = service.runtime.bundle.hash
    new = make_other()
    shutil.copy(new / "manifest.json", place / "manifest.json")  # nothing else is different
    wait_for(lambda: service.watch() or service.takeovers["taken"])
    assert service.runtime.bundle.hash != old


def test_cameras_find_modules(write: Write, tmp_path: Path) -> None:
    bundle = without(tmp_path / "bundle", "fog")

    def foggy(config: CameraConfig, classes: tuple[str, ...]) -> Iterator[Frame]:
        for image in cycle(draw("fog", 128)[0]):
            yield Frame(image)

    settings = {"bundle": str(bundle), "modules": str(MODULES), "find_every": 1, "budget": 1.0}
    file = write(camera("gate", source="clip.mp4", batch=32), **settings)
    with Service(file, foggy) as service:
        wait_for(lambda: service.watch() or "fog" in service.runtime.modules)
        assert service.finder is not None
        wait_for(lambda: [f.standing for f in service.finder.found] == ["joined"])  # type: ignore[union-attr]
        assert read(service, "modules_found") == {("trial",): 0, ("joined",): 1, ("dropped",): 0}
        assert read(service, "modules_on_trial") == {("gate",): 0}
    with Service(file, foggy) as again:
        assert "fog" in again.runtime.modules, "it is remembered"
