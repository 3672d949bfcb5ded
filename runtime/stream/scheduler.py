"""`Scheduler`: when a stream learns, in which thread, and what becomes of errors."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for

from pluto_edge.errors import StreamError
from pluto_edge.runtime.engine.forks import renew_after_fork
from pluto_edge.runtime.stream.background import LearningThread
from pluto_edge.runtime.stream.budget import Budget
from pluto_edge.runtime.stream.buffer import Frame

__all__ = ["Scheduler"]

log = logging.getLogger("pluto_edge")


class Scheduler:
    """Runs one step of a stream at a time, within its budget: in `worker`, or inside the call if that is None.

    `learn` is the step on the frames that it is given. What it raises costs no prediction: it is logged, counted
    (`failures`), and kept as `error` until `tell` raises it. A step that is due while another is under way, or that
    is not in the budget, is skipped and counted.
    """

    def __init__(
        self,
        name: str,
        learn: Callable[[list[Frame]], None],
        worker: LearningThread | None,
        budget: Budget,
        clock: Callable[[], float],
    ) -> None:
        self.skipped_busy = 0
        self.skipped_budget = 0
        self.failures = 0
        self.seconds = 0.0  # spent in steps
        self.error: StreamError | None = None
        self._name = name
        self._learn = learn
        self._worker = worker
        self.budget = budget
        self._clock = clock
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Called in a forked process: no lock is held there, and no step is under way."""
        self._lock = threading.Lock()
        self._pending: Future[None] | None = None

    def offer(self, frames: list[Frame]) -> None:
        """Learn from the newest of these frames, if nothing speaks against it."""
        if self._pending is not None and not self._pending.done():
            self.skipped_busy += 1
            return
        count = self.budget.images(len(frames))
        if count == 0:
            self.skipped_budget += 1
            return
        if self._worker is None:
            self._step(frames[-count:])
        else:
            self._pending = self._worker.submit(self._step, frames[-count:])

    def failed(self, error: Exception) -> None:
        """Learning failed, in a step or elsewhere. Predictions go on with the state before it."""
        told = StreamError(
            f"stream {self._name!r}: learning failed ({type(error).__name__}: {error}); "
            "predictions go on with the state before it"
        )
        told.__cause__ = error
        log.error("%s", told)
        with self._lock:
            self.failures += 1
            self.error = told

    def cancel(self) -> None:
        """A step that has not begun will not begin."""
        if self._pending is not None and self._pending.cancel():
            self._pending = None

    def settle(self) -> None:
        """Wait until the step under way has ended, unless the caller is part of it."""
        if self._pending is not None and not (self._worker is not None and self._worker.here):
            wait_for([self._pending])

    def tell(self) -> None:
        """Raise what learning has failed with, once."""
        with self._lock:
            error = self.error
            self.error = None
        if error is not None:
            raise error

    def _step(self, frames: list[Frame]) -> None:
        start = self._clock()
        try:
            self._learn(frames)
        except Exception as error:
            self.failed(error)
        finally:
            seconds = self._clock() - start
            self.budget.spent(seconds, len(frames))
            self.seconds += seconds
