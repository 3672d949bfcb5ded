"""What a runtime has learned. Values are never changed in place: a step makes a new state, or none."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pluto_edge._arrays import Wide
from pluto_edge.modules import SelectorWeights
from pluto_edge.runtime.algorithm.looksam import Sharp
from pluto_edge.runtime.algorithm.prototypes import Prototypes
from pluto_edge.runtime.engine.affines import Affines
from pluto_edge.signature import Reference

T = TypeVar("T")


@dataclass(frozen=True)
class Gathered:
    """Gradients that wait for more reliable samples, as sums: of the selector's over `samples` images, of the top
    modules' affines over `reliable` images in all."""

    selector: Mapping[str, Wide] = field(default_factory=dict)
    samples: int = 0
    affines: Mapping[str, Affines] = field(default_factory=dict)
    reliable: int = 0

    def with_selector(self, mean: Mapping[str, Wide], samples: int) -> "Gathered":
        """With the selector's mean gradient over so many more images."""
        total = {k: self.selector.get(k, 0.0) + samples * v for k, v in mean.items()}
        return replace(self, selector=total, samples=self.samples + samples)

    def plus(self, name: str, mean: Affines, reliable: int) -> "Gathered":
        """With the mean gradient of one module's affines over so many more reliable images."""
        total = self.affines[name].plus(mean, reliable) if name in self.affines else mean.times(reliable)
        return replace(self, affines={**self.affines, name: total}, reliable=self.reliable + reliable)

    def means(self) -> dict[str, Affines]:
        """Of every module, over all reliable samples: a sample's loss is that of its own top module."""
        return {name: total.times(1 / self.reliable) for name, total in self.affines.items()}


@dataclass(frozen=True)
class State:
    """Selector, the affines that differ from their export, optimizer memory and counters.

    Attributes:
        selector: G as it is now.
        moments: Adam's first and second moments of the selector; empty with SGD.
        affines: λ of every module that was ever updated; the others are as exported.
        momentum: of the SGD on λ.
        sharp: by module what an earlier step found of the loss's sharpness (`looksam.py`); not saved.
        gathered: gradients of steps that had too few reliable samples; not saved.
        prototypes: where the stream's classes are among the features.
        unmoved: the same among the features of the exported affines, from the images that were compared. It is not
            saved: a restored state takes its prototypes for it.
        top: the module that weighed most in the last batch: the guess for the next one.
        reliable: share of the last batch that was; not saved.
        labels: recent predictions, for the guard.
        evidence: of recent suspicious images, label and entropy as adapted and as exported.
        compared: recent comparisons with the exported weights (`guard.contradictions`); not saved.
        kept: what is left of what was learned since it was last found to do no harm, as a share; not saved.
        average: SAR's moving average of the entropy.
        digests: by module the tensors (`Loaded.digest`) that affines, momentum and prototypes were learned with.
        steps, rollbacks, samples: counters since the state was fresh.
        version: counts how often a learner's state was replaced; not saved. A step is taken only if the state still
            has the version that the step started from.
    """

    selector: SelectorWeights
    moments: Mapping[str, Wide] = field(default_factory=dict)
    affines: Mapping[str, Affines] = field(default_factory=dict)
    momentum: Mapping[str, Affines] = field(default_factory=dict)
    sharp: Mapping[str, Sharp] = field(default_factory=dict)
    gathered: Gathered = field(default_factory=Gathered)
    prototypes: Prototypes = field(default_factory=Prototypes)
    unmoved: Prototypes = field(default_factory=Prototypes)
    top: str | None = None
    reliable: float = 1.0
    labels: tuple[int, ...] = ()
    evidence: tuple[tuple[int, int, float, float], ...] = ()
    compared: tuple[tuple[bool, float], ...] = ()
    kept: float = 1.0
    average: float | None = None
    digests: Mapping[str, str] = field(default_factory=dict)
    steps: int = 0
    rollbacks: int = 0
    samples: int = 0
    version: int = 0

    @property
    def finite(self) -> bool:
        """Whether nothing that was learned or gathered is NaN or infinity."""
        tensors: list[NDArray[Any]] = [*self.selector.tensors.values(), *self.moments.values()]
        affines = (*self.affines.values(), *self.momentum.values(), *self.gathered.affines.values())
        affines = (*affines, *(s.across for s in self.sharp.values()))
        numbers = all(np.isfinite(t).all() for t in tensors) and all(a.finite for a in affines)
        return numbers and self.prototypes.finite

    def misfit(self, references: Mapping[str, Reference]) -> float | None:
        """Of the module that led the last step; None until it has seen enough, or where it has no signature."""
        if self.top is None or self.top not in references:
            return None
        return self.prototypes.misfit(self.top, references[self.top]) or None

    def of(self, loaded: Mapping[str, str]) -> "State":
        """What is of use with modules of these digests: all but what others of the same name have learned.

        What a module has learned that is not loaded waits for it; gradients do not.
        """
        others = [n for n, digest in self.digests.items() if loaded.get(n, digest) != digest]
        waits = self.gathered.affines.keys()
        if not others and waits <= loaded.keys():
            return self
        prototypes = self.prototypes
        unmoved = self.unmoved
        for name in others:
            prototypes = prototypes.without(name)
            unmoved = unmoved.without(name)
        return replace(
            self,
            affines=without(self.affines, others),
            momentum=without(self.momentum, others),
            sharp=without(self.sharp, others),
            gathered=self.gathered if waits <= loaded.keys() - set(others) else Gathered(),
            prototypes=prototypes,
            unmoved=unmoved,
            digests=without(self.digests, others),
        )

    def without_module(self, name: str) -> "State":
        """As if this module had never learned; what the selector has learned stays."""
        return replace(
            self,
            affines=without(self.affines, [name]),
            momentum=without(self.momentum, [name]),
            sharp=without(self.sharp, [name]),
            prototypes=self.prototypes.without(name),
            unmoved=self.unmoved.without(name),
            compared=(),
        )

    def reopened(self, selector: SelectorWeights) -> "State":
        """For another domain: modules are chosen anew with this selector, prototypes start anew, affines stay."""
        return replace(
            self,
            selector=selector,
            moments={},
            momentum={},
            sharp={},
            gathered=Gathered(),
            prototypes=Prototypes(),
            unmoved=Prototypes(),
            top=None,
            compared=(),
            average=None,
        )

    def shrunk(self, share: float, selector: SelectorWeights, exported: Mapping[str, Affines]) -> "State":
        """A share of the way from the exported weights to what was learned; its momentum is gone. Prototypes are
        those that no gradient has touched, and count for so much less, too."""
        unmoved = self.unmoved.times(share)
        tensors = {k: v + np.float32(share) * (self.selector.tensors[k] - v) for k, v in selector.tensors.items()}
        return replace(
            self,
            selector=SelectorWeights(**tensors),
            moments={},
            affines={n: a.towards(exported[n], 1 - share) if n in exported else a for n, a in self.affines.items()},
            momentum={},
            sharp={},
            gathered=Gathered(),
            prototypes=unmoved,
            unmoved=unmoved,
        )

    def learned_with(self, loaded: Mapping[str, str]) -> "State":
        """With the digests of the modules that it has learned for; what is not loaded keeps the one it has."""
        names = self.affines.keys() | self.momentum.keys() | self.prototypes.modules.keys()
        known = {**self.digests, **loaded}
        return replace(self, digests={n: known[n] for n in sorted(names) if n in known})


def without(values: Mapping[str, T], keys: Collection[str]) -> dict[str, T]:
    """All values but those of these keys."""
    return {k: v for k, v in values.items() if k not in keys}
