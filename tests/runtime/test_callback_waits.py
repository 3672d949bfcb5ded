"""A callback that runs on the learning thread never waits for the step that has called it."""

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pluto_edge import Event, Runtime, Stream

ENDS = 30.0  # seconds after which it is taken to hang


@pytest.mark.parametrize(
    "act",
    [
        lambda runtime, stream, other: stream.close(),
        lambda runtime, stream, other: stream.wait(),
        lambda runtime, stream, other: other.close(),
        lambda runtime, stream, other: runtime.close(),
    ],
    ids=["close", "wait", "close another", "close the runtime"],
)
def test_a_callback_may_end_its_own_stream(
    make_bundle: Callable[..., Path], frames: np.ndarray, act: Callable[[Runtime, Stream, Stream], None]
) -> None:
    runtime, done, began = Runtime(make_bundle(), threads=1), threading.Event(), threading.Event()

    def on_event(event: Event) -> None:
        began.wait(ENDS)  # until the other stream's step is behind this one
        if not done.is_set():
            act(runtime, stream, other)
            done.set()

    stream = runtime.stream("one", batch=2, on_event=on_event)
    other = runtime.stream("two", batch=2)
    for image in frames[:2]:
        stream(image)
    for image in frames[:2]:
        other(image)
    began.set()
    assert done.wait(ENDS)
    runtime.close()
    assert stream.closed and other.closed
