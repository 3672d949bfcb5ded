"""`Delivery`: what hands events to a callback."""

import logging
import threading
from collections import deque
from collections.abc import Callable

from pluto_edge.runtime.engine.forks import renew_after_fork
from pluto_edge.runtime.types import Event

log = logging.getLogger("pluto_edge")


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
        """Called in a forked process: no lock is held there, and nobody delivers."""
        self._lock = threading.Lock()
        self._busy = False

    def put(self, event: Event) -> None:
        """The callback is to be told of this event."""
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
