"""Has the camera come to see something else? A cheap test on what every prediction gives anyway."""

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Wide = NDArray[np.float64]

WINDOW = 16  # recent frames
HISTORY = 32  # frames before those, at least, to compare with
HORIZON = 256  # frames that the past's mean and variance reach back
SIGMAS = 5.0  # that the recent mean must be away from the past's,
SHIFT = 0.1  # and at least so far: of ln K for the entropy, of 1 for a weight


class ChangeDetector:
    """Compares the mean of the last frames' signals with that of the frames before them.

    The signals are the prediction's entropy as a share of ln K and every module's weight. A frame enters the past
    when it leaves the window; after a change the past starts anew.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = ("entropy", *names)
        self._recent: deque[Wide] = deque(maxlen=WINDOW)
        self._count, self._mean = 0, np.zeros(len(self._names))
        self._square = np.zeros(len(self._names))

    def update(self, entropy: float, weights: NDArray[np.floating]) -> str:
        """Take one frame's signals; says what has changed, or nothing."""
        if len(self._recent) == WINDOW:
            self._remember(self._recent[0])
        self._recent.append(np.array([entropy, *weights]))
        if len(self._recent) < WINDOW or self._count < HISTORY:
            return ""
        recent = np.stack(self._recent)
        shift = recent.mean(axis=0) - self._mean
        past = np.maximum(self._square - self._mean**2, 0.0)
        error = np.sqrt((past + recent.var(axis=0)) / WINDOW) + 1e-9
        moved = np.flatnonzero((np.abs(shift) > SIGMAS * error) & (np.abs(shift) > SHIFT))
        if not len(moved):
            return ""
        most = moved[np.argsort(-np.abs(shift[moved]))][:3]
        text = ", ".join(f"{self._names[i]} {self._mean[i]:.2f} to {self._mean[i] + shift[i]:.2f}" for i in most)
        self._count = 0
        self._recent.clear()
        return text

    def _remember(self, signals: Wide) -> None:
        self._count = min(self._count + 1, HORIZON)
        share = 1 / self._count
        self._mean = self._mean + share * (signals - self._mean)
        self._square = self._square + share * (signals**2 - self._square)
