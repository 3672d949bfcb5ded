"""`Affines`: what a module's LayerNorms are given, and what the gradient graph gives back."""

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pluto_edge._arrays import Array


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
        """factor * self"""
        return Affines(self.scale * np.float32(factor), self.bias * np.float32(factor))

    def towards(self, other: "Affines", share: float) -> "Affines":
        """A share of the way from here to `other`."""
        return other.plus(self.plus(other, -1.0), 1 - share)

    def near(self, other: "Affines", radius: float) -> "Affines":
        """No farther from `other` than this share of its norm."""
        distance = self.plus(other, -1.0).norm
        most = radius * other.norm
        return self if distance <= most else self.towards(other, 1 - most / distance)

    def only(self, rows: tuple[int, ...] | None) -> "Affines":
        """Zero outside `rows`."""
        if rows is None:
            return self
        mask = np.zeros((len(self.scale), 1), np.float32)
        mask[list(rows)] = 1
        return Affines(self.scale * mask, self.bias * mask)

    @property
    def norm(self) -> float:
        """The Euclidean norm of scale and bias together."""
        squares = (np.square(v, dtype=np.float64).sum() for v in (self.scale, self.bias))
        return float(np.sqrt(sum(squares)))

    @property
    def finite(self) -> bool:
        """Whether it has neither NaN nor infinity."""
        return bool(np.isfinite(self.scale).all() and np.isfinite(self.bias).all())

    @cached_property
    def digest(self) -> str:
        """Of every bit of it: what was computed with affines of the same digest still holds."""
        found = hashlib.sha256(np.ascontiguousarray(self.scale).tobytes())
        found.update(np.ascontiguousarray(self.bias).tobytes())
        return found.hexdigest()
