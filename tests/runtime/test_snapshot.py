"""Modules that come and go during a step, and what was learned with a module that another has replaced."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from pluto_edge import AdaptConfig, Runtime
from pluto_edge.errors import StoreError
from pluto_edge.modules import Module
from pluto_edge.preprocess import ImageBatch
from pluto_edge.runtime.algorithm import sharpness, step
from pluto_edge.store import Store

CONFIG = AdaptConfig(selector_lr=0.02, ln_lr=0.01, entropy_margin=0.95, guard=False)


def images(seed: int = 0, size: int = 6) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (size, 40, 32, 3), dtype=np.uint8)


@pytest.fixture
def runtime(make_bundle: Callable[..., Path]) -> Runtime:
    return Runtime(make_bundle(), config=CONFIG)


def folder(make_store: Callable[..., Store], path: Path, factor: float = 1.0) -> Path:
    """The module `domain-0`, its head times a factor, as a folder of a store."""
    store = make_store()
    module = store.load_module("domain-0")
    tensors = {**module.tensors, "head_weight": module.tensors["head_weight"] * np.float32(factor)}
    target = Store.create(path, replace(store.config, sources=()))
    target.save_module(Module("domain-0", module.dims, tensors), store.module_config("domain-0"))
    return path / "modules/domain-0"


def taught(runtime: Runtime) -> None:
    """Steps in which domain-0 leads, so that it has affines of its own."""
    others = [n for n in runtime.modules if n != "domain-0"]
    for name in others:
        runtime.remove_module(name)
    for seed in range(3):
        runtime.step(images(seed))
    assert "domain-0" in runtime.learner.state.affines


@pytest.mark.parametrize(("where", "name"), [(step, "update_selector"), (sharpness, "sharpness_aware")])
@pytest.mark.parametrize("stays", ["domain-0", "domain-1", "domain-2"])
@pytest.mark.parametrize("stream", [False, True])
def test_modules_that_leave_during_a_step(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, where: ModuleType, name: str, stays: str, stream: bool
) -> None:
    """The step ends with the modules that it began with, the one that leads among them or not."""
    original, left = getattr(where, name), []

    def leave(*arguments: object) -> object:
        if not left:
            left.extend(n for n in runtime.modules if n != stays)
            for module in left:
                runtime.remove_module(module)
        return original(*arguments)

    monkeypatch.setattr(where, name, leave)
    config = replace(CONFIG, entropy_margin=1.0)
    with runtime, runtime.stream(batch=16, background=False, config=config) as line:
        if stream:
            for frame in images(0, 16):
                line(frame)
            learner = line.learner
        else:
            runtime.step(images())
            learner = runtime.learner
        event = next(e for e in learner.events if e.kind != "module")
        assert event.kind == "step" and set(left) < set(event.weights)
        later = runtime.step(images(1))
        assert later.modules == runtime.modules == (stays,)
        assert runtime.events[-1].kind == "step"


def test_steps_and_predictions_while_modules_come_and_go(
    runtime: Runtime, make_store: Callable[..., Store], tmp_path: Path
) -> None:
    late, errors, stop = folder(make_store, tmp_path / "s"), [], threading.Event()

    def busy(call: Callable[[np.ndarray], object]) -> None:
        try:
            while not stop.is_set():
                call(images(size=2))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=busy, args=(call,)) for call in (runtime.step, runtime.predict)]
    for thread in threads:
        thread.start()
    for _ in range(30):
        runtime.remove_module("domain-0")
        runtime.add_module(late)
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == []
    assert {e.kind for e in runtime.events} <= {"step", "gather", "module"}


def test_what_was_learned_belongs_to_the_tensors_that_learned_it(
    runtime: Runtime, make_store: Callable[..., Store], tmp_path: Path
) -> None:
    taught(runtime)
    runtime.add_module(make_store().path / "modules/domain-1")
    before = runtime.predict(images(9)).logits
    runtime.remove_module("domain-0")
    runtime.add_module(folder(make_store, tmp_path / "same"))
    np.testing.assert_allclose(runtime.predict(images(9)).logits, before, atol=1e-6)

    runtime.save(tmp_path / "state")
    runtime.remove_module("domain-0")
    other = folder(make_store, tmp_path / "other", factor=3.0)
    runtime.add_module(other)
    fresh = Runtime(runtime.learner.network.bundle.path, config=CONFIG)
    for name in ("domain-0", "domain-2"):
        fresh.remove_module(name)
    fresh.add_module(other)
    fresh.learner.state = replace(fresh.learner.state, selector=runtime.learner.state.selector)
    np.testing.assert_array_equal(runtime.predict(images(9)).logits, fresh.predict(images(9)).logits)
    runtime.step(images(9))
    assert runtime.learner.state.rollbacks == 0
    with pytest.raises(StoreError, match="another module 'domain-0'"):
        runtime.restore(tmp_path / "state")


def test_a_step_under_way_does_not_teach_the_module_that_takes_a_place(
    runtime: Runtime, make_store: Callable[..., Store], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taught(runtime)
    other = folder(make_store, tmp_path / "other", factor=3.0)
    runtime.add_module(make_store().path / "modules/domain-1")
    original = sharpness.sharpness_aware

    def swap(*arguments: object) -> object:
        runtime.remove_module("domain-0")
        runtime.add_module(other)
        monkeypatch.setattr(sharpness, "sharpness_aware", original)
        return original(*arguments)

    monkeypatch.setattr(sharpness, "sharpness_aware", swap)
    runtime.step(images(5))
    with_affines = runtime.learner.network.run(ImageBatch(images(9), runtime.manifest.preprocessing), {})
    seen = runtime.learner.predict(ImageBatch(images(9), runtime.manifest.preprocessing))[1]
    np.testing.assert_array_equal(seen.of("domain-0"), with_affines.of("domain-0"))
