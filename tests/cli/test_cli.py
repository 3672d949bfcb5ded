"""The commands as a user types them."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pluto_edge._cpu import this_cpu
from pluto_edge.cli import COMMANDS, doctor, main
from pluto_edge.export import parity
from pluto_edge.store import Store
from tests.bundles import edit


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
    assert text.count("✓") == 34
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
    assert len(report["parity"]) == 33 and all(e["passed"] for e in report["parity"])
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
    monkeypatch.setattr(parity, "_TOLERANCES", {"fp32": (1e-30, 1e-30, 1e-30)})
    out = tmp_path / "bundle"
    assert main(["export", "--modules", str(make_store().path), "--out", str(out), "--quiet"]) == 2
    error = capsys.readouterr().err
    assert error.count("✗") == 12 and "no bundle was written" in error
    assert not out.exists()


def write_stream(root: Path, classes: tuple[str, ...], count: int) -> None:
    rng = np.random.default_rng(0)
    for name in classes:
        (root / name).mkdir(parents=True)
        for i in range(count):
            pixels = rng.integers(0, 256, (40, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{i}.png")


def test_run_streams_folders(
    make_bundle: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_stream(tmp_path / "day", ("class-0", "class-1"), 6)
    write_stream(tmp_path / "night", ("class-0",), 5)
    state, out = str(tmp_path / "state"), tmp_path / "out.jsonl"
    folders = [str(tmp_path / "day"), str(tmp_path / "night")]
    arguments = [
        "run",
        str(make_bundle()),
        *folders,
        "--batch",
        "4",
        "--compare",
        "--state",
        state,
        "--out",
        str(out),
    ]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert "no learning" in text and "after reset" in text
    steps = [line for line in text.splitlines() if line.split()[:1] and line.split()[0].isdigit()]
    assert len(steps) == 3 + 2
    assert len(out.read_text().splitlines()) == 17 and set(json.loads(out.read_text().splitlines()[0])) == {
        "file",
        "class",
        "entropy",
    }
    assert Path(state).is_file()
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.split()}
    assert rows["day"][1] == rows["day"][3] and rows["all"][0] == "17"  # a reset is as if nothing was learned
    assert main(["run", str(make_bundle()), *folders, "--batch", "4", "--predict-only", "--limit", "3"]) == 0
    assert "learning" in capsys.readouterr().out


def test_run_on_rubbish(
    make_bundle: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = str(make_bundle())
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/x.png").write_bytes(b"x")
    for folder, message in (
        ("absent", "no such folder"),
        ("empty", "holds no image"),
        ("broken", "not a readable"),
    ):
        assert main(["run", bundle, str(tmp_path / folder)]) == 2
        assert message in capsys.readouterr().err
    assert main(["run", bundle, str(tmp_path), "--batch", "0"]) == 2


def test_rubbish(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["info", str(tmp_path)], ["info", "/nowhere"], ["export", "--modules", str(tmp_path)]):
        assert main(arguments) == 2
        assert capsys.readouterr().err.startswith("pluto: error: ")


def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "CPUExecutionProvider" in text and "nothing wrong" in text
    assert str(this_cpu()) in text
    assert main(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["problems"] == []


def test_doctor_sees_two_onnxruntimes() -> None:
    both = {"onnxruntime": "1.31.1", "onnxruntime-gpu": "1.31.1"}
    (twice, no_cuda) = doctor.problems(both, {"CPUExecutionProvider": "loads"})
    assert "both installed" in twice and "pip uninstall" in twice
    assert "no CUDAExecutionProvider" in no_cuda
    (broken,) = doctor.problems({}, {"CUDAExecutionProvider": "libcudnn.so.9 is missing"})
    assert "libcudnn" in broken


def test_console_script() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pluto_edge.cli", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("pluto-edge ")


def test_info_prints_no_control_characters(broken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A bundle from anywhere must not move the cursor, ring the bell or break the output."""

    def spoil(manifest: dict[str, Any]) -> None:
        manifest["classes"][0] = "\x1b[31mred\x07\u202e"
        manifest["modules"][0]["source"] = "\x1b]0;title\x07"
        manifest["writer"] = "evil\r\x1b[2K"

    edit(broken, spoil)
    assert main(["info", str(broken)]) == 0
    out = capsys.readouterr().out
    assert "\\x1b[31mred\\x07\\u202e" in out and "\\x1b]0;title" in out
    assert all(c.isprintable() or c == "\n" for c in out)


def test_descriptions_are_text(broken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Half a character can be written in JSON, and nowhere else."""
    edit(broken, lambda manifest: manifest.update(classes=["half \ud800", *manifest["classes"][1:]]))
    assert main(["info", str(broken)]) == 2
    assert "manifest.json.classes[0]: want text, got '\\ud800' in it" in capsys.readouterr().err


def test_output_that_the_terminal_cannot_show(make_bundle: Callable[..., Path]) -> None:
    """Tables have rules, and names of files may be anything."""
    command = [sys.executable, "-m", "pluto_edge.cli", "info", str(make_bundle())]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\u2500" in done.stdout


def test_errors_print_no_control_characters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(tmp_path / "\x1b[31m")]) == 2
    assert "\\x1b[31m" in capsys.readouterr().err


def test_a_missing_onnxruntime_says_what_to_type() -> None:
    code = "import sys; sys.modules['onnxruntime'] = None; import pluto_edge._ort"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert 'onnxruntime is not installed; run: pip install "pluto-edge[cpu]" (or "pluto-edge[gpu]")' in done.stderr
