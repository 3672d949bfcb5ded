"""What happened, structured: one event a step, and one for every reset, restore or change of modules."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pluto_edge import _text
from pluto_edge.runtime.forks import renew_after_fork

Kind = Literal["step", "gather", "rollback", "change", "reset", "restore", "module"]

MAX_EVENTS = 1000

log = logging.getLogger("pluto_edge")


@dataclass(frozen=True)
class Event:
    """One thing that happened to a learner.

    Attributes:
        kind: `step` (committed), `gather` (its gradients wait for more reliable samples), `rollback` (a step that
            changed nothing, or went back towards the exported weights), `change` (the stream shows another
            domain), `reset`, `restore`, `module` (one came or went).
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


class Delivery:
    """Hands events to a callback, in order and one at a time, and keeps its errors away from whoever learns.

    `put` is quick and may be called under any lock; `deliver` is called under none. A callback may cause events
    itself: they come after it has returned.
    """

    def __init__(self, callback: Callable[[Event], None] | None) -> None:
        self._callback = callback
        self._waiting: deque[Event] = deque()
        self.errors = 0  # that the callback has raised
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        self._lock, self._busy = threading.Lock(), False

    def put(self, event: Event) -> None:
        if self._callback is not None:
            self._waiting.append(event)

    def deliver(self) -> None:
        """All that waits, unless a call further up or another thread is at it."""
        with self._lock:
            if self._busy:
                return
            self._busy = True
        try:
            while (event := self._next()) is not None:
                self._call(event)
        except BaseException:  # an interrupt: the rest is for the next call
            self._busy = False
            raise

    def _next(self) -> Event | None:
        with self._lock:
            self._busy = bool(self._waiting)
            return self._waiting.popleft() if self._waiting else None

    def _call(self, event: Event) -> None:
        assert self._callback is not None
        try:
            self._callback(event)
        except Exception:
            self.errors += 1
            log.exception("on_event failed with %s; learning is not affected", event.kind)


HEADER = ("step", "", "top module", "weight", "entropy", "after", "reliable", "ms", "")
RIGHT = (0, 3, 4, 5, 6, 7)
WIDTHS = (5, 7, 16, 6, 7, 7, 8, 6, 0)


def row(event: Event) -> tuple[str, ...]:
    if event.kind not in ("step", "gather", "rollback"):
        return (str(event.step), event.kind, *[""] * 6, event.reason)
    return (
        str(event.step),
        "+" if event.kind == "gather" else _text.tick(event.kind == "step"),
        event.top,
        f"{event.weights.get(event.top, 0.0):.2f}",
        f"{event.entropy_before:.3f}",
        f"{event.entropy_after:.3f}",
        f"{event.reliable}/{event.samples}",
        f"{sum(event.milliseconds.values()):.0f}",
        event.reason,
    )


def table(events: Sequence[Event]) -> str:
    return _text.table(HEADER, [row(e) for e in events], right=RIGHT)


def heading() -> str:
    """The table's head in fixed widths, for events that are printed as they come."""
    return _fixed(HEADER)


def line(event: Event) -> str:
    return _fixed(row(event))


def _fixed(cells: Sequence[str]) -> str:
    pairs = enumerate(zip(map(_text.printable, cells), WIDTHS, strict=True))
    return "  ".join(c.rjust(w) if i in RIGHT else c.ljust(w) for i, (c, w) in pairs).rstrip()
