"""The numpy selector against torch, and the selection of modules."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pluto_edge import tolerances
from pluto_edge._arrays import sigmoid
from pluto_edge.modules import SelectorWeights
from pluto_edge.runtime.algorithm import selector
from pluto_edge.vit.torch_vit import TorchSelector


def random_selector(width: int, classes: int, seed: int) -> SelectorWeights:
    start = SelectorWeights.random(width=width, classes=classes, hidden_x=8, hidden_l=6, out=16, seed=seed)
    rng = np.random.default_rng(seed)
    shaken = {k: v + 0.1 * rng.standard_normal(v.shape).astype(np.float32) for k, v in start.tensors.items()}
    return SelectorWeights(**shaken)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 9), st.integers(1, 12), st.integers(2, 20), st.integers(0, 10**6), st.floats(0.1, 20))
def test_equals_torch(batch: int, modules: int, classes: int, seed: int, scale: float) -> None:
    g, rng = random_selector(24, classes, seed), np.random.default_rng(seed)
    x = rng.standard_normal((batch, 24)).astype(np.float32)
    logits = (scale * rng.standard_normal((batch, modules, classes))).astype(np.float32)
    with torch.no_grad():
        reference = TorchSelector({k: torch.from_numpy(v).double() for k, v in g.tensors.items()})
        want = reference(torch.from_numpy(x).double(), torch.from_numpy(logits).double())
    got = selector.weights(g, x, logits)
    assert np.abs(got - want.numpy()).max() < tolerances.SELECTOR
    np.testing.assert_allclose(got.sum(axis=1), 1, rtol=1e-5)


def test_modules_come_and_go_without_retraining() -> None:
    """The score of a module does not depend on who else is there: ratios of weights stay."""
    g, rng = random_selector(24, 5, 0), np.random.default_rng(0)
    x = rng.standard_normal((3, 24)).astype(np.float32)
    logits = rng.standard_normal((3, 4, 5)).astype(np.float32)
    all_four, two = selector.weights(g, x, logits), selector.weights(g, x, logits[:, 1:3])
    np.testing.assert_allclose(two, all_four[:, 1:3] / all_four[:, 1:3].sum(axis=1, keepdims=True), rtol=1e-4)


weights = hnp.arrays(
    np.float32, hnp.array_shapes(min_dims=2, max_dims=2, max_side=9), elements=st.floats(0, 1, width=32)
)


@given(weights, st.none() | st.integers(1, 12))
def test_selection_keeps_the_heaviest_and_sums_to_one(weight: np.ndarray, top_m: int | None) -> None:
    kept, order = selector.select(weight, top_m)
    count = weight.shape[1]
    assert len(order) == min(top_m or count, count)
    np.testing.assert_allclose(kept.sum(axis=1), 1, rtol=1e-5)
    means = weight.mean(axis=0)
    assert set(np.flatnonzero(kept.any(axis=0))) <= set(order)
    outside = [j for j in range(count) if j not in order]
    assert not outside or means[order].min() >= means[outside].max()
    assert list(means[order]) == sorted(means[order], reverse=True)


def test_selection_by_hand() -> None:
    weight = np.array([[0.5, 0.3, 0.2], [0.1, 0.3, 0.6]], np.float32)  # means .3 .3 .4
    kept, order = selector.select(weight, 2)
    assert list(order) == [2, 0]
    np.testing.assert_allclose(kept, [[0.5 / 0.7, 0, 0.2 / 0.7], [0.1 / 0.7, 0, 0.6 / 0.7]], rtol=1e-6)


@pytest.mark.parametrize("value", [1e30, -1e30, 100.0])
def test_extreme_inputs_stay_finite(value: float) -> None:
    x = np.array([[value, -value, 0.0]])
    assert np.isfinite(selector.softmax(x)).all()
    assert np.isfinite(sigmoid(x)).all()
    assert np.isfinite(selector.entropy(selector.softmax(x))).all()


def test_entropy_by_hand() -> None:
    p = np.array([[0.25] * 4, [1, 0, 0, 0]], np.float32)
    np.testing.assert_allclose(selector.entropy(p), [np.log(4), 0], atol=1e-6)
