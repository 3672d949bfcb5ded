"""State that can be trusted: transactions, the guard, reset, save and restore, modules that come and go."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pluto_edge import AdaptConfig, Event, Runtime
from pluto_edge.errors import BundleError, ConfigError, StoreError
from pluto_edge.modules import Module
from pluto_edge.observe import events
from pluto_edge.runtime import guard
from pluto_edge.runtime.algorithm import sharpness
from pluto_edge.runtime.algorithm.state import State
from pluto_edge.runtime.engine.affines import Affines
from pluto_edge.runtime.types import MAX_EVENTS
from pluto_edge.store import Store

CONFIG = AdaptConfig(selector_lr=0.02, ln_lr=0.01, entropy_margin=0.95, guard=False)


def batches(count: int, size: int = 6, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 256, (size, 40, 32, 3), dtype=np.uint8) for _ in range(count)]


def same(a: State, b: State) -> bool:
    """Everything learned, bit for bit (counters aside)."""
    return (
        all(np.array_equal(v, b.selector.tensors[k]) for k, v in a.selector.tensors.items())
        and a.affines.keys() == b.affines.keys()
        and all(np.array_equal(v.scale, b.affines[k].scale) for k, v in a.affines.items())
        and all(np.array_equal(v.bias, b.affines[k].bias) for k, v in a.affines.items())
        and all(np.array_equal(v.scale, b.momentum[k].scale) for k, v in a.momentum.items())
    )


@pytest.fixture
def runtime(make_bundle: Callable[..., Path]) -> Runtime:
    return Runtime(make_bundle(), config=CONFIG)


def learned(runtime: Runtime, steps: int = 3) -> Runtime:
    for images in batches(steps):
        runtime.step(images)
    assert runtime.learner.state.affines
    return runtime


# calls


def test_step_adapt_and_call_learn_and_predict_does_not(make_bundle: Callable[..., Path]) -> None:
    one, two, three = (Runtime(make_bundle(), config=CONFIG) for _ in range(3))
    (images,) = batches(1)
    before = one.predict(images)
    stepped, called = one.step(images), two(images)
    event = three.adapt(images)
    np.testing.assert_array_equal(stepped.logits, called.logits)
    assert isinstance(event, Event) and event.kind == "step"
    assert same(one.learner.state, two.learner.state) and same(one.learner.state, three.learner.state)
    after = one.predict(images)
    assert not np.array_equal(before.logits, after.logits)
    np.testing.assert_array_equal(one.predict(images).logits, after.logits)


def test_defaults_come_from_the_bundle(make_bundle: Callable[..., Path]) -> None:
    runtime = Runtime(make_bundle())
    assert runtime.config == runtime.manifest.adaptation
    assert Runtime(make_bundle(), top_m=2).config == replace(runtime.config, top_m=2)


@pytest.mark.parametrize(
    "change",
    [
        {"top_m": 0},
        {"selector_lr": -1.0},
        {"selector_lr": float("nan")},
        {"selector_optimizer": "rmsprop"},
        {"selector_steps": 0},
        {"sam": "epoch"},
        {"ln_momentum": 1.0},
        {"rho": float("inf")},
        {"entropy_margin": 0.0},
        {"ln_layers": ()},
        {"ln_layers": (-1,)},
        {"min_reliable": -1},
        {"recovery": 1.5},
    ],
)
def test_config_is_validated(change: dict[str, object]) -> None:
    (name,) = change
    with pytest.raises(ConfigError, match=f"{name}: want .*, got"):
        AdaptConfig(**change)  # type: ignore[arg-type]


def test_layers_that_are_not_there(make_bundle: Callable[..., Path]) -> None:
    with pytest.raises(ConfigError, match="rows 0 to 6 learn, got 7"):
        Runtime(make_bundle(), config=AdaptConfig(ln_layers=(7,)))


# transactions


def test_an_exception_changes_nothing(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    learned(runtime)
    before = runtime.learner.state

    def fail(*arguments: object) -> None:
        raise RuntimeError("the device is on fire")

    monkeypatch.setattr(sharpness, "sharpness_aware", fail)
    with pytest.raises(RuntimeError, match="on fire"):
        runtime.step(batches(1)[0])
    assert same(before, runtime.learner.state)
    assert runtime.events[-1].kind == "rollback" and "on fire" in runtime.events[-1].reason
    monkeypatch.undo()
    runtime.step(batches(1)[0])
    assert runtime.events[-1].kind == "step"


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_update_that_is_not_finite_changes_nothing(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    learned(runtime)
    before, (images,) = runtime.learner.state, batches(1, seed=9)
    want = runtime.predict(images)
    original = sharpness.sharpness_aware

    def poison(*arguments: object) -> tuple[float, Affines]:
        loss, gradient = original(*arguments)  # type: ignore[arg-type]
        bad = gradient.scale.copy()
        bad[0, 0] = value
        return loss, Affines(bad, bad)

    monkeypatch.setattr(sharpness, "sharpness_aware", poison)
    got = runtime.step(images)
    assert runtime.events[-1].kind == "rollback" and "not finite" in runtime.events[-1].reason
    assert same(before, runtime.learner.state)
    np.testing.assert_allclose(got.logits, want.logits, atol=1e-5)  # as if there had been no step


def test_logits_that_are_not_finite_go_back_to_the_export(runtime: Runtime) -> None:
    learned(runtime)
    state = runtime.learner.state
    huge = {n: Affines(a.scale * np.float32(1e30), a.bias) for n, a in state.affines.items()}
    runtime.learner.state = replace(state, affines=huge)
    (images,) = batches(1)
    got = runtime.step(images)
    assert "not finite" in runtime.events[-1].reason
    assert not runtime.learner.state.affines
    assert np.isfinite(got.logits).all()


def test_too_few_reliable_samples_change_nothing(make_bundle: Callable[..., Path]) -> None:
    runtime = Runtime(make_bundle(), config=replace(CONFIG, entropy_margin=1e-6))
    runtime.step(batches(1)[0])
    assert runtime.events[-1].kind == "rollback" and "0 reliable samples, want 1" in runtime.events[-1].reason
    assert same(runtime.learner.state, Runtime(make_bundle()).learner.state)
    runtime = Runtime(make_bundle(), config=replace(CONFIG, entropy_margin=1e-6, min_reliable=0))
    runtime.step(batches(1)[0])  # to the letter of the paper: the selector learns all the same
    assert runtime.events[-1].kind == "step"
    assert not same(runtime.learner.state, Runtime(make_bundle()).learner.state)


def test_bad_images_change_nothing(runtime: Runtime) -> None:
    learned(runtime)
    before, seen = runtime.learner.state, len(runtime.events)
    with pytest.raises(ValueError, match="want"):
        runtime.step(np.zeros((3, 3, 5), np.uint8))
    assert runtime.learner.state is before and len(runtime.events) == seen


def test_every_state_that_is_set_has_a_version_of_its_own(runtime: Runtime, tmp_path: Path) -> None:
    learner, versions = runtime.learner, [runtime.learner.state.version]
    (images,) = batches(1)

    def changed() -> bool:
        versions.append(learner.state.version)
        return versions[-1] > versions[-2]

    runtime.step(images)
    assert changed()
    runtime.save(tmp_path / "state")
    runtime.predict(images)
    assert not changed()
    for call in (runtime.reset, lambda: runtime.restore(tmp_path / "state"), lambda: runtime.reset("domain-0")):
        call()
        assert changed()
    learner.state = replace(learner.state, top=None)
    assert changed()
    learner.reopen("another domain")
    assert changed()


@pytest.mark.parametrize("meanwhile", ["drop_step", "reset", "reopen", "state"])
def test_a_step_is_taken_only_from_the_version_that_it_started_from(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    """Whatever sets the state during a step wins over it, also where the state is the same in every value."""
    learner, (images,) = learned(runtime).learner, batches(1, seed=3)
    want = []
    original = sharpness.sharpness_aware

    def interrupt(*arguments: object) -> object:
        if meanwhile == "state":
            learner.state = learner.state
        elif meanwhile == "reopen":
            learner.reopen("another domain")
        else:
            getattr(learner, meanwhile)()
        want.append(learner.state)
        return original(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(sharpness, "sharpness_aware", interrupt)
    runtime.step(images)
    assert runtime.events[-1].kind == "rollback"
    assert runtime.events[-1].reason == "the state was replaced during the step"
    assert learner.state is want[-1]
    monkeypatch.undo()
    runtime.step(images)
    assert runtime.events[-1].kind == "step"


# the guard


COLLAPSING = AdaptConfig(ln_lr=0.5, ln_momentum=0.0, rho=0.0, filter=False, selector=False)


def dominant_share(runtime: Runtime, images: np.ndarray) -> float:
    return float(np.bincount(runtime.predict(images).labels).max() / len(images))


def varied(runtime: Runtime, count: int = 32) -> np.ndarray:
    """Noise images that the exported weights spread over several classes."""
    rng = np.random.default_rng(1)
    pool = rng.standard_normal((400, 3, 40, 32)).astype(np.float32) * rng.uniform(0.2, 4, (400, 3, 1, 1))
    labels = runtime.predict(pool.astype(np.float32)).labels
    order = sorted(range(len(pool)), key=lambda i: (list(labels[:i]).count(labels[i]), i))
    return pool[order[:count]].astype(np.float32)


def test_a_collapse_is_caught_and_taken_back(
    make_bundle: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain entropy minimisation with a large step: without the guard every image becomes one class."""
    monkeypatch.setattr(guard, "may_stay", lambda compared: 1.0)  # what notices gradual loss would be earlier
    loose, guarded = (Runtime(make_bundle(), config=replace(COLLAPSING, guard=g)) for g in (False, True))
    images = varied(loose)
    start = dominant_share(loose, images)
    assert start < 0.5
    for _ in range(12):
        loose.step(images)
        guarded.step(images)
    assert dominant_share(loose, images) > 0.9
    rollbacks = [e for e in guarded.events if e.kind == "rollback"]
    assert rollbacks and "collapse" in rollbacks[0].reason
    shares = []
    for _ in range(6):
        prediction = guarded.step(images)
        shares.append(np.bincount(prediction.labels).max() / len(images))
    assert np.mean(shares) < 0.9


def test_a_stream_of_one_class_is_not_a_collapse(make_bundle: Callable[..., Path]) -> None:
    runtime = Runtime(make_bundle(), config=replace(CONFIG, ln_lr=1e-3, guard=True))
    images = varied(runtime, 400)
    labels = runtime.predict(images).labels
    one = images[labels == np.bincount(labels).argmax()]
    for start in range(0, 200, 8):
        runtime.step(one[np.arange(start, start + 8) % len(one)])
    assert [e.reason for e in runtime.events if e.kind == "rollback"] == []
    assert runtime.learner.state.evidence  # it was suspected, judged, and let go


def test_recovery_resets(make_bundle: Callable[..., Path]) -> None:
    runtime = Runtime(make_bundle(), config=replace(CONFIG, recovery=0.99))
    runtime.step(batches(1)[0])
    assert "recovery" in runtime.events[-1].reason
    assert not runtime.learner.state.affines


# reset, save, restore


def test_reset_is_bit_for_bit(make_bundle: Callable[..., Path], runtime: Runtime) -> None:
    fresh, (images,) = Runtime(make_bundle()), batches(1)
    want = fresh.predict(images).logits
    learned(runtime)
    assert not np.array_equal(runtime.predict(images).logits, want)
    runtime.reset()
    np.testing.assert_array_equal(runtime.predict(images).logits, want)
    assert runtime.events[-1].kind == "reset"
    with pytest.raises(ConfigError, match="no module 'x'"):
        runtime.reset("x")


def test_reset_of_one_module(runtime: Runtime) -> None:
    learned(runtime)
    state = runtime.learner.state
    name = next(iter(state.affines))
    other = Affines(state.affines[name].scale + 1, state.affines[name].bias)
    runtime.learner.state = replace(state, affines={**state.affines, "domain-x": other})
    runtime.reset(name)
    assert set(runtime.learner.state.affines) == {"domain-x", *state.affines} - {name}
    np.testing.assert_array_equal(runtime.learner.state.selector.up_x, state.selector.up_x)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_restored_runtime_goes_on_as_if_never_stopped(
    make_bundle: Callable[..., Path], tmp_path: Path, optimizer: str
) -> None:
    config = replace(CONFIG, selector_optimizer=optimizer)  # type: ignore[arg-type]
    one, two = (Runtime(make_bundle(), config=config) for _ in range(2))
    learned(one).save(tmp_path / "deep/state.safetensors")
    two.restore(tmp_path / "deep/state.safetensors")
    assert same(one.learner.state, two.learner.state)
    for images in batches(3, seed=4):
        np.testing.assert_array_equal(one.step(images).logits, two.step(images).logits)
    assert same(one.learner.state, two.learner.state)
    assert one.learner.state.steps == two.learner.state.steps == 6


def test_damaged_states(make_bundle: Callable[..., Path], runtime: Runtime, tmp_path: Path) -> None:
    file = tmp_path / "state"
    with pytest.raises(StoreError, match="no whole state"):
        runtime.restore(file)
    learned(runtime, 2).save(file)
    older = runtime.learner.state
    learned(runtime, 3).save(file)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["state", "state.previous"]
    data = bytearray(file.read_bytes())
    data[-3] ^= 1  # a flipped bit in a tensor: still a readable file
    file.write_bytes(data)
    runtime.restore(file)
    assert same(runtime.learner.state, older)
    file.write_bytes(data[: len(data) // 2])
    runtime.restore(file)
    assert same(runtime.learner.state, older)
    file.with_name("state.previous").unlink()
    before = runtime.learner.state
    with pytest.raises(StoreError, match="no whole state"):
        runtime.restore(file)
    assert runtime.learner.state is before


def test_a_state_of_another_bundle_is_refused(
    make_bundle: Callable[..., Path], runtime: Runtime, tmp_path: Path
) -> None:
    learned(runtime).save(tmp_path / "state")
    other = Runtime(make_bundle("vpt", 5))
    with pytest.raises(BundleError, match="another bundle"):
        other.restore(tmp_path / "state")


KILLS = 300
SAVER = """
import os, random, signal, sys, time
from pathlib import Path
from types import SimpleNamespace
import numpy as np
from pluto_edge.modules import Dims, SelectorWeights
from pluto_edge.runtime import persistence
from pluto_edge.runtime.engine.modules import Modules
from pluto_edge.runtime.engine.affines import Affines
from pluto_edge.runtime.algorithm.state import State

path, rng, last = Path(sys.argv[1]), random.Random(0), 0
selector = SelectorWeights.random(width=48, classes=7, hidden_x=32, hidden_l=32, out=32)
dims = Dims('vpt', 4, 48, 3, 7)
bundle = SimpleNamespace(hash="h", manifest=SimpleNamespace(dims=dims))
network = SimpleNamespace(bundle=bundle, modules=Modules(m=SimpleNamespace(digest="d")))

def state(n):
    scale = np.full((7, 48), n, np.float32)
    return State(selector, affines={"m": Affines(scale, -scale)}, steps=n)

persistence.save(path, state(0), "h")
for kill in range(int(sys.argv[2])):
    began, begin = os.pipe()
    child = os.fork()
    if child == 0:
        for n in range(last + 1, 10**9):
            persistence.save(path, state(n), "h")
            if n == last + 1:
                os.write(begin, b"1")
    os.read(began, 1)  # it has saved once, however slow the machine is
    os.close(began), os.close(begin)
    time.sleep(rng.uniform(0.0, 0.02))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    got = persistence.restore(path, State(selector), network)
    assert got.steps >= last, (kill, got.steps, last)
    assert (got.affines["m"].scale == got.steps).all() and (got.affines["m"].bias == -got.steps).all()
    last = got.steps
persistence.save(path, state(last), "h")
assert sorted(p.name for p in path.parent.iterdir()) == ["state", "state.previous"]
print(last)
"""


def test_kills_during_saves_always_leave_a_whole_state(tmp_path: Path) -> None:
    """A process saves without pause and is killed with SIGKILL at a random moment, three hundred times."""
    command = [sys.executable, "-c", SAVER, str(tmp_path / "state"), str(KILLS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= KILLS  # it did save, many times over


# modules at run time


def module_folder(make_store: Callable[..., Store], path: Path, **changes: object) -> Path:
    """A module of a larger store, under another name."""
    store = make_store(modules=5)
    module, config = store.load_module("domain-4"), store.module_config("domain-4")
    config = replace(config, name="late", **changes)
    target = Store.create(path, replace(store.config, sources=(), classes=config.classes))
    target.save_module(Module("late", module.dims, module.tensors), config)
    return path / "modules/late"


def test_modules_come_and_go(
    make_bundle: Callable[..., Path], make_store: Callable[..., Store], runtime: Runtime, tmp_path: Path
) -> None:
    learned(runtime)
    state, (images,) = runtime.learner.state, batches(1)
    three = runtime.predict(images)
    assert runtime.add_module(module_folder(make_store, tmp_path / "s")) == "late"
    assert runtime.learner.state is state
    four = runtime.predict(images)
    assert four.modules == (*three.modules, "late") and four.weights.shape == (6, 4)
    runtime.step(images)
    assert "late" in runtime.events[-1].weights
    with pytest.raises(StoreError, match="already"):
        runtime.add_module(tmp_path / "s/modules/late")
    runtime.remove_module("late")
    assert runtime.modules == three.modules
    for name in runtime.modules[1:]:
        runtime.remove_module(name)
    with pytest.raises(ConfigError, match="last module"):
        runtime.remove_module("domain-0")
    with pytest.raises(ConfigError, match="no module"):
        runtime.remove_module("nobody")
    assert [e.reason for e in runtime.events if e.kind == "module"][:2] == ["late was added", "late was removed"]


def test_an_added_module_equals_an_exported_one(
    make_bundle: Callable[..., Path], make_store: Callable[..., Store], tmp_path: Path
) -> None:
    runtime, (images,) = Runtime(make_bundle()), batches(1)
    runtime.add_module(module_folder(make_store, tmp_path / "s"))
    runtime.remove_module("domain-0")
    whole = Runtime(make_bundle("vpt", 5))
    for name in ("domain-0", "domain-3"):
        whole.remove_module(name)
    np.testing.assert_allclose(runtime.predict(images).logits, whole.predict(images).logits, atol=1e-5)


def test_modules_that_do_not_fit(
    make_bundle: Callable[..., Path], make_store: Callable[..., Store], runtime: Runtime, tmp_path: Path
) -> None:
    other = tuple(f"other-{i}" for i in range(7))
    with pytest.raises(StoreError, match="classes differ"):
        runtime.add_module(module_folder(make_store, tmp_path / "a", classes=other))
    adapter = make_store("adapter", 5).path / "modules/domain-4"
    with pytest.raises(StoreError, match="the bundle holds"):
        runtime.add_module(adapter)
    with pytest.raises(StoreError, match="cannot be read"):
        runtime.add_module(tmp_path / "nowhere")
    folder = module_folder(make_store, tmp_path / "b")
    tensors = load_file(folder / "adapter_model.safetensors")
    tensors["prompt"][0, 0] = np.nan
    save_file(tensors, folder / "adapter_model.safetensors")
    with pytest.raises(StoreError, match="NaN"):
        runtime.add_module(folder)
    for name in ("../../evil", "", "\x1b[31m"):
        config = json.loads((folder / "adapter_config.json").read_text())
        (folder / "adapter_config.json").write_text(json.dumps({**config, "name": name}))
        with pytest.raises(StoreError, match="not a safe name"):
            runtime.add_module(folder)
    assert len(runtime.modules) == 3


def test_a_state_with_a_module_that_is_not_there(
    make_store: Callable[..., Store], make_bundle: Callable[..., Path], runtime: Runtime, tmp_path: Path
) -> None:
    learned(runtime)
    name = next(iter(runtime.learner.state.affines))
    runtime.save(tmp_path / "state")
    runtime.remove_module(name)
    with pytest.raises(StoreError, match=f"module '{name}', which is not loaded"):
        runtime.restore(tmp_path / "state")


# events and threads


def test_events(make_bundle: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Event] = []
    runtime = Runtime(make_bundle(), config=CONFIG, on_event=seen.append)
    learned(runtime)
    assert list(runtime.events) == seen and len(seen) == 3
    event = seen[-1]
    assert event.samples == 6 and 1 <= event.reliable <= 6
    assert event.entropy_after < event.entropy_before
    assert sum(event.weights.values()) == pytest.approx(1, abs=1e-6)
    assert event.top == max(event.weights, key=lambda n: event.weights[n])
    assert set(event.milliseconds) == {"forward", "selector", "layer_norm", "guard"}
    runtime.reset()
    text = events.table(runtime.events)
    assert len(text.splitlines()) == 6 and "reset" in text and event.top in text
    assert json.dumps(vars(event))


def test_a_callback_that_raises_is_no_part_of_learning(
    make_bundle: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    def fail(event: Event) -> None:
        raise RuntimeError("the callback is on fire")

    quiet, loud = Runtime(make_bundle(), config=CONFIG), Runtime(make_bundle(), config=CONFIG, on_event=fail)
    learned(quiet)
    learned(loud)
    loud.reset("domain-0")
    quiet.reset("domain-0")
    assert same(quiet.learner.state, loud.learner.state)
    assert [e.kind for e in loud.events] == [e.kind for e in quiet.events] == ["step"] * 3 + ["reset"]
    assert loud.callback_errors == 4 and caplog.text.count("the callback is on fire") >= 4
    with loud.stream(batch=4, on_event=fail) as stream:
        for image in batches(1, 8)[0]:
            stream(image)
        stream.wait()
        assert loud.callback_errors == 4 + len(stream.events)
    loud.close()


@pytest.mark.parametrize("call", ["step", "reset", "predict", "save", "remove_module", "threads"])
def test_a_callback_may_call_the_runtime(make_bundle: Callable[..., Path], tmp_path: Path, call: str) -> None:
    """Neither a deadlock nor a recursion; events that it causes come after it."""
    seen: list[Event] = []
    inside, (images,) = [0], batches(1)

    def act() -> None:
        if call == "save":
            runtime.save(tmp_path / "state")
        elif call == "remove_module":
            runtime.remove_module("domain-2")
        elif call == "reset":
            runtime.reset()
        else:
            getattr(runtime, "step" if call == "threads" else call)(images)

    def callback(event: Event) -> None:
        assert inside[0] == 0  # never within itself
        inside[0] += 1
        seen.append(event)
        if len(seen) == 1:
            if call == "threads":  # somebody else gets every lock while the callback runs
                other = threading.Thread(target=act)
                other.start()
                other.join(60)
                assert not other.is_alive()
            else:
                act()
        inside[0] -= 1

    runtime = Runtime(make_bundle(), config=CONFIG, on_event=callback)
    done = threading.Thread(target=lambda: runtime.step(images), daemon=True)
    done.start()
    done.join(60)
    assert not done.is_alive()
    assert runtime.callback_errors == 0
    assert list(runtime.events) == seen


def test_events_come_in_order_from_many_threads(make_bundle: Callable[..., Path]) -> None:
    seen: list[Event] = []
    runtime = Runtime(make_bundle(), config=CONFIG, on_event=seen.append)
    threads = [threading.Thread(target=lambda: [runtime.reset() for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(runtime.events) == seen and len(seen) == 200


def test_events_are_bounded(runtime: Runtime) -> None:
    for _ in range(MAX_EVENTS + 10):
        runtime.reset()
    assert len(runtime.events) == MAX_EVENTS


def test_threads_are_as_if_one_after_another(make_bundle: Callable[..., Path]) -> None:
    """The same batch from several threads: every step sees a whole state, and the end is that of a loop."""
    (images,) = batches(1)
    alone, shared = (Runtime(make_bundle(), config=CONFIG) for _ in range(2))
    states = [alone.learner.state]
    for _ in range(12):
        alone.step(images)
        states.append(alone.learner.state)
    allowed = []
    probe = Runtime(make_bundle(), config=CONFIG)
    for state in states:
        probe.learner.state = state
        allowed.append(probe.predict(images).logits)
    predictions: list[np.ndarray] = []

    def learn() -> None:
        for _ in range(3):
            shared.step(images)

    def look() -> None:
        predictions.extend(shared.predict(images).logits for _ in range(6))

    threads = [threading.Thread(target=t) for t in (learn, look, learn, look, learn, learn)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [e.step for e in shared.events] == list(range(1, 13))
    for name, affines in alone.learner.state.affines.items():
        np.testing.assert_allclose(shared.learner.state.affines[name].scale, affines.scale, atol=1e-6)
    for logits in predictions:
        assert min(np.abs(logits - a).max() for a in allowed) < 1e-5
