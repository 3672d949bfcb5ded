"""One that cannot be set up."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attacks.harness import Case


@contextmanager
def attack(place: Path) -> Iterator[Case]:
    raise RuntimeError("no such bundle")
    yield
