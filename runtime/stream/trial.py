"""Modules on trial: they run beside the others without a say, until what they say is worth one.

In a stream's steps every fourth frame is also predicted as it would be if the module took part. Nothing of that is
predicted with, learned or kept but by the trial itself. The module joins when it would have most of the say, by the
same evidence as every other (how the images look, how far its features are from its source), agrees with the stream
where that is sure, and shows no sign of collapse. One that does not is dropped after a number of frames.
(Nobody can tell without labels that a module is right. Evidence can tell that it was made for images like these.)
"""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pluto_edge._arrays import Array
from pluto_edge.errors import ConfigError
from pluto_edge.preprocess import ImageBatch
from pluto_edge.runtime.algorithm.prototypes import SURE, Prototypes
from pluto_edge.runtime.engine.forks import renew_after_fork
from pluto_edge.runtime.engine.modules import Loaded
from pluto_edge.runtime.engine.passes import Pass
from pluto_edge.runtime.guard import effective_classes
from pluto_edge.runtime.learner import Learner
from pluto_edge.runtime.prediction import Predicted, predict
from pluto_edge.runtime.stream.buffer import Frame

__all__ = ["Rules", "Trials"]

REACH = 256  # judged images that count

Ended = Callable[[str, bool, str], None]  # name, whether it joined, why


@dataclass(frozen=True)
class Rules:
    """When a module on trial joins, and when it is dropped.

    Attributes:
        most: modules that are on trial at a time.
        every: one frame of so many is judged.
        least: judged images before a module may join.
        patience: frames of the stream after which a module that has not joined is dropped.
        share: mean say that it would have.
        agreement: share of the images that the stream is sure of, on which it must say the same.
        spread: effective number of classes that it says, as a share of the stream's: below it, it has collapsed.
    """

    most: int = 3
    every: int = 4
    least: int = 32
    patience: int = 512
    share: float = 0.5
    agreement: float = 0.5
    spread: float = 0.5

    def __post_init__(self) -> None:
        for name in ("most", "every", "least", "patience"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: want at least 1, got {getattr(self, name)}")
        for name in ("share", "agreement", "spread"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name}: want a share from 0 to 1, got {getattr(self, name)}")


class _Judged(NamedTuple):
    """An image: the say that the module would have, what both say (-1: it was not even run), is the stream sure?"""

    share: float
    label: int
    stream: int
    sure: bool


class _Shown(NamedTuple):
    """The frames of a step that are judged, what was seen of them, and the looks [n,d] of its other frames."""

    batch: ImageBatch
    seen: list[Pass]
    before: Array

    @classmethod
    def of(cls, frames: list[Frame], every: int) -> "_Shown":
        some = frames[::every]
        others = [f.seen.x_hat for number, f in enumerate(frames) if number % every]
        before = np.concatenate(others) if others else some[0].seen.x_hat[:0]
        return cls(ImageBatch.join([f.image for f in some]), [f.seen for f in some], before)


@dataclass
class _Trial:
    name: str
    loaded: Loaded
    began: int  # at this frame
    ended: Ended | None
    changes: int  # of domain, that the stream had noticed: evidence is of one domain
    judged: deque[_Judged] = field(default_factory=lambda: deque(maxlen=REACH))
    tried: Prototypes = field(default_factory=Prototypes)

    def start_anew(self, changes: int) -> None:
        """Where the domain has changed since."""
        if changes != self.changes:
            self.changes = changes
            self.judged.clear()
            self.tried = Prototypes()


class Trials:
    """Of one stream. `watch` is called by the thread that learns, within the stream's budget; `begin` by any.

    `rules` may be set. `join` makes a module that has won take part: it is given the name, the module and why.
    """

    def __init__(self, learner: Learner, join: Callable[[str, Loaded, str], None]) -> None:
        self._learner = learner
        self._join = join
        self.rules = Rules()
        self._trials: dict[str, _Trial] = {}
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Called in a forked process: no lock is held there."""
        self._lock = threading.Lock()

    @property
    def names(self) -> tuple[str, ...]:
        """Of the modules that are on trial now."""
        return tuple(self._trials)

    def begin(self, path: str | Path, ended: Ended | None = None) -> str:
        """Put the module in a folder on trial; `ended` is told when it joins or is dropped. Gives its name."""
        name, loaded = self._learner.network.load(path)
        config = self._learner.config
        if config.weighting != "evidence":
            raise ConfigError(f"{path}: trials need AdaptConfig(weighting='evidence'), got {config.weighting!r}")
        if loaded.reference is None or loaded.role != "specialist":
            raise ConfigError(f"{path}: only a specialist with a signature can be tried: it says what to look for")
        with self._lock:
            if name in self._trials:
                raise ConfigError(f"{path}: {name!r} is on trial already")
            if len(self._trials) >= self.rules.most:
                raise ConfigError(f"{path}: {len(self._trials)} modules are on trial already; that is the limit")
            changes = self._learner.counts["change"]
            self._trials[name] = _Trial(name, loaded, self._learner.frames, ended, changes)
        self._learner.note("trial", f"{name} is on trial")
        return name

    def watch(self, frames: list[Frame]) -> None:
        """Some of the frames of a step, before it: what would be said with each module that is on trial."""
        with self._lock:
            trials = tuple(self._trials.values())
        if not trials:
            return
        shown = _Shown.of(frames, self.rules.every)
        plain = self._predict(shown, None)
        for trial in trials:
            trial.start_anew(self._learner.counts["change"])
            try:
                verdict = self._judge(trial, self._predict(shown, trial), plain)
            except Exception as error:  # whatever a module that nobody trusts yet does, the stream goes on
                verdict = f"{type(error).__name__}: {error}"
                self._end(trial, False, verdict)
                continue
            self._decide(trial, verdict)

    def drop(self, name: str, reason: str) -> None:
        """Take a module off trial."""
        if name not in self._trials:
            raise ConfigError(f"{name!r} is not on trial; there are: {', '.join(self._trials) or 'none'}")
        self._end(self._trials[name], False, reason)

    def _predict(self, shown: _Shown, trial: _Trial | None) -> Predicted:
        """As the stream would, with a module that is on trial if one is given."""
        learner = self._learner
        network = learner.network.snapshot()
        tried = learner.recent.tried_by(network.modules)
        state = learner.state.of(network.modules.digests)
        if trial is not None:
            network = network.beside(trial.name, trial.loaded)
            tried = trial.tried
        return predict(network, shown.batch, state, shown.before, tried, learner.config, shown.seen)

    def _judge(self, trial: _Trial, with_it: Predicted, plain: Predicted) -> str:
        """Take down what was found; why it may not join, or nothing."""
        trial.tried = with_it.tried
        shares = with_it.blend.weights[:, with_it.blend.names.index(trial.name)]
        ran = trial.name in with_it.passed.names
        labels = with_it.passed.of(trial.name).argmax(axis=1) if ran else np.full(len(shares), -1)
        said = plain.blend.probabilities
        columns = zip(shares, labels, said.argmax(axis=1), said.max(axis=1) > SURE, strict=True)
        trial.judged.extend(_Judged(float(s), int(own), int(label), bool(sure)) for s, own, label, sure in columns)
        return self._missing(trial)

    def _missing(self, trial: _Trial) -> str:
        """What speaks against the module, or nothing; and an event that says what is known."""
        rules = self.rules
        reference = trial.loaded.reference
        assert reference is not None
        share = float(np.mean([j.share for j in trial.judged]))
        misfit = trial.tried.misfit(trial.name, reference)
        sure = [j.label == j.stream for j in trial.judged if j.sure]
        agreement = float(np.mean(sure)) if sure else 1.0
        images = len(trial.judged)
        known = f"{share:.0%} of the say on {images} images, misfit {misfit:.1f}, agreement {agreement:.0%}"
        self._learner.note("trial", f"{trial.name}: {known}")
        if images < rules.least:
            return f"{known}: too few images"
        if share < rules.share:
            return f"{known}: it would have less than {rules.share:.0%} of the say"
        if agreement < rules.agreement:
            return f"{known}: it contradicts what is sure"
        classes = len(reference.means)
        labels = self._labels(trial)
        if not labels[0]:
            return f"{known}: it was never run"
        own, stream = (effective_classes(v, classes) for v in labels)
        if own < rules.spread * stream:
            return f"{known}: it says {own:.1f} classes where the stream says {stream:.1f}"
        return ""

    @staticmethod
    def _labels(trial: _Trial) -> tuple[list[int], list[int]]:
        """What both say of the images on which it ran."""
        ran = [j for j in trial.judged if j.label >= 0]
        return [j.label for j in ran], [j.stream for j in ran]

    def _decide(self, trial: _Trial, missing: str) -> None:
        if not missing:
            self._end(trial, True, "it won its trial")
        elif self._learner.frames - trial.began >= self.rules.patience:
            self._end(trial, False, missing)

    def _end(self, trial: _Trial, joins: bool, reason: str) -> None:
        with self._lock:
            if self._trials.pop(trial.name, None) is None:
                return
        if joins:
            try:
                self._join(trial.name, trial.loaded, reason)
            except Exception as error:  # another of that name came meanwhile
                joins, reason = False, f"{type(error).__name__}: {error}"
        if not joins:
            self._learner.note("trial", f"{trial.name} was dropped: {reason}")
        if trial.ended is not None:
            trial.ended(trial.name, joins, reason)
