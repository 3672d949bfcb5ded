"""`Recent`: what is known of the images that came last."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from pluto_edge._arrays import Array
from pluto_edge.runtime.algorithm.continuity import Continuity
from pluto_edge.runtime.algorithm.evidence import WINDOW
from pluto_edge.runtime.algorithm.prototypes import Prototypes
from pluto_edge.runtime.algorithm.selection import Blend
from pluto_edge.runtime.engine.modules import Modules
from pluto_edge.runtime.engine.passes import Pass

__all__ = ["Recent", "newest"]


@dataclass(frozen=True)
class Recent:
    """A value, like the state: what a step has seen counts when the step is taken, or not at all.

    Attributes:
        x_hat: [n,d] of the last images.
        tried: where the classes of the images that were watched are: it says which modules fit them, and no more.
        tried_with: digests of the modules that were there for `tried`; with others it starts anew.
        continuity: of the images that were followed.
        left_out: modules that said NaN or infinity when they last ran.
    """

    x_hat: Array
    tried: Prototypes = field(default_factory=Prototypes)
    tried_with: Mapping[str, str] = field(default_factory=dict)
    continuity: Continuity = field(default_factory=Continuity)
    left_out: frozenset[str] = frozenset()

    @classmethod
    def nothing(cls, width: int) -> "Recent":
        """Before the first image, whose x̂ will have this width."""
        return cls(np.zeros((0, width), np.float32))

    def anew(self) -> "Recent":
        """As if no image had come yet: how they look, who fits them, whether one tells of the next."""
        return replace(self, x_hat=self.x_hat[:0], tried=Prototypes(), continuity=Continuity())

    def with_images(self, x_hat: Array) -> "Recent":
        """With the looks of more images."""
        return replace(self, x_hat=newest(self.x_hat, x_hat))

    def tried_by(self, modules: Modules) -> Prototypes:
        """`tried`, if these are the modules that it was found with."""
        return self.tried if self.tried_with == modules.digests else Prototypes()

    def watched(self, x_hat: Array, tried: Prototypes, modules: Modules) -> "Recent":
        """With images that were watched: how they look, and who fits them among these modules."""
        return replace(self.with_images(x_hat), tried=tried, tried_with=modules.digests)

    def follow(self, blend: Blend) -> tuple[Blend, "Recent"]:
        """What was said of the next images in the light of those before them and of each other; and what is known
        after them."""
        alone = np.maximum(blend.probabilities, np.finfo(np.float64).tiny)
        followed, after = self.continuity.follow(alone)
        return replace(blend, logits=blend.logits + np.log(followed / alone)), replace(self, continuity=after)

    def leave_out(self, passed: Pass) -> tuple[tuple[str, ...], "Recent"]:
        """The modules that are left out now and were not before; one that ran again is in again."""
        new = tuple(n for n in passed.left_out if n not in self.left_out)
        return new, replace(self, left_out=(self.left_out - set(passed.names)) | set(passed.left_out))


def newest(recent: Array, x_hat: Array) -> Array:
    """The last looks, with those of more images: as many as evidence looks back, or all of the new ones."""
    return np.concatenate([recent, x_hat])[-max(WINDOW, len(x_hat)) :]
