"""Services over a tiny bundle, with cameras that do as they are told."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep

import numpy as np
import pytest

from pluto_edge.observe.sources import Frame
from pluto_edge.service import source
from pluto_edge.service.config import CameraConfig
from pluto_edge.service.service import Service

PATIENCE = 30.0  # seconds, on a busy machine


def wait_for(true: Callable[[], object]) -> None:
    """Until it is, or the test fails."""
    end = monotonic() + PATIENCE
    while not true():
        assert monotonic() < end, "it did not happen"
        sleep(0.02)


class Scripted:
    """Plays cameras: each gives frames every few milliseconds until it is told to die or to hang."""

    def __init__(self) -> None:
        self.dead: set[str] = set()
        self.hung: set[str] = set()
        self.opened: list[str] = []
        self.frame = np.random.default_rng(3).integers(0, 256, (40, 48, 3), dtype=np.uint8)
        self.end = threading.Event()  # lets go what hangs

    def __call__(self, config: CameraConfig, classes: tuple[str, ...] = ()) -> Iterator[Frame]:
        self.opened.append(config.name)
        while not self.end.wait(0.01):
            if config.name in self.dead:
                raise OSError("the cable is out")
            while config.name in self.hung and not self.end.wait(0.01):
                pass
            yield Frame(self.frame)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scripted]:
    monkeypatch.setattr(source, "FIRST_DELAY", 0.05)
    played = Scripted()
    yield played
    played.end.set()


def camera(name: str, **settings: object) -> str:
    """A [[camera]] of a configuration."""
    lines = {"name": name, "source": f"rtsp://192.0.2.1/{name}", "fps": 40, "batch": 4, **settings}
    return "[[camera]]\n" + "".join(f"{key} = {_toml(value)}\n" for key, value in lines.items())


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value).replace("'", '"')


Write = Callable[..., Path]


@pytest.fixture
def write(make_bundle: Callable[..., Path], tmp_path: Path) -> Write:
    """Writes a configuration with these cameras, and other keys at the top."""

    def written(*cameras: str, **settings: object) -> Path:
        top = {"bundle": str(make_bundle()), "state": "state", "page": "127.0.0.1:0", "threads": 1, "trial": 0}
        top |= settings
        text = "".join(f"{key} = {_toml(value)}\n" for key, value in top.items())
        file = tmp_path / "serve.toml"
        file.write_text(text + "".join(cameras))
        return file

    return written


Serve = Callable[..., Service]


@pytest.fixture
def serve(script: Scripted) -> Iterator[Serve]:
    """Starts services, and closes them in the end."""
    started: list[Service] = []

    def start(file: Path) -> Service:
        service = Service(file, script)
        service.start()
        started.append(service)
        return service

    yield start
    for service in started:
        service.close()


def frames(service: Service, name: str) -> int:
    return service.cameras[name].totals["frames"]
