"""`pluto serve` as a process: signals, a stand-in for systemd, a kill, a restart."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pluto_edge import Runtime
from pluto_edge.runtime.persistence import saved
from pluto_edge.service import notify
from tests.service.conftest import PATIENCE, Write, camera, wait_for

ROOT = Path(__file__).parent.parent.parent
STEPS = 'pluto_steps_total{camera="gate",outcome="'  # of whatever outcome: the frames are noise


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng, folder = np.random.default_rng(0), tmp_path / "frames"
    folder.mkdir()
    for i in range(40):
        Image.fromarray(rng.integers(0, 256, (40, 32, 3), np.uint8)).save(folder / f"{i:03}.png")
    return folder


def of_files(name: str, **settings: object) -> str:
    return camera(name, **{"source": "frames", "repeat": True, "fps": 30, **settings})


@contextmanager
def served(file: Path, *options: str, **environment: str) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [sys.executable, "-m", "pluto_edge.cli", "serve", str(file), *options],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def port(process: "subprocess.Popen[str]") -> int:
    """Where its page is, once it is there."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("page at http://127.0.0.1:"):
            return int(line.rpartition(":")[2].strip().strip("/"))
    raise AssertionError(process.communicate()[1])


def asked(at: int, path: str) -> str:
    connection = HTTPConnection("127.0.0.1", at, timeout=10)
    connection.request("GET", path)
    text = connection.getresponse().read().decode()
    connection.close()
    return text


def counted(at: int, series: str) -> float:
    """The sum of all series that begin so."""
    found = [line for line in asked(at, "/metrics").splitlines() if line.startswith(series)]
    return sum(float(line.rpartition(" ")[2]) for line in found)


def again(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "pluto_edge.cli", "serve", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE * 2,
    )


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[tuple[str, Callable[[], list[str]]]]:
    """Its socket, and what it is told next."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(PATIENCE)
        yield str(tmp_path / "notify"), lambda: listening.recv(4096).decode().split("\n")


def test_from_start_to_end(write: Write, folder: Path, tmp_path: Path, systemd) -> None:
    address, told = systemd
    file = write(of_files("gate"))
    with served(file, NOTIFY_SOCKET=address) as process:
        assert told()[0] == "READY=1"
        at = port(process)
        wait_for(lambda: counted(at, STEPS) > 0)
        while told() != ["WATCHDOG=1", "STATUS=1 of 1 cameras deliver frames"]:
            pass
        process.send_signal(signal.SIGHUP)
        while (said := told())[0] != "RELOADING=1":
            pass
        assert said[1].startswith("MONOTONIC_USEC=") and int(said[1].partition("=")[2]) > 0
        while (said := told())[0] != "READY=1":
            pass
        process.send_signal(signal.SIGTERM)
        while told() != ["STOPPING=1"]:
            pass
        _, errors = process.communicate(timeout=PATIENCE)
        assert (process.returncode, errors) == (0, "")
    assert saved(tmp_path / "state/gate.safetensors")


def test_killed_and_started_again(write: Write, folder: Path, tmp_path: Path) -> None:
    file = write(of_files("gate"), save_every=1)
    with served(file) as process:
        at = port(process)
        wait_for(lambda: counted(at, STEPS) > 2)
        saves = counted(at, 'pluto_state_saves_total{camera="gate",outcome="saved"}')
        wait_for(lambda: counted(at, 'pluto_state_saves_total{camera="gate",outcome="saved"}') > saves)
        process.kill()  # no time to save anything
        process.wait()
    with served(file, "-v") as process:
        at = port(process)
        wait_for(lambda: counted(at, "pluto_frames_total") > 0)
        assert counted(at, "pluto_states_set_aside_total") == 0
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0
        assert f"gate: restore at frame 0: {tmp_path}/state/gate.safetensors" in errors
    with Runtime(tomlless(file), threads=1) as runtime, runtime.stream("gate", batch=4) as stream:
        stream.restore(tmp_path / "state/gate.safetensors")
        assert stream.learner.state.steps > 2


def tomlless(file: Path) -> str:
    return file.read_text().partition('bundle = "')[2].partition('"')[0]


def test_reload_from_the_command_line(write: Write, folder: Path) -> None:
    file = write(of_files("gate"))
    assert "no service is running with this state folder" in again("--reload", str(file)).stderr
    with served(file) as process:
        at = port(process)
        write(of_files("gate"), of_files("yard"))
        done = again("--reload", str(file))
        assert (done.returncode, done.stdout) == (0, f"reloaded {file}\n")
        wait_for(lambda: counted(at, 'pluto_frames_total{camera="yard"}') > 0)
        write(of_files("gate"), bundle="none/")
        refused = again("--reload", str(file))
        assert refused.returncode == 2 and "refused, everything stays as it was" in refused.stderr
        assert "none: not a bundle" in refused.stderr
        write(of_files("gate"), budget=3)
        assert "budget: want 0.001 to 1" in again("--reload", str(file)).stderr  # before anybody is asked
        seen = counted(at, 'pluto_frames_total{camera="yard"}')
        wait_for(lambda: counted(at, 'pluto_frames_total{camera="yard"}') > seen)
        assert counted(at, "pluto_reload_worked") == 0
        other = again(str(write(of_files("gate"))))
        assert other.returncode == 2 and "another service is running" in other.stderr


def test_signals_come_in_any_order(write: Write, folder: Path) -> None:
    """Also before it is up: a reload must not end it, and an end ends it."""
    with served(write(of_files("gate"))) as process:
        at = port(process)
        for _ in range(5):
            process.send_signal(signal.SIGHUP)
        wait_for(lambda: counted(at, 'pluto_reloads_total{outcome="done"}') >= 1)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


def test_a_socket_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for address in ("", str(tmp_path / "none"), "@pluto-none", "x" * 200):
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        notify.ready("all is well")


def test_an_abstract_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"pluto-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0{name}")
        listening.settimeout(PATIENCE)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
        notify.watchdog("all is well")
        assert listening.recv(100) == b"WATCHDOG=1\nSTATUS=all is well"
