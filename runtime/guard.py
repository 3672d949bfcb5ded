"""Whether adaptation has gone wrong: all at once, or little by little.

Entropy minimisation collapses silently: every image becomes the same class, with great confidence. A stream
that really shows one class looks just like that from the inside, so the judge is outside: the same images
through the exported weights, which never learned anything. It is asked only when there is a suspicion.

What is lost little by little raises no suspicion, so one image in four is compared in any case, with what would be
said of it if no gradient had ever been followed: the exported affines, with prototypes of their own. If the adapted
weights were always right, they would contradict these as often as they are wrong, and how often that is, they
estimate themselves: 1 minus the probability of their answer. That estimate is modest on a domain that is far from
the source, where adaptation that helps contradicts them up to about as often; what contradicts them much more often
than that did harm.
(docs/adaptation.md has the figures that the bounds were chosen by.)
"""

from collections.abc import Sequence
from math import exp, log, sqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pluto_edge.runtime.algorithm.selector import entropy

Evidence = tuple[int, int, float, float]  # label adapted and exported, entropy adapted and exported
Contradiction = tuple[bool, float]  # whether the labels differ, and how likely the exported one is wrong

MIN_SAMPLES = 16  # fewer predictions say nothing about their spread
MAX_WINDOW = 512

# Suspicion: the predictions' effective number of classes, or their mean entropy, is this small.
FEW_CLASSES = 0.25  # of the classes that could have shown up, beyond the first
LOW_ENTROPY = 0.01  # of ln K

# Verdict: the exported weights see the dominant class this much less often, or are this much less sure.
SEEN_LESS = 0.3  # share of the adapted share, plus chance (1/K)
HIGH_ENTROPY = 0.2  # of ln K

# Gradual loss: how often the exported weights are contradicted, as a share of how often they expect to be wrong.
CANARY = 4  # one image of so many is compared
RECENT = 64  # comparisons that count
HELPFUL = 0.4  # where adaptation helps, and where what was learned goes back to
LOOK_CLOSER = 0.5  # from here on all images of the batch are compared
TOO_OFTEN = 1.5  # what was learned goes back from here on, beyond what chance does to the count
FEWEST = 32  # comparisons: fewer say nothing
TOO_SURE = 2.0  # log-probabilities of head and prototypes together are divided by it
GIVE_UP = 0.1  # what was learned goes altogether when less of it than this would be left


def window(classes: int) -> int:
    """How many recent predictions are watched: enough to see every class twice."""
    return min(max(64, 2 * classes), MAX_WINDOW)


def effective_classes(labels: ArrayLike, classes: int) -> float:
    """The effective number of predicted classes: exp of their entropy."""
    counts = np.bincount(np.asarray(labels), minlength=classes)
    return exp(float(entropy(counts / counts.sum())))


def few_classes(labels: ArrayLike, classes: int) -> bool:
    """The effective number of predicted classes against how many could have shown up."""
    return effective_classes(labels, classes) <= 1 + FEW_CLASSES * (min(classes, np.size(labels)) - 1)


def suspicion(labels: Sequence[int], mean_entropy: float, classes: int) -> bool:
    """Cheap, on every step: recent predicted labels, and this batch's mean entropy."""
    if len(labels) < MIN_SAMPLES:
        return False
    return few_classes(labels, classes) or mean_entropy < LOW_ENTROPY * log(classes)


def compare(adapted: NDArray[np.floating], exported: NDArray[np.floating]) -> tuple[Evidence, ...]:
    """Probabilities [n,K] of the same images, both ways."""
    columns = (adapted.argmax(1), exported.argmax(1), entropy(adapted), entropy(exported))
    return tuple((int(a), int(b), float(c), float(d)) for a, b, c, d in zip(*columns, strict=True))


def verdict(evidence: Sequence[Evidence], classes: int) -> str | None:
    """Why these predictions are a collapse, or None."""
    if len(evidence) < MIN_SAMPLES:
        return None
    labels, plain, sure, plain_sure = (np.array(v) for v in zip(*evidence, strict=True))
    dominant = int(np.bincount(labels, minlength=classes).argmax())
    share = float((labels == dominant).mean())
    plain_share = float((plain == dominant).mean())
    if few_classes(labels, classes) and plain_share < share * (SEEN_LESS + 1 / classes):
        return (
            f"collapse of classes: class {dominant} is predicted for {share:.0%}, "
            f"with the exported weights for {plain_share:.0%}"
        )
    if sure.mean() < LOW_ENTROPY * log(classes) and plain_sure.mean() > HIGH_ENTROPY * log(classes):
        return f"collapse of entropy: {sure.mean():.3f}, with the exported weights {plain_sure.mean():.3f}"
    return None


def contradictions(
    adapted: NDArray[np.floating], exported: NDArray[np.floating], multiplied: bool = False
) -> tuple[Contradiction, ...]:
    """Probabilities [n,K] of the same images, both ways. Those of head and prototypes are `multiplied`."""
    differs = adapted.argmax(axis=1) != exported.argmax(axis=1)
    wrong = 1 - (tempered(exported) if multiplied else exported).max(axis=1)
    return tuple((bool(d), float(w)) for d, w in zip(differs, wrong, strict=True))


def tempered(probabilities: NDArray[np.floating]) -> NDArray[np.floating]:
    """As sure as they are right, about: opinions that were multiplied are too sure of what they have in common."""
    root = np.power(np.maximum(probabilities, np.finfo(np.float64).tiny), 1 / TOO_SURE)
    return np.asarray(root / root.sum(axis=1, keepdims=True))


def look_closer(compared: Sequence[Contradiction]) -> bool:
    """Whether the exported weights are contradicted so often that all images should be compared."""
    return sum(d for d, _ in compared) > LOOK_CLOSER * sum(w for _, w in compared)


def may_stay(compared: Sequence[Contradiction]) -> float:
    """The share of what was learned that would contradict the exported weights as often as is helpful; 1 is all."""
    differing = sum(d for d, _ in compared)
    wrong = sum(w for _, w in compared)
    if len(compared) < FEWEST or differing <= TOO_OFTEN * wrong + sqrt(wrong):
        return 1.0
    return HELPFUL * wrong / differing
