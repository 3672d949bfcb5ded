"""Streams: the same learning as in batches, predictions that never wait for it, and a clean end."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pluto_edge import Runtime, Stream
from pluto_edge.errors import ConfigError, ImageError, StreamError
from pluto_edge.runtime.algorithm import selector, sharpness
from pluto_edge.runtime.algorithm.state import State
from pluto_edge.runtime.learner import Learner
from pluto_edge.runtime.stream import stream, timeline
from pluto_edge.tolerances import STREAM_STATE
from tests.runtime.stream.conftest import BATCH, CONFIG, frames


def close(a: State, b: State) -> None:
    """Everything learned, up to the rounding of other batch sizes."""
    assert a.affines.keys() == b.affines.keys() and a.affines
    for name, affines in a.affines.items():
        np.testing.assert_allclose(affines.scale, b.affines[name].scale, atol=STREAM_STATE)
        np.testing.assert_allclose(affines.bias, b.affines[name].bias, atol=STREAM_STATE)
    for key, value in a.selector.tensors.items():
        np.testing.assert_allclose(value, b.selector.tensors[key], atol=STREAM_STATE)


def is_exported(state: State, runtime: Runtime) -> bool:
    return state.selector is runtime.learner.state.selector and not state.affines


class Held:
    """A function that waits, once it is called, until it is let go; by default a step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: object = Learner, name: str = "step") -> None:
        self.started, self.go = threading.Event(), threading.Event()
        original = getattr(owner, name)

        def held(*arguments: object) -> object:
            self.started.set()
            assert self.go.wait(20)
            return original(*arguments)

        monkeypatch.setattr(owner, name, held)


# the same learning


@pytest.mark.parametrize("background", [False, True])
def test_a_stream_learns_what_steps_on_its_batches_learn(runtime: Runtime, background: bool) -> None:
    images = frames(4 * BATCH)
    with runtime.stream(batch=BATCH, background=background) as line:
        for start in range(0, len(images), BATCH):
            part = images[start : start + BATCH]
            want = runtime.predict(part)
            got = [line(frame) for frame in part]
            np.testing.assert_allclose([p.logits[0] for p in got], want.logits, atol=1e-4)
            line.wait()
            runtime.step(part)
            close(line.learner.state, runtime.learner.state)
        assert line.metrics.steps == 4 and line.metrics.frames == len(images)


def test_what_predictions_computed_is_not_computed_again(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    line = runtime.stream(batch=BATCH, background=False)
    calls = []
    graphs = runtime.learner.network.graphs
    original = graphs.forward
    monkeypatch.setattr(graphs, "forward", lambda inputs: calls.append(1) or original(inputs))
    for frame in frames(3 * BATCH):
        line(frame)
    again = 2  # the module that learned, as exported, on frames 32 and 48: nothing else was computed twice
    assert len(calls) == 3 * BATCH * len(runtime.modules) + again  # one a frame and module: steps ran none
    assert line.metrics.steps == 3


def test_modules_that_changed_since_are_run_again(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step must not take logits of affines that are no longer; here no guess would refresh them."""
    line = runtime.stream(batch=BATCH, background=False)
    images = frames(2 * BATCH)
    for frame in images[:BATCH]:
        line(frame)
    seen = [line.learner.predict(line_batch(runtime, f))[1] for f in images[BATCH:]]
    top = line.learner.state.top
    moved = {n: a.times(1.5) for n, a in line.learner.state.affines.items()}
    line.learner.state = replace(line.learner.state, affines=moved, top=None)
    passed = runtime.learner.network.run(line_batch(runtime, images[BATCH:]), moved, seen=seen)
    want = runtime.learner.network.run(line_batch(runtime, images[BATCH:]), moved)
    np.testing.assert_allclose(passed.logits, want.logits, atol=1e-4)
    stale = np.concatenate([p.of(top) for p in seen])
    assert np.abs(stale - want.of(top)).max() > 1e-2


def line_batch(runtime: Runtime, images: np.ndarray) -> stream.ImageBatch:
    return stream.ImageBatch(images, runtime.manifest.preprocessing)


def test_every(runtime: Runtime) -> None:
    for every, count, steps in ((8, 40, 4), (16, 40, 2), (24, 72, 3), (None, 40, 2)):
        with runtime.stream(f"every {every}", BATCH, every, background=False, on_change="mark") as line:
            for frame in frames(count):
                line(frame)
            assert line.metrics.steps == steps


def test_float_frames_and_one_at_a_time(runtime: Runtime) -> None:
    ready = np.random.default_rng(0).normal(size=(BATCH, 3, 40, 32)).astype(np.float32)
    line = runtime.stream(batch=BATCH, background=False)
    for frame in ready:
        line(frame[np.newaxis])
    runtime.step(ready)
    close(line.learner.state, runtime.learner.state)
    with pytest.raises(ImageError, match="one frame at a time, got 2"):
        line(frames(2))


# small batches


def test_single_frames_gather_to_the_step_of_their_batch(make_bundle: Callable[..., Path]) -> None:
    """Without the sharpness-aware detour the mean of single gradients is the batch's gradient."""
    config = replace(CONFIG, rho=0.0, entropy_margin=1.0)
    with Runtime(make_bundle(modules=1), config=config) as runtime:
        images = frames(2 * stream.GATHER)
        line = runtime.stream(batch=1, background=False)
        for start in (0, stream.GATHER):
            part = images[start : start + stream.GATHER]
            for frame in part:
                line(frame)
            runtime.step(part)
            close(line.learner.state, runtime.learner.state)
        kinds = [e.kind for e in line.events]
        assert kinds == (["gather"] * (stream.GATHER - 1) + ["step"]) * 2
        assert line.events[0].reason == f"1 of {stream.GATHER} reliable samples"
        assert line.metrics.gathered == 2 * (stream.GATHER - 1)


def test_the_selector_gathers_too(runtime: Runtime) -> None:
    line = runtime.stream(batch=1, background=False, config=replace(CONFIG, entropy_margin=1.0))
    before = line.learner.state.selector
    images = frames(stream.GATHER)
    for frame in images[:-1]:
        line(frame)
    assert line.learner.state.selector is before and not line.learner.state.affines
    line(images[-1])
    passed = runtime.learner.network.run(line_batch(runtime, images), {})
    _, gradient = selector.entropy_gradient(before, passed.x_hat, passed.logits)
    for key, value in line.learner.state.selector.tensors.items():
        want = before.tensors[key] - CONFIG.selector_lr * gradient[key]
        np.testing.assert_allclose(value, want, atol=STREAM_STATE)


def test_what_was_gathered_is_gone_with_a_reset(runtime: Runtime) -> None:
    line = runtime.stream(batch=4, background=False, config=replace(CONFIG, entropy_margin=1.0))
    for frame in frames(8):
        line(frame)
    assert line.learner.state.gathered.reliable == 8
    line.reset()
    assert line.learner.state.gathered.reliable == 0 and is_exported(line.learner.state, runtime)


# in the background


def test_predictions_do_not_wait_and_late_steps_are_skipped(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    line = runtime.stream(batch=4, config=CONFIG)
    for frame in frames(20):
        line(frame)  # returns, though no step comes to an end
    assert held.started.wait(20)
    assert line.metrics.skipped_busy == 4 and line.metrics.frames == 20
    held.go.set()
    line.wait()
    assert sum(line.learner.counts[k] for k in ("step", "gather")) == 1


def test_a_crash_surfaces_once_and_leaves_the_last_good_state(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = runtime.stream("gate 3", batch=BATCH)
    for frame in frames(BATCH):
        line(frame)
    line.wait()
    good = line.learner.state

    def fail(*arguments: object) -> None:
        raise RuntimeError("the device is on fire")

    monkeypatch.setattr(sharpness, "sharpness_aware", fail)
    for frame in frames(BATCH, seed=1):
        line(frame)
    with pytest.raises(StreamError, match=r"'gate 3': learning failed .*on fire") as caught:
        line.wait()
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert line.learner.state.affines is good.affines and line.learner.state.selector is good.selector
    monkeypatch.undo()
    for frame in frames(BATCH, seed=2):
        line(frame)
    line.wait()
    assert line.events[-1].kind == "step"


def test_a_reset_during_a_step_wins(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch, sharpness, "sharpness_aware")
    line = runtime.stream(batch=BATCH)
    for frame in frames(BATCH):
        line(frame)
    assert held.started.wait(20)
    line.reset()
    held.go.set()
    line.wait()
    assert is_exported(line.learner.state, runtime)
    assert [e.kind for e in line.events] == ["reset", "rollback"]
    assert "replaced during the step" in line.events[-1].reason


# budget


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_share_of_time(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of 3 seconds at a fifth of the time: one every 15 seconds."""
    clock, began = Clock(), []
    original = Learner.step

    def step(learner: Learner, *arguments: object) -> object:
        began.append(clock.now)
        clock.now += 3
        return original(learner, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Learner, "step", step)
    line = Stream("slow", Learner(runtime.learner.network, CONFIG), None, batch=2, budget=0.2, clock=clock)
    for frame in frames(60):
        clock.now += 0.5
        line(frame)
    gaps = np.diff(began)
    assert len(began) >= 3 and gaps.min() >= 15 and gaps.max() <= 16
    metrics = line.metrics
    assert metrics.skipped_budget + len(began) == 30
    assert metrics.learning_seconds == 3 * len(began)
    assert metrics.learning_share == pytest.approx(metrics.learning_seconds / clock.now)


def test_milliseconds_a_step(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step takes as many of the newest frames as fit; none when not even one does, but not for ever."""
    clock, taken, cost = Clock(), [], [0.004]

    def step(learner: Learner, batch: stream.ImageBatch, seen: object) -> None:
        taken.append(len(batch))
        clock.now += cost[0] * len(batch)

    monkeypatch.setattr(Learner, "step", step)
    line = Stream("x", Learner(runtime.learner.network, CONFIG), None, batch=20, budget=50, clock=clock)
    for frame in frames(60):
        line(frame)
    assert taken == [8, 12, 12]
    cost[0] = 0.1
    for frame in frames(20):
        line(frame)
    assert taken == [8, 12, 12, 12] and line.metrics.skipped_budget == 0
    for frame in frames(160):
        line(frame)
    assert taken[4] == 1  # what one slow step cost is forgotten after a while
    assert line.metrics.skipped_budget == 7  # 0.9 ** 7 of 100 ms is under 50


@pytest.mark.parametrize("budget", [0, -1, float("nan"), float("inf")])
def test_budgets_that_make_no_sense(runtime: Runtime, budget: float) -> None:
    with pytest.raises(ConfigError, match="budget: want a share"):
        runtime.stream(budget=budget)


# many, and their end


def test_streams_learn_apart(runtime: Runtime, tmp_path: Path) -> None:
    one, two = (runtime.stream(n, batch=BATCH, background=False) for n in ("one", "two"))
    for frame in frames(2 * BATCH):
        one(frame)
    assert one.learner.state.affines and is_exported(two.learner.state, runtime)
    assert runtime.streams == (one, two)
    one.save(tmp_path / "state")
    two.restore(tmp_path / "state")
    close(one.learner.state, two.learner.state)
    one.reset()
    assert is_exported(one.learner.state, runtime) and two.learner.state.affines
    assert one.learner.network is two.learner.network  # the graphs and weights are shared


def test_streams_in_threads(runtime: Runtime) -> None:
    """Ten cameras at once learn what each would learn alone."""
    sets = {f"cam{i}": frames(2 * BATCH, seed=i) for i in range(10)}
    lines = {name: runtime.stream(name, batch=BATCH, background=False) for name in sets}

    def feed(name: str) -> None:
        for frame in sets[name]:
            lines[name](frame)

    threads = [threading.Thread(target=feed, args=(n,)) for n in sets]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for name in ("cam0", "cam9"):
        alone = runtime.stream("alone", batch=BATCH, background=False)
        for frame in sets[name]:
            alone(frame)
        close(alone.learner.state, lines[name].learner.state)
        alone.close()


def test_frozen(runtime: Runtime) -> None:
    line = runtime.stream(batch=BATCH, background=False)
    line.frozen = True
    for frame in frames(BATCH):
        line(frame)
    assert not line.events and is_exported(line.learner.state, runtime)
    line.frozen = False
    for frame in frames(BATCH):
        line(frame)
    assert line.metrics.steps == 1  # frames from before it do not count


def test_freezing_drops_the_step_under_way(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch, sharpness, "sharpness_aware")
    line = runtime.stream(batch=BATCH)
    for frame in frames(BATCH):
        line(frame)
    assert held.started.wait(20)
    line.frozen = True
    held.go.set()
    line.wait()
    assert is_exported(line.learner.state, runtime) and line.events[-1].kind == "rollback"


def test_a_change_reopens_the_choice_or_is_marked(runtime: Runtime) -> None:
    """Dark frames after bright ones: an event either way; `reopen` takes the selector back, not the affines."""
    bright, dark = frames(48) // 4 + 190, frames(40, seed=1) // 4
    for choice in ("reopen", "mark"):
        line = runtime.stream(choice, batch=BATCH, background=False, on_change=choice)
        for frame in (*bright, *dark[:15]):
            line(frame)
            changes = [e for e in line.events if e.kind == "change"]
            if changes:
                break
        (change,) = changes
        assert 48 < change.frame <= 63 and change.reason and line.metrics.changes == 1
        assert line.learner.state.affines
        assert (line.learner.state.selector is runtime.learner.network.selector) == (choice == "reopen")
        assert (line.learner.state.top is None) == (choice == "reopen")
        assert len(line.buffer) == (1 if choice == "reopen" else BATCH)


def test_closing(
    runtime: Runtime, make_bundle: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    with runtime.stream(batch=BATCH) as line:
        for frame in frames(BATCH):
            line(frame)
        assert held.started.wait(20)
        held.go.set()
    line.close()  # twice is fine
    with pytest.raises(StreamError, match="'camera' is closed"):
        line(frames(1)[0])
    assert line.events[-1].kind == "step"  # the step that was under way came to its end
    line.save(tmp_path / "state")
    again = runtime.stream()  # the name is free again
    runtime.close()
    assert again.closed
    with pytest.raises(ConfigError, match="runtime is closed"):
        runtime.stream()
    with Runtime(make_bundle(), config=CONFIG) as other:
        first = other.stream(batch=BATCH)
        with pytest.raises(ConfigError, match="'camera' is open already"):
            other.stream()
        first.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("pluto-learning")]


def test_closing_waits_for_no_step_that_has_not_begun(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch)
    first, second = (runtime.stream(n, batch=BATCH) for n in ("first", "second"))
    for line in (first, second):
        for frame in frames(BATCH):
            line(frame)
    assert held.started.wait(20)
    second.close()  # its step was still in the queue
    held.go.set()
    first.wait()
    assert first.metrics.steps == 1 and second.metrics.steps == 0


def test_modules_come_and_go(runtime: Runtime, make_store: Callable[..., object]) -> None:
    line = runtime.stream(batch=BATCH, background=False)
    images = frames(3 * BATCH)
    for frame in images[: BATCH + 3]:
        line(frame)
    gone = line.learner.state.top
    assert gone is not None
    runtime.remove_module(gone)
    assert line.events[-1].kind == "module"
    for frame in images[BATCH + 3 :]:
        assert len(line(frame).modules) == 2
    assert line.metrics.steps == 3 and gone not in line.timeline[-1].modules


@pytest.mark.parametrize(
    ("change", "message"),
    [({"batch": 0}, "batch: want"), ({"every": 0}, "every: want"), ({"on_change": "panic"}, "on_change: want")],
)
def test_rubbish(runtime: Runtime, change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        runtime.stream(**change)  # type: ignore[arg-type]
    assert not runtime.streams
    line = runtime.stream(batch=2, background=False)
    for rubbish in (None, "frame.png", np.zeros((3, 3)), np.zeros((0, 5, 3), np.uint8)):
        with pytest.raises(ImageError):
            line(rubbish)  # type: ignore[arg-type]
    assert line.metrics.frames == 0


def test_the_timeline_is_bounded(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "MAX_POINTS", 20)
    line = runtime.stream(batch=BATCH, background=False)
    for frame in frames(30):
        line(frame)
    assert [p.frame for p in line.timeline] == list(range(11, 31))
    last = line.timeline[-1]
    assert sum(last.weights) == pytest.approx(1) and last.modules == runtime.modules
    assert line.events[0].frame == BATCH
