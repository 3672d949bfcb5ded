"""What a runtime or a stream says: values, which import nothing else of pluto-edge but how they are shown."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["Event", "Kind", "Point", "Prediction", "StreamMetrics", "Suggestion", "Suggestions"]

Kind = Literal["step", "gather", "rollback", "change", "reset", "restore", "module", "trial"]

MAX_EVENTS = 1000  # that are kept
SHOWN = 3  # images, and modules, that a prediction's repr names


@dataclass(frozen=True, repr=False)
class Prediction:
    """What the blended modules say of a batch of B images.

    Attributes:
        labels: [B] class indices.
        classes: [B] class names.
        probabilities: [B,K] softmax of `logits`.
        logits: [B,K] weighted sum of the selected modules' logits, or logarithms of the probabilities where
            prototypes helped to predict.
        weights: [B,N] weight of every module for every image; rows sum to 1, unselected modules have 0.
        modules: names of all N modules, in the order of `weights`.
        selected: names of the modules that took part, heaviest first.
        entropy: [B] of `probabilities`, in nats: 0 is certain, ln K is a guess.
    """

    labels: NDArray[np.intp]
    classes: tuple[str, ...]
    probabilities: NDArray[np.float32]
    logits: NDArray[np.float32]
    weights: NDArray[np.float32]
    modules: tuple[str, ...]
    selected: tuple[str, ...]
    entropy: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def confidence(self) -> NDArray[np.float32]:
        """[B] probability of the class that each image was given."""
        return self.probabilities[np.arange(len(self)), self.labels]

    def __repr__(self) -> str:
        said = [f"{name} {share:.2f}" for name, share in zip(self.classes, self.confidence, strict=True)]
        mean = self._by_module(self.weights.mean(axis=0))
        leading = [f"{name} {weight:.2f}" for name, weight in mean.items()]
        count = f"{len(self)} images: " if len(self) > 1 else ""
        return f"Prediction({count}{_some(said)}; modules: {_some(leading)})"

    def _repr_html_(self) -> str:
        """What notebooks show."""
        from pluto_edge.runtime.prediction_html import prediction_html  # here alone, and it loads HTML's entities

        weights = [self._by_module(row) for row in self.weights]
        return prediction_html(self.classes, self.confidence.tolist(), weights)

    def _by_module(self, weights: NDArray[np.float32]) -> dict[str, float]:
        """Those that took part, heaviest first."""
        found = {name: float(weight) for name, weight in zip(self.modules, weights, strict=True) if weight > 0}
        return dict(sorted(found.items(), key=lambda item: -item[1]))


@dataclass(frozen=True)
class Event:
    """One thing that happened to a learner.

    Attributes:
        kind: `step` (committed), `gather` (its gradients wait for more reliable samples), `rollback` (a step that
            changed nothing, or went back towards the exported weights), `change` (the stream shows another
            domain), `reset`, `restore`, `module` (one came or went), `trial` (a module that has no say yet was
            put on trial, judged or dropped).
        step: steps seen so far, committed or not.
        reason: why, unless it is a plain step.
        top: the module with the largest mean weight.
        weights: mean weight of every module over the batch, before the selection; 0 for those that did not run.
        samples, reliable: in the batch, and below the entropy threshold for the top module.
        entropy_before, entropy_after: mean entropy of the mixed pseudo-labels, before and after the selector's
            update.
        guessed: the top module was guessed right, so that its first pass was not computed twice.
        milliseconds: per stage.
        frame: how many frames a stream had seen; 0 without a stream.
    """

    kind: Kind
    step: int
    reason: str = ""
    top: str = ""
    weights: dict[str, float] = field(default_factory=dict)
    samples: int = 0
    reliable: int = 0
    entropy_before: float = 0.0
    entropy_after: float = 0.0
    guessed: bool = False
    milliseconds: dict[str, float] = field(default_factory=dict)
    frame: int = 0


@dataclass(frozen=True)
class Point:
    """One frame on the timeline: its number, when it came (seconds since the stream began) and what was said."""

    frame: int
    seconds: float
    label: int
    entropy: float
    modules: tuple[str, ...]
    weights: tuple[float, ...]


@dataclass(frozen=True)
class StreamMetrics:
    """What a stream has done so far.

    Attributes:
        frames: predicted.
        steps: committed; `gathered` and `rolled_back` are those that were not.
        skipped_busy: steps that were due while the one before them was still under way.
        skipped_budget: steps that were due and not in the budget.
        changes: of domain that were noticed.
        learning_seconds, learning_share: spent in steps, and as a share of the stream's time.
        latency_median, latency_p99: of the last predictions, in milliseconds; without inline learning.
        compared, differing: every 16th frame is also predicted as the bundle was exported, outside of that latency:
            how many of the last 256 frames (since the last change of domain) were, and the share of these that
            the stream called something else. None before the first.
        leader: the module that led the last step; "" before it.
        misfit, misfit_first: how far the stream's features are from the leader's source, now and when it first
            led in this condition (`Prototypes.misfit`): about 1 as on its source, above 3 the module is hardly
            trusted. None where it is not known.
        failed: steps and comparisons that ended with an error; `Stream.error` is the last one.
    """

    frames: int
    steps: int
    gathered: int
    rolled_back: int
    skipped_busy: int
    skipped_budget: int
    changes: int
    learning_seconds: float
    learning_share: float
    latency_median: float
    latency_p99: float
    compared: int = 0
    differing: float | None = None
    leader: str = ""
    misfit: float | None = None
    misfit_first: float | None = None
    failed: int = 0


@dataclass(frozen=True)
class Suggestion:
    """A module of a repository that was made for what the camera sees, as far as its images' looks tell.

    Attributes:
        name, target, sha256, size: which it is, what to fetch, and how many bytes that is.
        distance: of the images' mean look from its source's; about 1 by chance alone.
        fit: trust that the images are of its domain, 0 to 1.
        evidence: how much more probable an image is in its domain than in all of the index together, in nats.
        ahead: how much more probable than in the domain of any module that is loaded.
    """

    name: str
    target: str
    sha256: str
    size: int
    distance: float
    fit: float
    evidence: float
    ahead: float


@dataclass(frozen=True)
class Suggestions:
    """Whether other modules are needed, and which there are.

    Attributes:
        needed: the domain is unknown to the modules that are loaded, the one that leads serves it badly, or one of
            the repository was clearly made for it.
        reason: why, or why not.
        images: recent ones that this was found from.
        unknown: the share of them that looks like no loaded module's domain.
        leader, misfit: the module that leads, and how far its features are from its source (as `StreamMetrics`).
        modules: those that are not loaded, the best first.
        tried: names of those that were put on trial.
    """

    needed: bool
    reason: str
    images: int
    unknown: float
    leader: str = ""
    misfit: float | None = None
    modules: tuple[Suggestion, ...] = ()
    tried: tuple[str, ...] = ()


def _some(texts: list[str]) -> str:
    return ", ".join(texts[:SHOWN]) + (", …" if len(texts) > SHOWN else "")
