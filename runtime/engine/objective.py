"""What the gradient graph differentiates: entropy, alignment of activations and cross-entropy, each if wanted."""

from dataclasses import dataclass, replace

import numpy as np

from pluto_edge._arrays import Array
from pluto_edge.errors import ConfigError

__all__ = ["MEAN_ENTROPY", "Objective"]


@dataclass(frozen=True)
class Objective:
    """The loss of a batch. By itself: the mean entropy of the reliable samples.

    With a number for `entropy_weight` it is a sum over the samples i,

        entropy_weight H_i, if it is reliable  +  Σ_l (offset_l · a_il + ½ slope_l · a_il²)  -  Σ_k t_ik log p_ik

    with the activations a and the target t; the gradient at a_il is offset_l + slope_l a_il. Which samples are
    reliable is known after the pass only, so whoever wants their mean beside other terms counts them before, in a
    pass forward, and gives 1 / count.

    Attributes:
        threshold: entropy, in nats, below which a sample is reliable; infinity takes all.
        entropy_weight: of the sum of the reliable samples' entropies; None is their mean, and then nothing else.
        offset, slope: [L+1,d], for all samples; None is zero. `alignment.align` gives those of statistics.
        target: [B,K], a row a sample in the order that they are given in; rows need not sum to one. None is zero.
    """

    threshold: float = np.inf
    entropy_weight: float | None = None
    offset: Array | None = None
    slope: Array | None = None
    target: Array | None = None

    def __post_init__(self) -> None:
        others = [n for n in ("offset", "slope", "target") if getattr(self, n) is not None]
        if self.entropy_weight is None and others:
            raise ConfigError(
                f"entropy_weight: {others[0]} is added to a sum of entropies, not to their mean; want a number, "
                "1 / reliable for the mean, got None"
            )

    def check(self, samples: int) -> None:
        """A target of other samples would be broadcast or cut without a word."""
        if self.target is not None and len(self.target) != samples:
            raise ConfigError(f"target: want a row for each of {samples} samples, got {len(self.target)} rows")

    def part(self, rows: slice) -> "Objective":
        """The same of some of the samples."""
        return self if self.target is None else replace(self, target=self.target[rows])


MEAN_ENTROPY = Objective()  # of all samples
