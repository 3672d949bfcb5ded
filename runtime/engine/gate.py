"""Predictions go first, and learning gets on."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter

from pluto_edge.runtime.engine.forks import renew_after_fork

PATIENCE = 1.0  # seconds that one graph of a step waits at most
SHARE = 0.2  # of the time that learning gets, however many predictions there are


class Gate:
    """Learning waits before each graph while a prediction is under way, in whatever thread, but not for ever: where
    there is always one, learning would never end. It waits up to four times as long as its last graph took."""

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._here = threading.local()
        self._patience = PATIENCE
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Called in a forked process: no lock is held there, and no prediction is under way."""
        self._condition = threading.Condition()
        self._urgent = 0

    @contextmanager
    def urgent(self) -> Iterator[None]:
        """What runs inside is a prediction: it waits for nobody."""
        with self._condition:
            self._urgent += 1
        self._here.urgent = True
        try:
            yield
        finally:
            self._here.urgent = False
            with self._condition:
                self._urgent -= 1
                self._condition.notify_all()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """What runs inside is one graph, which waits for predictions unless it is part of one."""
        if getattr(self._here, "urgent", False):
            yield
            return
        with self._condition:
            self._condition.wait_for(lambda: not self._urgent, self._patience)
        start = self._clock()
        yield
        self._patience = min(PATIENCE, (self._clock() - start) * (1 / SHARE - 1))
