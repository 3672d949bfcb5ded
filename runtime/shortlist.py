"""Many modules: those that stand highest run on the whole batch, the others in turn on a few images of it.

The selector's score of a module needs the logits of that module alone, and weights that are rescaled over M modules
are the softmax over the scores of these M. So where the right M run, weights and blend are those of running all N.
What is approximate is which M they are, and the selector's gradient, which sees only them.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import ceil

import numpy as np
from numpy.typing import NDArray

from pluto_edge.config import AdaptConfig
from pluto_edge.modules import SelectorWeights
from pluto_edge.preprocess import ImageBatch
from pluto_edge.runtime import selector
from pluto_edge.runtime.network import Network, Pass
from pluto_edge.runtime.state import State, Wide

MANY = 16  # modules; no more than these all run on every image
TURNS = 10  # steps in which every module is tried once


def size(config: AdaptConfig, modules: Collection[str]) -> int | None:
    """How many modules are on the shortlist; None where all run."""
    few = config.top_m is None or config.top_m >= len(modules) or len(modules) <= MANY
    return None if few or config.probe == 0 else config.top_m


def choose(standing: Mapping[str, float], modules: Collection[str], config: AdaptConfig) -> tuple[str, ...] | None:
    """The shortlist, highest first; None, which is all modules, where there is to be none or one does not stand."""
    count = size(config, modules)
    if count is None or any(n not in standing for n in modules):
        return None
    return tuple(sorted(modules, key=lambda n: -standing[n])[:count])


def in_turn(standing: Mapping[str, float], modules: Collection[str], listed: Collection[str]) -> tuple[str, ...]:
    """Modules to be tried next: of those not on the shortlist, the ones whose standing is oldest."""
    others = [n for n in standing if n in modules and n not in listed]
    return tuple(others[: ceil(len(modules) / TURNS)])


def spread(images: int, count: int) -> NDArray[np.intp]:
    """Up to `count` images of a batch, from the first to the last."""
    count = min(count, images)
    return np.arange(count) * (images - 1) // max(count - 1, 1)


def surveyed(network: Network, state: State, batch: ImageBatch, config: AdaptConfig) -> State:
    """The state with a standing for every module, if it lacks one and the batch has more images than a probe."""
    count = size(config, network.modules)
    if count is None or len(batch) <= config.probe or choose(state.standing, network.modules, config):
        return state
    passed = network.run(batch.part(spread(len(batch), config.probe)), state.affines)
    return replace(state, standing=survey(state.selector, [passed], count))


def survey(g: SelectorWeights, passes: Sequence[Pass], count: int) -> dict[str, float]:
    """Every module's standing from passes of all: its mean weight, where those of the `count` highest sum to 1."""
    logits, x_hat = (np.concatenate([getattr(p, n) for p in passes]) for n in ("logits", "x_hat"))
    means = _mean_weights(g, x_hat, logits)
    return _standing(passes[0].names, means, np.sort(means)[-count:])


def refreshed(
    network: Network, state: State, batch: ImageBatch, passed: Pass, weights: Wide, config: AdaptConfig
) -> dict[str, float]:
    """The standing after a step, oldest first: of the shortlist, which has passed the batch with these weights, and
    of the modules whose turn it is, tried beside it on some images."""
    turn = in_turn(state.standing, network.modules, passed.names)
    at = spread(len(batch), config.probe)
    tried = network.run(batch.part(at), state.affines, turn)
    logits, count = np.concatenate([passed.logits[at], tried.logits], axis=1), len(passed.names)
    means = _mean_weights(state.selector, passed.x_hat[at], logits)
    fresh = _standing(tried.names, means[count:], means[:count])
    fresh |= dict(zip(passed.names, weights.mean(axis=0).tolist(), strict=True))
    return {n: s for n, s in state.standing.items() if n in network.modules and n not in fresh} | fresh


def _mean_weights(g: SelectorWeights, x_hat: NDArray[np.float32], logits: NDArray[np.float32]) -> Wide:
    """[n], over the images; a module whose logits are not finite has none."""
    means, whole = np.zeros(logits.shape[1]), np.isfinite(logits).all(axis=(0, 2))
    if whole.any():
        means[whole] = selector.weights(g, x_hat, logits[:, whole]).mean(axis=0)
    return means


def _standing(names: Sequence[str], means: Wide, listed: Wide) -> dict[str, float]:
    """Mean weights in units of what the shortlist has together."""
    total = max(float(listed.sum()), np.finfo(np.float64).tiny)
    return dict(zip(names, (means / total).tolist(), strict=True))
