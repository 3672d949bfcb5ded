"""Which module's domain is this? Evidence from how the recent images look, before any module has run.

Every module's signature says how its source looks to the selector: mean and covariance of x̂. In coordinates in
which the modules' average covariance is the identity, a domain is a point y_j with a spread e_j. The recent images
of a stream are taken as a mixture of the known domains (one of them, where the stream shows one thing at a time),
whose shares are found by expectation maximisation. Then every domain is asked whether its images really fit: their
mean must not be farther from y_j than chance allows. What does not fit is unknown, and unknown is an answer.

Where a stream shows several domains at once, each image has to be told by itself, which fails more often. Beside a
generalist, which is never far off, a doubtful image is then better left unknown.
(Beyond the paper. The bounds were chosen on development domains: docs/adaptation.md.)
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pluto_edge._arrays import Wide
from pluto_edge.runtime.algorithm.prototypes import DRIFT
from pluto_edge.runtime.algorithm.selector import entropy, sigmoid, softmax
from pluto_edge.signature import Signature

WINDOW = 64  # recent images
FLOOR = 0.1  # of the mean variance, that every direction gets: covariances of a few hundred images overfit
TEMPER = 2.0  # divides log-likelihoods: images have heavier tails than Gaussians
ROUNDS = 12  # of expectation maximisation
LEAST = 0.15  # of the recent images: a domain with a smaller share is taken for chance
FITS, FEW, CHANCE = 0.85, 1.5, 1.5  # a domain fits below FITS + FEW/sqrt(images) + CHANCE sqrt(2/directions)
SOFT = 0.1  # it is half trusted at that bound, and more or less around it
MOVED, MOVED_SOFT = 1.8, 0.1  # the same for a module's features, `Prototypes.misfit`
STAKES = 10.0  # what a wrong specialist loses against a generalist, over what the right one gains


@dataclass(frozen=True)
class Domains:
    """The known domains, ready to be compared with images."""

    names: tuple[str, ...]
    origin: Wide  # [d]
    whiten: Wide  # [d,d]
    points: Wide  # [N,d], y_j
    spreads: Wide  # [N], e_j
    directions: Wide  # [N], how many a domain really varies in: the fewer, the more its mean varies by chance

    @classmethod
    def of(cls, signatures: Mapping[str, Signature]) -> "Domains | None":
        """None where no module has a signature."""
        if not signatures:
            return None
        matrices = np.stack([s.looks.matrix for s in signatures.values()])
        pooled = matrices.mean(axis=0)
        width = len(pooled)
        pooled = pooled + FLOOR * np.trace(pooled) / width * np.eye(width)
        whiten = np.linalg.cholesky(np.linalg.inv(pooled))
        means = np.stack([s.look_mean for s in signatures.values()]).astype(np.float64)
        origin = means.mean(axis=0)
        own = whiten.T @ matrices @ whiten
        traces = np.maximum(np.trace(own, axis1=1, axis2=2), 1e-6 * width)
        directions = np.maximum(np.square(traces) / np.maximum(np.square(own).sum(axis=(1, 2)), 1e-12), 1.0)
        return cls(
            tuple(signatures), origin, whiten, (means - origin) @ whiten, traces / width, directions=directions
        )

    def weigh(self, recent: NDArray[np.floating], images: NDArray[np.floating], stakes: float = 1.0) -> Wide:
        """How much of each image belongs to each domain, given the recent ones (x̂ [n,d], with the images among
        them or not; where there are none, the images themselves): [B,N], rows sum to at most 1. What is missing is
        unknown. `stakes` is how much more a wrong domain loses than the right one gains: where the recent images
        are of several domains, the odds of each are divided by it."""
        context = ((recent if len(recent) else images).astype(np.float64) - self.origin) @ self.whiten
        likelihoods = self._log_likelihoods(context)
        shares = np.full(len(self.names), 1 / len(self.names))
        for _ in range(ROUNDS):
            belongs = softmax(likelihoods + np.log(shares))
            shares = np.maximum(belongs.mean(axis=0) - LEAST, 1e-12)
            shares = shares / shares.sum()
        here = self._log_likelihoods((images.astype(np.float64) - self.origin) @ self.whiten)
        found = softmax(here + np.log(shares)) * self._fit(context, belongs)
        mixed = min(float(np.exp(entropy(shares))) - 1, 1.0)  # 0 for one domain, 1 for two and more
        return np.asarray(found / (found + stakes**mixed * (1 - found)))

    def _log_likelihoods(self, rows: Wide) -> Wide:
        width = self.points.shape[1]
        far = np.square(rows).sum(axis=1)[:, None] - 2 * rows @ self.points.T + np.square(self.points).sum(axis=1)
        return np.asarray(-(far / self.spreads + width * np.log(self.spreads)) / (2 * TEMPER))

    def _fit(self, rows: Wide, belongs: Wide) -> Wide:
        """Trust [N] that the images which would belong to a domain are of it."""
        counts = np.maximum(belongs.sum(axis=0), 1e-9)
        means = belongs.T @ rows / counts[:, None]
        far = np.square(means - self.points).mean(axis=1) / (self.spreads * (1 / counts + 1 / DRIFT))
        bounds = FITS + FEW / np.sqrt(np.maximum(counts, 1.0)) + CHANCE * np.sqrt(2 / self.directions)
        return sigmoid((bounds - far) / SOFT)


def trust(misfit: float) -> float:
    """In a module whose features on the stream have moved so far from its source's."""
    return float(sigmoid(np.array((MOVED - misfit) / MOVED_SOFT)))
