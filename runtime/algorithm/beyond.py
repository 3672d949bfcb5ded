"""A step beyond the paper: evidence says who has a say, prototypes help to predict, the affines align and learn.

It has the frame of Algorithm 1 (`step.py`), and each part stands alone: `evidence.py` (which domain is this?),
`prototypes.py` (where are the classes here?), `continuity.py` (does one image tell of the next?), `affine_step.py`
(what do the affines learn?). `AdaptConfig` switches each one off. Modules without a signature know nothing of all
this; a runtime of such modules follows the paper.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pluto_edge._arrays import Wide
from pluto_edge.config import AdaptConfig
from pluto_edge.preprocess import ImageBatch
from pluto_edge.runtime.algorithm import selector
from pluto_edge.runtime.algorithm.affine_step import ALIGN_FROM, learn_beyond
from pluto_edge.runtime.algorithm.continuity import Continuity
from pluto_edge.runtime.algorithm.evidence import SHORTLIST, STAKES, Domains, trust
from pluto_edge.runtime.algorithm.prototypes import Prototypes
from pluto_edge.runtime.algorithm.selection import Blend, blend, mixed_entropy, update_selector
from pluto_edge.runtime.algorithm.sharpness import Learned, learn_affines, reliable_below
from pluto_edge.runtime.algorithm.state import State
from pluto_edge.runtime.algorithm.step import Proposal
from pluto_edge.runtime.algorithm.teaching import evenness
from pluto_edge.runtime.engine.modules import Modules
from pluto_edge.runtime.engine.network import Network
from pluto_edge.runtime.engine.passes import Look, Pass
from pluto_edge.runtime.engine.timing import Stages

LITTLE = 0.05  # a module that has less say than this on every image is not run
AT_RANDOM = 0.5  # `Continuity.independence` below which a batch shows its classes, and not its domain
ROUNDS = 2  # the batch is predicted, learned from, and predicted with what was learned


def applies(modules: Modules, config: AdaptConfig) -> bool:
    """Whether anything here is asked for, and any module has a signature."""
    asked = config.weighting != "selector" or config.prototypes or config.objective != "entropy"
    return asked and bool(modules.references)


@dataclass(frozen=True)
class Recognised:
    """What is known of the images before any module runs.

    Attributes:
        shares: how much of each image looks like each known domain, [B,N]; no column where nobody asks or knows.
        asked: the specialists that the selector is to weigh, where no domain fits.
    """

    shares: Wide
    asked: tuple[str, ...]


@dataclass(frozen=True)
class Say:
    """Who has a say: by module its share of every image, [B]; and what is left to the selector, [B], which weighs
    those that are `asked`."""

    shares: Mapping[str, Wide]
    rest: Wide
    asked: tuple[str, ...] = ()

    def names(self, modules: Modules) -> tuple[str, ...]:
        """The modules that must run."""
        asked = self.asked if self.rest.max() > LITTLE else ()
        return tuple(n for n in modules if n in self.shares or n in asked)

    def weights(self, state: State, passed: Pass) -> Wide:
        """[B,n] of the modules that ran, rows sum to 1; one that did not run leaves its share to the others."""
        weights = np.zeros(passed.logits.shape[:2])
        for name, share in self.shares.items():
            if name in passed.names:
                weights[:, passed.names.index(name)] = share
        asked = [c for c, n in enumerate(passed.names) if n in self.asked]
        if asked and self.rest.max() > LITTLE:
            chosen = selector.weights(state.selector, passed.x_hat, passed.logits[:, asked])
            weights[:, asked] += self.rest[:, None] * chosen
        weights += np.finfo(np.float32).tiny
        return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def known_domains(modules: Modules) -> Domains | None:
    """What the specialists know; None where none has a signature."""
    return modules.once(_domains)


def _domains(modules: Modules) -> Domains | None:
    return Domains.of({n: r.signature for n, r in modules.references.items() if n in modules.specialists})


def recognise(
    modules: Modules, recent: NDArray[np.floating], x_hat: NDArray[np.floating], config: AdaptConfig
) -> Recognised:
    """From how the images look, and the recent ones, this batch's among them or not."""
    domains = known_domains(modules)
    if config.weighting != "evidence" or domains is None:
        return Recognised(np.zeros((len(x_hat), 0)), modules.specialists)
    shares = domains.weigh(recent, x_hat, STAKES if modules.generalist is not None else 1.0)
    if modules.generalist is not None or len(modules.specialists) <= SHORTLIST:
        return Recognised(shares, modules.specialists)
    near = domains.nearest(recent if len(recent) else x_hat, SHORTLIST)
    return Recognised(shares, tuple(n for n in modules.specialists if n in near or n not in domains.names))


def who_has_a_say(modules: Modules, prototypes: Prototypes, recognised: Recognised, config: AdaptConfig) -> Say:
    """From what is recognised in the images, and from how well each module's features fit so far."""
    looks = recognised.shares
    rest = np.ones(len(looks))
    if config.weighting == "generalist" and modules.generalist is not None:
        return Say({modules.generalist: rest}, np.zeros_like(rest))
    shares: dict[str, Wide] = {}
    domains = known_domains(modules)
    if config.weighting == "evidence" and domains is not None:
        for column, name in enumerate(domains.names):
            fits = trust(prototypes.misfit(name, modules.references[name]))
            share = looks[:, column] * fits * modules.homes.get(name, 1.0)
            if share.max() > LITTLE:
                shares[name] = share
        rest = 1 - np.sum(list(shares.values()), axis=0) if shares else rest
        if modules.generalist is not None and rest.max() > LITTLE:
            return Say({**shares, modules.generalist: rest}, np.zeros_like(rest))
    return Say(shares, np.maximum(rest, 0.0), recognised.asked)


def try_on(modules: Modules, tried: Prototypes, passed: Pass, blend: Blend, config: AdaptConfig) -> Prototypes:
    """Where the classes of these images are, for `Prototypes.misfit`; nothing is predicted with it."""
    if not config.prototypes or config.weighting != "evidence":
        return tried
    return learned(modules, tried, passed, blend, blend.probabilities, 0.0)


def followed(blend: Blend, continuity: Continuity | None) -> tuple[Wide, float]:
    """Probabilities in the light of each other, if images are a stream's, and how far classes come at random."""
    if continuity is None:
        return blend.probabilities, 0.0
    probabilities, after = continuity.follow(blend.probabilities)
    return probabilities, after.independence


def learned(
    modules: Modules,
    prototypes: Prototypes,
    passed: Pass,
    blend: Blend,
    probabilities: Wide,
    independence: float,
    times: float = 1.0,
) -> Prototypes:
    """With these images, as they were blended and predicted; `Prototypes.learn` explains the last two.

    A stream's first run cannot be told from a module that says one class of everything. In either case the mean of
    all images is no guide to how the domain has moved the features; so a batch of few classes counts less for it.
    """
    kept = blend.weights[:, passed.columns]
    if len(probabilities) >= ALIGN_FROM:
        independence *= evenness(probabilities)
    references = modules.references
    return prototypes.learn(passed.names, references, passed.features, kept, probabilities, independence, times)


def predict(modules: Modules, state: State, passed: Pass, weights: Wide, config: AdaptConfig) -> Blend:
    """The blend of the top M: by head and prototypes or, without these, as in the paper."""
    plain, _ = blend(passed, weights, config)
    if not config.prototypes:
        return plain
    kept = plain.weights[:, passed.columns]
    p = state.prototypes.predict(passed.names, modules.references, passed.logits, passed.features, kept)
    return replace(plain, logits=np.log(p))


def propose(
    network: Network,
    state: State,
    batch: ImageBatch,
    config: AdaptConfig,
    stages: Stages,
    seen: Sequence[Pass],
    look: Look,
    recent: NDArray[np.floating],
    continuity: Continuity | None,
) -> Proposal:
    """One step.

    `look` is of the batch, `recent` are x̂ of the last images, this batch's among them, and `continuity` is that of
    the images before it, if one image is to tell of the next.
    """
    modules = network.modules
    threshold = reliable_below(network, config)
    aligning = config.sam == "batch" and config.objective != "entropy" and len(batch) >= ALIGN_FROM
    with stages("forward"):
        recognised = recognise(modules, recent, look.x_hat, config)
    proposed = state
    entropy_before = 0.0
    gathered = state.gathered
    for turn in range(ROUNDS if config.prototypes else 1):
        with stages("forward"):
            say = who_has_a_say(modules, proposed.prototypes, recognised, config)
            names = say.names(modules)
            passed = network.run_finite(batch, state.affines, names, seen=seen, look=look, activations=aligning)
            seen = seen or (passed,)
        with stages("selector"):
            asked = passed.only(say.asked)
            if turn == 0 and asked.names and say.rest.max() > LITTLE:
                entropy_before, gathered, proposed = update_selector(state, asked, config)
            weights = say.weights(proposed, passed)
            blended = predict(modules, proposed, passed, weights, config)
            probabilities, independence = followed(blended, continuity)
            if config.prototypes:
                found = learned(modules, state.prototypes, passed, blended, probabilities, independence)
                proposed = replace(proposed, prototypes=found)
    order = selector.select(weights, config.top_m)[1]
    entropy_after = mixed_entropy(weights, passed)
    top = passed.names[order[0]]
    proposed = replace(proposed, top=top)

    with stages("layer_norm"):
        if aligning and top in modules.references:
            after_step = Learned(proposed)
            if continuity is None or independence >= AT_RANDOM:
                after_step = learn_beyond(network, proposed, batch, passed, probabilities, threshold, config)
        elif config.objective == "entropy" or config.sam == "sample":
            after_step = learn_affines(network, state, proposed, batch, passed, gathered, False, config)
        else:
            after_step = Learned(proposed)
    return Proposal(
        state=after_step.state,
        blend=blended,
        passed=passed,
        weights=weights,
        order=order,
        entropy_before=entropy_before or entropy_after,
        entropy_after=entropy_after,
        reliable=after_step.reliable,
        loss=after_step.loss,
        guessed=False,
        gathering=after_step.gathering,
    )
