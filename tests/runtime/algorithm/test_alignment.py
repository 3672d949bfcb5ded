"""The alignment loss and its coefficients against autograd and finite differences."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pluto_edge.runtime.algorithm.alignment import FLAT, align, statistics

ROWS, WIDTH = 3, 5


def draw(batch: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Activations, and the source's mean and deviation; one channel far larger than the others."""
    rng = np.random.default_rng(seed)
    activations = rng.standard_normal((batch, ROWS, WIDTH)).astype(np.float32)
    activations[..., 0] = 40 + 3 * activations[..., 0]
    return activations, rng.standard_normal((ROWS, WIDTH)), np.abs(rng.standard_normal((ROWS, WIDTH)))


def gradient(activations: np.ndarray, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    found = align(activations, mean, std)
    return found.offset.astype(np.float64) + found.slope.astype(np.float64) * activations


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 9), st.integers(0, 10**6))
def test_gradient_equals_autograd(batch: int, seed: int) -> None:
    activations, mean, std = draw(batch, seed)
    means, spreads = statistics(activations)
    assume((spreads > 10 * FLAT * np.abs(means)).all())  # a flat channel has no slope here, in torch it has
    a = torch.from_numpy(activations).double().requires_grad_()
    m, s = a.mean(dim=0), a.std(dim=0, correction=0)
    squares = (m - torch.from_numpy(mean)).square() + (s - torch.from_numpy(std)).square()
    loss = squares.mean(dim=-1).sum()
    loss.backward()
    assert align(activations, mean, std).loss == pytest.approx(float(loss.detach()), rel=1e-9)
    # float32 coefficients that cancel: offset and slope a are as large as slope times the mean
    largest = np.abs(align(activations, mean, std).slope * activations).max() + np.abs(a.grad.numpy()).max()
    np.testing.assert_allclose(gradient(activations, mean, std), a.grad.numpy(), atol=3e-7 * largest)


def test_gradient_equals_finite_differences() -> None:
    activations, mean, std = draw(4, 0)
    activations = activations.astype(np.float64)
    found, step = gradient(activations, mean, std), 1e-5
    for index in ((0, 0, 0), (1, 2, 3), (3, 1, 4)):
        ends = []
        for sign in (1, -1):
            moved = activations.copy()
            moved[index] += sign * step
            ends.append(align(moved, mean, std).loss)
        assert found[index] == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-4)


@pytest.mark.parametrize("batch", [16, 64])
def test_images_of_the_source_itself_have_what_chance_makes(batch: int) -> None:
    rng = np.random.default_rng(batch)
    mean, std = rng.standard_normal((ROWS, 96)), 0.5 + rng.random((ROWS, 96))
    found = [align(mean + std * rng.standard_normal((batch, ROWS, 96)), mean, std).excess for _ in range(40)]
    assert np.mean(found) == pytest.approx(1, abs=0.05)
    moved = align(mean + 1 + std * rng.standard_normal((batch, ROWS, 96)), mean, std)
    assert moved.excess > 5


def test_aligned_is_zero() -> None:
    activations, _, _ = draw(6, 1)
    found = align(activations, *statistics(activations))
    assert found.loss == 0
    assert not found.offset.any() and not found.slope.any()


@pytest.mark.parametrize("batch", [1, 3, 7])
def test_samples_that_are_all_the_same_pull_by_their_mean_alone(batch: int) -> None:
    """Also where the mean of equal numbers is not quite that number: one over its rounding is a huge slope."""
    activations, mean, std = draw(1, 2)
    activations = np.repeat(activations, batch, axis=0)
    found = align(activations, mean, std)
    assert not found.slope.any()
    want = 2 * (activations[0] - mean) / (batch * WIDTH)
    np.testing.assert_allclose(found.offset, want, rtol=1e-6)
    assert found.loss == pytest.approx(
        np.square(activations[0] - mean).mean(axis=-1).sum() + np.square(std).mean(axis=-1).sum()
    )


def test_all_zeros() -> None:
    found = align(np.zeros((4, ROWS, WIDTH), np.float32), np.zeros((ROWS, WIDTH)), np.ones((ROWS, WIDTH)))
    assert found.loss == ROWS
    assert not found.offset.any() and not found.slope.any()
