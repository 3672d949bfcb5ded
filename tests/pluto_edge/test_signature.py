"""Signatures: covariances of few directions, distances under them, and what a module's file may hold."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

from pluto_edge.errors import ConfigError, StoreError
from pluto_edge.modules import Dims, Module, check_module
from pluto_edge.signature import NUMBERS, PREFIX, Covariance, Reference, Signature, shapes
from tests.reference.covariance import dense


def random_signature(width: int = 12, depth: int = 2, classes: int = 3, seed: int = 0) -> Signature:
    rng = np.random.default_rng(seed)
    arrays = {
        "class_means": rng.standard_normal((classes, width)),
        "feature_factor": rng.standard_normal((4, width)),
        "activation_mean": rng.standard_normal((depth + 1, width)),
        "activation_std": rng.random((depth + 1, width)) + 0.1,
        "look_mean": rng.standard_normal(width),
        "look_factor": rng.standard_normal((5, width)),
    }
    numbers = {"feature_noise": 0.3, "look_noise": 0.2, "temperature": 0.7, "sharpness": 0.05, "images": 40.0}
    return Signature(**{k: v.astype(np.float32) for k, v in arrays.items()}, **numbers)


def test_a_covariance_keeps_what_matters() -> None:
    rng = np.random.default_rng(0)
    loud = rng.standard_normal((500, 2)) * 5 @ rng.standard_normal((2, 10))
    samples = loud + rng.standard_normal((500, 10)) * 0.5
    samples -= samples.mean(axis=0)
    exact = samples.T @ samples / len(samples)
    found = dense(Covariance.of(samples, 2, 0.0))
    assert np.trace(found) == pytest.approx(np.trace(exact), rel=1e-5)  # no variance is lost
    values, vectors = np.linalg.eigh(exact)
    for direction, value in zip(vectors[:, -2:].T, values[-2:], strict=True):
        assert direction @ found @ direction == pytest.approx(value, rel=1e-4)
    assert np.linalg.norm(found - exact) < 0.05 * np.linalg.norm(exact)


@pytest.mark.parametrize(("count", "rank"), [(1, 16), (3, 16), (40, 39), (5, 1)])
def test_a_covariance_of_few_samples_can_be_inverted(count: int, rank: int) -> None:
    samples = np.random.default_rng(1).standard_normal((count, 40))
    found = Covariance.of(samples - samples.mean(axis=0), rank, 0.2)
    assert np.isfinite(dense(found)).all() and found.noise > 0


@pytest.mark.parametrize("floor", [0.0, 0.1, 1.0])
def test_a_floor_is_raised_by_the_mean_variance(floor: float) -> None:
    rng = np.random.default_rng(3)
    samples = rng.standard_normal((60, 20)) @ rng.standard_normal((20, 20))
    bare = Covariance.of(samples, 5, 0.0)
    raised = Covariance.of(samples, 5, floor)
    mean = np.trace(samples.T @ samples / 60) / 20
    assert raised.noise == pytest.approx(bare.noise + floor * mean, rel=1e-6)
    assert bare.raised(floor).noise == raised.noise and np.array_equal(bare.factor, raised.factor)


def test_surprise_is_the_normal_distributions() -> None:
    rng = np.random.default_rng(4)
    samples = rng.standard_normal((60, 20)) @ rng.standard_normal((20, 20))
    covariance = Covariance.of(samples[:40], 5, 0.1)
    normal = multivariate_normal(np.zeros(20), dense(covariance))
    constant = 20 * 20 * np.log(2 * np.pi)  # 20 samples, 20 channels
    want = -2 * normal.logpdf(samples[40:]).sum() - constant
    assert covariance.surprise(samples[40:]) == pytest.approx(want, rel=1e-9)


def test_distances_are_mahalanobis() -> None:
    signature = random_signature()
    reference = Reference.of(signature, np.zeros((3, 12)))
    rng = np.random.default_rng(2)
    features, points = rng.standard_normal((6, 12)), rng.standard_normal((3, 12))
    inverse = np.linalg.inv(dense(signature.features))
    apart = features[:, None] - points
    want = np.einsum("bki,ij,bkj->bk", apart, inverse, apart) / 12
    np.testing.assert_allclose(reference.distances(features, points), want, rtol=1e-9)


def test_what_is_written_is_read() -> None:
    signature = random_signature()
    found = Signature.find(signature.tensors, "here", StoreError)
    assert found is not None
    for field in fields(Signature):
        np.testing.assert_allclose(getattr(found, field.name), getattr(signature, field.name), rtol=1e-3, atol=1e-4)
    assert Signature.find({"head_weight": np.zeros(3)}, "here", StoreError) is None


def test_large_values_do_not_overflow_half_precision() -> None:
    tensors = random_signature().tensors
    loud = np.full((3, 12), 1e6, np.float32)
    assert (
        Signature(**{**vars(random_signature()), "class_means": loud}).tensors[PREFIX + "class_means"].max() == 1e6
    )
    assert tensors[PREFIX + "class_means"].dtype == np.float16


def test_it_is_small() -> None:
    """A ViT-S of 7 classes: below the 150 KB that a module may carry."""
    total = 0
    for name, shape in shapes(384, 12, 7).items():
        rank = 16 if "feature" in name else 32
        bytes_each = 4 if name.endswith("numbers") else 2
        total += int(np.prod([rank if n is None else n for n in shape])) * bytes_each
    assert total < 80_000


def _module(changes: dict[str, np.ndarray | None]) -> Module:
    dims = Dims("adapter", 2, 12, 2, 3)
    tensors = {k: np.zeros(v, np.float32) for k, v in dims.shapes.items()} | random_signature().tensors
    for key, value in changes.items():
        if value is None:
            del tensors[PREFIX + key]
        else:
            tensors[PREFIX + key] = value
    return Module("m", dims, tensors)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"look_mean": None}, "a signature is whole or not there"),
        ({"class_means": np.zeros((4, 12), np.float32)}, "want shape"),
        ({"feature_factor": np.zeros((2, 11), np.float32)}, r"want shape \['any', 12\]"),
        ({"look_mean": np.full(12, np.nan, np.float32)}, "is not finite"),
        ({"numbers": np.zeros(5, np.float32)}, "want feature_noise above 0"),
    ],
)
def test_a_wrong_signature_is_refused(changes: dict[str, np.ndarray | None], message: str) -> None:
    check_module(_module({}), "here", StoreError)
    with pytest.raises(StoreError, match=message):
        check_module(_module(changes), "here", StoreError)


def test_a_signature_that_is_not_finite_is_not_written() -> None:
    broken = replace(random_signature(), look_mean=np.full(12, np.inf, np.float32))
    with pytest.raises(ConfigError, match="finite"):
        _ = broken.tensors


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=len(NUMBERS), max_size=len(NUMBERS)))
def test_any_numbers_are_usable_or_refused(numbers: list[float]) -> None:
    tensors = {**random_signature().tensors, PREFIX + "numbers": np.array(numbers, np.float32)}
    try:
        found = Signature.find(tensors, "here", StoreError)
    except StoreError:
        return
    assert found is not None and min(found.feature_noise, found.temperature, found.sharpness) > 0
