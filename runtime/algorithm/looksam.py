"""LookSAM: the sharp part of a gradient, computed in one step of several (Liu et al., CVPR 2022).

It stands beside the paper's algorithm and is off by itself (`AdaptConfig.sam_every` is 1). A sharpness-aware step
needs two gradients: g at λ, and g_s at λ + ε. What g_s has across g,

    g_v = g_s - (g_s · g / ‖g‖²) g,

changes slowly from step to step. So it is computed in one step of `sam_every`, and the others take

    g + α (‖g‖ / ‖g_v‖) g_v

with a g of their own, which costs one gradient instead of two.
"""

from dataclasses import dataclass, replace

import numpy as np

from pluto_edge.runtime.engine.affines import Affines

__all__ = ["ALPHA", "Sharp"]

ALPHA = 0.7  # the paper's, for Vision Transformers


@dataclass(frozen=True)
class Sharp:
    """g_v of one module, and in how many more steps it is used."""

    across: Affines
    left: int

    @classmethod
    def of(cls, plain: Affines, sharp: Affines, every: int) -> "Sharp":
        """From both gradients of a step; for the `every` - 1 steps after it."""
        square = plain.norm**2
        return cls(sharp.plus(plain, -_dot(sharp, plain) / square) if square else sharp, every - 1)

    def beside(self, plain: Affines) -> Affines:
        """The gradient of a step that computed g alone."""
        length = self.across.norm
        return plain.plus(self.across, ALPHA * plain.norm / length) if length else plain

    def used(self) -> "Sharp":
        """After one more step."""
        return replace(self, left=self.left - 1)


def _dot(one: Affines, other: Affines) -> float:
    pairs = ((one.scale, other.scale), (one.bias, other.bias))
    return float(sum(np.vdot(a.astype(np.float64), b.astype(np.float64)) for a, b in pairs))
