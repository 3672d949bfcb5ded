"""`pluto predict`: images, folders, videos and standard input."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pluto_edge import Runtime
from pluto_edge.cli import main
from tests.cli.typed import typed


@pytest.fixture
def frames(tmp_path: Path) -> Path:
    folder, rng = tmp_path / "frames", np.random.default_rng(3)
    for name in ("b.png", "a.png", "sub/c.png"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(folder / name)
    return folder


def test_images_and_folders(
    make_bundle: Callable[..., Path], frames: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = make_bundle()
    assert main(["predict", str(bundle), str(frames / "b.png"), str(frames)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[0] for line in lines] == [
        str(frames / name) for name in ("b.png", "a.png", "b.png", "sub/c.png")
    ]
    said = Runtime(bundle).predict(Image.open(frames / "b.png"))
    assert f": {said.classes[0]} {said.probabilities[0].max():.3f} ({said.selected[0]} 0." in lines[0]
    assert lines[0] == lines[2]  # an image's neighbours have no say


def test_lines_of_json(make_bundle: Callable[..., Path], frames: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = make_bundle()
    assert main(["predict", str(bundle), str(frames), "--json", "--limit", "2"]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    said = Runtime(bundle).predict(Image.open(frames / "a.png"))
    assert first["source"] == str(frames / "a.png") and (first["frame"], second["frame"]) == (1, 2)
    assert (first["class"], first["label"]) == (said.classes[0], said.labels[0])
    assert first["confidence"] == pytest.approx(said.probabilities[0].max(), abs=1e-6)
    weights = dict(zip(said.modules, said.weights[0], strict=True))
    assert sum(first["modules"].values()) == pytest.approx(1, abs=1e-4)
    assert all(first["modules"][name] == pytest.approx(weights[name], abs=1e-5) for name in first["modules"])


def test_standard_input(make_bundle: Callable[..., Path], frames: Path) -> None:
    bundle = make_bundle()
    done = typed("predict", bundle, "-", "--json", stdin=(frames / "a.png").read_bytes())
    assert done.returncode == 0 and json.loads(done.stdout)["source"] == "-"
    done = typed("predict", bundle, "-", stdin=b"no image")
    assert done.returncode == 2 and "standard input: not a readable image" in done.stderr


def test_a_broken_image_is_passed_over(
    make_bundle: Callable[..., Path], frames: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = io.BytesIO()
    Image.new("RGB", (64, 64), "red").save(whole, "jpeg")
    (frames / "cut.jpg").write_bytes(whole.getvalue()[:300])
    assert main(["predict", str(make_bundle()), str(frames)]) == 0
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 3 and "passed over: " in said.err and "cut.jpg" in said.err
    assert main(["predict", str(make_bundle()), str(frames / "cut.jpg")]) == 2
    assert "no image could be read" in capsys.readouterr().err


def test_a_video_by_frame(
    make_bundle: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cv2 = pytest.importorskip("cv2")
    writer = cv2.VideoWriter(str(tmp_path / "clip.avi"), cv2.VideoWriter_fourcc(*"MJPG"), 10, (48, 32))
    for value in range(4):
        writer.write(np.full((32, 48, 3), 60 * value, np.uint8))
    writer.release()
    assert main(["predict", str(make_bundle()), str(tmp_path / "clip.avi"), "--limit", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[0] for line in lines] == [f"{tmp_path / 'clip.avi'} frame {i}" for i in (1, 2, 3)]


def test_with_what_was_learned(
    make_bundle: Callable[..., Path], frames: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle, state = make_bundle(), tmp_path / "state.safetensors"
    runtime = Runtime(bundle)
    runtime.step([Image.open(f) for f in frames.glob("*.png")])
    runtime.save(state)
    assert main(["predict", str(bundle), str(frames / "a.png"), "--json", "--state", str(state)]) == 0
    said = json.loads(capsys.readouterr().out)
    expected = runtime.predict(Image.open(frames / "a.png")).probabilities[0].max()
    assert said["confidence"] == pytest.approx(expected, abs=1e-6)
    assert main(["predict", str(bundle), str(frames), "--state", str(tmp_path / "absent")]) == 2


def test_what_cannot_be_predicted(
    make_bundle: Callable[..., Path], frames: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    bundle = str(make_bundle())
    for sources, message in (
        (["absent.jpg"], "no such file or folder"),
        ([str(frames), "absent.jpg"], "no such file or folder"),
        ([str(tmp_path / "empty")], "holds no image"),
        ([str(frames), "--limit", "0"], "--limit: want at least 1"),
    ):
        assert main(["predict", bundle, *sources]) == 2
        said = capsys.readouterr()
        assert message in said.err and said.out == ""  # nothing before it, either


@pytest.mark.skipif(os.name != "posix", reason="pipes of POSIX")
def test_a_reader_that_has_enough(make_bundle: Callable[..., Path], frames: Path) -> None:
    """`pluto predict ... | head -1` ends without a word about it."""
    command = [sys.executable, "-m", "pluto_edge.cli", "predict", str(make_bundle()), *[str(frames)] * 20]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        assert b"a.png: " in process.stdout.readline()
        process.stdout.close()
        assert (process.wait(), process.stderr.read()) == (141, b"")
