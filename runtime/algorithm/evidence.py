"""Which module's domain is this? Evidence from how the recent images look, before any module has run.

Every module's signature says how its source looks to the selector; `pluto_edge/looks.py` makes points of that. The
recent images of a stream are taken as a mixture of the known domains (one of them, where the stream shows one thing
at a time), whose shares are found by expectation maximisation. Then every domain is asked whether its images really
fit: their mean must not be farther from y_j than chance allows. What does not fit is unknown, and unknown is an
answer.

Where a stream shows several domains at once, each image has to be told by itself, which fails more often. Beside a
generalist, which is never far off, a doubtful image is then better left unknown.
(Beyond the paper. The bounds were chosen on development domains: docs/adaptation.md.)
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pluto_edge._arrays import Wide, sigmoid
from pluto_edge.looks import Looks
from pluto_edge.runtime.algorithm.selector import entropy, softmax
from pluto_edge.signature import Signature, stack_looks

WINDOW = 64  # recent images
ROUNDS = 12  # of expectation maximisation
LEAST = 0.15  # of the recent images: a domain with a smaller share is taken for chance
MOVED, MOVED_SOFT = 1.8, 0.1  # bound of `Prototypes.misfit` and its softness: as for looks, for a module's features
SHORTLIST = 15  # specialists that are asked about what no domain is known to fit, where there are more
STAKES = 10.0  # what a wrong specialist loses against a generalist, over what the right one gains


@dataclass(frozen=True)
class Domains:
    """The known domains, ready to be compared with images."""

    names: tuple[str, ...]
    looks: Looks

    @classmethod
    def of(cls, signatures: Mapping[str, Signature]) -> "Domains | None":
        """None where no module has a signature."""
        if not signatures:
            return None
        return cls(tuple(signatures), Looks.of(*stack_looks(list(signatures.values()))))

    def weigh(self, recent: NDArray[np.floating], images: NDArray[np.floating], stakes: float = 1.0) -> Wide:
        """How much of each image belongs to each domain, given the recent ones (x̂ [n,d], with the images among
        them or not; where there are none, the images themselves): [B,N], rows sum to at most 1. What is missing is
        unknown. `stakes` is how much more a wrong domain loses than the right one gains: where the recent images
        are of several domains, the odds of each are divided by it."""
        context = self.looks.place(recent if len(recent) else images)
        likelihoods = self.looks.log_likelihoods(context)
        shares = np.full(len(self.names), 1 / len(self.names))
        for _ in range(ROUNDS):
            belongs = softmax(likelihoods + np.log(shares))
            shares = np.maximum(belongs.mean(axis=0) - LEAST, 1e-12)
            shares = shares / shares.sum()
        here = self.looks.log_likelihoods(self.looks.place(images))
        found = softmax(here + np.log(shares)) * self._fit(context, belongs)
        mixed = min(float(np.exp(entropy(shares))) - 1, 1.0)  # 0 for one domain, 1 for two and more
        return np.asarray(found / (found + stakes**mixed * (1 - found)))

    def nearest(self, recent: NDArray[np.floating], count: int) -> tuple[str, ...]:
        """So many domains, those that make the recent images most likely."""
        likely = self.looks.log_likelihoods(self.looks.place(recent)).mean(axis=0)
        return tuple(self.names[j] for j in np.argsort(-likely, kind="stable")[:count])

    def _fit(self, rows: Wide, belongs: Wide) -> Wide:
        """Trust [N] that the images which would belong to a domain are of it."""
        counts = np.maximum(belongs.sum(axis=0), 1e-9)
        means = belongs.T @ rows / counts[:, None]
        return self.looks.fit(self.looks.distances(means, counts), counts)


def trust(misfit: float) -> float:
    """In a module whose features on the stream have moved so far from its source's."""
    return float(sigmoid(np.array((MOVED - misfit) / MOVED_SOFT)))
