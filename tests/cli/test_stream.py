"""`pluto stream`: what it prints, records, saves and logs."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pluto_edge import Runtime
from pluto_edge.cli import main
from pluto_edge.observe import summary
from pluto_edge.observe.recording import Recorder, read
from tests.cli.typed import ROOT
from tests.observe.recordings import HEADER, made, write

SHORT = ("--batch", "8", "--threads", "1")


@pytest.fixture
def frames(tmp_path: Path) -> Path:
    folder, rng = tmp_path / "frames", np.random.default_rng(3)
    folder.mkdir()
    for number in range(20):
        Image.fromarray(rng.integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(folder / f"{number:02}.png")
    return folder


def test_a_folder_is_a_stream(
    make_bundle: Callable[..., Path], frames: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle, record, state = make_bundle(), tmp_path / "run.jsonl", tmp_path / "state.safetensors"
    fixed = ["stream", str(bundle), str(frames), *SHORT, "--state", str(state)]
    assert main([*fixed, "--record", str(record)]) == 0
    recording = read(record)
    assert f"{summary.table([recording])}\n" in capsys.readouterr().out
    stream = Runtime(bundle, threads=1).stream(batch=8, background=False)
    said = [stream(np.asarray(Image.open(f))).labels[0] for f in sorted(frames.iterdir())]
    assert [row.label for row in recording.rows] == said and not recording.header.background
    assert recording.metrics is not None and recording.metrics.steps == stream.metrics.steps
    assert state.is_file()
    assert main([*fixed, "--frames", "3"]) == 0  # goes on from there
    assert re.search(r"\(not known\) +3 ", capsys.readouterr().out)


def test_json_is_the_recording(
    make_bundle: Callable[..., Path], frames: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "run.jsonl"
    more = ("--json", "--record", str(record), "--view", "127.0.0.1:0")
    assert main(["stream", str(make_bundle()), str(frames), *SHORT, *more]) == 0
    said = capsys.readouterr()
    lines = [json.loads(line) for line in said.out.splitlines()]
    assert lines == [json.loads(line) for line in record.read_text("utf-8").splitlines()]
    assert [line["type"] for line in lines if line["type"] != "event"] == ["header", *["frame"] * 20, "metrics"]
    assert "watch it at http://127.0.0.1:" in said.err


def test_events_are_logged_and_passwords_are_not(
    make_bundle: Callable[..., Path], frames: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = ("--token", "a-secret-of-24-characters")
    assert main(["stream", str(make_bundle()), str(frames), *SHORT, "--log-json", *secret]) == 0
    said = capsys.readouterr()
    lines = [json.loads(line) for line in said.err.splitlines()]
    events = [line["event"] for line in lines if "event" in line]
    assert [e["frame"] for e in events if e["samples"] == 8] == [8, 16]  # steps, committed or not
    assert lines[0]["command"] == "stream" and lines[-1]["code"] == 0
    assert "a-secret" not in said.err
    assert main(["stream", str(make_bundle()), "rtsp://me:secret@127.0.0.1:9/x", "--log-json"]) == 2
    last = capsys.readouterr().err
    assert "me:secret" not in last and json.loads(last.splitlines()[-2])["level"] == "error"


def test_a_picture_is_not_overwritten_unawares(
    make_bundle: Callable[..., Path], frames: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "a.png"
    command = ["stream", str(make_bundle()), str(frames), *SHORT, "--frames", "9", "--plot", str(picture)]
    assert main(command) == 0
    before = picture.read_bytes()
    picture.write_bytes(b"mine")
    assert main(command) == 2 and picture.read_bytes() == b"mine"
    assert "is there already; overwrite it with --force" in capsys.readouterr().err
    assert main([*command, "--force"]) == 0 and len(picture.read_bytes()) > len(before) / 2


def test_what_cannot_be_watched(
    make_bundle: Callable[..., Path], frames: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = str(make_bundle())
    for more, message in (
        (["absent.mp4"], "no such file or folder"),
        ([str(frames), "--fps", "0"], "--fps: want more than 0"),
        ([str(frames), "--view", "nowhere"], "--view: want HOST:PORT"),
        ([str(frames), "--batch", "0"], "batch: want at least 1"),
    ):
        assert main(["stream", bundle, *more, "--record", str(tmp_path / "x.jsonl")]) == 2
        assert message in capsys.readouterr().err
        assert not (tmp_path / "x.jsonl").exists()


def test_replay_of_a_running_recording_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.jsonl"
    code = f"""
import sys
from itertools import islice
from pathlib import Path
from pluto_edge.observe.recording import Recorder
from tests.observe.recordings import HEADER, made
recorder = Recorder(HEADER, Path({str(file)!r}))
for row in made({{"clear": 30}}).rows:
    recorder.rows.append(row)
    recorder._write("frame", row)
print("written", flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True) as writer:
        assert writer.stdout is not None and writer.stdout.readline() == "written\n"
        assert main(["replay", str(file), "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert said["running"] and said["figures"]["metrics"] == "none: the run is still running"
        writer.kill()
    assert main(["replay", str(file), "--force"]) == 0
    assert "none: the run was killed" in capsys.readouterr().out
    assert "the run was killed" in (tmp_path / "run.html").read_text("utf-8")


def test_a_recording_that_ended_is_not_running(tmp_path: Path) -> None:
    with Recorder(HEADER, tmp_path / "a.jsonl") as recorder:
        for row in islice(made({"clear": 30}).rows, 5):
            recorder.rows.append(row)
            recorder._write("frame", row)
        assert read(tmp_path / "a.jsonl").running
    assert not read(tmp_path / "a.jsonl").running
    write(made({"clear": 3}), tmp_path / "b.jsonl")
    assert not read(tmp_path / "b.jsonl").running
