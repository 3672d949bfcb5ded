"""`Errand`: something that is done now and then, beside everything else."""

import threading
from collections.abc import Callable
from time import monotonic

__all__ = ["Errand"]


class Errand:
    """Runs `act` in a thread of its own, once at a time and not too often; whoever supervises calls `turn`.

    `act` deals with its own errors. It may wait for a network: nobody waits for it.
    """

    def __init__(self, name: str, act: Callable[[], None]) -> None:
        self._name = name
        self._act = act
        self._ended = monotonic()
        self._thread: threading.Thread | None = None

    def turn(self, every: float) -> None:
        """Begin, if so many seconds have passed since this was made or last ended, and it is not under way."""
        if self._thread is not None and self._thread.is_alive():
            return
        if monotonic() - self._ended >= every:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def close(self, patience: float) -> None:
        """Wait for what is under way, but no longer than so many seconds: then it is left to its thread."""
        if self._thread is not None:
            self._thread.join(patience)

    def _run(self) -> None:
        try:
            self._act()
        finally:
            self._ended = monotonic()
