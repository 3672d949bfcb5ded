"""`Affines`: what a module's LayerNorms are given, and what the gradient graph gives back."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Affines:
    """λ of one module: LayerNorm scale and bias, [2L+1, d] each. Also its gradient, and its momentum."""

    scale: Array
    bias: Array

    def plus(self, other: "Affines", factor: float) -> "Affines":
        """self + factor * other"""
        f = np.float32(factor)
        return Affines(self.scale + f * other.scale, self.bias + f * other.bias)

    def times(self, factor: float) -> "Affines":
        return Affines(self.scale * np.float32(factor), self.bias * np.float32(factor))

    def only(self, rows: tuple[int, ...] | None) -> "Affines":
        """Zero outside `rows`."""
        if rows is None:
            return self
        mask = np.zeros((len(self.scale), 1), np.float32)
        mask[list(rows)] = 1
        return Affines(self.scale * mask, self.bias * mask)

    @property
    def norm(self) -> float:
        squares = (np.square(v, dtype=np.float64).sum() for v in (self.scale, self.bias))
        return float(np.sqrt(sum(squares)))

    @property
    def finite(self) -> bool:
        return bool(np.isfinite(self.scale).all() and np.isfinite(self.bias).all())
