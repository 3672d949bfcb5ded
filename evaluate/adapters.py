"""What every compared method is: something that predicts a batch and, in a step, learns from it.

Here are those that leave the network alone: modules as they are, and NEO. `features.py` has T3A and LAME,
`norms.py` Tent, EATA and SAR, `cotta.py` CoTTA, `pluto.py` PLUTO.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pluto_edge.evaluate.recorded import RecordedNetwork
from pluto_edge.evaluate.targets import TargetBatch, TargetStream
from pluto_edge.runtime.engine.affines import Affines
from pluto_edge.runtime.engine.passes import Pass

Logits = NDArray[np.floating]


@dataclass(frozen=True)
class Bench:
    """What an adapter may use. `batch` is how many images it learns from at a time, `seed` is for its own dice."""

    network: RecordedNetwork
    batch: int
    seed: int = 0
    sources: dict[str, TargetStream] = field(default_factory=dict)  # by module: images of its own domain
    store: Path | None = None
    memory: dict[object, Affines] = field(default_factory=dict)  # what the runs of one evaluation share

    @property
    def classes(self) -> int:
        """How many classes the bundle has."""
        return self.network.bundle.manifest.dims.classes


class Adapter(ABC):
    """One run of a method, with the state that it has learned. Made anew for every run."""

    @abstractmethod
    def step(self, batch: TargetBatch) -> Logits:
        """Predict a batch [B,K] and learn from it."""

    @abstractmethod
    def predict(self, batch: TargetBatch) -> Logits:
        """Predict with what was learned so far; nothing changes."""

    def alone(self, batch: TargetBatch, module: str) -> Logits:
        """What one module says with what was learned so far: what it still knows of its own domain."""
        return self.predict(batch)

    @property
    def notes(self) -> dict[str, float]:
        """Counts worth a look in the results: resets, samples learned from."""
        return {}


@dataclass(frozen=True)
class NoConfig:
    """A method with nothing to set."""


@dataclass(frozen=True)
class CottaConfig:
    """Here, so that knowing it needs no torch."""

    lr: float = 0.005
    momentum: float = 0.9
    teacher: float = 0.999
    restore: float = 0.01
    confidence: float = 0.92  # mean confidence of the exported module below which views are averaged
    views: int = 32
    mirror: bool = True  # half of the views; digits and letters do not survive it


def gives_features() -> bool:
    """Whether a pass through the network gives what the heads see, and not their logits alone."""
    return "features" in {f.name for f in fields(Pass)}


def features_of(network: RecordedNetwork, batch: TargetBatch, module: str) -> NDArray[np.floating]:
    """What a module's head sees of a batch, as exported: [B,d]."""
    found: Any = network.run(batch, {}, [module])
    return np.asarray(found.features[:, 0])


class Single(Adapter):
    """A module as it was exported."""

    def __init__(self, bench: Bench, module: str, config: NoConfig) -> None:
        self.network = bench.network
        self.module = module

    def step(self, batch: TargetBatch) -> Logits:
        """The same as `predict`: a module as it is learns nothing."""
        return self.predict(batch)

    def predict(self, batch: TargetBatch) -> Logits:
        """What the exported module says."""
        return self.network.logits(batch, self.module, None)


class Neo(Adapter):
    """NEO: the head sees features from which the mean of all features so far, this batch's too, is taken.

    The head is linear: W (z - c) + b = l - W c, and W c is the mean of l - b. So the logits are all it needs.
    """

    def __init__(self, bench: Bench, module: str, config: NoConfig) -> None:
        self.network = bench.network
        self.module = module
        self.bias = bench.network.modules[module].tensors["head_bias"].numpy().astype(np.float64)
        self.count = 0
        self.centre = np.zeros_like(self.bias)

    def step(self, batch: TargetBatch) -> Logits:
        """Moves the centre towards the batch's features, then predicts with it."""
        logits = self.network.logits(batch, self.module, None)
        self.count += len(batch)
        share = len(batch) / self.count
        self.centre = (1 - share) * self.centre + share * (logits - self.bias).mean(axis=0)
        return np.asarray(logits - self.centre)

    def predict(self, batch: TargetBatch) -> Logits:
        """The module's head on features less the centre."""
        return np.asarray(self.network.logits(batch, self.module, None) - self.centre)
