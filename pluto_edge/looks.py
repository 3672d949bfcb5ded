"""How the sources of modules look, as points: what a device compares its images with, for its own modules and for
thousands in a repository's index alike.

A signature says how its module's source looks before any module runs: mean and covariance of x̂. In coordinates in
which the modules' average covariance is the identity, a domain is a point y_j with a spread e_j. Images fit a
domain if their mean is not farther from y_j than chance allows. (Beyond the paper. The bounds were chosen on
development domains: docs/adaptation.md.)
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pluto_edge._arrays import Wide, sigmoid

__all__ = ["DRIFT", "Looks"]

FLOOR = 0.1  # of the mean variance, that every direction gets: covariances of a few hundred images overfit
TEMPER = 2.0  # divides log-likelihoods: images have heavier tails than Gaussians
DRIFT = 64.0  # images whose mean is as uncertain as a known domain may drift
FITS, FEW, CHANCE = 0.85, 1.5, 1.5  # a domain fits below FITS + FEW/sqrt(images) + CHANCE sqrt(2/directions)
SOFT = 0.1  # it is half trusted at that bound, and more or less around it
PIECE = 512  # domains whose covariances are computed with at a time: it bounds the memory

Numbers = NDArray[np.floating]


@dataclass(frozen=True)
class Looks:
    """The looks of N domains, ready to be compared with images."""

    origin: Wide  # [d]
    whiten: Wide  # [d,d]
    points: Wide  # [N,d], y_j
    spreads: Wide  # [N], e_j
    directions: Wide  # [N], how many a domain really varies in: the fewer, the more its mean varies by chance

    @classmethod
    def of(cls, means: Numbers, factors: Numbers, noises: Numbers) -> "Looks":
        """From means [N,d] and covariances: `factors` [N,r,d] have the directions of large variance, rows of zeros
        where there are fewer, and `noises` [N] the variance of all others. No domain becomes a [d,d] matrix."""
        count, _, width = factors.shape
        pooled = sum((rows.T @ rows for rows in _rows(factors)), np.zeros((width, width))) / count
        pooled += noises.mean(dtype=np.float64) * np.eye(width)
        pooled += FLOOR * np.trace(pooled) / width * np.eye(width)
        whiten = np.linalg.cholesky(np.linalg.inv(pooled))
        return cls._placed(means.mean(axis=0, dtype=np.float64), whiten, means, factors, noises)

    def others(self, means: Numbers, factors: Numbers, noises: Numbers) -> "Looks":
        """Other domains in the same coordinates."""
        return self._placed(self.origin, self.whiten, means, factors, noises)

    @classmethod
    def _placed(cls, origin: Wide, whiten: Wide, means: Numbers, factors: Numbers, noises: Numbers) -> "Looks":
        count, _, width = factors.shape
        noise = noises.astype(np.float64)
        metric = whiten.T @ whiten
        traces = np.empty(count)
        squares = np.empty(count)  # of every element of the whitened covariance, summed
        for start in range(0, count, PIECE):
            part = slice(start, start + PIECE)
            along = factors[part].astype(np.float64) @ whiten
            inner = along @ along.transpose(0, 2, 1)
            crossed = np.einsum("nrd,nrd->n", along @ metric, along)
            traces[part] = np.trace(inner, axis1=1, axis2=2) + noise[part] * np.trace(metric)
            squares[part] = np.square(inner).sum(axis=(1, 2)) + 2 * noise[part] * crossed
        squares += np.square(noise) * np.square(metric).sum()
        traces = np.maximum(traces, 1e-6 * width)
        return cls(
            origin=origin,
            whiten=whiten,
            points=(means.astype(np.float64) - origin) @ whiten,
            spreads=traces / width,
            directions=np.maximum(np.square(traces) / np.maximum(squares, 1e-12), 1.0),
        )

    def place(self, x_hat: Numbers) -> Wide:
        """Images [n,d] in the coordinates of the points."""
        return np.asarray((x_hat.astype(np.float64) - self.origin) @ self.whiten)

    def log_likelihoods(self, rows: Wide) -> Wide:
        """Of images as `place` gives them under every domain, but for a constant: [n,N]."""
        far = np.square(rows).sum(axis=1)[:, None] - 2 * rows @ self.points.T + np.square(self.points).sum(axis=1)
        return self._tempered(far, self.spreads)

    def log_likelihoods_of_any(self, rows: Wide) -> Wide:
        """The same under one domain that has the mean and the spread of all of them together: [n]."""
        spread = np.asarray(np.square(self.points).mean(axis=1) + self.spreads).mean()
        return self._tempered(np.square(rows).sum(axis=1), spread)

    def _tempered(self, far: Wide, spreads: Wide) -> Wide:
        return np.asarray(-(far / spreads + self.points.shape[1] * np.log(spreads)) / (2 * TEMPER))

    def distances(self, means: Wide, counts: Wide) -> Wide:
        """Of the means [N,d] of so many images [N] from every point, in units of what chance makes of it: [N]."""
        chance = self.spreads * (1 / counts + 1 / DRIFT)
        return np.asarray(np.square(means - self.points).mean(axis=1) / chance)

    def fit(self, distances: Wide, counts: Wide) -> Wide:
        """Trust [N] that images so far away are of the domain."""
        bounds = FITS + FEW / np.sqrt(np.maximum(counts, 1.0)) + CHANCE * np.sqrt(2 / self.directions)
        return sigmoid((bounds - distances) / SOFT)


def _rows(factors: Numbers) -> Iterator[Wide]:
    """All directions of some domains at a time, [n r, d]."""
    for start in range(0, len(factors), PIECE):
        yield factors[start : start + PIECE].reshape(-1, factors.shape[2]).astype(np.float64)
