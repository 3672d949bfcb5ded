"""By the seed: a refusal, an exception, a loss, a crash, a hang."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from time import sleep

from attacks.harness import Case, Escape
from pluto_edge.errors import StoreError

SECONDS = 2.0
# of seeds 0 to 7
KINDS = tuple(Random(seed).randrange(5) for seed in range(8))


@contextmanager
def attack(place: Path) -> Iterator[Case]:
    def case(rng: Random) -> None:
        kind = rng.randrange(5)
        if kind == 0:
            raise StoreError("refused")
        if kind == 1:
            raise KeyError("not refused")
        if kind == 2:
            raise Escape("something is lost")
        if kind == 3:
            os.kill(os.getpid(), signal.SIGSEGV)
        sleep(600)

    yield case
