"""Domains as points: the same whether covariances are matrices or a few directions."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pluto_edge import looks
from pluto_edge.looks import FLOOR, Looks


def random_looks(count: int, rank: int, width: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, width)), rng.normal(size=(count, rank, width)), rng.uniform(0.1, 2, count)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9), st.integers(1, 4), st.integers(2, 12), st.integers(0, 2**31 - 1))
def test_as_with_whole_matrices(count: int, rank: int, width: int, seed: int) -> None:
    means, factors, noises = random_looks(count, rank, width, seed)
    found = Looks.of(means, factors, noises)
    matrices = factors.transpose(0, 2, 1) @ factors + noises[:, None, None] * np.eye(width)
    pooled = matrices.mean(axis=0)
    pooled += FLOOR * np.trace(pooled) / width * np.eye(width)
    np.testing.assert_allclose(found.whiten.T @ pooled @ found.whiten, np.eye(width), atol=1e-8)
    own = found.whiten.T @ matrices @ found.whiten
    traces = np.trace(own, axis1=1, axis2=2)
    np.testing.assert_allclose(found.spreads, traces / width)
    np.testing.assert_allclose(found.directions, np.square(traces) / np.square(own).sum(axis=(1, 2)))


def test_many_domains_are_computed_in_pieces(monkeypatch) -> None:
    given_looks = random_looks(50, 2, 6, 0)
    at_once = Looks.of(*given_looks)
    monkeypatch.setattr(looks, "PIECE", 7)
    in_pieces = Looks.of(*given_looks)
    for name, value in vars(at_once).items():
        np.testing.assert_allclose(getattr(in_pieces, name), value, atol=1e-12, err_msg=name)


def test_near_is_near_and_far_is_far() -> None:
    means, factors, noises = random_looks(5, 2, 16, 3)
    found = Looks.of(means * 8, factors, noises)
    rng = np.random.default_rng(0)
    images = means[2] * 8 + rng.normal(size=(64, 2)) @ factors[2] + np.sqrt(noises[2]) * rng.normal(size=(64, 16))
    rows = found.place(images)
    counts = np.full(5, 64.0)
    far = found.distances(np.broadcast_to(rows.mean(axis=0), (5, 16)), counts)
    trust = found.fit(far, counts)
    assert far.argmin() == 2 and trust[2] > 0.9 and np.delete(trust, 2).max() < 0.1
    better = found.log_likelihoods(rows).mean(axis=0) - found.log_likelihoods_of_any(rows).mean()
    assert better.argmax() == 2 and better[2] > 0
