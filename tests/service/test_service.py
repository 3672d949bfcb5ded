"""Cameras over one runtime: what goes on when one of them breaks, and what a reload changes."""

import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

from pluto_edge.errors import BundleError, ConfigError
from pluto_edge.observe.sources import Frame
from pluto_edge.runtime.persistence import saved
from pluto_edge.service import bundles
from pluto_edge.service import health as health_module
from pluto_edge.service import service as service_module
from pluto_edge.service.config import CameraConfig
from pluto_edge.service.health import Health, dead, health, order, unready
from pluto_edge.service.service import Service
from pluto_edge.service.source import open_camera
from pluto_edge.service.states import running, state_file
from tests.service.conftest import PATIENCE, Scripted, Serve, Write, camera, frames, wait_for


def learned(service: Service, name: str) -> int:
    return service.cameras[name].stream.learner.state.steps


# Cameras beside each other


def test_cameras_share_a_runtime_and_nothing_else(serve: Serve, write: Write) -> None:
    service = serve(write(camera("gate"), camera("yard"), camera("hall", learn=False)))
    wait_for(lambda: all(frames(service, name) > 8 for name in service.cameras))
    wait_for(lambda: learned(service, "gate") and learned(service, "yard"))
    streams = [c.stream for c in service.cameras.values()]
    assert {s.learner.network for s in streams} == {service.runtime._network}
    assert [s.name for s in streams] == ["gate", "yard", "hall"]
    assert streams[0].budget == streams[1].budget == pytest.approx(0.15)
    assert streams[2].frozen and learned(service, "hall") == 0
    assert dead(service) == [] and unready(service) == []


def test_one_that_is_lost_leaves_the_others_alone(serve: Serve, write: Write, script: Scripted) -> None:
    script.dead.add("gate")
    service = serve(write(camera("gate"), camera("yard")))
    wait_for(lambda: frames(service, "yard") > 3 and service.cameras["gate"].source.reconnects > 1)
    assert health(service.cameras["gate"]).trouble == "lost"
    assert health(service.cameras["gate"]).text.startswith("Lost: the cable is out; trying again in")
    assert sorted(service.cameras.values(), key=order)[0].config.name == "gate"
    assert service.status == "1 of 2 cameras deliver frames"
    script.dead.clear()
    wait_for(lambda: frames(service, "gate") > 3)
    assert health(service.cameras["gate"]).trouble == "fine"
    assert [h.kind for h in service.cameras["gate"].happenings][:2] == ["lost", "live"]


def test_one_that_hangs_is_noticed(serve: Serve, write: Write, script: Scripted) -> None:
    script.hung.add("gate")
    service = serve(write(camera("gate", stall_after=0.5), camera("yard")))
    wait_for(lambda: service.watch() or service.cameras["gate"].source.state == "stalled")
    assert health(service.cameras["gate"]).trouble == "lost" and dead(service) == []
    assert service.cameras["gate"].happenings[-1].kind == "stalled"


def test_a_frame_that_cannot_be_predicted_costs_that_frame(
    serve: Serve, write: Write, script: Scripted, caplog: pytest.LogCaptureFixture
) -> None:
    good = script.frame
    script.frame = np.zeros((40, 48), np.float64)  # no image that any camera gives
    service = serve(write(camera("gate")))
    one = service.cameras["gate"]
    wait_for(lambda: one.failures > 5)
    assert health(one).trouble == "failing" and dead(service) == []
    assert len([h for h in one.happenings if h.kind == "failing"]) == 1  # the same again is no news
    script.frame = good
    wait_for(lambda: frames(service, "gate") > 3)


def test_learning_that_fails_is_trouble_for_a_while(
    serve: Serve, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = serve(write(camera("gate")))
    one = service.cameras["gate"]

    def fail(*arguments: object) -> None:
        raise ValueError("no")

    monkeypatch.setattr(one.stream.learner, "step", fail)
    wait_for(lambda: service.watch() or health(one).trouble == "failing")
    assert "learning failed" in health(one).text and one.totals["failed"] > 0
    monkeypatch.undo()
    monkeypatch.setattr(health_module, "RECENT", 0.0)
    assert health(one).trouble == "fine"


def test_health_in_words(serve: Serve, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    service = serve(write(camera("gate")))
    one = service.cameras["gate"]
    wait_for(lambda: frames(service, "gate") > 1)

    def with_signs(**signs: object) -> Health:
        metrics = one.stream.metrics.__class__(**{**vars(one.stream.metrics), **signs})
        with monkeypatch.context() as patch:
            patch.setattr(type(one), "metrics", metrics)
            return health(one)

    assert with_signs(misfit=2.5, leader="fog", differing=0.5).trouble == "foreign"
    assert with_signs(misfit=1.0, leader="fog", differing=0.5) == Health(
        "disagrees", "Adapting changes 50% of its answers."
    )
    assert with_signs(misfit=None, differing=None, steps=3) == Health("fine", "All is well.")
    one.stream.frozen = True
    assert health(one).text == "Predicting, not learning."


def test_a_thread_that_is_stuck_is_no_life(serve: Serve, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    service = serve(write(camera("gate")))
    monkeypatch.setattr(health_module, "BEAT", -1.0)
    assert dead(service) == ["nobody has looked after it for 0 s"]
    monkeypatch.setattr(health_module, "BEAT", 1e9)
    monkeypatch.setattr(health_module, "PREDICTION", -1.0)
    assert dead(service)[0].startswith("gate: one frame has taken")
    service.cameras["gate"].close()
    assert dead(service) == ["gate: its thread has ended"]


def test_ready_needs_a_camera_or_none_that_matters(serve: Serve, write: Write, script: Scripted) -> None:
    script.dead.update({"gate", "yard"})
    service = serve(write(camera("gate"), camera("yard")))
    wait_for(lambda: service.cameras["gate"].source.state == "lost")
    assert unready(service)[0].startswith("gate: lost: the cable is out")
    write(camera("gate"), camera("yard", optional=True))
    service.reload()
    assert unready(service) == []
    service.close()
    assert unready(service) == ["no bundle is open"]


# What was learned


def test_states_are_kept(serve: Serve, write: Write, tmp_path: Path) -> None:
    file = write(camera("gate"), save_every=1)
    service = serve(file)
    wait_for(lambda: learned(service, "gate") > 1)
    wait_for(lambda: service.cameras["gate"].saves["saved"])  # by itself
    service.close()
    assert saved(state_file(tmp_path / "state", "gate"))
    again = serve(file)
    assert learned(again, "gate") > 1 and again.cameras["gate"].set_aside == 0


def test_a_state_that_cannot_be_restored_is_set_aside(
    serve: Serve, write: Write, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = state_file(tmp_path / "state", "gate")
    path.parent.mkdir()
    path.write_bytes(b"damaged")
    (tmp_path / "state" / "gate.safetensors.previous").write_bytes(b"damaged, too")
    service = serve(write(camera("gate")))
    assert not saved(path) and service.cameras["gate"].set_aside == 1
    assert (tmp_path / "state/gate.aside.safetensors").read_bytes() == b"damaged"
    assert (tmp_path / "state/gate.aside.safetensors.previous").read_bytes() == b"damaged, too"
    assert "it starts fresh, and the file is kept as gate.aside.safetensors" in caplog.text
    wait_for(lambda: frames(service, "gate") > 3)


def test_a_disk_that_is_full_is_told(serve: Serve, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    service = serve(write(camera("gate")))

    def full(path: Path) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(service.cameras["gate"].stream, "save", full)
    service.save()
    assert service.cameras["gate"].saves == {"failed": 1}
    assert "not saved: [Errno 28] No space left" in service.cameras["gate"].happenings[-1].text
    wait_for(lambda: frames(service, "gate") > 3)


def test_one_service_has_a_state_folder(serve: Serve, write: Write, tmp_path: Path, script: Scripted) -> None:
    file = write(camera("gate"))
    with pytest.raises(ConfigError, match="no service is running with this state folder"):
        running(tmp_path / "state")
    service = serve(file)
    assert running(tmp_path / "state").config == str(file)
    with pytest.raises(ConfigError, match="another service is running"):
        Service(file, script).start()
    service.close()
    serve(file)


# Changes while it runs


def test_a_reload_leaves_alone_what_stays(serve: Serve, write: Write) -> None:
    service = serve(write(camera("gate"), camera("yard"), camera("hall")))
    before = dict(service.cameras)
    streams = {name: c.stream for name, c in before.items()}
    wait_for(lambda: frames(service, "gate") > 3)
    write(camera("gate"), camera("yard", batch=8), camera("roof"), budget=0.9)
    assert service.reload() == "1 cameras as before, 1 changed, 1 new, 1 gone"
    assert list(service.cameras) == ["gate", "yard", "roof"]
    assert service.cameras["gate"] is before["gate"] and service.cameras["gate"].stream is streams["gate"]
    assert service.cameras["gate"].stream.budget == pytest.approx(0.3)  # of 0.9, by three
    assert service.cameras["yard"] is not before["yard"] and streams["yard"].closed and streams["hall"].closed
    wait_for(lambda: all(frames(service, name) > 3 for name in service.cameras))
    assert len(service.runtime.streams) == 3


@pytest.mark.parametrize(
    "change, message",
    [
        ({"budget": 7}, "budget: want 0.001 to 1"),
        ({"bundle": "none/"}, "none: not a bundle"),
        ({"state": "elsewhere"}, "state: cannot be changed while the service runs; restart it"),
        ({"page": "127.0.0.1:1"}, "page: cannot be changed"),
    ],
)
def test_a_broken_configuration_is_refused(
    serve: Serve, write: Write, change: dict[str, object], message: str, tmp_path: Path
) -> None:
    service = serve(write(camera("gate")))
    config, cameras, runtime = service.config, dict(service.cameras), service.runtime
    write(camera("gate"), camera("yard"), **change)
    with pytest.raises((ConfigError, BundleError), match=message):
        service.reload()
    assert (service.config, service.cameras, service.runtime) == (config, cameras, runtime)
    assert service.reloads == {"refused": 1} and not service.last_reload_worked
    assert message in running(tmp_path / "state").refused
    seen = frames(service, "gate")
    wait_for(lambda: frames(service, "gate") > seen + 3)


def test_another_bundle_takes_over(serve: Serve, write: Write, make_bundle, tmp_path: Path) -> None:
    service = serve(write(camera("gate"), camera("yard")))
    wait_for(lambda: frames(service, "gate") > 9 and learned(service, "yard"))
    gate, before, old = service.cameras["gate"], frames(service, "gate"), service.runtime
    gate.stream.frozen = True
    write(camera("gate"), camera("yard"), bundle=str(make_bundle(modules=2)))
    assert service.reload().startswith("2 cameras as before, 0 changed, 0 new, 0 gone, bundle ")
    assert service.cameras["gate"] is gate and len(service.runtime.modules) == 2
    assert gate.stream.frozen, "what somebody has frozen stays so"
    assert frames(service, "gate") >= before, "counters go on"
    with pytest.raises(ConfigError, match="closed"):
        old.predict(np.zeros((40, 48, 3), np.uint8))
    wait_for(lambda: frames(service, "gate") > before + 3)
    (kept,) = (tmp_path / "state").glob("yard.safetensors.????????????")
    assert kept.is_file() and service.cameras["yard"].set_aside == 1, "it means nothing to another bundle"
    assert service.takeovers == {"taken": 1}


def test_a_bundle_that_was_replaced_in_its_place(serve: Serve, write: Write, make_bundle, tmp_path: Path) -> None:
    place = tmp_path / "here"
    shutil.copytree(make_bundle(), place)
    service = serve(write(camera("gate"), bundle=str(place)))
    first = service.runtime
    assert "bundle" not in service.reload() and service.runtime is first
    wait_for(lambda: learned(service, "gate"))
    old = first.bundle.hash
    shutil.rmtree(place)
    shutil.copytree(make_bundle(modules=2), place)
    assert first.bundle.hash == old, "what was opened stays what it was"
    assert "bundle" in service.reload() and service.runtime.bundle.hash != old


def test_a_bundle_that_fails_on_what_cameras_see(
    serve: Serve, write: Write, make_bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = serve(write(camera("gate")))
    wait_for(lambda: frames(service, "gate") > 1)
    before = service.runtime

    def fails(runtime: object, images: object) -> None:
        raise FloatingPointError("nothing is finite")

    monkeypatch.setattr(service_module.Runtime, "predict", fails)
    write(camera("gate"), bundle=str(make_bundle(modules=2)))
    with pytest.raises(BundleError, match="fails on what the cameras see"):
        service.reload()
    assert service.runtime is before and service.takeovers == {"refused": 1}


def test_the_end_does_not_wait_for_a_download(
    serve: Serve, write: Write, monkeypatch: pytest.MonkeyPatch, script: Scripted
) -> None:
    service = serve(write(camera("gate")))
    asked, said = threading.Event(), []

    def slow(config: object) -> None:
        asked.set()
        script.end.wait(PATIENCE * 2)
        raise BundleError("it never came")

    def reload() -> None:
        with pytest.raises(ConfigError) as error:
            service.reload()
        said.append(str(error.value))

    monkeypatch.setattr(bundles, "find", slow)
    threads = [threading.Thread(target=act, daemon=True) for act in (reload, service.close)]
    threads[0].start()
    asked.wait(PATIENCE)
    threads[1].start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads) and not script.end.is_set()
    assert said == ["the service is ending"] and not service.open


def test_what_cannot_start_leaves_nothing(write: Write, script: Scripted, tmp_path: Path) -> None:
    file = write(camera("gate"), bundle="none/")
    with pytest.raises(BundleError):
        Service(file, script).start()
    with Service(write(camera("gate")), script) as service:
        assert service.open


def test_images_of_a_folder_that_cannot_be_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.png").write_bytes(b"no image")
    config = CameraConfig("gate", str(tmp_path))
    with pytest.raises(Exception, match="no image could be read"):
        list[Frame](open_camera(config, ()))
    assert "gate: passed over" in caplog.text
