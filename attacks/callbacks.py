"""Callbacks that raise, call back, take things away or close the stream, while it learns inline or beside.

Must happen: every frame is predicted and finite, nothing deadlocks, what a callback raises stays with it, and a
callback that only raises changes nothing that is learned.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray

from attacks.harness import Case, Escape
from attacks.world import check_prediction, frames, runtime, some
from pluto_edge import Event, Runtime, Stream
from pluto_edge.errors import PlutoError, StreamError

SECONDS = 60.0
BATCH, FRAMES, ACTIONS = 4, 12, 6

Act = Callable[[Runtime, Stream, Path], object]


def _fail(runtime: Runtime, stream: Stream, place: Path) -> None:
    raise RuntimeError("the callback's own affair")


def _refuse(runtime: Runtime, stream: Stream, place: Path) -> None:
    raise StreamError("a PlutoError of the callback's own")


def _restore(runtime: Runtime, stream: Stream, place: Path) -> None:
    stream.save(place / "state")
    stream.restore(place / "state")


ACTS: dict[str, Act] = {
    "fail": _fail,
    "refuse": _refuse,
    "reset": lambda runtime, stream, place: stream.reset(),
    "reset one": lambda runtime, stream, place: stream.reset("fog"),
    "reset the runtime": lambda runtime, stream, place: runtime.reset(),
    "predict": lambda runtime, stream, place: runtime.predict(frames()[:1]),
    "step": lambda runtime, stream, place: runtime.step(frames()[:4]),
    "save": lambda runtime, stream, place: stream.save(place / "state"),
    "save and restore": _restore,
    "freeze": lambda runtime, stream, place: setattr(stream, "frozen", True),
    "thaw": lambda runtime, stream, place: setattr(stream, "frozen", False),
    "look": lambda runtime, stream, place: (stream.metrics, stream.timeline, stream.events, runtime.events),
    "another stream": lambda runtime, stream, place: runtime.stream("other", background=False).close(),
    "close": lambda runtime, stream, place: stream.close(),
    "wait": lambda runtime, stream, place: stream.wait(),
}


@contextmanager
def attack(place: Path) -> Iterator[Case]:
    """Cases whose callbacks do what no callback should."""
    with runtime() as opened:

        def case(rng: Random) -> None:
            opened.reset()
            names = rng.sample(list(ACTS), rng.randint(1, 3))
            background = rng.random() < 0.5
            images = some(rng, FRAMES)
            left = list(range(ACTIONS))

            def on_event(event: Event) -> None:
                if left:  # a callback that answers its own events would go on for ever
                    left.pop()
                    ACTS[random.Random(f"{names}{event.step}{event.kind}").choice(names)](opened, stream, place)

            stream = opened.stream("door", BATCH, background=background, on_event=on_event)
            _feed(stream, images, closes="close" in names)
            if not background and set(names) <= {"fail", "refuse", "predict", "look", "save"}:
                _compare(opened, stream, images)

        yield case


def _feed(stream: Stream, images: NDArray[np.uint8], closes: bool) -> None:
    with stream:
        for image in images:
            try:
                check_prediction(stream(image), 1)
            except StreamError:
                if not (closes and stream.closed):
                    raise Escape("a frame was not predicted") from None
                return
        with suppress(PlutoError):
            stream.wait()


def _compare(opened: Runtime, stream: Stream, images: NDArray[np.uint8]) -> None:
    """The same frames without a callback learn the same."""
    with opened.stream("calm", BATCH, background=False) as calm:
        for image in images:
            calm(image)
        for name, affines in calm.learner.state.affines.items():
            if not np.array_equal(affines.scale, stream.learner.state.affines[name].scale):
                raise Escape("a callback has changed what is learned")
        if calm.learner.state.steps != stream.learner.state.steps:
            raise Escape("a callback has changed how often it learns")
