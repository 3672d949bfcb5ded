"""PLUTO, Algorithms 1 and 2, readable with the paper open.

Nothing here keeps state: a step takes one and proposes another. Whether the proposal is taken is decided in
`learner.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import log

import numpy as np
from numpy.typing import NDArray

from pluto_edge.config import AdaptConfig
from pluto_edge.modules import SelectorWeights
from pluto_edge.preprocess import ImageBatch
from pluto_edge.runtime.algorithm import selector as g
from pluto_edge.runtime.algorithm.state import Gathered, State, Wide
from pluto_edge.runtime.engine.affines import Affines
from pluto_edge.runtime.engine.network import MEAN_ENTROPY, Gradient, Network, Pass, hold
from pluto_edge.runtime.engine.objective import Objective
from pluto_edge.runtime.engine.timing import Stages

# of the images that are reliable; a gradient costs 2.2 passes forward: 2.2 < 1 + 2.2 r for all r from here on
GUESS_FROM = 0.55
ADAM_BETAS, ADAM_EPSILON = (0.9, 0.999), 1e-8


@dataclass(frozen=True)
class Blend:
    """A prediction in numbers: logits [B,K], weights [B,N] and the selected modules, heaviest first."""

    logits: Wide
    weights: Wide
    order: NDArray[np.intp]
    names: tuple[str, ...]

    @property
    def probabilities(self) -> Wide:
        return g.softmax(self.logits)


@dataclass(frozen=True)
class Proposal:
    """What a step would do: the next state, the prediction, and all that led to it."""

    state: State
    blend: Blend
    passed: Pass
    weights: Wide  # w* [B,n] of the modules that ran, before the selection
    order: NDArray[np.intp]  # the selected modules, heaviest first
    entropy_before: float
    entropy_after: float
    reliable: int
    loss: float | None  # mean entropy of the reliable samples at λ + ε
    guessed: bool
    gathering: bool  # too few reliable samples so far: the state has their gradients and nothing else is new


def propose(
    network: Network,
    state: State,
    batch: ImageBatch,
    config: AdaptConfig,
    stages: Stages,
    seen: Sequence[Pass] = (),
) -> Proposal:
    """Algorithm 1 on one batch. `seen` are passes of the same images, whose logits are used where they hold."""
    threshold = reliable_below(network, config)

    with stages("forward"):  # lines 4 to 6: logits of the N modules
        names = network.modules.specialists
        guess = guess_top(network, state, names, config, seen)
        objective = Objective(threshold)
        passed = network.run_finite(
            batch, state.affines, names, differentiate=guess, objective=objective, seen=seen
        )
    with stages("selector"):  # lines 7 to 11: weights, pseudo-labels, G to G*, updated weights
        before, gathered, proposed = update_selector(state, passed, config)
        weights = g.weights(proposed.selector, passed.x_hat, passed.logits)
        blended, order = blend(passed, weights, config)  # lines 12 to 14, and the prediction
        after = mixed_entropy(weights, passed)
    top = passed.names[order[0]]
    proposed = replace(proposed, top=top)

    reliable, loss, gathering = 0, None, False
    with stages("layer_norm"):  # line 15: the top module's affines, sharpness-aware
        if config.sam == "batch":
            first = passed.gradient if top == guess else None
            reliable, loss, gradient = sam_batch(network, proposed, batch, passed, first, threshold, config)
            proposed, gathering = descend_gathered(network, state, proposed, gathered, gradient, reliable, config)
        elif config.sam == "sample":
            proposed, reliable, loss = sam_samples(network, proposed, batch, threshold, config)
    return Proposal(
        proposed, blended, passed, weights, order, before, after, reliable, loss, top == guess, gathering=gathering
    )


def reliable_below(network: Network, config: AdaptConfig) -> float:
    """The entropy below which a sample is reliable."""
    return config.entropy_margin * log(network.bundle.manifest.dims.classes) if config.filter else np.inf


def entropy_rate(config: AdaptConfig) -> float:
    """Of the step on the affines: SAR's for ViTs, unless another is asked for."""
    return 1e-3 if config.ln_lr is None else config.ln_lr


def blend(passed: Pass, weights: Wide, config: AdaptConfig) -> tuple[Blend, NDArray[np.intp]]:
    """Lines 12 to 14: batch mean, top M, rescale; then the prediction, Σ w_j l_j over the selected."""
    kept, order = g.select(weights, config.top_m)
    logits = np.einsum("bn,bnk->bk", kept, passed.logits.astype(np.float64))
    return Blend(logits, passed.widened(kept), passed.columns[order], passed.loaded), order


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
        return kept, True
    for name, mean in gathered.means().items():
        proposed = descend(network, proposed, name, mean, entropy_rate(config), config)
    return proposed, False


def guess_top(
    network: Network, state: State, names: Sequence[str], config: AdaptConfig, seen: Sequence[Pass]
) -> str | None:
    """The last batch's top module, where its pass forward is to give the gradient, too.

    It is not where few images are reliable, or its logits are known already: then a gradient for the reliable
    images alone is cheaper.
    """
    top = state.top
    if config.sam != "batch" or top is None or top not in names or state.reliable < GUESS_FROM:
        return None
    return None if hold(seen, top, current(network, state, top)) else top


def update_selector(state: State, passed: Pass, config: AdaptConfig) -> tuple[float, Gathered, State]:
    """Gradient steps on the mean entropy of the mixed pseudo-labels.

    Gives the entropy before them, and what is gathered with this batch's gradient; the first step takes the mean
    of all that.
    """
    if not config.selector:
        return mixed_entropy(g.weights(state.selector, passed.x_hat, passed.logits), passed), state.gathered, state
    before, gradient = g.entropy_gradient(state.selector, passed.x_hat, passed.logits)
    gathered = state.gathered.with_selector(gradient, len(passed.x_hat))
    gradient = {k: v / gathered.samples for k, v in gathered.selector.items()}
    tensors = {k: v.astype(np.float64) for k, v in state.selector.tensors.items()}
    moments = dict(state.moments)
    for turn in range(config.selector_steps):
        if turn:
            _, gradient = g.entropy_gradient(_narrow(tensors), passed.x_hat, passed.logits)
        if config.selector_optimizer == "adam":
            gradient, moments = _adam(gradient, moments)
        tensors = {k: v - config.selector_lr * gradient[k] for k, v in tensors.items()}
    return before, gathered, replace(state, selector=_narrow(tensors), moments=moments, gathered=Gathered())


def mixed_entropy(weights: Wide, passed: Pass) -> float:
    mixed = np.einsum("bn,bnk->bk", weights, g.softmax(passed.logits))
    return float(g.entropy(mixed).mean())


def sam_batch(
    network: Network,
    state: State,
    batch: ImageBatch,
    passed: Pass,
    first: Gradient | None,
    threshold: float,
    config: AdaptConfig,
) -> tuple[int, float | None, Affines | None]:
    """The sharpness-aware gradient of the top module for the mean entropy of the reliable samples.

    `first` is the gradient at λ when it is known already: the module was guessed right, and the pass that gave
    its logits gave the gradient too. Gives the number of reliable samples, the loss and the gradient.
    """
    name = state.top
    assert name is not None
    if first is None:
        reliable = np.flatnonzero(g.entropy(g.softmax(passed.of(name))) < threshold)
        if len(reliable):
            first = network.gradient(batch, reliable, name, current(network, state, name))
            first = replace(first, reliable=reliable)
    if first is None or not len(first.reliable):
        return 0, None, None
    return len(first.reliable), *sharpness_aware(network, state, batch, first, first.reliable, config)


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


def sharpness_aware(
    network: Network,
    state: State,
    batch: ImageBatch,
    first: Gradient,
    samples: NDArray[np.intp],
    config: AdaptConfig,
    objective: Objective = MEAN_ENTROPY,
) -> tuple[float, Affines]:
    """v = ∇ at λ; ε = ρ v / ‖v‖; loss and ∇ at λ + ε. ρ = 0 is a plain gradient.

    (Algorithm 2 has sgn(v) |v| / ‖v‖, which is v / ‖v‖.)
    """
    name = state.top
    assert name is not None
    v = first.affines.only(config.ln_layers)
    if config.rho == 0 or v.norm == 0:
        return first.loss, v
    moved = current(network, state, name).plus(v, config.rho / v.norm)
    second = network.gradient(batch, samples, name, moved, objective)
    return second.loss, second.affines.only(config.ln_layers)


def descend(
    network: Network, state: State, name: str, gradient: Affines, rate: float, config: AdaptConfig
) -> State:
    """SGD on one module's affines, from where they are now."""
    if config.ln_momentum and name in state.momentum:
        gradient = gradient.plus(state.momentum[name], config.ln_momentum)
    momentum = {**state.momentum, name: gradient} if config.ln_momentum else state.momentum
    updated = {**state.affines, name: current(network, state, name).plus(gradient, -rate)}
    return replace(state, affines=updated, momentum=momentum)


def current(network: Network, state: State, name: str) -> Affines:
    return state.affines.get(name) or network.modules[name].exported


def _narrow(tensors: Mapping[str, Wide]) -> SelectorWeights:
    return SelectorWeights(**{k: v.astype(np.float32) for k, v in tensors.items()})


def _adam(gradient: dict[str, Wide], moments: dict[str, Wide]) -> tuple[dict[str, Wide], dict[str, Wide]]:
    """The direction of Adam's step, and its memory; `moments` holds m, v and the count t."""
    (b1, b2), t = ADAM_BETAS, float(moments.get("t", np.zeros(1))[0]) + 1
    direction, memory = {}, {"t": np.array([t])}
    for key, value in gradient.items():
        m = b1 * moments.get(f"m.{key}", np.zeros_like(value)) + (1 - b1) * value
        v = b2 * moments.get(f"v.{key}", np.zeros_like(value)) + (1 - b2) * np.square(value)
        direction[key] = m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + ADAM_EPSILON)
        memory |= {f"m.{key}": m, f"v.{key}": v}
    return direction, memory
