"""`Timeline`: the frames of a stream as they came, and how long their predictions took."""

from collections import deque
from collections.abc import Callable

import numpy as np

from pluto_edge.runtime.types import Point, Prediction

__all__ = ["MAX_POINTS", "Timeline"]

MAX_POINTS = 2000
MAX_LATENCIES = 2000


class Timeline:
    """Keeps the last frames as points, and the last latencies; its time is what `clock` says, in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.points: deque[Point] = deque(maxlen=MAX_POINTS)
        self._latencies: deque[float] = deque(maxlen=MAX_LATENCIES)  # milliseconds
        self._clock = clock
        self._began = clock()

    @property
    def seconds(self) -> float:
        """Since the stream began."""
        return self._clock() - self._began

    def add(self, frame: int, prediction: Prediction, asked: float) -> None:
        """One more frame, by its number and as it was predicted; `asked` is when its prediction was asked for."""
        now = self.seconds
        self._latencies.append(1e3 * (now - asked))
        self.points.append(
            Point(
                frame=frame,
                seconds=now,
                label=int(prediction.labels[0]),
                entropy=float(prediction.entropy[0]),
                modules=prediction.modules,
                weights=tuple(prediction.weights[0].tolist()),
            )
        )

    def latency(self, percent: float) -> float:
        """Milliseconds that this share of the last predictions took at most; 0 before the first."""
        return float(np.percentile(self._latencies or [0.0], percent))
