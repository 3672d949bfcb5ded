"""PLUTO's Algorithm 1, readable with the paper open. Numbers are the paper's lines.

Nothing here keeps state: a step takes one and proposes another. Whether the proposal is taken is decided in
`judging.py`. What goes beyond the paper stands beside it, in `beyond.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pluto_edge._arrays import Wide
from pluto_edge.config import AdaptConfig
from pluto_edge.preprocess import ImageBatch
from pluto_edge.runtime.algorithm import selector
from pluto_edge.runtime.algorithm.logits import all_modules
from pluto_edge.runtime.algorithm.selection import Blend, blend, mixed_entropy, update_selector
from pluto_edge.runtime.algorithm.sharpness import learn_affines
from pluto_edge.runtime.algorithm.state import State
from pluto_edge.runtime.engine.network import Network
from pluto_edge.runtime.engine.passes import Pass
from pluto_edge.runtime.engine.timing import Stages


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
    """Algorithm 1 on the t-th batch; `seen` are passes of the same images, whose logits serve where they hold."""
    with stages("forward"):  # 4 to 6: every x_i through the N modules, l(x_i)^j
        passed, guess = all_modules(network, state, batch, config, seen)
    with stages("selector"):
        # 7, 8 and 10: weights w, pseudo-labels, G to G* by minimising their entropy
        entropy_before, gathered, updated = update_selector(state, passed, config)
        # 11: w* = G*(x_i, l(x_i)^j)
        weights = selector.weights(updated.selector, passed.x_hat, passed.logits)
        # 12 to 14: their mean over the batch, the top M, rescaled to sum to 1; the prediction Σ w_j l_j
        prediction, order = blend(passed, weights, config)
        entropy_after = mixed_entropy(weights, passed)
    with stages("layer_norm"):  # 15: the LayerNorm affines of the heaviest, by Algorithm 2
        updated = replace(updated, top=passed.names[order[0]])
        guessed = updated.top == guess
        learned = learn_affines(network, state, updated, batch, passed, gathered, guessed, config)
    return Proposal(
        state=learned.state,
        blend=prediction,
        passed=passed,
        weights=weights,
        order=order,
        entropy_before=entropy_before,
        entropy_after=entropy_after,
        reliable=learned.reliable,
        loss=learned.loss,
        guessed=guessed,
        gathering=learned.gathering,
    )
