"""Whether a step is taken: a proposal becomes the next state, is put off, or is taken back.

The rules come one after another: what cannot be used at all; a sudden collapse; loss little by little. `guard.py`
has the bounds and their reasons.
"""

from dataclasses import dataclass, replace
from math import log

import numpy as np

from pluto_edge.errors import NotFiniteError
from pluto_edge.runtime import guard
from pluto_edge.runtime.algorithm import selector
from pluto_edge.runtime.algorithm.prototypes import Prototypes
from pluto_edge.runtime.algorithm.selection import Blend
from pluto_edge.runtime.algorithm.state import State
from pluto_edge.runtime.algorithm.step import Proposal
from pluto_edge.runtime.attempt import Attempt
from pluto_edge.runtime.engine.passes import Pass
from pluto_edge.runtime.engine.timing import Stages
from pluto_edge.runtime.types import Event, Kind

__all__ = ["Judged", "describe", "judge"]

AVERAGE = 0.9  # of SAR's moving average


@dataclass(frozen=True)
class Judged:
    """What becomes of a proposal: what is predicted, the next state, and why if that is not the proposal's.

    `over` says that all that was learned is gone: the next state is the exported one.
    """

    blend: Blend
    state: State
    kind: Kind = "step"
    reason: str = ""
    over: bool = False


def judge(attempt: Attempt, proposal: Proposal) -> Judged:
    """What becomes of the proposal."""
    return _gradual(attempt, proposal, _unusable(attempt, proposal) or _sudden(attempt, proposal))


def _unusable(attempt: Attempt, proposal: Proposal) -> Judged | None:
    """Proposals that are none: not finite, or of too few reliable images. These may be put off."""
    config = attempt.config
    if any(n in attempt.known.affines for n in proposal.passed.left_out):  # what was learned may be why
        return _over(attempt, attempt.fall_back(), "logits are not finite")
    if not proposal.state.finite or not np.isfinite(proposal.blend.logits).all():
        return _unchanged(attempt, proposal, "the update is not finite")
    if proposal.gathering:
        reason = f"{proposal.state.gathered.reliable} of {config.min_reliable} reliable samples"
        return Judged(attempt.said(proposal.passed, proposal.state), proposal.state, "gather", reason)
    needed = config.min_reliable if config.sam == "sample" else min(config.min_reliable, 1)
    if config.sam is not None and proposal.reliable < needed and not attempt.has_prototypes:  # they always learn
        return _unchanged(attempt, proposal, f"{proposal.reliable} reliable samples, want {needed}")
    return None


def _sudden(attempt: Attempt, proposal: Proposal) -> Judged:
    """The proposal, unless entropy is so low, or predictions are of so few classes, that this is a collapse."""
    known = attempt.known
    classes = attempt.classes
    config = attempt.config
    probabilities = proposal.blend.probabilities
    labels = (*known.labels, *map(int, probabilities.argmax(axis=1)))[-guard.window(classes) :]
    state = replace(proposal.state, labels=labels)
    if config.recovery is not None and proposal.loss is not None:
        old = proposal.loss if known.average is None else known.average
        average = AVERAGE * old + (1 - AVERAGE) * proposal.loss
        if average < config.recovery * log(classes):
            reason = f"recovery: the moving average of the entropy is {average:.3f}"
            return _over(attempt, attempt.said(proposal.passed, known), reason)
        state = replace(state, average=average)
    mean = float(selector.entropy(probabilities).mean())
    if not config.guard or not guard.suspicion(labels, mean, classes):
        return Judged(proposal.blend, replace(state, evidence=()))
    plain = attempt.said(_exported_pass(attempt, proposal.passed), attempt.exported)
    evidence = known.evidence + guard.compare(probabilities, plain.probabilities)
    evidence = evidence[-guard.window(classes) :]
    collapse = guard.verdict(evidence, classes)
    if collapse:
        return _over(attempt, plain, collapse)
    return Judged(proposal.blend, replace(state, evidence=evidence))


def _gradual(attempt: Attempt, proposal: Proposal, judged: Judged) -> Judged:
    """Compare some images with what would be said of them if no gradient had ever been followed.

    Where that is contradicted too often, the step is not taken, and what gradients have made goes back a part of
    the way, or altogether. Prototypes are not judged, they cannot run away: both sides have theirs.
    """
    known = attempt.known
    learned = known.affines or known.selector is not attempt.exported.selector
    if not attempt.config.guard or judged.over:
        return judged
    if not learned:
        return replace(judged, state=replace(judged.state, unmoved=judged.state.prototypes))
    every = np.arange(len(attempt.batch))
    few = (known.samples + every) % guard.CANARY == 0
    if not few.any():
        return judged

    adapted = judged.blend.probabilities
    try:
        plain, unmoved = attempt.said_without_gradients(every[few], proposal.passed)
        multiplied = attempt.has_prototypes
        compared = known.compared + guard.contradictions(adapted[few], plain.probabilities, multiplied)
        if guard.look_closer(compared[-guard.RECENT :]) and not few.all():
            plain, unmoved = attempt.said_without_gradients(every, proposal.passed)
            compared += guard.contradictions(adapted[~few], plain.probabilities[~few], multiplied)
    except NotFiniteError:  # the exported weights say nothing to compare with
        return judged
    compared = compared[-guard.RECENT :]
    share = guard.may_stay(compared)
    if share == 1:
        kept = 1.0 if len(compared) == guard.RECENT else known.kept
        return replace(judged, state=replace(judged.state, unmoved=unmoved, compared=compared, kept=kept))
    return _shrunk(attempt, plain, unmoved, share)


def _shrunk(attempt: Attempt, plain: Blend, unmoved: Prototypes, share: float) -> Judged:
    """Back a part of the way to the exported weights, or altogether where too little would be left.

    Prototypes go back with them: the images that misled gradients may have misled them, too.
    """
    kept = attempt.known.kept * share
    often = guard.HELPFUL / share
    reason = f"the exported weights are contradicted {often:.1f} times as often as they expect to be wrong"
    if kept < guard.GIVE_UP:
        return _over(attempt, plain, f"{reason}: all that was learned is taken back")
    known = replace(attempt.known, unmoved=unmoved)
    state = known.shrunk(share, attempt.exported.selector, attempt.network.modules.exported)
    state = replace(state, compared=(), kept=kept)
    return Judged(plain, state, "rollback", f"{reason}: {share:.0%} of what was learned stays")


def _exported_pass(attempt: Attempt, passed: Pass) -> Pass:
    """The same modules on the same images as they were exported; those that never learned are not run again."""
    changed = [n for n in passed.names if n in attempt.known.affines]
    logits = passed.logits.copy()
    features = passed.features.copy()
    if changed:
        again = attempt.network.run(attempt.batch, {}, changed)
        columns = [passed.names.index(n) for n in again.names]
        logits[:, columns] = again.logits
        features[:, columns] = again.features
    return replace(passed, logits=logits, features=features, activations=None, gradient=None)


def _unchanged(attempt: Attempt, proposal: Proposal, reason: str) -> Judged:
    """As if there had been no step."""
    return Judged(attempt.said(proposal.passed, attempt.known), attempt.known, "rollback", reason)


def _over(attempt: Attempt, blend: Blend, reason: str) -> Judged:
    """Back to the exported weights."""
    return Judged(blend, attempt.exported, "rollback", reason, over=True)


def describe(proposal: Proposal, judged: Judged, step: int, stages: Stages) -> Event:
    """A step as an event; `step` is its number."""
    passed = proposal.passed
    means = passed.widened(proposal.weights).mean(axis=0)
    return Event(
        kind=judged.kind,
        step=step,
        reason=judged.reason,
        top=passed.names[proposal.order[0]],
        weights={n: float(w) for n, w in zip(passed.loaded, means, strict=True)},
        samples=len(proposal.weights),
        reliable=proposal.reliable,
        entropy_before=proposal.entropy_before,
        entropy_after=proposal.entropy_after,
        guessed=proposal.guessed,
        milliseconds=stages.milliseconds,
    )
