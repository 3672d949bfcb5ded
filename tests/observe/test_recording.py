"""What a recorder writes is what a reader gets, also when the run was killed; rubbish is refused by line."""

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pluto_edge import Event, Runtime
from pluto_edge.errors import RecordingError
from pluto_edge.observe import summary
from pluto_edge.observe.recording import Header, Recorder, read
from pluto_edge.observe.rivals import Rivals
from pluto_edge.observe.sources import Frame
from pluto_edge.runtime.types import Point
from tests.observe.recordings import HEADER

POINT = Point(1, 0.5, 1, 0.25, ("clear", "fog"), (0.25, 0.75))
FRAME = Frame(np.zeros((1, 1, 3), np.uint8))


@pytest.fixture
def recorded(make_bundle: Callable[..., Path], frames: np.ndarray, tmp_path: Path) -> Path:
    """Eleven frames and two steps of a real stream."""
    file = tmp_path / "new/run.jsonl"
    with Runtime(make_bundle()) as runtime:
        header = Header(**{**vars(HEADER), "classes": runtime.classes, "modules": runtime.modules})
        with Recorder(header, file) as recorder:
            stream = runtime.stream(batch=4, background=False, on_event=recorder.event)
            rivals = Rivals(stream.learner)
            for number, image in enumerate(frames):
                prediction = stream(image)
                row = recorder.frame(stream.timeline[-1], Frame(image, 1, "fog"), rivals(image))
                assert row.plain == runtime.predict(image).labels[0]
                assert row.label == prediction.labels[0] and row.frame == number + 1
                np.testing.assert_allclose(list(row.weights.values()), prediction.weights[0], atol=1e-4)
            kept = recorder.end(stream.metrics)
        assert kept.events == stream.events and [e.frame for e in kept.events] == [4, 8]
        assert read(file) == kept
    return file


def test_a_killed_run_is_read_up_to_its_last_whole_line(recorded: Path, tmp_path: Path) -> None:
    whole, data = read(recorded), recorded.read_bytes()
    lines = data.splitlines(keepends=True)
    assert len(lines) == 1 + 11 + 2 + 1 and whole.metrics is not None and whole.metrics.frames == 11
    cut = tmp_path / "cut.jsonl"
    start = len(data) - len(lines[-1]) - len(lines[-2])
    for length in range(start, len(data) - 1, 7):
        cut.write_bytes(data[:length])
        part = read(cut)
        done = length >= start + len(lines[-2]) - 1
        assert part.metrics is None and part.rows == whole.rows[: 11 if done else 10]


OLD = """
{"type": "header", "bundle": "digits/bundle", "bundle_sha256": "00", "source": "sim", "classes": ["0", "1"], \
"modules": ["clear"], "batch": 4, "every": 4, "budget": null, "background": false, "config": {}, \
"started": "2026-01-01T00:00:00+00:00", "writer": "pluto-edge 0.1.0", "schema_version": 1}
{"type": "frame", "frame": 1, "seconds": 0.1, "label": 1, "entropy": 0.5, "weights": {"clear": 1.0}, "truth": 1, \
"condition": "clear", "plain": 0}
{"type": "metrics", "frames": 1, "steps": 0, "gathered": 0, "rolled_back": 0, "skipped_busy": 0, \
"skipped_budget": 0, "changes": 0, "learning_seconds": 0.0, "learning_share": 0.0, "latency_median": 1.0, \
"latency_p99": 2.0}
"""


def test_a_recording_from_before_rivals_were_recorded(tmp_path: Path) -> None:
    (tmp_path / "old.jsonl").write_text(OLD.strip() + "\n")
    recording = read(tmp_path / "old.jsonl")
    assert recording.rows[0].alone == {} and recording.rows[0].average is None
    assert recording.header.shipped == "" and recording.metrics is not None and recording.metrics.differing is None
    assert list(summary.answers(recording)) == ["without", "adapted"]
    assert "each predicted twice" in summary.table([recording])


def test_every_line_is_on_disk_at_once(tmp_path: Path) -> None:
    recorder = Recorder(HEADER, tmp_path / "x.jsonl")
    recorder.frame(POINT, FRAME)
    assert len(read(tmp_path / "x.jsonl").rows) == 1
    recorder.close()


def test_events_come_from_any_thread(tmp_path: Path) -> None:
    with Recorder(HEADER, tmp_path / "x.jsonl") as recorder:
        recorder.frame(POINT, FRAME)
        threads = [
            threading.Thread(target=lambda: [recorder.event(Event("step", n)) for n in range(100)])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [e.step for e in recorder.last_events(2)][-1] == 99
    assert len(read(tmp_path / "x.jsonl").events) == 400


def test_nothing_is_overwritten_and_nothing_empty_stays(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text("mine")
    with pytest.raises(RecordingError, match="is there already"):
        Recorder(HEADER, file)
    assert file.read_text() == "mine"
    with Recorder(HEADER, tmp_path / "y.jsonl"):
        assert (tmp_path / "y.jsonl").exists()
    assert not (tmp_path / "y.jsonl").exists()


ROW = {"type": "frame", "frame": 9, "seconds": 1.0, "label": 0, "entropy": 0.1, "weights": {"fog": 1.0}}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[1]", "want an object, got list"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"type": "frame", "frame": NaN}', "not valid JSON"),
        (b'{"type": "picture"}', "want a frame, an event or metrics, got 'picture'"),
        ({**ROW, "label": 3}, "label: want a class from 0 to 2, got 3"),
        ({**ROW, "truth": -1}, "truth: want a class"),
        ({**ROW, "plain": True}, "plain: want int"),
        ({**ROW, "average": 7}, "average: want a class from 0 to 2, got 7"),
        ({**ROW, "alone": {"fog": -1}}, "alone.fog: want a class"),
        ({**ROW, "frame": 1}, "frame 1 comes after frame 1"),
        ({**ROW, "weights": {}}, "weights: want at least one"),
        ({**ROW, "weights": [1.0]}, "weights: want an object"),
        ({**ROW, "entropy": "low"}, "entropy: want float"),
        ({k: v for k, v in ROW.items() if k != "seconds"}, "'seconds' is missing"),
        ({"type": "event", "kind": "party", "step": 1}, "kind: want one of"),
        ({"type": "metrics"}, "'frames' is missing"),
        ({**ROW, "condition": "fog\ud800"}, "condition: want text, got '\\ud800' in it"),
        ({**ROW, "weights": {"\udcff": 1.0}}, "want text, got '\\udcff' in it"),
        (b" " * 2_000_000, "is longer than 1,000,000 bytes"),
    ],
)
def test_rubbish_is_refused_with_its_line(line: bytes | dict[str, object], message: str, tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    with Recorder(HEADER, file) as recorder:
        recorder.frame(POINT, FRAME)
    raw = line if isinstance(line, bytes) else json.dumps(line).encode()
    file.write_bytes(file.read_bytes() + raw + b"\n")
    with pytest.raises(RecordingError, match=r"x\.jsonl, line 3") as error:
        read(file)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("hello", "line 1: not valid JSON"),
        ('{"file": "1.png", "class": "cat", "entropy": 0.1}\n', "line 1: want a header"),
        ('{"type": "header", "schema_version": 99}\n', "newer than this pluto-edge understands"),
        ('{"type": "header", "schema_version": 1}\n', "line 1: key 'bundle' is missing"),
    ],
)
def test_what_is_no_recording(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(text)
    with pytest.raises(RecordingError, match=message):
        read(tmp_path / "x.jsonl")


def test_names_of_files_that_are_no_text_can_be_recorded(tmp_path: Path) -> None:
    """A folder's name may be any bytes; Python then has half characters in it."""
    file = tmp_path / "x.jsonl"
    with Recorder(replace(HEADER, source="frames-\udcff"), file) as recorder:
        recorder.frame(POINT, replace(FRAME, condition="\udc80"))
    recording = read(file)
    assert (recording.header.source, recording.rows[0].condition) == ("frames-?", "?")


def test_a_recording_without_frames(recorded: Path, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(recorded.read_bytes().splitlines(keepends=True)[0])
    with pytest.raises(RecordingError, match="holds no frame"):
        read(tmp_path / "x.jsonl")
