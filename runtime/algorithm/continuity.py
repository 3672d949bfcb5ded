"""What a camera saw a moment ago it often still sees: one image tells something of the next.

A stream is taken for a chain of classes. From one image to the next the class stays with probability s, or else
any class follows. Nobody says how sticky a stream is; so a filter runs for each of several s, beside the one with
s = 0, in which images have nothing to do with each other. A filter's weight grows as it foresees the images:

    belief_k    ∝ (s · belief_k + (1 - s) / K) · p_k            p: what the image says by itself
    usual_k     ∝ υ + Σ p_k so far                              what images say on average
    foreseen    = s · min(Σ belief_k p_k / Σ usual_k p_k, Σ belief_k p_k / usual_k) + 1 - s
    weight      ∝ ((1 - α) weight + α prior) · foreseen

What is foreseen is held against what is usual, twice: against a guess by the usual shares, and class by class
against what images usually say of it. So only the order of images counts. A module on a domain that is not its own
often says one class of nearly everything, and a blend of many modules leans to one a little in every image; taken
for a run, either would confirm itself.

The answer is the weighted average of the filters, but for the image alone until they have shown more order than was
expected of them: where classes come in runs, the neighbours decide a doubtful image. Within a batch later images
speak for earlier ones, too (forward-backward); frame by frame only the past does. The share α of the prior (the
fixed share of Herbster and Warmuth) lets a stream that was sticky for hours stop being so within a few images.
(Beyond the paper. The numbers were chosen on development domains: docs/adaptation.md.)
"""

from dataclasses import dataclass, field

import numpy as np

from pluto_edge._arrays import Wide

STICKY = np.array([0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99])
INDEPENDENT = 0.97  # how sure it is, before any image, that images have nothing to do with each other
DOUBT = 0.02  # that an image says nothing: no single one, however sure, breaks or makes a run
CAUTION = 5.0  # the odds that a stream comes in runs are divided by it before neighbours have a say
ALPHA = 1 / 512  # once in so many images a stream changes its habits
UNSEEN = 0.5  # υ: images of each class that count before the first
HORIZON = 4096.0  # images that what is usual reaches back

PRIOR = np.where(STICKY == 0, INDEPENDENT, (1 - INDEPENDENT) / (len(STICKY) - 1))


@dataclass(frozen=True)
class Continuity:
    """What the images so far make one expect of the next.

    Attributes:
        beliefs: [S,K], for every s the probability of each class for the last image; None before the first.
        weights: [S], of the filters; they sum to 1.
        counts: [K], how much was said of each class so far; None before the first.
    """

    beliefs: Wide | None = None
    weights: Wide = field(default_factory=lambda: PRIOR)
    counts: Wide | None = None

    @property
    def stickiness(self) -> float:
        """The expected s: 0 where images have nothing to do with each other."""
        return float(self.weights @ STICKY)

    @property
    def say(self) -> Wide:
        """[S], how much each filter has to say: none but the image itself, until the stream has shown more order
        than was expected of it beforehand."""
        sticky = np.where(STICKY > 0, self.weights, 0.0)
        total = float(sticky.sum())
        before = _careful(1 - INDEPENDENT)
        shown = max(_careful(total) - before, 0.0) / (1 - before)
        return np.asarray(np.where(STICKY > 0, shown * sticky / max(total, 1e-300), 1 - shown))

    @property
    def independence(self) -> float:
        """How far an image's class says nothing of the next: 1 on a shuffled stream, near 0 in long runs."""
        return ((1 - self.stickiness) / (1 + self.stickiness)) ** 2

    def follow(self, probabilities: Wide) -> tuple[Wide, "Continuity"]:
        """The next images [B,K], in the order in which they came; gives their probabilities, and what is next."""
        classes = probabilities.shape[1]
        says = (1 - DOUBT) * probabilities + DOUBT / classes
        forward, after = self._forward(says)
        found = forward * _backward(says)
        found = found / found.sum(axis=2, keepdims=True)
        found[:, STICKY == 0] = probabilities[:, None]
        return np.einsum("s,bsk->bk", after.say, found), after

    def _forward(self, says: Wide) -> tuple[Wide, "Continuity"]:
        """Beliefs [B,S,K] after each image, from it and those before it; and what is next after the last."""
        classes, stay = says.shape[1], STICKY[:, None]
        belief = np.full((len(STICKY), classes), 1 / classes) if self.beliefs is None else self.beliefs
        counts = np.zeros(classes) if self.counts is None else self.counts
        weights, beliefs = self.weights, []
        for one in says:
            counts = (counts + one) * min(1.0, HORIZON / (counts.sum() + 1))
            usual = (UNSEEN + counts) / (UNSEEN * classes + counts.sum())
            as_said = belief @ one / (usual @ one)
            over_usual = belief @ (one / usual)
            foreseen = STICKY * np.minimum(as_said, over_usual) + (1 - STICKY)
            weights = ((1 - ALPHA) * weights + ALPHA * PRIOR) * foreseen
            weights = weights / weights.sum()
            joint = (stay * belief + (1 - stay) / classes) * one
            belief = joint / joint.sum(axis=1, keepdims=True)
            beliefs.append(belief)
        return np.stack(beliefs), Continuity(belief, weights, counts)


def _careful(probability: float) -> float:
    """The same with odds that are `CAUTION` times worse."""
    return probability / (probability + CAUTION * (1 - probability))


def _backward(says: Wide) -> Wide:
    """What the images after each one say of its class, up to a factor: [B,S,K]."""
    stay = STICKY[:, None]
    later = [np.ones((len(STICKY), says.shape[1]))]
    for one in says[:0:-1]:
        joint = one * later[-1]
        found = stay * joint + (1 - stay) * joint.mean(axis=1, keepdims=True)
        later.append(found / found.max(axis=1, keepdims=True))
    return np.stack(later[::-1])
