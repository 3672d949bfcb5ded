"""`DomainWatch`: has a stream come to see another domain, and what that does."""

from math import log
from typing import Literal, get_args

import numpy as np

from pluto_edge.errors import ConfigError
from pluto_edge.runtime.algorithm import beyond
from pluto_edge.runtime.algorithm.changes import ChangeDetector
from pluto_edge.runtime.algorithm.selection import Blend
from pluto_edge.runtime.algorithm.selector import entropy
from pluto_edge.runtime.engine.passes import Pass
from pluto_edge.runtime.learner import Learner
from pluto_edge.runtime.stream.buffer import FrameBuffer
from pluto_edge.runtime.stream.canary import Canary

__all__ = ["DomainWatch", "OnChange"]

OnChange = Literal["mark", "reopen"]


class DomainWatch:
    """Hands the signals of every frame to a change detector.

    A change is an event, and the canary starts anew. With `reopen`, what a stream that learns has buffered is
    forgotten, too, and its learner chooses the modules anew.
    """

    def __init__(self, learner: Learner, buffer: FrameBuffer, canary: Canary, on_change: OnChange) -> None:
        if on_change not in get_args(OnChange):
            raise ConfigError(f"on_change: want mark or reopen, got {on_change!r}")
        self._learner = learner
        self._buffer = buffer
        self._canary = canary
        self._on_change = on_change
        self._detector: ChangeDetector | None = None
        self._names: tuple[str, ...] = ()  # all modules of the last frame
        self._ran: tuple[str, ...] = ()  # and those that ran

    def update(self, blend: Blend, seen: Pass, *, learning: bool) -> None:
        """One more frame: what was said of it without its neighbours, and what ran for that.

        When a run of one class ends, the neighbours make a frame look doubtful, and that is no change of domain.
        """
        change = self._changed(blend, seen)
        if not change:
            return
        if self._on_change == "reopen" and learning:
            self._buffer.clear()
            self._learner.reopen(change)
        else:
            self._learner.note("change", change)
        self._canary.restart()

    def _changed(self, blend: Blend, seen: Pass) -> str:
        if self._detector is None or self._names != blend.names:
            self._names = blend.names
            self._detector = ChangeDetector(blend.names)
        elif self._ran != seen.names:
            self._detector.other_modules()
        self._ran = seen.names
        weights = blend.weights[0].astype(np.float32)
        if beyond.applies(self._learner.network.modules, self._learner.config):
            weights = np.zeros_like(weights)  # they follow from x̂, and jump where two domains are alike
        share = float(entropy(blend.probabilities)[0]) / log(blend.logits.shape[1])
        return self._detector.update(share, weights, seen.x_hat[0])
