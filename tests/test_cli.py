"""The commands as a user types them."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pluto_edge.cli import COMMANDS, main
from pluto_edge.export import parity
from pluto_edge.runtime import doctor
from pluto_edge.store import Store


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    text = capsys.readouterr().out
    assert all(name in text for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_teaches(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    assert len(capsys.readouterr().out.splitlines()) > 5


def test_no_command_and_wrong_command(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in ([], ["fly"]):
        with pytest.raises(SystemExit, match="2"):
            main(wrong)
        assert "usage: pluto" in capsys.readouterr().err


def test_export_then_info(
    make_store: Callable[..., Store], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, out = str(make_store().path), str(tmp_path / "bundle")
    assert main(["export", "--modules", store, "--out", out]) == 0
    text = capsys.readouterr().out
    assert text.count("✓") == 22
    assert "agrees with torch" in text
    assert main(["info", out]) == 0
    text = capsys.readouterr().out
    assert "domain-2" in text and "checksums right" in text
    assert main(["info", store]) == 0
    assert "domain-2" in capsys.readouterr().out
    assert main(["export", "--modules", store, "--out", out]) == 2
    assert "--force" in capsys.readouterr().err


def test_export_json_and_quiet(
    make_store: Callable[..., Store], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = str(make_store().path)
    assert main(["export", "--modules", store, "--out", str(tmp_path / "a"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert len(report["parity"]) == 21 and all(e["passed"] for e in report["parity"])
    assert report["manifest"]["dims"]["width"] == 48
    assert main(["export", "--modules", store, "--out", str(tmp_path / "b"), "--quiet"]) == 0
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_a_mismatch_prints_crosses_and_fails(
    make_store: Callable[..., Store],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parity, "_TOLERANCES", {"fp32": (0.0, 0.0)})
    out = tmp_path / "bundle"
    assert main(["export", "--modules", str(make_store().path), "--out", str(out), "--quiet"]) == 2
    error = capsys.readouterr().err
    assert error.count("✗") == 9 and "no bundle was written" in error
    assert not out.exists()


def test_rubbish(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["info", str(tmp_path)], ["info", "/nowhere"], ["export", "--modules", str(tmp_path)]):
        assert main(arguments) == 2
        assert capsys.readouterr().err.startswith("pluto: error: ")


def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "CPUExecutionProvider" in text and "nothing wrong" in text
    assert main(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["problems"] == []


def test_doctor_sees_two_onnxruntimes() -> None:
    both = {"onnxruntime": "1.31.1", "onnxruntime-gpu": "1.31.1"}
    (twice, no_cuda) = doctor.problems(both, {"CPUExecutionProvider": "loads"})
    assert "both installed" in twice and "pip uninstall" in twice
    assert "no CUDA provider" in no_cuda
    (broken,) = doctor.problems({}, {"CUDAExecutionProvider": "libcudnn.so.9 is missing"})
    assert "libcudnn" in broken


def test_console_script() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pluto_edge.cli", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("pluto-edge ")
