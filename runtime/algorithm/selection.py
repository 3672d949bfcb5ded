"""Lines 7 to 14 of Algorithm 1: the selector's step on the entropy of the pseudo-labels, then who predicts."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pluto_edge._arrays import Wide
from pluto_edge.config import AdaptConfig
from pluto_edge.modules import SelectorWeights
from pluto_edge.runtime.algorithm import selector
from pluto_edge.runtime.algorithm.state import Gathered, State
from pluto_edge.runtime.engine.passes import Pass

ADAM_BETAS = (0.9, 0.999)
ADAM_EPSILON = 1e-8


@dataclass(frozen=True)
class Blend:
    """A prediction in numbers: logits [B,K], weights [B,N] and the selected modules, heaviest first."""

    logits: Wide
    weights: Wide
    order: NDArray[np.intp]
    names: tuple[str, ...]

    @property
    def probabilities(self) -> Wide:
        """[B,K], the softmax of the logits."""
        return selector.softmax(self.logits)


def update_selector(state: State, passed: Pass, config: AdaptConfig) -> tuple[float, Gathered, State]:
    """Gradient steps on the mean entropy of the mixed pseudo-labels.

    Gives the entropy before them, and what is gathered with this batch's gradient; the first step takes the mean
    of all that.
    """
    if not config.selector:
        return (
            mixed_entropy(selector.weights(state.selector, passed.x_hat, passed.logits), passed),
            state.gathered,
            state,
        )
    entropy_before, gradient = selector.entropy_gradient(state.selector, passed.x_hat, passed.logits)
    gathered = state.gathered.with_selector(gradient, len(passed.x_hat))
    gradient = {k: v / gathered.samples for k, v in gathered.selector.items()}
    tensors = {k: v.astype(np.float64) for k, v in state.selector.tensors.items()}
    moments = dict(state.moments)
    for turn in range(config.selector_steps):
        if turn:
            _, gradient = selector.entropy_gradient(_narrow(tensors), passed.x_hat, passed.logits)
        if config.selector_optimizer == "adam":
            gradient, moments = _adam(gradient, moments)
        tensors = {k: v - config.selector_lr * gradient[k] for k, v in tensors.items()}
    return entropy_before, gathered, replace(state, selector=_narrow(tensors), moments=moments, gathered=Gathered())


def mixed_entropy(weights: Wide, passed: Pass) -> float:
    """The mean entropy of the mixed pseudo-labels ŷ = Σ_j w_j softmax(l_j)."""
    mixed = np.einsum("bn,bnk->bk", weights, selector.softmax(passed.logits))
    return float(selector.entropy(mixed).mean())


def blend(passed: Pass, weights: Wide, config: AdaptConfig) -> tuple[Blend, NDArray[np.intp]]:
    """Lines 12 to 14: batch mean, top M, rescale; then the prediction, Σ w_j l_j over the selected."""
    kept, order = selector.select(weights, config.top_m)
    logits = np.einsum("bn,bnk->bk", kept, passed.logits.astype(np.float64))
    return Blend(logits, passed.widened(kept), passed.columns[order], passed.loaded), order


def _narrow(tensors: Mapping[str, Wide]) -> SelectorWeights:
    return SelectorWeights(**{k: v.astype(np.float32) for k, v in tensors.items()})


def _adam(gradient: dict[str, Wide], moments: dict[str, Wide]) -> tuple[dict[str, Wide], dict[str, Wide]]:
    """The direction of Adam's step, and its memory; `moments` holds m, v and the count t."""
    b1, b2 = ADAM_BETAS
    t = float(moments.get("t", np.zeros(1))[0]) + 1
    direction = {}
    memory = {"t": np.array([t])}
    for key, value in gradient.items():
        m = b1 * moments.get(f"m.{key}", np.zeros_like(value)) + (1 - b1) * value
        v = b2 * moments.get(f"v.{key}", np.zeros_like(value)) + (1 - b2) * np.square(value)
        direction[key] = m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + ADAM_EPSILON)
        memory |= {f"m.{key}": m, f"v.{key}": v}
    return direction, memory
