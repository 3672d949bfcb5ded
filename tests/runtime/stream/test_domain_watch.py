"""Another domain: who notices, and what it does."""

from types import SimpleNamespace

import numpy as np
import pytest

from pluto_edge import AdaptConfig
from pluto_edge.errors import ConfigError
from pluto_edge.runtime.algorithm.changes import HISTORY, WINDOW
from pluto_edge.runtime.algorithm.selection import Blend
from pluto_edge.runtime.stream.buffer import Frame, FrameBuffer
from pluto_edge.runtime.stream.domain_watch import DomainWatch

NAMES = ("one", "two")


class Learner:
    """Writes down what it is told."""

    def __init__(self, signed: bool) -> None:
        self.network = SimpleNamespace(modules=SimpleNamespace(references={"one": object()} if signed else {}))
        self.config = AdaptConfig()
        self.told: list[tuple[str, str]] = []

    def reopen(self, reason: str) -> None:
        self.told.append(("reopen", reason))

    def note(self, kind: str, reason: str) -> None:
        self.told.append((kind, reason))


class Watched:
    """A domain watch, with what it acts on."""

    def __init__(self, on_change: str = "reopen", signed: bool = False) -> None:
        self.learner = Learner(signed)
        self.buffer = FrameBuffer(4)
        self.buffer.add(Frame(SimpleNamespace(), SimpleNamespace()))  # type: ignore[arg-type]
        self.restarts = 0
        self.rng = np.random.default_rng(0)
        self.watch = DomainWatch(self.learner, self.buffer, self, on_change)  # type: ignore[arg-type]

    def restart(self) -> None:
        self.restarts += 1

    def frames(
        self, count: int, *, look: float = 0.0, weight: float = 0.5, ran=NAMES, learning: bool = True
    ) -> None:
        for _ in range(count):
            weights = np.array([[weight, 1 - weight]])
            blend = Blend(np.zeros((1, 3)), weights, np.arange(2), NAMES)
            x_hat = (look + self.rng.normal(size=(1, 8))).astype(np.float32)
            self.watch.update(blend, SimpleNamespace(names=ran, x_hat=x_hat), learning=learning)  # type: ignore[arg-type]


def test_frames_that_look_otherwise_reopen_the_choice() -> None:
    watched = Watched()
    watched.frames(WINDOW + HISTORY)
    assert not watched.learner.told and len(watched.buffer) == 1
    watched.frames(WINDOW, look=4.0)
    ((kind, reason),) = watched.learner.told
    assert kind == "reopen" and "looks" in reason
    assert len(watched.buffer) == 0 and watched.restarts == 1


@pytest.mark.parametrize(("on_change", "learning"), [("mark", True), ("mark", False), ("reopen", False)])
def test_a_mark_is_an_event_and_no_more(on_change: str, learning: bool) -> None:
    """A frozen stream has no choice to re-open."""
    watched = Watched(on_change)
    watched.frames(WINDOW + HISTORY, learning=learning)
    watched.frames(WINDOW, look=4.0, learning=learning)
    assert [kind for kind, _ in watched.learner.told] == ["change"]
    assert len(watched.buffer) == 1 and watched.restarts == 1


def test_weights_tell_unless_they_follow_from_looks() -> None:
    for signed, told in ((False, 1), (True, 0)):
        watched = Watched(signed=signed)
        watched.frames(WINDOW + HISTORY, weight=0.9)
        watched.frames(WINDOW, weight=0.1)
        assert len(watched.learner.told) == told


def test_other_modules_that_run_are_no_change() -> None:
    watched = Watched()
    watched.frames(WINDOW + HISTORY, weight=0.9)
    watched.frames(WINDOW, weight=0.1, ran=NAMES[:1])
    assert not watched.learner.told


def test_what_else_it_could_do_is_refused() -> None:
    with pytest.raises(ConfigError, match="on_change: want mark or reopen, got 'panic'"):
        Watched("panic")
