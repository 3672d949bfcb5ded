"""Learning in the background: what fails there, who waits for whom, what is left unclosed, and forks."""

import gc
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

from pluto_edge import Event, Runtime
from pluto_edge.errors import NotFiniteError, StreamError
from pluto_edge.runtime.algorithm import step as algorithm
from pluto_edge.runtime.stream.canary import EVERY
from tests.runtime.stream.conftest import BATCH, CONFIG, frames


def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("the device is on fire")

    monkeypatch.setattr(algorithm, "update_selector", fail)


# failures


@pytest.mark.parametrize("background", [False, True])
def test_a_failure_costs_no_prediction(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, background: bool, caplog: pytest.LogCaptureFixture
) -> None:
    broken(monkeypatch)
    line = runtime.stream("gate 3", batch=BATCH, background=background)
    want = [runtime.predict(frame).labels[0] for frame in frames(BATCH + 3)]
    got = [line(frame).labels[0] for frame in frames(BATCH)]
    with pytest.raises(StreamError, match=r"'gate 3': learning failed .*on fire") as caught:
        line.wait()
    assert isinstance(caught.value.__cause__, RuntimeError)
    got += [line(frame).labels[0] for frame in frames(BATCH + 3)[BATCH:]]
    assert got == want
    assert line.metrics.frames == BATCH + 3 and line.metrics.failed == 1 and "on fire" in caplog.text
    assert line.events[-1].kind == "rollback" and "on fire" in line.events[-1].reason
    line.wait()  # it was told
    line.close()


def test_an_error_is_kept_until_it_is_told(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    line = runtime.stream(batch=BATCH, background=False)
    assert line.error is None
    broken(monkeypatch)
    for frame in frames(BATCH):
        line(frame)
    monkeypatch.undo()
    for frame in frames(BATCH):
        line(frame)
    assert line.metrics.steps == 1 and isinstance(line.error, StreamError)  # a later success does not hide it
    with pytest.raises(StreamError, match="on fire"):
        line.close()
    assert line.closed and line.error is None and not runtime.streams and not len(line.buffer)
    line.close()


def test_a_runtime_closes_all_streams_before_it_tells(
    make_bundle: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = Runtime(make_bundle(), config=CONFIG)
    lines = [runtime.stream(name, batch=BATCH) for name in ("one", "two", "three")]
    broken(monkeypatch)
    for line in lines[:2]:
        for frame in frames(BATCH):
            line(frame)
        line.scheduler.settle()
    with pytest.raises(StreamError, match="'one': learning failed"):
        runtime.close()
    assert all(line.closed for line in lines)
    assert not [t for t in threading.enumerate() if t.name.startswith("pluto-learning")]


def test_an_error_of_the_block_is_not_hidden_by_one_of_learning(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    with pytest.raises(KeyError), runtime.stream(batch=BATCH, background=False) as line:
        for frame in frames(BATCH):
            line(frame)
        raise KeyError
    assert line.closed


def test_a_comparison_that_fails_costs_no_prediction(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise NotFiniteError("nothing finite")

    line = runtime.stream(batch=64, background=False)
    monkeypatch.setattr(line.learner, "exported", fail)
    assert len([line(frame) for frame in frames(EVERY)]) == EVERY
    assert line.metrics.failed == 1
    assert "nothing finite" in line.events[-1].reason
    with pytest.raises(StreamError, match="nothing finite"):
        line.wait()


# callbacks in the learning thread


@pytest.mark.parametrize("what", ["stream", "runtime", "wait"])
def test_a_callback_may_close_what_it_runs_in(make_bundle: Callable[..., Path], what: str) -> None:
    runtime, threads, done = Runtime(make_bundle(), config=CONFIG), [], threading.Event()

    def close(event: Event) -> None:
        threads.append(threading.current_thread().name)
        {"stream": line.close, "runtime": runtime.close, "wait": line.wait}[what]()
        done.set()

    line = runtime.stream(batch=BATCH, on_event=close)
    for frame in frames(BATCH):
        line(frame)
    assert done.wait(60) and threads[0].startswith("pluto-learning")
    runtime.close()
    assert line.closed and line.metrics.steps == 1


# streams that nobody closed


def test_unclosed_streams_are_let_go_with_a_warning(runtime: Runtime) -> None:
    line = runtime.stream("lost", batch=BATCH, background=False)
    line(frames(1)[0])
    kept = weakref.ref(line)
    assert runtime.streams == (line,)
    with pytest.warns(ResourceWarning, match="stream 'lost' was not closed") as caught:
        del line
        gc.collect()
    assert len(caught) == 1
    del caught  # a warning has its source, for tracemalloc
    gc.collect()
    assert kept() is None and runtime.streams == ()
    runtime.stream("lost").close()  # its name is free


def test_closed_streams_warn_nobody(runtime: Runtime, recwarn: pytest.WarningsRecorder) -> None:
    for _ in range(3):
        runtime.stream(batch=BATCH).close()
    gc.collect()
    assert not [w for w in recwarn if w.category is ResourceWarning]


# forks

FORK = """
import os, sys, threading
import numpy as np
from pluto_edge import AdaptConfig, Runtime
from pluto_edge.runtime.algorithm import step

images = np.random.default_rng(0).integers(0, 256, (48, 50, 44, 3), dtype=np.uint8)
config = AdaptConfig(selector_lr=0.02, ln_lr=0.01, entropy_margin=0.95, guard=False)
runtime = Runtime(sys.argv[1], threads=1, config=config)
line = runtime.stream(batch=16)
for image in images[:16]:
    line(image)
line.wait()

held, go = threading.Event(), threading.Event()
propose = step.propose

def slow(*arguments):
    held.set()
    go.wait()
    return propose(*arguments)

step.propose = slow  # a step that is under way in the parent when it forks, with its lock held
for image in images[16:32]:
    line(image)
held.wait()
child = os.fork()
if child == 0:
    step.propose = propose
    for image in images[32:]:
        line(image)
    line.wait()
    runtime.step(images[:4])
    runtime.close()
    print("child", line.metrics.steps, flush=True)
    os._exit(0)
os.waitpid(child, 0)
go.set()
line.wait()
print("parent", line.metrics.steps)
runtime.close()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_a_forked_process_learns_in_a_thread_of_its_own(make_bundle: Callable[..., Path]) -> None:
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", FORK, str(make_bundle())],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, _ = process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # the child, too
            pytest.fail("a process waits for a thread that is not there")
    assert out.splitlines() == ["child 2", "parent 2"]
