"""Recordings that no stream made."""

from pathlib import Path

import numpy as np

from pluto_edge import AdaptConfig, Event
from pluto_edge.observe.recording import Header, Recorder, Recording, RivalLabels, Row
from pluto_edge.observe.sources import Frame
from pluto_edge.runtime.types import Point, StreamMetrics

HEADER = Header(
    bundle="digits/bundle",
    bundle_sha256="0" * 64,
    source="sim",
    classes=("0", "1", "2"),
    modules=("clear", "fog"),
    batch=4,
    every=4,
    budget=0.2,
    background=True,
    config=AdaptConfig(),
)
RIVALS = Header(
    **{**vars(HEADER), "modules": ("clear", "fog", "general"), "generalist": "general", "shipped": "clear"}
)
METRICS = StreamMetrics(60, 7, 2, 1, 3, 4, 2, 1.5, 0.25, 8.0, 20.0)


def made(
    conditions: dict[str, int], truth: bool = True, header: Header = HEADER, rivals: bool = False, seed: int = 0
) -> Recording:
    """So many frames of each condition, with random answers; the module `fog` is for fog."""
    rng, rows = np.random.default_rng(seed), []
    for name, count in conditions.items():
        for _ in range(count):
            right, weight = int(rng.integers(3)), 0.9 if name == "fog" else 0.2
            said = right if rng.random() < 0.7 else 0
            known = (right, name, int(rng.integers(3))) if truth else (None, name, None)
            others = ({n: int(rng.integers(3)) for n in header.modules}, int(rng.integers(3))) if rivals else ()
            frame = len(rows) + 1
            rows.append(Row(frame, 0.1 * frame, said, 0.5, {"clear": 1 - weight, "fog": weight}, *known, *others))
    events = (Event("step", 1, top="fog", samples=4, reliable=3, frame=4), Event("change", 1, "fog <up>", frame=31))
    return Recording(header, tuple(rows), events, METRICS)


def write(recording: Recording, file: Path) -> None:
    with Recorder(recording.header, file) as recorder:
        for r in recording.rows:
            point = Point(r.frame, r.seconds, r.label, r.entropy, tuple(r.weights), tuple(r.weights.values()))
            others = RivalLabels(r.alone, r.average, r.plain)  # type: ignore[arg-type]
            recorder.frame(point, Frame(np.zeros((1, 1, 3), np.uint8), r.truth, r.condition), others)
        for event in recording.events:
            recorder.event(event)
        recorder.end(METRICS)
