"""Has the camera come to see something else? A cheap test on what every prediction gives anyway."""

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pluto_edge._arrays import Wide

WINDOW = 16  # recent frames
HISTORY = 32  # frames before those, at least, to compare with
HORIZON = 256  # frames that the past's mean and variance reach back
SIGMAS = 5.0  # that the recent mean must be away from the past's,
SHIFT = 0.1  # and at least so far: of ln K for the entropy, of 1 for a weight
LOOKS = 0.4  # mean square shift of x̂, in deviations of single frames; without a change about 1/16 + 1/256


class ChangeDetector:
    """Compares the mean of the last frames' signals with that of the frames before them.

    The signals are the prediction's entropy as a share of ln K, every module's weight, and what the frame looks
    like to the selector, x̂. A frame enters the past when it leaves the window; after a change the past starts anew.
    Where other modules run than before (`other_modules`), the past of entropy and weights does, and x̂ alone tells.
    """

    def __init__(self, names: Sequence[str] = ()) -> None:
        self._names = ("entropy", *names)
        self._recent: deque[Wide] = deque(maxlen=WINDOW)
        self._counts = np.zeros(2, np.intp)  # frames in the past: of entropy and weights, and of x̂
        self._mean = np.zeros(1)
        self._square = np.zeros(1)

    def other_modules(self) -> None:
        """The next frames are predicted by other modules; those in the window do not count for the past either."""
        self._counts[0] = -len(self._recent)

    def update(
        self, entropy: float, weights: NDArray[np.floating] | Sequence[float], x_hat: NDArray[np.floating]
    ) -> str:
        """Take one frame's signals; says what has changed, or nothing."""
        if len(self._recent) == WINDOW:
            self._remember(self._recent[0])
        self._recent.append(np.array([entropy, *weights, *x_hat], np.float64))
        if len(self._recent) < WINDOW or self._counts[1] < HISTORY:
            return ""
        change = self._compare(np.stack(self._recent))
        if change:
            self._counts[:] = 0
            self._recent.clear()
        return change

    def _compare(self, recent: Wide) -> str:
        known = len(self._names)
        shift = recent.mean(axis=0) - self._mean
        past = np.maximum(self._square - self._mean**2, 0.0)
        error = np.sqrt((past + recent.var(axis=0))[:known] / WINDOW) + 1e-9
        size = np.abs(shift[:known])
        moved = np.flatnonzero((size > SIGMAS * error) & (size > SHIFT) & (self._counts[0] >= HISTORY))
        most = moved[np.argsort(-size[moved])][:3]
        text = [f"{self._names[i]} {self._mean[i]:.2f} to {self._mean[i] + shift[i]:.2f}" for i in most]
        varies = past[known:] > 1e-12
        looks = float((shift[known:][varies] ** 2 / past[known:][varies]).mean()) if varies.any() else 0.0
        if looks > LOOKS:
            text.append(f"looks {np.sqrt(looks):.1f} deviations away")
        return ", ".join(text)

    def _remember(self, signals: Wide) -> None:
        self._counts = np.minimum(self._counts + 1, HORIZON)
        known = len(self._names)
        share = np.repeat(1 / np.maximum(self._counts, 1), (known, len(signals) - known))
        self._mean = self._mean + share * (signals - self._mean)
        self._square = self._square + share * (signals**2 - self._square)
