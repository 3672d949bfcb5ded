"""How much a stream may learn."""

from collections.abc import Callable
from math import isfinite
from time import perf_counter

from pluto_edge.errors import ConfigError

FIRST_IMAGES = 8  # of the first step under a limit in milliseconds, before its cost is known
FORGET = 0.9  # of the known cost with every step that it forbids, so that one slow step is not the last


class Budget:
    """`limit` up to 1 is a share of time, above 1 it is milliseconds a step, None is no limit."""

    def __init__(self, limit: float | None, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._free_at = clock()
        self._cost: float | None = None  # milliseconds an image
        self.limit = limit

    @property
    def limit(self) -> float | None:
        """Settable: what the next steps may cost; what the last ones did cost is still known."""
        return self._limit

    @limit.setter
    def limit(self, limit: float | None) -> None:
        if limit is not None and not (isfinite(limit) and limit > 0):
            raise ConfigError(
                f"budget: want a share of time up to 1, milliseconds a step above 1, or None; got {limit!r}"
            )
        self._limit = limit
        self._share = limit if limit is not None and limit <= 1 else None
        self._milliseconds = limit if limit is not None and limit > 1 else None

    def images(self, available: int) -> int:
        """How many of the frames at hand the next step may take; 0 is no step."""
        if self._share is not None:
            return available if self._clock() >= self._free_at else 0
        if self._milliseconds is None:
            return available
        if self._cost is None:
            return min(available, FIRST_IMAGES)
        allowed = int(self._milliseconds / self._cost)
        if allowed == 0:
            self._cost *= FORGET
        return min(available, allowed)

    def spent(self, seconds: float, images: int) -> None:
        """A step has taken this long, ending now."""
        self._cost = max(1e3 * seconds / images, 1e-6)
        if self._share is not None:
            self._free_at = self._clock() + seconds * (1 / self._share - 1)
