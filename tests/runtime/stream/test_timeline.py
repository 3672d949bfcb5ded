"""The frames of a stream as they came, and how long their predictions took."""

import numpy as np
import pytest

from pluto_edge.runtime.stream import timeline
from pluto_edge.runtime.stream.timeline import Timeline
from pluto_edge.runtime.types import Prediction


def prediction(label: int) -> Prediction:
    probabilities = np.full((1, 3), 0.1, np.float32)
    probabilities[0, label] = 0.8
    return Prediction(
        labels=np.array([label]),
        classes=("abc"[label],),
        probabilities=probabilities,
        logits=np.log(probabilities),
        weights=np.array([[0.25, 0.75]], np.float32),
        modules=("one", "two"),
        selected=("two", "one"),
        entropy=np.array([0.5], np.float32),
    )


def test_points_and_latencies() -> None:
    now = [100.0]
    line = Timeline(lambda: now[0])
    assert line.seconds == 0 and line.latency(50) == 0
    for number, took in enumerate((0.01, 0.02, 0.06), 1):
        asked = line.seconds
        now[0] += took
        line.add(number, prediction(number % 3), asked)
        now[0] += 1  # what happens between frames is no part of a latency
    assert [p.frame for p in line.points] == [1, 2, 3]
    assert [p.label for p in line.points] == [1, 2, 0]
    assert [p.seconds for p in line.points] == pytest.approx([0.01, 1.03, 2.09])
    assert line.points[0].modules == ("one", "two") and line.points[0].weights == (0.25, 0.75)
    assert line.latency(50) == pytest.approx(20) and line.latency(100) == pytest.approx(60)


def test_it_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "MAX_POINTS", 20)
    monkeypatch.setattr(timeline, "MAX_LATENCIES", 10)
    now = [0.0]
    line = Timeline(lambda: now[0])
    for number in range(1, 31):
        now[0] = float(number)
        line.add(number, prediction(0), asked=now[0] - (1.0 if number <= 20 else 0.5))
    assert [p.frame for p in line.points] == list(range(11, 31))
    assert line.latency(100) == pytest.approx(500)  # the slow ones are forgotten
