"""Algorithm 2, sharpness-aware entropy minimisation, and its batch form, in which line 15 of Algorithm 1 uses it.

v = ∇E(λ); ε* = ρ v / ‖v‖; the step goes along -∇E(λ + ε*). Samples whose entropy is not below E0 take no part.
(Algorithm 2 has ρ sgn(v) v / ‖v‖, which has no negative entry; the main text has ρ sgn(v) |v| / ‖v‖, which is what
SAM derives, and what is followed.)
"""

from dataclasses import dataclass, replace
from math import log

import numpy as np
from numpy.typing import NDArray

from pluto_edge.config import AdaptConfig
from pluto_edge.preprocess import ImageBatch
from pluto_edge.runtime.algorithm import selector
from pluto_edge.runtime.algorithm.looksam import Sharp
from pluto_edge.runtime.algorithm.state import Gathered, State
from pluto_edge.runtime.engine.affines import Affines
from pluto_edge.runtime.engine.network import Network
from pluto_edge.runtime.engine.objective import MEAN_ENTROPY, Objective
from pluto_edge.runtime.engine.passes import Gradient, Pass


def reliable_below(network: Network, config: AdaptConfig) -> float:
    """The entropy below which a sample is reliable."""
    return config.entropy_margin * log(network.bundle.manifest.dims.classes) if config.filter else np.inf


def entropy_rate(config: AdaptConfig) -> float:
    """Of the step on the affines: SAR's for ViTs, unless another is asked for."""
    return 1e-3 if config.ln_lr is None else config.ln_lr


@dataclass(frozen=True)
class Learned:
    """The state after line 15, on how many reliable samples, and their mean entropy at λ + ε."""

    state: State
    reliable: int = 0
    loss: float | None = None
    gathering: bool = False  # too few reliable samples so far: their gradients are kept, and nothing else is new


def learn_affines(
    network: Network,
    before: State,
    updated: State,
    batch: ImageBatch,
    passed: Pass,
    gathered: Gathered,
    guessed: bool,
    config: AdaptConfig,
) -> Learned:
    """Line 15 of Algorithm 1. `before` is the state before the step, `updated` has the new selector and the top
    module; where that was `guessed`, `passed` has its gradient."""
    threshold = reliable_below(network, config)
    if config.sam == "sample":
        return Learned(*sam_samples(network, updated, batch, threshold, config))
    if config.sam is None:
        return Learned(updated)
    first = passed.gradient if guessed else None
    reliable, loss, gradient, updated = sam_batch(network, updated, batch, passed, first, threshold, config)
    state, gathering = descend_gathered(network, before, updated, gathered, gradient, reliable, config)
    return Learned(state, reliable, loss, gathering)


def sam_batch(
    network: Network,
    state: State,
    batch: ImageBatch,
    passed: Pass,
    first: Gradient | None,
    threshold: float,
    config: AdaptConfig,
) -> tuple[int, float | None, Affines | None, State]:
    """The sharpness-aware gradient of the top module for the mean entropy of the reliable samples.

    `first` is the gradient at λ when it is known already: the module was guessed right, and the pass that gave
    its logits gave the gradient too. Gives the number of reliable samples, the loss, the gradient, and the state
    with what later steps may use of it.
    """
    name = state.top
    assert name is not None
    if first is None:
        reliable = np.flatnonzero(selector.entropy(selector.softmax(passed.of(name))) < threshold)
        if len(reliable):
            first = network.gradient(batch, reliable, name, current(network, state, name))
            first = replace(first, reliable=reliable)
    if first is None or not len(first.reliable):
        return 0, None, None, state
    return len(first.reliable), *sharp_gradient(network, state, batch, first, first.reliable, config)


def sam_samples(
    network: Network, state: State, batch: ImageBatch, threshold: float, config: AdaptConfig
) -> tuple[State, int, float | None]:
    """Algorithm 2: sample after sample, each from the affines that the one before it left."""
    name = state.top
    assert name is not None
    losses = []
    for index in range(len(batch)):
        sample = np.array([index])
        first = network.gradient(batch, sample, name, current(network, state, name), Objective(threshold))
        if len(first.reliable):  # else: filter the sample with large entropy
            loss, gradient = sharpness_aware(network, state, batch, first, sample, config)
            state = descend(network, state, name, gradient, entropy_rate(config), config)
            losses.append(loss)
    return state, len(losses), float(np.mean(losses)) if losses else None


def sharp_gradient(
    network: Network,
    state: State,
    batch: ImageBatch,
    first: Gradient,
    samples: NDArray[np.intp],
    config: AdaptConfig,
    objective: Objective = MEAN_ENTROPY,
) -> tuple[float, Affines, State]:
    """`sharpness_aware` or, with `sam_every` above 1, in most steps what an earlier one found (`looksam.py`): then
    the loss is that at λ. The state has what is kept."""
    name = state.top
    assert name is not None
    v = first.d_affines.only(config.ln_layers)
    known = state.sharp.get(name)
    if config.sam_every > 1 and known is not None and known.left > 0 and config.rho and v.norm:
        return first.loss, known.beside(v), replace(state, sharp={**state.sharp, name: known.used()})
    loss, gradient = sharpness_aware(network, state, batch, first, samples, config, objective)
    if config.sam_every > 1:
        state = replace(state, sharp={**state.sharp, name: Sharp.of(v, gradient, config.sam_every)})
    return loss, gradient, state


def sharpness_aware(
    network: Network,
    state: State,
    batch: ImageBatch,
    first: Gradient,
    samples: NDArray[np.intp],
    config: AdaptConfig,
    objective: Objective = MEAN_ENTROPY,
) -> tuple[float, Affines]:
    """v = ∇ at λ; ε = ρ v / ‖v‖; loss and ∇ at λ + ε. ρ = 0 is a plain gradient."""
    name = state.top
    assert name is not None
    v = first.d_affines.only(config.ln_layers)
    if config.rho == 0 or v.norm == 0:
        return first.loss, v
    moved = current(network, state, name).plus(v, config.rho / v.norm)
    second = network.gradient(batch, samples, name, moved, objective)
    return second.loss, second.d_affines.only(config.ln_layers)


def descend(
    network: Network, state: State, name: str, gradient: Affines, rate: float, config: AdaptConfig
) -> State:
    """SGD on one module's affines, from where they are now."""
    if config.ln_momentum and name in state.momentum:
        gradient = gradient.plus(state.momentum[name], config.ln_momentum)
    momentum = {**state.momentum, name: gradient} if config.ln_momentum else state.momentum
    updated = {**state.affines, name: current(network, state, name).plus(gradient, -rate)}
    return replace(state, affines=updated, momentum=momentum)


def descend_gathered(
    network: Network,
    before: State,
    proposed: State,
    gathered: Gathered,
    gradient: Affines | None,
    reliable: int,
    config: AdaptConfig,
) -> tuple[State, bool]:
    """A step on the affines with all that was gathered or, while that is too little, the state as it was before,
    with this batch's gradients kept. Says which."""
    assert proposed.top is not None
    if gradient is not None:
        gathered = gathered.plus(proposed.top, gradient, reliable)
    if reliable > 0 and gathered.reliable < config.min_reliable:
        kept = replace(before, top=proposed.top, gathered=gathered, prototypes=proposed.prototypes)
        return replace(kept, sharp=proposed.sharp), True
    for name, mean in gathered.means().items():
        proposed = descend(network, proposed, name, mean, entropy_rate(config), config)
    return proposed, False


def current(network: Network, state: State, name: str) -> Affines:
    """λ of one module as it is now: what was learned, or else what was exported."""
    return state.affines.get(name) or network.modules[name].exported
