"""`Prediction`: what a runtime or a stream says of images."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pluto_edge.runtime import selector
from pluto_edge.runtime.algorithm import Blend

__all__ = ["Prediction"]

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Prediction:
    """What the blended modules say of a batch of B images.

    Attributes:
        labels: [B] class indices.
        classes: [B] class names.
        probabilities: [B,K] softmax of `logits`.
        logits: [B,K] weighted sum of the selected modules' logits, or logarithms of the probabilities where
            prototypes helped to predict.
        weights: [B,N] weight of every module for every image; rows sum to 1, unselected modules have 0.
        modules: names of all N modules, in the order of `weights`.
        selected: names of the modules that took part, heaviest first.
        entropy: [B] of `probabilities`, in nats: 0 is certain, ln K is a guess.
    """

    labels: NDArray[np.intp]
    classes: tuple[str, ...]
    probabilities: Array = field(repr=False)
    logits: Array = field(repr=False)
    weights: Array = field(repr=False)
    modules: tuple[str, ...] = field(repr=False)
    selected: tuple[str, ...]
    entropy: Array = field(repr=False)

    def __len__(self) -> int:
        return len(self.labels)

    @staticmethod
    def of(blend: Blend, classes: Sequence[str]) -> "Prediction":
        probabilities = blend.probabilities
        labels = probabilities.argmax(axis=1)
        return Prediction(
            labels=labels,
            classes=tuple(classes[i] for i in labels),
            probabilities=_float(probabilities),
            logits=_float(blend.logits),
            weights=_float(blend.weights),
            modules=blend.names,
            selected=tuple(blend.names[i] for i in blend.order),
            entropy=_float(selector.entropy(probabilities)),
        )


def _float(value: NDArray[Any]) -> Array:
    return value.astype(np.float32)
