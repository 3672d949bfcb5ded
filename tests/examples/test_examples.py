"""What ships in examples/: it exports, it predicts, it is small."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pluto_edge import Runtime
from pluto_edge.export.exporter import run_export
from pluto_edge.observe import summary
from pluto_edge.observe.recording import read
from pluto_edge.store import Store

EXAMPLES = Path(__file__).parents[2] / "examples"
DIGITS = EXAMPLES / "digits"
MAX_BYTES = 8_000_000


def test_digits_store_and_bundle_are_small_and_whole() -> None:
    files = [p for folder in ("store", "bundle") for p in (DIGITS / folder).rglob("*") if p.is_file()]
    assert sum(p.stat().st_size for p in files) <= MAX_BYTES
    store = Store(DIGITS / "store")
    assert len(store.names) >= 6
    assert Runtime(DIGITS / "bundle").modules == store.names


def test_digits_export_reproduces_the_bundle(tmp_path: Path) -> None:
    report = run_export(DIGITS / "store", tmp_path / "bundle")
    assert all(e.passed for e in report.manifest.parity)
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)
    shipped, made = Runtime(DIGITS / "bundle").predict(frames), Runtime(tmp_path / "bundle").predict(frames)
    np.testing.assert_allclose(made.logits, shipped.logits, atol=1e-4)


def test_meter_digits_are_read(monkeypatch) -> None:
    """Freshly drawn digits in clear air: far above chance, and above what a broken pipeline could give."""
    monkeypatch.setattr(sys, "path", [str(DIGITS), *sys.path])
    import meter

    rng = np.random.default_rng(3)
    digits = rng.integers(0, 10, 100)
    frames = [meter.CONDITIONS["clear"](meter.render(rng, int(d)), rng) for d in digits]
    runtime = Runtime(DIGITS / "bundle")
    right = np.mean(
        [runtime.classes[i] == str(d) for i, d in zip(runtime.predict(frames).labels, digits, strict=True)]
    )
    assert right > 0.85
    again = meter.render(np.random.default_rng(5), 7)
    np.testing.assert_array_equal(again, meter.render(np.random.default_rng(5), 7))


# examples/camera_stream.py

SHORT = ("--frames", "90", "--hold", "10", "--batch", "16", "--threads", "1")
Camera = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def camera_stream(tmp_path: Path) -> Camera:
    """Run the example in an empty folder."""

    def run(*arguments: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(EXAMPLES / "camera_stream.py"), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
        assert done.returncode == code, done.stderr
        return done

    return run


TIMES = ("started", "seconds", "milliseconds")


def without_times(file: Path) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert lines[-1]["type"] == "metrics"
    return [{k: v for k, v in line.items() if k not in TIMES} for line in lines[:-1]]


def summary_without_times(text: str) -> list[str]:
    lines = text[text.index("condition ") :].splitlines()
    return [line for line in lines if not line.startswith(("frames", "latency", "time"))]


def test_a_seed_gives_the_same_run(camera_stream: Camera, tmp_path: Path) -> None:
    first, again = (camera_stream(*SHORT, "--record", name).stdout for name in ("a.jsonl", "b.jsonl"))
    assert summary_without_times(first) == summary_without_times(again)
    assert without_times(tmp_path / "a.jsonl") == without_times(tmp_path / "b.jsonl")
    with Image.open(tmp_path / "runs/camera_stream.png") as picture:
        assert picture.size == (1320, 864)
    camera_stream(*SHORT, "--record", "c.jsonl", "--seed", "1", "--no-plot")
    assert without_times(tmp_path / "a.jsonl") != without_times(tmp_path / "c.jsonl")


def test_several_seeds_are_one_report(camera_stream: Camera, tmp_path: Path) -> None:
    done = camera_stream(*SHORT, "--seeds", "2", "--record", "a.jsonl")
    assert sorted(p.name for p in tmp_path.glob("*.jsonl")) == ["a-0.jsonl", "a-1.jsonl"]
    recordings = [read(tmp_path / f"a-{seed}.jsonl") for seed in range(2)]
    assert summary.table(recordings) in done.stdout and "180 in 2 runs" in done.stdout
    assert [r.header.source for r in recordings] == ["sim, seed 0", "sim, seed 1"]
    for rival in ("clear", "average", "generalist", "without"):
        assert re.search(rf"adapted over {rival} +[+-]\d+\.\d points .* a run\); .*, p [=<] ", done.stdout)
    found = summary.paired(recordings, "adapted", "shipped")
    assert found is not None and f"{found.better:,} frames right where it is wrong" in done.stdout
    with Image.open(tmp_path / "runs/camera_stream.png") as picture:
        assert picture.size == (1320, 864)
    camera_stream(*SHORT, "--seed", "1", "--record", "b.jsonl", "--no-plot")
    assert without_times(tmp_path / "b.jsonl") == without_times(tmp_path / "a-1.jsonl")  # runs are apart


def test_the_recorded_run_is_what_the_runtime_says(
    camera_stream: Camera, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same frames by hand: a stream of its own, and `predict` for the answers without adaptation."""
    monkeypatch.setattr(sys, "path", [str(DIGITS), *sys.path])
    from camera import STORY, camera

    camera_stream(*SHORT, "--record", "a.jsonl", "--no-plot")
    recording = read(tmp_path / "a.jsonl")
    assert [r.condition for r in recording.rows[::10]] == [*STORY, STORY[0]]
    runtime = Runtime(DIGITS / "bundle", threads=1)
    stream = runtime.stream(batch=16, background=False)
    for row, frame in zip(recording.rows, islice(camera(0, 10), 90), strict=True):
        said, plain = stream(frame.image), runtime.predict(frame.image)
        assert (row.label, row.plain, row.truth) == (said.labels[0], plain.labels[0], frame.truth)
        assert row.alone.keys() == set(runtime.modules) and row.average is not None
    assert recording.metrics is not None
    assert recording.metrics.steps == stream.metrics.steps == 90 // 16
    assert [(e.kind, e.frame) for e in recording.events] == [(e.kind, e.frame) for e in stream.events]
    assert [e.frame for e in recording.events if e.kind == "step"][:3] == [16, 32, 48]


def test_the_camera_needs_no_torch(tmp_path: Path) -> None:
    code = f"""
import sys
sys.path.insert(0, {str(EXAMPLES)!r})
from camera_stream import main
assert main([*{SHORT!r}, "--state", "state.safetensors"]) == 0
print(*{{m.partition('.')[0] for m in sys.modules}})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert not set(done.stdout.splitlines()[-1].split()) & {
        "torch",
        "timm",
        "torchvision",
        "onnx",
        "onnxscript",
        "cv2",
    }
    assert (tmp_path / "state.safetensors").is_file()


def test_an_interrupted_run_still_has_its_summary(tmp_path: Path) -> None:
    command = [sys.executable, "-u", str(EXAMPLES / "camera_stream.py"), "--fps", "500", "--frames", "1000000"]
    command += ["--record", "a.jsonl", "--threads", "1", "--background"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    ) as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("frame 100"):
            assert process.poll() is None
        process.send_signal(signal.SIGTERM if os.name == "posix" else signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0 and err == ""
    assert "clear" in out and "latency of a prediction" in out and "in the background" in out
    metrics = read(tmp_path / "a.jsonl").metrics
    assert metrics is not None and metrics.frames >= 100


def test_a_folder_with_a_broken_image(camera_stream: Camera, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("3", "7"):
        (tmp_path / "frames" / name).mkdir(parents=True)
        for i in range(5):
            pixels = rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "frames" / name / f"{i}.png")
    done = camera_stream("--source", "frames", "--record", "a.jsonl", "--no-plot")
    rows = read(tmp_path / "a.jsonl").rows
    assert sorted(r.truth for r in rows if r.truth is not None) == [3] * 5 + [7] * 5
    right = sum(r.label == r.truth for r in rows) / 10
    oracle = summary.segments([read(tmp_path / "a.jsonl")])[0].accuracies["oracle"]
    assert re.search(rf"10 .* {right:.3f} +{oracle:.3f}", done.stdout)
    (tmp_path / "frames/7/4.png").write_bytes(b"x")
    done = camera_stream("--source", "frames", "--record", "b.jsonl", "--no-plot", "--seed", "2")
    assert done.stderr.count("passed over: ") == 1 and "4.png: not a readable image" in done.stderr
    assert "latency of a prediction" in done.stdout and len(read(tmp_path / "b.jsonl").rows) == 9


def test_a_folder_without_labels(camera_stream: Camera, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    (tmp_path / "frames").mkdir()
    for i in range(20):
        pixels = rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "frames" / f"{i}.png")
    done = camera_stream("--source", "frames", "--record", "a.jsonl", "--batch", "16", "--threads", "1")
    rows = read(tmp_path / "a.jsonl").rows
    assert len(rows) == 20 and all(r.truth is None and r.plain is None and not r.alone for r in rows)
    assert "entropy" in done.stdout and "adapted" not in done.stdout
    assert (tmp_path / "runs/camera_stream.png").is_file()


def test_what_cannot_be_run(camera_stream: Camera, tmp_path: Path, make_bundle: Callable[..., Path]) -> None:
    for arguments, message in (
        (("--source", "absent.mp4", "--record", "x.jsonl"), "no such file or folder"),
        (("--bundle", make_bundle()), "the simulated camera shows digits"),
        (("--batch", "0", "--record", "x.jsonl"), "batch: want at least 1"),
        (("--frames", "0"), "--frames: want more than 0"),
        (("--seeds", "0"), "--seeds: want more than 0"),
        (("--seeds", "2", "--view"), "--seeds: several runs are of the simulated camera"),
    ):
        assert message in camera_stream(*arguments, code=2).stderr
    assert not (tmp_path / "x.jsonl").exists()
