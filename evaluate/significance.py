"""How sure a figure is: paired bootstrap over images, and McNemar's exact test.

What is drawn again is images, within each target. An image that was predicted in several orders is one image, with
its mean over the orders: orders of the same images are no new images.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp, lgamma, log

import numpy as np
from numpy.typing import NDArray

DRAWS, SEED = 2000, 0
LEVEL = 0.05  # intervals are of 95 %, and a p below it is significant

Whole = NDArray[np.int64]


@dataclass(frozen=True)
class Scores:
    """Of every image of a target: its points over the orders, and in how many orders it was predicted."""

    points: Whole
    orders: Whole

    @property
    def mean(self) -> float:
        """Points over all images and orders: the accuracy, or the difference of two."""
        return float(self.points.sum() / self.orders.sum())


def collect(orders: Iterable[tuple[Sequence[int], NDArray[np.integer]]]) -> Scores:
    """From each order: which images, and their points (1 for right; for two methods, the difference)."""
    found = list(orders)
    size = 1 + max(max(images) for images, _ in found)
    points, count = np.zeros(size, np.int64), np.zeros(size, np.int64)
    for images, values in found:
        index = np.array(images)
        points[index] += values
        count[index] += 1
    return Scores(points[count > 0], count[count > 0])


def interval(targets: Sequence[Scores]) -> tuple[float, float]:
    """The 95 % interval of the mean, averaged over the targets."""
    rng = np.random.default_rng(SEED)
    means = np.mean([_resampled(scores, rng) for scores in targets], axis=0)
    low, high = np.quantile(means, [LEVEL / 2, 1 - LEVEL / 2])
    return float(low), float(high)


def _resampled(scores: Scores, rng: np.random.Generator) -> NDArray[np.float64]:
    """The mean of as many images, drawn with replacement, many times.

    Images with the same points and orders are alike, so what is drawn is how many there are of each kind.
    """
    kinds, count = np.unique(np.stack([scores.points, scores.orders]), axis=1, return_counts=True)
    drawn = rng.multinomial(count.sum(), count / count.sum(), size=DRAWS)
    return np.asarray((drawn @ kinds[0]) / (drawn @ kinds[1]))


def mcnemar(better: int, worse: int) -> float:
    """The exact two-sided p for images on which one of two is better, and those on which it is worse."""
    count = better + worse
    if count == 0:
        return 1.0
    logs = [
        lgamma(count + 1) - lgamma(k + 1) - lgamma(count - k + 1) - count * log(2)
        for k in range(min(better, worse) + 1)
    ]
    return min(1.0, 2 * sum(map(exp, logs)))
