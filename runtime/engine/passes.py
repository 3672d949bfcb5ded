"""What modules said of a batch of images, and what of it still holds when the same images come again."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pluto_edge._arrays import Array, Wide
from pluto_edge.runtime.engine.affines import Affines
from pluto_edge.runtime.engine.session import Tensor

__all__ = ["Gradient", "Look", "Pass", "Said", "hold"]


class Look(NamedTuple):
    """Images as they were embedded: x̂ [B,d], and the tokens of those that are few enough to be kept."""

    x_hat: Array
    tokens: Tensor | None


@dataclass(frozen=True)
class Gradient:
    """Of an objective, with every sample's logits [B,K], entropy [B] and activations [B,L+1,d].

    `d_affines` is the gradient with respect to the module's λ. `loss` is the mean entropy of the `reliable`
    samples, whatever else the objective holds.
    """

    logits: Array
    entropy: Array
    activations: Array
    reliable: NDArray[np.intp]
    loss: float
    d_affines: Affines


class Said(NamedTuple):
    """What one module said of some images: logits [B,K], features [B,d], activations [B,L+1,d] if kept."""

    logits: Array
    features: Array
    activations: Array | None

    @classmethod
    def of(cls, logits: Array, activations: Array, *, keep: bool) -> "Said":
        """From what a graph gave. The activations are kept if wanted; their last row is the features."""
        features = activations[:, -1].copy()  # a copy, so that the other rows go when they are not kept
        return cls(logits, features, activations if keep else None)

    @classmethod
    def join(cls, parts: Sequence["Said"]) -> "Said":
        """What was said of several pieces of a batch, as if it were one; activations only where all have them."""
        kept = [p.activations for p in parts if p.activations is not None]
        return cls(
            np.concatenate([p.logits for p in parts]),
            np.concatenate([p.features for p in parts]),
            np.concatenate(kept) if len(kept) == len(parts) else None,
        )


@dataclass(frozen=True)
class Pass:
    """Modules on one batch: logits [B,n,K], features [B,n,d], x̂ [B,d], and if asked for the activations
    [B,n,L+1,d], whose last row the features are, and the gradient of one module.

    `names` are those that ran, in the order of `loaded`, which are all N. `digests` say what each of them ran with
    (`Loaded.digest_with`): where a module would run with the same, its logits still hold.
    """

    loaded: tuple[str, ...]
    names: tuple[str, ...]
    logits: Array
    features: Array
    x_hat: Array
    digests: tuple[str, ...]
    activations: Array | None = None
    gradient: Gradient | None = None
    left_out: tuple[str, ...] = ()  # modules that ran, and said NaN or infinity

    def of(self, name: str) -> Array:
        """One module's logits [B,K]."""
        return self.logits[:, self.names.index(name)]

    def said(self, name: str) -> Said:
        """All that one module said of the images."""
        column = self.names.index(name)
        activations = None if self.activations is None else self.activations[:, column]
        return Said(self.logits[:, column], self.features[:, column], activations)

    def rows(self, samples: NDArray[np.intp]) -> "Pass":
        """The pass of some of the images."""
        return replace(
            self,
            logits=self.logits[samples],
            features=self.features[samples],
            x_hat=self.x_hat[samples],
            activations=None if self.activations is None else self.activations[samples],
            gradient=None,
        )

    def only(self, names: Collection[str]) -> "Pass":
        """The pass as if these modules alone had run."""
        columns = [c for c, n in enumerate(self.names) if n in names]
        return replace(
            self,
            names=tuple(self.names[c] for c in columns),
            logits=self.logits[:, columns],
            features=self.features[:, columns],
            digests=tuple(self.digests[c] for c in columns),
            activations=None if self.activations is None else self.activations[:, columns],
        )

    @property
    def not_finite(self) -> tuple[str, ...]:
        """The modules that say NaN or infinity of any image."""
        return tuple(n for n in self.names if not all(np.isfinite(v).all() for v in self.said(n)[:2]))

    @property
    def columns(self) -> NDArray[np.intp]:
        """Where the modules that ran stand among all."""
        return np.array([self.loaded.index(n) for n in self.names], np.intp)

    def widened(self, weights: Wide) -> Wide:
        """Weights [B,n] of the modules that ran as [B,N] of all; those that did not have 0."""
        wide = np.zeros((len(weights), len(self.loaded)))
        wide[:, self.columns] = weights
        return wide


def hold(seen: Sequence[Pass], name: str, digest: str) -> bool:
    """Whether this module ran in all of `seen`, with what the digest stands for: then its answers still hold."""
    return bool(seen) and all(name in p.names and p.digests[p.names.index(name)] == digest for p in seen)
