"""The one thread that learns for all streams of a runtime."""

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from pluto_edge.runtime.engine.forks import renew_after_fork

__all__ = ["LearningThread"]

NICENESS = 10  # of the learning thread and those that it starts


class LearningThread:
    """Started when there is something to do; a forked process gets one of its own."""

    def __init__(self) -> None:
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Called in a forked process: the thread is not there."""
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None
        self._ident: int | None = None

    def submit(self, call: Callable[..., None], *arguments: object) -> Future[None]:
        """Make this call in the thread, after those that wait already."""
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(1, "pluto-learning", self._begin)
            return self._executor.submit(call, *arguments)

    @property
    def here(self) -> bool:
        """Whether the caller runs in it: then nothing may be waited for that it has to do."""
        return threading.get_ident() == self._ident

    def close(self) -> None:
        """When what it does is done; a call from inside does not wait for that."""
        with self._lock:
            executor = self._executor
            self._executor = None
        if executor is not None:
            executor.shutdown(wait=not self.here)

    def _begin(self) -> None:
        self._ident = threading.get_ident()
        if sys.platform == "linux":  # threads have a priority of their own, and hand it on to those they start
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
