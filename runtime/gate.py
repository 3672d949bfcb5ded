"""Predictions go first."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE = (
    1.0  # seconds that one graph of a step waits at most, so that learning under full load is slow, not stuck
)


class Gate:
    """Learning waits before each graph while a prediction is under way, in whatever thread."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._urgent = 0
        self._here = threading.local()

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

    def wait(self) -> None:
        """Until no prediction is under way, but not for ever."""
        if not getattr(self._here, "urgent", False):
            with self._condition:
                self._condition.wait_for(lambda: not self._urgent, PATIENCE)
