"""T3A and LAME: methods that leave the network alone and look at the features which a module's head sees.

T3A replaces the head by the means of what was confidently predicted as each class; LAME corrects the probabilities
of a batch so that neighbours agree. Where their published code is, and what is peculiar in it: docs/evaluation.md.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pluto_edge._arrays import Wide
from pluto_edge.errors import ConfigError
from pluto_edge.evaluate.adapters import Adapter, Bench, Logits, features_of
from pluto_edge.evaluate.targets import TargetBatch
from pluto_edge.runtime.algorithm.selector import entropy, softmax

TINY = 1e-12  # below it a vector has no direction, as in torch's normalize
STEPS, CONVERGED = 100, 1e-8  # of LAME's optimisation


@dataclass(frozen=True)
class T3aConfig:
    """How many features T3A keeps of each class."""

    filter_k: int = 100  # supports that each class keeps, those of lowest entropy

    def __post_init__(self) -> None:
        _check_count("filter_k", self.filter_k)


@dataclass(frozen=True)
class LameConfig:
    """How LAME finds an image's neighbours."""

    neighbours: int = 5
    affinity: Literal["knn", "rbf"] = "knn"

    def __post_init__(self) -> None:
        _check_count("neighbours", self.neighbours)
        if self.affinity not in ("knn", "rbf"):
            raise ConfigError(f"affinity: want knn or rbf, got {self.affinity!r}")


class Supports:
    """T3A's support set: features with the class that the head gave them, and how sure it was."""

    def __init__(self, weight: NDArray[np.floating], bias: NDArray[np.floating], keep: int) -> None:
        """It starts with the head's own weights, each as the head classifies it."""
        self.weight = weight.astype(np.float64)
        self.bias = bias.astype(np.float64)
        self.keep = keep
        self.features = np.zeros((0, weight.shape[1]))
        self.labels = np.zeros(0, np.intp)
        self.entropy = np.zeros(0)
        self.add(self.weight, self.weight @ self.weight.T + self.bias)

    def add(self, features: NDArray[np.floating], logits: NDArray[np.floating]) -> None:
        """Features [B,d] and the head's logits [B,K] of them; of each class the surest supports stay."""
        self.features = np.concatenate([self.features, features])
        self.labels = np.concatenate([self.labels, logits.argmax(axis=1)])
        self.entropy = np.concatenate([self.entropy, entropy(softmax(logits))])
        order = np.argsort(self.entropy, kind="stable")
        kept = np.concatenate([order[self.labels[order] == k][: self.keep] for k in range(len(self.weight))])
        self.features = self.features[kept]
        self.labels = self.labels[kept]
        self.entropy = self.entropy[kept]

    def logits(self, features: NDArray[np.floating]) -> Wide:
        """The features [B,d] along each class's mean direction, [B,K]; a class without support has 0."""
        centres = np.zeros_like(self.weight)
        np.add.at(centres, self.labels, _unit(self.features))
        return np.asarray(features @ _unit(centres).T)


class T3a(Adapter):
    """Every image of a batch is a support before the batch is predicted."""

    def __init__(self, bench: Bench, module: str, config: T3aConfig) -> None:
        self.network = bench.network
        self.module = module
        tensors = bench.network.modules[module].tensors
        weight, bias = (tensors[n].numpy() for n in ("head_weight", "head_bias"))
        self.supports = Supports(weight, bias, config.filter_k)

    def step(self, batch: TargetBatch) -> Logits:
        """Adds the batch's features to the classes that they are predicted as, then predicts."""
        features = features_of(self.network, batch, self.module)
        self.supports.add(features, self.network.logits(batch, self.module, None))
        return self.supports.logits(features)

    def predict(self, batch: TargetBatch) -> Logits:
        """With the centres of the features that were kept as the head."""
        return self.supports.logits(features_of(self.network, batch, self.module))


class Lame(Adapter):
    """A batch is corrected as a whole, and nothing is kept of it."""

    def __init__(self, bench: Bench, module: str, config: LameConfig) -> None:
        self.network = bench.network
        self.module = module
        self.config = config

    def step(self, batch: TargetBatch) -> Logits:
        """The same as `predict`: LAME corrects each batch by itself and keeps nothing."""
        return self.predict(batch)

    def predict(self, batch: TargetBatch) -> Logits:
        """The module's predictions, drawn towards those of each image's neighbours in the batch."""
        logits = self.network.logits(batch, self.module, None)
        return adjusted(logits, features_of(self.network, batch, self.module), self.config)


def adjusted(logits: NDArray[np.floating], features: NDArray[np.floating], config: LameConfig) -> Wide:
    """LAME's assignments Y of a batch, as logits: Y is their softmax.

    Y minimises Σ_ik y_ik (log y_ik - log p_ik) - Σ_ij w_ij y_i · y_j, by y_i ∝ p_i exp(Σ_j w_ij y_j) in turns.
    """
    unary = np.log(softmax(logits) + 1e-10)
    distance = _distances(_unit(features.astype(np.float64)))
    kernel = _neighbours(distance, config.neighbours)
    if config.affinity == "rbf":
        kernel = _bells(distance, config.neighbours)
    found = unary
    before = np.inf
    for index in range(STEPS):
        pull = kernel @ softmax(found)
        found = unary + pull
        y = softmax(found)
        energy = float((y * (np.log(np.maximum(y, 1e-20)) - unary - pull)).sum())
        if index > 1 and abs(energy - before) <= CONVERGED * abs(before):
            break
        before = energy
    return np.asarray(found)


def _distances(points: Wide) -> Wide:
    found = np.sqrt(np.maximum(2 - 2 * points @ points.T, 0.0))
    np.fill_diagonal(found, 0.0)
    return np.asarray(found)


def _neighbours(distance: Wide, count: int) -> Wide:
    """w_ij is 1 where j is one of the nearest to i."""
    others = distance + np.diag(np.full(len(distance), np.inf))
    nearest = np.argsort(others, axis=1, kind="stable")[:, : min(count, len(distance) - 1)]
    found = np.zeros_like(distance)
    np.put_along_axis(found, nearest, 1.0, axis=1)
    return found


def _bells(distance: Wide, count: int) -> Wide:
    """w_ij = exp(-d_ij² / 2σ²), σ the mean distance to the count-th nearest, oneself counted."""
    sigma = np.sort(distance, axis=1)[:, min(count, len(distance)) - 1].mean()
    if sigma == 0:  # one image, or the same many times
        return np.asarray(distance == 0, np.float64)
    return np.asarray(np.exp(-(distance**2) / (2 * sigma**2)))


def _unit(rows: NDArray[np.floating]) -> Wide:
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), TINY))


def _check_count(name: str, value: object) -> None:
    if type(value) is not int or value < 1:
        raise ConfigError(f"{name}: want a whole number of at least 1, got {value!r}")
