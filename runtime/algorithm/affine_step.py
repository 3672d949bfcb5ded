"""The gradient step beyond the paper: what the leading module's affines learn of a batch.

Its activations are to be as they were on its source (`alignment.py`), and its head is to say what all parts
together are sure of (`teaching.py`). What was learned fades from step to step and stays near what was exported, and
prototypes move with the features.
(The numbers were chosen on development domains: docs/adaptation.md.)
"""

from dataclasses import replace

import numpy as np

from pluto_edge._arrays import Wide
from pluto_edge.config import AdaptConfig
from pluto_edge.preprocess import ImageBatch
from pluto_edge.runtime.algorithm import selector
from pluto_edge.runtime.algorithm.alignment import Alignment, align
from pluto_edge.runtime.algorithm.sharpness import Learned, current, descend, sharp_gradient
from pluto_edge.runtime.algorithm.state import State
from pluto_edge.runtime.algorithm.teaching import evenness, lessons
from pluto_edge.runtime.engine.network import Network
from pluto_edge.runtime.engine.objective import Objective
from pluto_edge.runtime.engine.passes import Pass

ALIGN_FROM = 16  # images: the statistics of fewer say nothing
ALIGN_RATE = 0.02
BY_CHANCE = 2.0  # times the loss that chance alone makes: below it there is nothing to undo
ENTROPY_SHARE = 0.1  # of the entropy beside alignment
FADES = 0.05  # of what was learned, with every step: what is not learned again and again is forgotten
RADIUS = 0.05  # of the exported affines' norm: no farther from them does anything that was learned lead
CARRIED_BY = ALIGN_FROM  # images of the batch that tell how a step moves features


def learn_beyond(
    network: Network,
    state: State,
    batch: ImageBatch,
    passed: Pass,
    probabilities: Wide,
    threshold: float,
    config: AdaptConfig,
) -> Learned:
    """A sharpness-aware step of the top module towards its source's activations, and what is said of the batch.

    There is none without a reliable image, nor where the activations are as near as chance lets them be: a known
    domain leaves nothing to undo, and costs no gradient. The loss is of the whole batch, so its gradient at an
    image is known only from all of them: `passed` has their activations. At λ + ε the same coefficients serve.
    """
    name = state.top
    assert name is not None and passed.activations is not None
    reference = network.modules.references[name].signature
    reliable = int((selector.entropy(selector.softmax(passed.of(name))) < threshold).sum())
    if reliable == 0:
        return Learned(state)
    found = align(
        passed.activations[:, passed.names.index(name)], reference.activation_mean, reference.activation_std
    )
    if found.excess < BY_CHANCE:
        return Learned(state, reliable, found.loss)
    objective = _objective(found, probabilities, reliable, threshold, config)
    every = np.arange(len(batch))
    first = network.gradient(batch, every, name, current(network, state, name), objective)
    _, gradient, state = sharp_gradient(network, state, batch, first, every, config, objective)
    rate = ALIGN_RATE if config.ln_lr is None else config.ln_lr
    after = descend(network, state, name, gradient, rate, config)
    exported = network.modules[name].exported
    near = after.affines[name].towards(exported, FADES).near(exported, RADIUS)
    after = replace(after, affines={**after.affines, name: near})
    if config.prototypes:
        after = _carried(network, after, batch, passed)
    return Learned(after, reliable, found.loss)


def _objective(
    found: Alignment, probabilities: Wide, reliable: int, threshold: float, config: AdaptConfig
) -> Objective:
    """Alignment, and what `AdaptConfig.objective` wants beside it."""
    if config.objective == "teach":
        even = np.float32(evenness(probabilities))
        target = even * lessons(probabilities)
        return Objective(threshold, 0.0, even * found.offset, even * found.slope, target)
    weight = ENTROPY_SHARE / reliable if config.objective == "both" else 0.0
    return Objective(threshold, weight, found.offset, found.slope)


def _carried(network: Network, state: State, batch: ImageBatch, passed: Pass) -> State:
    """Prototypes were learned among the features of the affines before the step: they move as features do."""
    name = state.top
    assert name is not None
    some = np.linspace(0, len(batch) - 1, CARRIED_BY).astype(np.intp)
    after = network.run(batch.part(some), state.affines, [name]).features[:, 0].astype(np.float64)
    by = (after - passed.features[some, passed.names.index(name)]).mean(axis=0)
    return replace(state, prototypes=state.prototypes.carried(name, by))
