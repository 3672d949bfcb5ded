"""Several threads that do everything at once to one runtime: predict, learn, reset, save, restore, add, remove.

Must happen: each call ends well or with a `PlutoError`, predictions are finite, nothing deadlocks, and after a
reset the runtime says bit for bit what it said at first.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import numpy as np

from attacks.harness import Case, Escape
from attacks.world import STORE, check_prediction, frames, runtime, some
from pluto_edge import Runtime
from pluto_edge.errors import PlutoError

SECONDS = 120.0
THREADS, CALLS = 4, 5
MODULE = "sensor_noise"  # that comes and goes


@contextmanager
def attack(place: Path) -> Iterator[Case]:
    """Cases in which several threads use one runtime at the same time."""
    with runtime() as opened:
        image = frames()[:1]
        first = opened.predict(frames()[:1])

        def case(rng: Random) -> None:
            errors: list[BaseException] = []
            seeds = [rng.getrandbits(32) for _ in range(THREADS)]
            threads = [threading.Thread(target=_caller, args=(opened, place, s, errors)) for s in seeds]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            if errors:
                raise errors[0]
            if MODULE not in opened.modules:
                opened.add_module(STORE / "modules" / MODULE)
            opened.reset()
            again = opened.predict(image)
            order = [again.modules.index(name) for name in first.modules]
            same = np.array_equal(again.probabilities, first.probabilities)
            if not same or not np.array_equal(again.weights[:, order], first.weights):
                raise Escape("after a reset it says something else than at first")

        yield case


def _caller(opened: Runtime, place: Path, seed: int, errors: list[BaseException]) -> None:
    rng = Random(seed)
    for _ in range(CALLS):
        try:
            rng.choice(CALLED)(opened, place, rng)
        except PlutoError:
            continue
        except BaseException as error:
            errors.append(error)
            return


def _predict(opened: Runtime, place: Path, rng: Random) -> None:
    check_prediction(opened.predict(some(rng, 2)), 2)


def _step(opened: Runtime, place: Path, rng: Random) -> None:
    check_prediction(opened.step(some(rng, 16)), 16)


def _stream(opened: Runtime, place: Path, rng: Random) -> None:
    with opened.stream(f"cam-{rng.getrandbits(32)}", 4, background=rng.random() < 0.5) as stream:
        for image in some(rng, 6):
            check_prediction(stream(image), 1)


def _reset(opened: Runtime, place: Path, rng: Random) -> None:
    opened.reset(rng.choice((None, "fog", MODULE)))


def _save(opened: Runtime, place: Path, rng: Random) -> None:
    opened.save(place / "state")


def _restore(opened: Runtime, place: Path, rng: Random) -> None:
    opened.restore(place / "state")


def _add(opened: Runtime, place: Path, rng: Random) -> None:
    opened.add_module(STORE / "modules" / MODULE)


def _remove(opened: Runtime, place: Path, rng: Random) -> None:
    opened.remove_module(MODULE)


def _look(opened: Runtime, place: Path, rng: Random) -> None:
    _ = repr(opened), opened.events, opened.streams, opened.callback_errors


CALLED: tuple[Callable[[Runtime, Path, Random], None], ...] = (
    _predict,
    _step,
    _stream,
    _reset,
    _save,
    _restore,
    _add,
    _remove,
    _look,
)
