"""The step against an independent torch implementation, batch after batch."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pluto_edge import AdaptConfig, ConfigError, Runtime, tolerances
from pluto_edge.export.exporter import run_export
from pluto_edge.modules import Kind, SelectorWeights
from pluto_edge.preprocess import ImageBatch
from pluto_edge.runtime.algorithm import selector
from pluto_edge.runtime.algorithm.logits import guess_top
from pluto_edge.runtime.engine.objective import Objective
from pluto_edge.store import Store
from pluto_edge.tolerances import relative_error
from pluto_edge.vit.torch_vit import TorchSelector
from tests.reference.torch_pluto import TorchPluto, entropy_of

STEPS, BATCH = 12, 7


def random_selector(seed: int, classes: int) -> SelectorWeights:
    start = SelectorWeights.random(width=12, classes=classes, hidden_x=6, hidden_l=5, out=8, seed=seed)
    rng = np.random.default_rng(seed)
    return SelectorWeights(
        **{k: v + 0.1 * rng.standard_normal(v.shape).astype(np.float32) for k, v in start.tensors.items()}
    )


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 6), st.integers(1, 7), st.integers(2, 9), st.integers(0, 10**6), st.floats(0.1, 8))
def test_selector_gradient_equals_autograd(batch: int, modules: int, classes: int, seed: int, scale: float) -> None:
    g, rng = random_selector(seed, classes), np.random.default_rng(seed)
    x = rng.standard_normal((batch, 12)).astype(np.float32)
    logits = (scale * rng.standard_normal((batch, modules, classes))).astype(np.float32)
    loss, gradient = selector.entropy_gradient(g, x, logits)
    reference = TorchSelector({k: torch.from_numpy(v).double() for k, v in g.tensors.items()})
    l = torch.from_numpy(logits).double()  # noqa: E741
    want = entropy_of((reference(torch.from_numpy(x).double(), l)[..., None] * l.softmax(-1)).sum(1)).mean()
    want.backward()
    assert loss == pytest.approx(float(want.detach()), abs=1e-9)
    for key, value in gradient.items():
        np.testing.assert_allclose(value, reference.weights[key].grad.numpy(), atol=1e-9)


def test_selector_gradient_equals_finite_differences() -> None:
    g, rng = random_selector(3, 5), np.random.default_rng(3)
    x = rng.standard_normal((4, 12)).astype(np.float32)
    logits = rng.standard_normal((4, 3, 5)).astype(np.float32)
    _, gradient = selector.entropy_gradient(g, x, logits)
    for key, value in g.tensors.items():
        index = tuple(rng.integers(0, n) for n in value.shape)
        ends = []
        for sign in (1, -1):
            moved = value.astype(np.float64).copy()
            moved[index] += sign * 1e-5
            ends.append(selector.entropy_gradient(SelectorWeights(**{**g.tensors, key: moved}), x, logits)[0])
        assert gradient[key][index] == pytest.approx((ends[0] - ends[1]) / 2e-5, abs=1e-7)


CONFIGS = {
    "batch": AdaptConfig(top_m=3, selector_lr=0.05, ln_lr=0.02, entropy_margin=0.9, guard=False),
    "sample": AdaptConfig(top_m=3, selector_lr=0.05, ln_lr=0.005, entropy_margin=0.9, sam="sample", guard=False),
    "adam, two steps, no momentum": AdaptConfig(
        top_m=3,
        selector_lr=0.005,
        selector_optimizer="adam",
        selector_steps=2,
        ln_lr=0.02,
        ln_momentum=0.0,
        entropy_margin=0.9,
        guard=False,
    ),
    "no SAM, no filter": AdaptConfig(selector_lr=0.05, ln_lr=0.01, rho=0.0, filter=False, guard=False),
    "LookSAM": AdaptConfig(selector_lr=0.05, ln_lr=0.02, entropy_margin=0.9, sam_every=3, guard=False),
    "LookSAM, some layers": AdaptConfig(
        selector_lr=0.05, ln_lr=0.02, filter=False, ln_layers=(0, 3, 6), sam_every=4, guard=False
    ),
    "some layers": AdaptConfig(selector_lr=0.05, ln_lr=0.02, entropy_margin=0.9, ln_layers=(0, 3, 6), guard=False),
    "selector only": AdaptConfig(selector_lr=0.05, sam=None, guard=False),
    "LayerNorm only": AdaptConfig(selector=False, ln_lr=0.02, entropy_margin=0.9, guard=False),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_trajectory_equals_torch(
    make_store: Callable[..., Store], make_bundle: Callable[..., Path], kind: Kind, name: str
) -> None:
    """12 batches, 5 modules: weights, selector, affines and predictions agree at every step."""
    config, rng = CONFIGS[name], np.random.default_rng(11)
    reference = TorchPluto(make_store(kind, 5), config)
    runtime = Runtime(make_bundle(kind, 5), config=config)
    tops = []
    for number in range(STEPS):
        images = rng.integers(0, 256, (BATCH, 44, 36, 3), dtype=np.uint8)
        want, got = reference.step(images), runtime.step(images)
        event, state = runtime.events[-1], runtime.learner.state
        assert event.kind == "step", event.reason
        assert (event.top, event.step) == (want["top"], number + 1)
        assert config.sam is None or event.reliable == reference.reliable
        tops.append(event.top)
        np.testing.assert_allclose(got.weights, want["weights"], atol=tolerances.TRAJECTORY_WEIGHTS)
        assert relative_error(got.logits, want["logits"]) < tolerances.TRAJECTORY_LOGITS
        for key, value in state.selector.tensors.items():
            np.testing.assert_allclose(value, want["selector"][key], atol=tolerances.TRAJECTORY_SELECTOR)
        for module, affines in state.affines.items():
            scale, bias = want["affines"][module]
            assert relative_error(affines.scale, scale) < tolerances.TRAJECTORY_AFFINES
            assert relative_error(affines.bias, bias) < tolerances.TRAJECTORY_AFFINES
    if config.sam:
        moved = runtime.learner.state.affines
        start = runtime.learner.network.modules[tops[0]].exported
        assert set(moved) == set(tops)
        assert np.abs(moved[tops[0]].scale - start.scale).max() > 1e-3  # it went somewhere


def test_only_the_blocks_that_a_bundle_lets_learn(make_store: Callable[..., Store], tmp_path: Path) -> None:
    """As if the other rows were left out by `ln_layers`, which cannot bring them back."""
    store = make_store("vpt", 5)
    run_export(store.path, tmp_path / "bundle", learn_from=2)
    config = replace(AdaptConfig.paper(), filter=False, selector_lr=0.05, ln_lr=0.02, guard=False)
    reference = TorchPluto(store, replace(config, ln_layers=(4, 5, 6)))
    runtime = Runtime(tmp_path / "bundle", "cpu", config=config)
    assert runtime.manifest.learn_from == 2
    rng = np.random.default_rng(3)
    for _ in range(4):
        images = rng.integers(0, 256, (BATCH, 44, 36, 3), dtype=np.uint8)
        want, got = reference.step(images), runtime.step(images)
        assert relative_error(got.logits, want["logits"]) < tolerances.TRAJECTORY_LOGITS
    for module, affines in runtime.learner.state.affines.items():
        start = runtime.learner.network.modules[module].exported
        assert (affines.scale[:4] == start.scale[:4]).all() and (affines.scale[4:] != start.scale[4:]).any()
        assert relative_error(affines.scale, want["affines"][module][0]) < tolerances.TRAJECTORY_AFFINES
    with pytest.raises(ConfigError, match="ln_layers: this bundle's rows 4 to 6 learn, got 3"):
        Runtime(tmp_path / "bundle", config=replace(config, ln_layers=(3, 5)))
    with pytest.raises(ConfigError, match="learn_from: want a block from 0 to 3, got 4"):
        run_export(store.path, tmp_path / "other", learn_from=4)


def test_a_right_guess_changes_nothing_but_time(make_bundle: Callable[..., Path], kind: Kind) -> None:
    """The gradient from the pass that gave the logits, and from a pass of its own, give the same trajectory."""
    config = CONFIGS["batch"]
    reuse, twice = (Runtime(make_bundle(kind, 5), config=config) for _ in range(2))
    rng, right = np.random.default_rng(5), 0
    for _ in range(6):
        images = rng.integers(0, 256, (BATCH, 44, 36, 3), dtype=np.uint8)
        twice.learner.state = type(twice.learner.state)(**{**vars(twice.learner.state), "top": None})
        a, b = reuse.step(images), twice.step(images)
        right += reuse.events[-1].guessed
        assert not twice.events[-1].guessed
        np.testing.assert_allclose(a.logits, b.logits, atol=1e-4)
        first, second = reuse.learner.state.affines, twice.learner.state.affines
        for name in first:
            np.testing.assert_allclose(first[name].scale, second[name].scale, atol=1e-5)
    assert right > 0


def test_few_reliable_samples_are_not_guessed_for(make_bundle: Callable[..., Path]) -> None:
    """Where most samples are filtered out, or logits are known already, the gradient is computed for the reliable
    ones alone."""
    images = np.random.default_rng(5).integers(0, 256, (BATCH, 44, 36, 3), dtype=np.uint8)
    runtime = Runtime(make_bundle("vpt", 5), config=replace(CONFIGS["batch"], ln_lr=0.0, selector_lr=0.0))
    runtime.step(images)
    learner, batch = runtime.learner, ImageBatch(images, runtime.manifest.preprocessing)
    logits = learner.network.run(batch, {}).of(learner.state.top)
    middle = float(np.median(selector.entropy(selector.softmax(logits))))
    learner.config = replace(runtime.config, filter=True, entropy_margin=middle / np.log(logits.shape[1]))
    calls = count_images(runtime)
    top, names = learner.state.top, runtime.modules
    assert top is not None
    config, network = runtime.config, runtime.learner.network
    assert guess_top(network, replace(learner.state, reliable=0.6), names, config, ()) == top
    assert guess_top(network, replace(learner.state, reliable=0.5), names, config, ()) is None
    _, seen = learner.predict(batch)
    assert guess_top(network, replace(learner.state, reliable=1.0), names, config, (seen,)) is None
    learner.state = replace(learner.state, reliable=0.0)
    calls.clear()
    runtime.step(images)
    event = runtime.events[-1]
    assert not event.guessed
    assert 0 < event.reliable < BATCH
    assert calls["adapt"] == 2 * event.reliable


def count_images(runtime: Runtime) -> Counter[str]:
    """How many images went through the gradient graph."""
    calls: Counter[str] = Counter()
    graphs = runtime.learner.network.graphs
    gradient = graphs.gradient

    def counted(batch, module, affines, objective, samples=None):
        calls["adapt"] += len(batch) if samples is None else len(samples)
        return gradient(batch, module, affines, objective, samples)

    graphs.gradient = counted
    return calls


def test_gradients_add_up_over_micro_batches(make_bundle: Callable[..., Path], frames: np.ndarray) -> None:
    """Sum and count, not mean of means: micro-batches with different numbers of reliable samples."""
    runtime = Runtime(make_bundle())
    network, batch = runtime.learner.network, ImageBatch(frames, runtime.manifest.preprocessing)
    whole = np.arange(len(frames))
    exported = network.modules["domain-0"].exported
    entropies = network.gradient(batch, whole, "domain-0", exported).entropy
    threshold = float(np.sort(entropies)[4:6].mean())
    network.graphs.micro_batch_adapt = 100
    want = network.gradient(batch, whole, "domain-0", exported, Objective(threshold))
    assert len(want.reliable) == 5
    for size in (1, 2, 3):
        network.graphs.micro_batch_adapt = size
        got = network.gradient(batch, whole, "domain-0", exported, Objective(threshold))
        np.testing.assert_array_equal(got.reliable, want.reliable)
        assert relative_error(got.d_affines.scale, want.d_affines.scale) < tolerances.GRADIENT
        assert relative_error(got.d_affines.bias, want.d_affines.bias) < tolerances.GRADIENT


def test_no_reliable_sample_gives_zero_gradient(make_bundle: Callable[..., Path], frames: np.ndarray) -> None:
    runtime = Runtime(make_bundle())
    network, batch = runtime.learner.network, ImageBatch(frames, runtime.manifest.preprocessing)
    got = network.gradient(batch, np.arange(3), "domain-0", network.modules["domain-0"].exported, Objective(0.0))
    assert got.d_affines.norm == 0.0 and got.d_affines.finite
    assert len(got.reliable) == 0
