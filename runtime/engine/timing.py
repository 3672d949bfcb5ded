"""Milliseconds per stage of a step."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter


class Stages:
    """`with stages("forward"): ...` adds to that stage; `milliseconds` has them all."""

    def __init__(self) -> None:
        self.milliseconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = perf_counter()
        try:
            yield
        finally:
            self.milliseconds[name] = self.milliseconds.get(name, 0.0) + 1e3 * (perf_counter() - start)
