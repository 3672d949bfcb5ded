"""Continuity: against brute force, and what it must not do."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from pluto_edge.runtime.algorithm import continuity as module
from pluto_edge.runtime.algorithm.continuity import CAUTION, DOUBT, INDEPENDENT, STICKY, UNSEEN, Continuity

Wide = NDArray[np.float64]


def noisy(rng: np.random.Generator, truth: NDArray[np.intp], classes: int, right: float = 0.75) -> Wide:
    """What a classifier that is right so often says, as sure as it is right."""
    said = np.where(rng.random(len(truth)) < right, truth, rng.integers(classes, size=len(truth)))
    found = np.full((len(truth), classes), (1 - right) / (classes - 1))
    found[np.arange(len(truth)), said] = right
    return found


def in_runs(rng: np.random.Generator, count: int, classes: int, length: int) -> NDArray[np.intp]:
    return np.repeat(rng.integers(classes, size=-(-count // length)), length)[:count]


def accuracy(probabilities: Wide, truth: NDArray[np.intp], batch: int) -> float:
    continuity, right = Continuity(), 0
    for start in range(0, len(truth), batch):
        part = slice(start, start + batch)
        found, continuity = continuity.follow(probabilities[part])
        right += int((found.argmax(axis=1) == truth[part]).sum())
    return right / len(truth)


def chains(says: Wide, s: float) -> Wide:
    """Of every image the probability of each class, given all of `says` [n,K]: by every sequence of classes."""
    count, classes = says.shape
    found = np.zeros_like(says)
    for chain in product(range(classes), repeat=count):
        chance = says[0, chain[0]] / classes
        for t in range(1, count):
            chance *= (s * (chain[t] == chain[t - 1]) + (1 - s) / classes) * says[t, chain[t]]
        for t, k in enumerate(chain):
            found[t, k] += chance
    return found / found.sum(axis=1, keepdims=True)


def test_equals_the_sum_over_all_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward-backward against every sequence of classes, for every s; weights by how well each s foresaw."""
    even = np.full(len(STICKY), 1 / len(STICKY))
    monkeypatch.setattr(module, "ALPHA", 0.0)
    p = np.array([[0.9, 0.05, 0.05], [0.8, 0.1, 0.1], [0.1, 0.1, 0.8], [0.05, 0.2, 0.75]])
    says = (1 - DOUBT) * p + DOUBT / 3
    totals = even.copy()
    for t in range(4):
        usual = UNSEEN + says[: t + 1].sum(axis=0)
        usual /= usual.sum()
        for number, s in enumerate(STICKY):
            before = chains(says[:t], s)[-1] if t else np.full(3, 1 / 3)
            as_said = (before @ says[t]) / (usual @ says[t])
            over_usual = sum(before[k] * says[t, k] / usual[k] for k in range(3))
            totals[number] *= s * min(as_said, over_usual) + 1 - s
    found, after = Continuity(weights=even).follow(p)
    weights = totals / totals.sum()
    assert_allclose(after.weights, weights, rtol=1e-12)
    prior, seen = (odds / (1 + odds) for odds in ((1 / INDEPENDENT - 1) / CAUTION, (1 / weights[0] - 1) / CAUTION))
    shown = (seen - prior) / (1 - prior)
    assert 0 < shown < 1
    marginals = np.stack([chains(says, s) for s in STICKY[1:]])
    sticky = np.einsum("s,stk->tk", weights[1:] / weights[1:].sum(), marginals)
    assert_allclose(found, (1 - shown) * p + shown * sticky, rtol=1e-12)  # s = 0 is the image alone, without doubt


def test_images_speak_alone_until_order_is_shown() -> None:
    p = np.random.default_rng(0).dirichlet(np.ones(4), size=6)
    found, after = Continuity().follow(p)
    assert after.weights[0] > INDEPENDENT  # nothing was foreseen
    assert_allclose(found, p)


def test_one_class_for_most_images_is_no_run() -> None:
    """A module that says one class of 80 % of a shuffled stream: what it says of the others is left alone."""
    rng = np.random.default_rng(4)
    said = np.where(rng.random(640) < 0.8, 0, rng.integers(10, size=640))
    p = np.full((640, 10), 0.05 / 9)
    p[np.arange(640), said] = 0.95
    continuity, same = Continuity(), 0
    for start in range(0, 640, 64):
        found, continuity = continuity.follow(p[start : start + 64])
        same += int((found.argmax(axis=1) == said[start : start + 64]).sum())
    assert same > 0.98 * 640
    assert continuity.stickiness < 0.05


@given(st.integers(0, 2**32 - 1), st.floats(0.0, 0.6))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_a_little_of_one_class_in_every_image_is_no_run(seed: int, bias: float) -> None:
    """A blend of many modules is unsure of every image, and leans to one class in all of them: that adds up, and
    would end in one class for the whole stream. (One such stream in a thousand loses more, up to 8 points: the
    same streams are drawn every time.)"""
    rng = np.random.default_rng(seed)
    truth = rng.integers(10, size=512)
    scores = rng.standard_normal((512, 10)) * 0.5
    scores[np.arange(512), truth] += 1.5
    scores[:, 0] += bias
    p = np.exp(scores)  # right on three quarters of the images and more, and sure of a third
    p /= p.sum(axis=1, keepdims=True)
    alone = float((p.argmax(axis=1) == truth).mean())
    assert accuracy(p, truth, 64) > alone - 0.05


@pytest.mark.parametrize("batch", [1, 8, 64])
def test_runs_are_used_and_shuffled_streams_left_alone(batch: int) -> None:
    rng = np.random.default_rng(1)
    runs, shuffled = in_runs(rng, 1280, 10, 20), rng.integers(10, size=1280)
    alone = accuracy(noisy(rng, runs, 10), runs, 1280)
    said = noisy(rng, shuffled, 10)
    assert accuracy(noisy(rng, runs, 10), runs, batch) > 0.75 + 0.1 < alone
    assert abs(accuracy(said, shuffled, batch) - float((said.argmax(axis=1) == shuffled).mean())) < 0.005


def test_a_stream_that_stops_being_sticky() -> None:
    """Runs of 50, then shuffled: what was believed of runs is given up within a few images."""
    rng = np.random.default_rng(2)
    truth = np.concatenate([in_runs(rng, 500, 10, 50), rng.integers(10, size=200)])
    said, continuity, right = noisy(rng, truth, 10), Continuity(), []
    for one, label in zip(said, truth, strict=True):
        found, continuity = continuity.follow(one[None])
        right.append(found.argmax() == label)
    alone = said.argmax(axis=1) == truth
    assert np.mean(right[500:520]) > np.mean(alone[500:520]) - 0.3
    assert np.mean(right[530:]) > np.mean(alone[530:]) - 0.02
    assert continuity.stickiness < 0.05


@given(st.integers(1, 12), st.integers(2, 6), st.integers(0, 2**32 - 1), st.sampled_from([0.01, 1.0, 50.0]))
@settings(deadline=None, max_examples=60)
def test_probabilities_whatever_comes(count: int, classes: int, seed: int, spread: float) -> None:
    """Finite rows that sum to 1, also for images that are certain, contradict each other, or say nothing."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(classes, spread), size=count)
    p = np.maximum(p, np.finfo(np.float64).tiny)
    continuity = Continuity()
    for _ in range(3):
        found, continuity = continuity.follow(p)
        assert np.isfinite(found).all() and (found > 0).all()
        assert_allclose(found.sum(axis=1), 1, atol=1e-9)
    assert np.isfinite(continuity.weights).all()


def test_batches_and_frames_believe_the_same() -> None:
    """How a stream is cut into batches changes what is said of earlier images, not what is expected next."""
    p = np.random.default_rng(3).dirichlet(np.ones(5), size=20)
    _, whole = Continuity().follow(p)
    one = Continuity()
    for row in p:
        last, one = one.follow(row[None])
    assert whole.beliefs is not None and one.beliefs is not None
    assert_allclose(one.beliefs, whole.beliefs, rtol=1e-12)
    assert_allclose(one.weights, whole.weights, rtol=1e-12)
    assert_allclose(last[0], Continuity().follow(p)[0][-1], rtol=1e-12)
