"""benchmarks/soak.py: a killed soak goes on, nothing is lost, and what went wrong is shown."""

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from time import sleep

import pytest
import soak

LINE = soak.Line(100, 0, 100, 90, 100, 8, 10, 5.0, 9.0, 100.0, 1, 2, 3, 1, 7, [])


def test_a_killed_soak_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [soak.__file__, "--frames", "210", "--out", str(tmp_path)]
    child = subprocess.Popen([sys.executable, *command, "--child", "0"])
    while not soak.last_frame(tmp_path) and child.poll() is None:
        sleep(0.1)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert 100 <= soak.last_frame(tmp_path) < 210
    with (tmp_path / "log.jsonl").open("a") as log:
        log.write('{"frame": 190, "li')  # cut off
    monkeypatch.setattr(sys, "argv", command)
    soak.main()
    printed = capsys.readouterr().out
    assert "went wrong               nothing" in printed and "kills                    1" in printed
    lines = list(soak.read(tmp_path))
    assert {line.life for line in lines} == {0, 1} and lines[-1].frame == 210
    assert sum(line.counted for line in lines) == 210
    assert (tmp_path / "soak.png").read_bytes().startswith(b"\x89PNG")


def test_what_went_wrong_is_shown() -> None:
    lines = [
        replace(LINE, frame=100 * n, age=100 * n, resident=100.0 + n, problems=["lost"] * (n == 3))
        for n in range(1, 21)
    ]
    text = soak.summary(lines)
    assert "went wrong               lost" in text
    assert "grows by +14.0 MB at most" in text  # from the middle of the first quarter to that of the last


def test_accuracy_is_of_the_last_lines() -> None:
    lines = [replace(LINE, right=right) for right in (100, 0, 50)]
    assert soak.rolling(lines, "right", "counted", window=1) == [100, 0, 50]
    assert soak.rolling(lines, "right", "counted", window=2) == [100, 50, 25]
