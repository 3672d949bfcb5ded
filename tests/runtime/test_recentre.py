"""Re-centring: a domain's drift is found and taken off, whatever classes the stream shows."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file

from pluto_edge import AdaptConfig, Runtime
from pluto_edge.export.exporter import run_export
from pluto_edge.modules import LOGIT_MEANS, Module
from pluto_edge.runtime import persistence
from pluto_edge.runtime.recentre import HORIZON, TRUST, Centre
from pluto_edge.runtime.selector import softmax
from pluto_edge.store import Store

NAMES, K = ("a", "b"), 5


def drifted(rng: np.random.Generator, means: np.ndarray, drift: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Logits [B,N,K] of modules with these means (on, off) that a domain moved by `drift` [N,K]."""
    truth = np.eye(K)[labels][:, np.newaxis]
    clean = means[:, 1] + truth * (means[:, 0] - means[:, 1])
    return clean + rng.normal(0, 0.3, (len(labels), len(NAMES), K)) + drift


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    shares=st.lists(st.floats(0, 1), min_size=K, max_size=K).filter(lambda s: sum(s) > 0.1),
)
def test_the_drift_is_found_whatever_the_classes(seed: int, shares: list[float]) -> None:
    """Where predictions are right, any mixture of classes, one alone too, gives the same drift."""
    rng = np.random.default_rng(seed)
    means = np.stack([rng.uniform(4, 7, (len(NAMES), K)), rng.uniform(-1, 1, (len(NAMES), K))], axis=1)
    drift = rng.normal(0, 1, (len(NAMES), K))
    labels = rng.choice(K, 400, p=np.array(shares) / sum(shares))
    logits = drifted(rng, means, drift, labels)
    centre = Centre()
    for start in range(0, 400, 40):
        part = slice(start, start + 40)
        centre = centre.plus(NAMES, logits[part], np.eye(K)[labels[part]])
    pi = np.bincount(labels, minlength=K) / len(labels)
    diversity = np.exp(-(pi * np.log(np.maximum(pi, 1e-12))).sum()) / K
    trust = 400 / (400 + TRUST) * diversity**2
    wanted = -0.5 * trust * (drift - drift.mean(axis=1, keepdims=True))
    np.testing.assert_allclose(centre.shift(NAMES, list(means), 0.5), wanted, atol=0.1)


def test_an_undecided_module_is_not_taken_for_a_drifted_one() -> None:
    """Logits of half the size, classes in unequal shares: nothing is favoured, so nothing is taken off."""
    rng = np.random.default_rng(0)
    means = np.stack([np.full((len(NAMES), K), 6.0), np.zeros((len(NAMES), K))], axis=1)
    labels = rng.choice(K, 500, p=[0.5, 0.2, 0.1, 0.1, 0.1])
    logits = 0.5 * drifted(rng, means, np.zeros((len(NAMES), K)), labels)
    centre = Centre().plus(NAMES, logits, np.eye(K)[labels])
    assert np.abs(centre.shift(NAMES, list(means), 1.0)).max() < 0.1


def test_batches_add_up_and_the_past_fades() -> None:
    rng = np.random.default_rng(0)
    logits, p = rng.normal(size=(300, 2, K)), softmax(rng.normal(size=(300, K)))
    whole = Centre().plus(NAMES, logits, p)
    parts = Centre()
    for start in (0, 100, 250):
        end = {0: 100, 100: 250, 250: 300}[start]
        parts = parts.plus(NAMES, logits[start:end], p[start:end])
    for j, name in enumerate(NAMES):
        one, all_at_once = parts.modules[name], whole.modules[name]
        np.testing.assert_allclose(one.logits, logits[:, j].mean(0))
        for field in ("logits", "shares", "products"):
            np.testing.assert_allclose(getattr(one, field), getattr(all_at_once, field))
        assert one.count == all_at_once.count == 300
    for _ in range(20):
        parts = parts.plus(NAMES, logits[:64] + 5, p[:64])
    for j, name in enumerate(NAMES):
        assert parts.modules[name].count == HORIZON
        np.testing.assert_allclose(parts.modules[name].logits, logits[:64, j].mean(0) + 5, atol=0.5)


def test_unknown_means_and_modules_that_never_ran_shift_nothing() -> None:
    rng = np.random.default_rng(0)
    logits, p = rng.normal(size=(30, 2, K)), softmax(rng.normal(size=(30, K)))
    centre = Centre().plus(NAMES, logits, p)
    means = np.ones((2, K), np.float32)
    shift = centre.shift(NAMES, [means, None], 1.0)
    assert np.abs(shift[0]).max() > 0 and not shift[1].any()
    other = centre.shift(("c", "a"), [means, means], 1.0)
    assert not other[0].any() and np.array_equal(other[1], shift[0])
    assert not Centre().shift(NAMES, [means, means], 1.0).any()


def test_a_module_keeps_its_means_while_others_run() -> None:
    """Whoever runs beside it, and whatever comes while it does not run, a module's means are of its own images."""
    rng = np.random.default_rng(0)
    logits, p = rng.normal(size=(90, 3, K)), softmax(rng.normal(size=(90, K)))
    parts = [np.arange(0, 30), np.arange(30, 60), np.arange(60, 90)]
    turns = [("a", "b"), ("b", "c"), ("a", "c")]
    centre = Centre()
    for part, names in zip(parts, turns, strict=True):
        columns = ["abc".index(n) for n in names]
        centre = centre.plus(names, logits[part][:, columns], p[part])
    for j, name in enumerate("abc"):
        own = np.concatenate([part for part, names in zip(parts, turns, strict=True) if name in names])
        alone = Centre().plus((name,), logits[own][:, [j]], p[own]).modules[name]
        for field in ("logits", "shares", "products"):
            np.testing.assert_allclose(getattr(centre.modules[name], field), getattr(alone, field))
        assert centre.modules[name].count == 60


@pytest.fixture(scope="module")
def bundle(make_store: Callable[..., Store], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle whose modules know their mean logits."""
    source = make_store()
    folder = tmp_path_factory.mktemp("recentre")
    store = Store.create(folder / "store", replace(source.config, sources=()))
    (folder / "store/backbone.safetensors").write_bytes(source.backbone_file.read_bytes())
    store.save_selector(source.load_selector())
    for seed, name in enumerate(source.names):
        module = source.load_module(name)
        means = np.random.default_rng(seed).normal(size=(2, 7)).astype(np.float32)
        tensors = {**module.tensors, LOGIT_MEANS: means}
        store.save_module(Module(name, module.dims, tensors), source.module_config(name))
    run_export(store.path, folder / "bundle")
    return folder / "bundle"


CONFIG = AdaptConfig(selector=False, sam=None, recentre=0.7, guard=False)


def frames(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 40, 32, 3), dtype=np.uint8)


def by_hand(logits: np.ndarray, p: np.ndarray, means: list[np.ndarray], strength: float) -> np.ndarray:
    """Class by class: the soft means on and off the class say how decided a module is."""
    pi, count = p.mean(0), len(p)
    weight = pi * (1 - pi)
    rows = []
    for j, (on, off) in enumerate(means):
        here_on = (p * logits[:, j]).sum(0) / p.sum(0)
        here_off = ((1 - p) * logits[:, j]).sum(0) / (1 - p).sum(0)
        decided = np.clip((weight * (here_on - here_off)).sum() / (weight * (on - off)).sum(), 0.1, 2)
        if (weight * (on - off)).sum() <= 0:
            decided = 1.0
        drift = decided * (off + pi * (on - off)) - logits[:, j].mean(0)
        rows.append(drift - drift.mean())
    diversity = np.exp(-(pi * np.log(pi)).sum()) / len(pi)
    return strength * count / (count + TRUST) * diversity**2 * np.stack(rows)


def test_a_runtime_centres_what_it_blends(bundle: Path) -> None:
    """By hand: running means of logits and predictions, the drift against the modules' own means."""
    runtime, plain = (Runtime(bundle, config=replace(CONFIG, recentre=r)) for r in (0.7, 0.0))
    batches = [frames(12, seed) for seed in range(3)]
    every, predicted, shift = [], [], 0.0
    means = [runtime._network.modules[n].logit_means for n in runtime.modules]
    for images in batches:
        raw = plain.predict(images)
        logits = np.stack([plain._network.run(plain._batch(images), {}).of(n) for n in plain.modules], axis=1)
        w = raw.weights[..., np.newaxis]
        np.testing.assert_allclose(runtime.predict(images).logits, (w * (logits + shift)).sum(1), atol=1e-4)
        p = softmax((w * (logits + shift)).sum(1))
        every, predicted = [*every, logits], [*predicted, p]
        shift = by_hand(np.concatenate(every), np.concatenate(predicted), means, 0.7)
        np.testing.assert_allclose(runtime.step(images).logits, (w * (logits + shift)).sum(1), atol=1e-4)
    assert np.abs(shift).max() > 0.1


def test_it_is_saved_restored_and_reset(bundle: Path, tmp_path: Path) -> None:
    one, two = Runtime(bundle, config=CONFIG), Runtime(bundle, config=CONFIG)
    fresh = one.predict(frames(4)).logits
    one.step(frames(12, 1))
    one.save(tmp_path / "state")
    two.restore(tmp_path / "state")
    np.testing.assert_array_equal(one.predict(frames(4)).logits, two.predict(frames(4)).logits)
    assert not np.array_equal(one.predict(frames(4)).logits, fresh)
    one.reset()
    np.testing.assert_array_equal(one.predict(frames(4)).logits, fresh)
    gone, *others = two.modules
    two.remove_module(gone)  # the others' means go on
    two.step(frames(12, 2))
    counts = {n: m.count for n, m in two._learner.state.centre.modules.items()}
    assert counts == {gone: 12, **dict.fromkeys(others, 24)}


def test_a_state_of_the_first_schema(bundle: Path, tmp_path: Path) -> None:
    """It had one count and one set of shares for all modules."""
    one, two = Runtime(bundle, config=CONFIG), Runtime(bundle, config=CONFIG)
    one.step(frames(12, 1))
    one.save(tmp_path / "new")
    with safe_open(tmp_path / "new", framework="numpy") as opened:
        metadata, tensors = opened.metadata(), {k: opened.get_tensor(k) for k in opened.keys()}  # noqa: SIM118
    tensors["centre.shares"] = tensors["centre.shares"][0]
    counters = json.loads(metadata["counters"])
    counters["centre"] = [list(one.modules), 12.0]
    old = {"schema_version": "1", "counters": json.dumps(counters), "digest": persistence._digest(tensors)}
    save_file(tensors, tmp_path / "old", {**metadata, **old})
    two.restore(tmp_path / "old")
    np.testing.assert_array_equal(one.predict(frames(4)).logits, two.predict(frames(4)).logits)


def test_a_step_without_reliable_samples_still_centres(bundle: Path) -> None:
    runtime = Runtime(bundle, config=AdaptConfig(entropy_margin=1e-6, guard=False))
    runtime.step(frames(12))
    assert runtime.events[-1].kind == "rollback" and "0 reliable" in runtime.events[-1].reason
    counts = {m.count for m in runtime._learner.state.centre.modules.values()}
    assert counts == {12} and not runtime._learner.state.affines
    assert runtime._learner.state.selector is runtime._network.selector
