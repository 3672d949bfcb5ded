"""Class prototypes that follow the stream. No gradient, no second pass, no label.

On its source every class of a module has a mean feature, c_k (`Signature.class_means`). On a stream the features
are elsewhere: all of them have moved together (a new domain), and every class a little on its own. Both moves are
estimated from the images that are predicted surely, as in a two-level Gaussian model: with n_k such images of class
k, whose mean feature is m_k,

    a_k   = κ n_k / (κ + n_k)                              how much class k has to say of the common move
    δ'    = Σ a_k (m_k - c_k) / (κ₀ + Σ a_k)               the common move, class by class
    δ     = (κ₁ δ' + n (m - c)) / (κ₁ + n)                 with the mean m of all images, where it can be trusted
    c'_k  = (κ (c_k + δ) + n_k m_k) / (κ + n_k)            the prototype now

As δ' is an average over classes, not over images, a stream that shows few classes, or one after another, is not
mistaken for a move; methods that re-centre on the mean of all features make that mistake. That mean needs no label,
though, and is the better guide where classes come at random: so an image counts for n as far as its class says
nothing of the next one's (`Continuity.independence`). An image is then judged three times: by the head on features
without the common move, by its distance from the prototypes in deviations of the source, and by its direction among
them, as seen from the middle of all. The three are multiplied. Deviations tell most near the source; directions do
not depend on them, and hold farther away. In a blend, heads and distances of several modules make up for each
other's mistakes; directions do not, for all modules see an image in nearly the same one. So they count the less,
the more modules have a say: with Σ w_j² of what they count for one.
(Beyond the paper. κ, κ₀, κ₁ and the rest were chosen on development domains: docs/adaptation.md.)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from pluto_edge._arrays import Wide
from pluto_edge.looks import DRIFT
from pluto_edge.runtime.algorithm.selector import softmax
from pluto_edge.signature import Reference

KAPPA = 10.0  # images of a class that count as much as its source
COMMON = 100.0  # κ₀, the same for the move of all classes together
ANY = 50.0  # κ₁, images of any class whose mean counts as much as the classes'
SURE = 0.7  # probability from which on an image counts for its class
HORIZON = 512.0  # images that the means reach back
BLUNT = 0.1  # sharpness beyond it is cut: on its own source a head needs no prototypes, elsewhere it does
ALONG = 5.0  # what the cosine between an image and a prototype counts where one module speaks, in nats
FAR = 4.0  # in deviations: images that are farther from every prototype count less, with the square of the distance


@dataclass(frozen=True)
class Seen:
    """What was surely of each class: how many images [K], and the sum of their features [K,d]; and the same of all
    images, as far as they came at random: [1] and [d]."""

    counts: Wide
    sums: Wide
    count: Wide
    total: Wide

    @classmethod
    def nothing(cls, classes: int, width: int) -> "Seen":
        """Before the first image."""
        return cls(np.zeros(classes), np.zeros((classes, width)), np.zeros(1), np.zeros(width))

    def moves(self, means: Wide) -> Wide:
        """m_k - c_k, [K,d]; zero for a class that was not seen."""
        known = self.counts > 0
        seen = self.sums / np.where(known, self.counts, 1.0)[:, None]
        return np.where(known[:, None], seen - means, 0.0)

    def times(self, share: float) -> "Seen":
        """As if only this share of every image had been seen."""
        return Seen(**{name: share * value for name, value in vars(self).items()})

    def plus(self, sure: Wide, any_class: Wide, features: Wide) -> "Seen":
        """With more images: how much each counts for each class, [B,K], and for all classes together, [B]."""
        counts, sums = self.counts + sure.sum(axis=0), self.sums + sure.T @ features
        count, total = self.count + any_class.sum(), self.total + any_class @ features
        share = min(1.0, HORIZON / max(float(counts.sum()), 1.0))
        other = min(1.0, HORIZON / max(float(count[0]), 1.0))
        return Seen(counts * share, sums * share, count * other, total * other)


@dataclass(frozen=True)
class Prototypes:
    """By module: each has its own features, and not all run on every image."""

    modules: Mapping[str, Seen] = field(default_factory=dict)

    @property
    def finite(self) -> bool:
        """Whether it has neither NaN nor infinity."""
        return all(np.isfinite(v).all() for s in self.modules.values() for v in vars(s).values())

    def without(self, name: str) -> "Prototypes":
        """As if this module had never run."""
        return replace(self, modules={k: v for k, v in self.modules.items() if k != name})

    def times(self, share: float) -> "Prototypes":
        """As if so many of the images had been seen: nearer to the source."""
        return Prototypes({n: s.times(share) for n, s in self.modules.items()})

    def carried(self, name: str, by: Wide) -> "Prototypes":
        """After a step that moved a module's features by [d] on average: what was seen of them moves along."""
        if name not in self.modules:
            return self
        seen = self.modules[name]
        sums, total = seen.sums + seen.counts[:, None] * by, seen.total + seen.count * by
        return Prototypes({**self.modules, name: replace(seen, sums=sums, total=total)})

    def seen(self, name: str, reference: Reference) -> Seen:
        """What one module has seen so far."""
        return self.modules.get(name) or Seen.nothing(*reference.means.shape)

    def move(self, name: str, reference: Reference) -> tuple[Wide, Wide]:
        """The common move δ [d], and the prototypes as they are now [K,d]."""
        seen = self.seen(name, reference)
        say = KAPPA * seen.counts / (KAPPA + seen.counts)
        delta = say @ seen.moves(reference.means) / (COMMON + say.sum())
        delta = (ANY * delta + seen.total - seen.count * reference.means.mean(axis=0)) / (ANY + seen.count)
        counts = seen.counts[:, None]
        return delta, (KAPPA * (reference.means + delta) + seen.sums) / (KAPPA + counts)

    def misfit(self, name: str, reference: Reference) -> float:
        """How far the stream's features have moved from the module's source; chance alone makes it about 1."""
        seen = self.seen(name, reference)
        say = KAPPA * seen.counts / (KAPPA + seen.counts)
        if say.sum() < 1:
            return 0.0
        delta = say @ seen.moves(reference.means) / say.sum()
        far = reference.distances(delta[None], np.zeros((1, len(delta))))[0, 0]
        chance = 1 / seen.counts.sum() + 1 / DRIFT + 1 / reference.signature.images  # of either mean
        return float(far / chance)

    def predict(
        self,
        names: Sequence[str],
        references: Mapping[str, Reference],
        logits: NDArray[np.floating],
        features: NDArray[np.floating],
        weights: Wide,
    ) -> Wide:
        """Probabilities [B,K] from modules' logits [B,n,K], features [B,n,d] and weights [B,n].

        A module without a signature takes part with its plain probabilities.
        """
        total = np.maximum(weights.sum(axis=1, keepdims=True), np.finfo(np.float64).tiny)
        direction = ALONG * np.square(weights / total).sum(axis=1, keepdims=True)
        by_head = np.zeros((len(logits), logits.shape[2]))
        by_distance = np.zeros_like(by_head)
        for column, name in enumerate(names):
            weight = weights[:, column, None]
            if not weight.any():
                continue
            values = logits[:, column].astype(np.float64)
            reference = references.get(name)
            if reference is None:
                by_head += weight * softmax(values)
                by_distance += weight / values.shape[1]
                continue
            signature = reference.signature
            delta, prototypes = self.move(name, reference)
            by_head += weight * softmax((values - reference.head @ delta) / signature.temperature)
            wide = features[:, column].astype(np.float64)
            far = reference.distances(wide, prototypes) / (2 * min(signature.sharpness, BLUNT))
            along = _cosines(wide, prototypes, reference.means.mean(axis=0) + delta)
            by_distance += weight * softmax(direction * along - far)
        both = by_head * by_distance + np.finfo(np.float64).tiny
        return np.asarray(both / both.sum(axis=1, keepdims=True))

    def learn(
        self,
        names: Sequence[str],
        references: Mapping[str, Reference],
        features: NDArray[np.floating],
        weights: Wide,
        probabilities: Wide,
        independence: float,
        times: float = 1.0,
    ) -> "Prototypes":
        """With one more batch, as it was predicted; an image counts for a module as the module did for it.

        `independence` is how far the classes come at random, as `Continuity` sees it. Every image stands for
        as many as `times` says.
        """
        sure = np.where(probabilities > SURE, probabilities, 0.0)
        leading = np.maximum(weights.max(axis=1, keepdims=True), np.finfo(np.float64).tiny)
        modules = dict(self.modules)
        for column, name in enumerate(names):
            reference = references.get(name)
            if reference is None:
                continue
            wide = features[:, column].astype(np.float64)
            nearest = np.sqrt(reference.distances(wide, self.move(name, reference)[1]).min(axis=1))
            near = np.minimum(1.0, np.square(FAR / np.maximum(nearest, FAR)))
            counts = times * weights[:, column] / leading[:, 0] * near
            modules[name] = self.seen(name, reference).plus(sure * counts[:, None], independence * counts, wide)
        return Prototypes(modules)


def _cosines(features: Wide, points: Wide, centre: Wide) -> Wide:
    """Of the angles between features [B,d] and points [K,d], as seen from the centre [d]: [B,K]."""
    tiny = np.finfo(np.float64).tiny
    there, here = points - centre, features - centre
    lengths = np.linalg.norm(here, axis=1)[:, None] * np.linalg.norm(there, axis=1)
    return np.asarray(here @ there.T / np.maximum(lengths, tiny))
