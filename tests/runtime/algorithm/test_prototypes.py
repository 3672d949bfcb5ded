"""Prototypes that follow the stream: the formulas, what they are worth under shift, and what they withstand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pluto_edge.runtime.algorithm.continuity import Continuity
from pluto_edge.runtime.algorithm.prototypes import ANY, BLUNT, COMMON, HORIZON, KAPPA, Prototypes, Seen
from pluto_edge.signature import Reference, Signature

WIDTH, CLASSES = 16, 4
Wide = NDArray[np.float64]


def reference(sharpness: float = 0.2, seed: int = 0) -> Reference:
    """A source of four classes on a circle of radius 3 in two channels, noise of deviation 1 in all."""
    means = np.zeros((CLASSES, WIDTH), np.float32)
    angles = np.arange(CLASSES) * np.pi / 2
    means[:, 0], means[:, 1] = 3 * np.cos(angles), 3 * np.sin(angles)
    rows = np.zeros((2, WIDTH), np.float32)
    signature = Signature(
        class_means=means,
        feature_factor=np.zeros((1, WIDTH), np.float32),
        activation_mean=rows,
        activation_std=rows + 1,
        look_mean=rows[0],
        look_factor=rows[:1],
        feature_noise=1.0,
        look_noise=1.0,
        temperature=1.0,
        sharpness=sharpness,
        images=100.0,
    )
    return Reference.of(signature, means)


def draw(labels: NDArray[np.intp], shift: Wide, seed: int = 0) -> Wide:
    rng = np.random.default_rng(seed)
    return reference().means[labels] + shift + rng.standard_normal((len(labels), WIDTH)) * 0.8


def logits(features: Wide) -> Wide:
    """A head with the classes' directions, right on the source."""
    return np.asarray(features @ reference().means.T)


def play(
    labels: NDArray[np.intp], shift: Wide, batch: int = 16, seed: int = 0, continuity: Continuity | None = None
) -> tuple[float, float, Prototypes]:
    """Accuracy as exported and with prototypes, over a stream, and where they end."""
    known, state, right = {"m": reference()}, Prototypes(), []
    independence = 0.0
    features = draw(labels, shift, seed)
    for start in range(0, len(labels), batch):
        part = slice(start, start + batch)
        f, l = features[part, None], logits(features[part])[:, None]  # noqa: E741
        ones = np.ones((len(f), 1))
        p = state.predict(["m"], known, l, f, ones)
        right.append(p.argmax(axis=1) == labels[part])
        if continuity is not None:
            p, continuity = continuity.follow(p)
            independence = continuity.independence
        state = state.learn(["m"], known, f, ones, p, independence)
    plain = float((logits(features).argmax(axis=1) == labels).mean())
    return plain, float(np.concatenate(right).mean()), state


def shuffled(count: int = 400) -> NDArray[np.intp]:
    return np.random.default_rng(1).integers(0, CLASSES, count)


def moved(size: float) -> Wide:
    shift = np.zeros(WIDTH)
    shift[0] = size
    return shift


def test_the_formulas() -> None:
    """δ and c' as the module's docstring has them, written out."""
    rng = np.random.default_rng(3)
    counts, means = rng.random(CLASSES) * 30, rng.standard_normal((CLASSES, WIDTH))
    counts[2] = 0
    known = reference()
    count, mean = np.array([12.0]), rng.standard_normal(WIDTH)
    state = Prototypes({"m": Seen(counts, counts[:, None] * means, count, count * mean)})
    a = [KAPPA * n / (KAPPA + n) for n in counts]
    delta = sum(w * (m - c) for w, m, c in zip(a, means, known.means, strict=True)) / (COMMON + sum(a))
    delta = (ANY * delta + 12.0 * (mean - sum(known.means) / CLASSES)) / (ANY + 12.0)
    want = [(KAPPA * (c + delta) + n * m) / (KAPPA + n) for n, m, c in zip(counts, means, known.means, strict=True)]
    got_delta, got = state.move("m", known)
    np.testing.assert_allclose(got_delta, delta, rtol=1e-10)
    np.testing.assert_allclose(got, want, rtol=1e-10)


def test_head_distance_and_direction_are_multiplied() -> None:
    """The prediction of a learned state, written out image by image."""
    known = replace(reference(), signature=replace(reference().signature, temperature=1.7, sharpness=0.06))
    state = play(shuffled(80), moved(1.5), continuity=Continuity())[2]
    delta, prototypes = state.move("m", known)
    features = draw(shuffled(12), moved(1.5), seed=9)
    middle = known.means.mean(axis=0) + delta
    for z, got in zip(
        features,
        state.predict(["m"], {"m": known}, logits(features)[:, None], features[:, None], np.ones((12, 1))),
        strict=True,
    ):
        score = (logits(z[None])[0] - known.means @ delta) / 1.7
        score -= np.array([np.square(z - c).sum() / (WIDTH * 1.0) for c in prototypes]) / (2 * 0.06)
        score += 5 * np.array(
            [
                (z - middle) @ (c - middle) / np.sqrt(np.sum((z - middle) ** 2) * np.sum((c - middle) ** 2))
                for c in prototypes
            ]
        )
        want = np.exp(score - score.max())
        np.testing.assert_allclose(got, want / want.sum(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("weights", [[1.0, 0.0], [0.5, 0.5], [0.8, 0.2]])
def test_directions_count_less_in_a_blend(weights: list[float]) -> None:
    """Two modules that see the same: heads and distances stay, directions count Σ w² of what they count for one."""
    known = {"a": reference(), "b": reference()}
    features = draw(shuffled(12), moved(1.5), seed=9)
    twice = np.stack([features, features], axis=1)
    scores = np.stack([logits(features)] * 2, axis=1)
    got = Prototypes().predict(["a", "b"], known, scores, twice, np.tile(weights, (12, 1)))
    far = np.array([[np.square(z - c).sum() / WIDTH for c in reference().means] for z in features]) / (2 * BLUNT)
    middle = reference().means.mean(axis=0)
    here, there = features - middle, reference().means - middle
    along = here @ there.T / np.linalg.norm(here, axis=1)[:, None] / np.linalg.norm(there, axis=1)
    want = np.exp(logits(features) - far + 5 * np.square(weights).sum() * along)
    np.testing.assert_allclose(got, want / want.sum(axis=1, keepdims=True), rtol=1e-9, atol=1e-12)


def test_the_mean_of_all_images_helps_where_classes_come_at_random() -> None:
    """A move so large that hardly an image is sure; and the same stream, sorted by class, is not mistaken."""
    labels, shift = shuffled(), np.full(WIDTH, 1.5)
    _, by_class, _ = play(labels, shift)
    _, by_mean, _ = play(labels, shift, continuity=Continuity())
    assert by_mean > by_class + 0.02
    plain, in_order, state = play(np.sort(labels), moved(0), continuity=Continuity())
    assert in_order > plain - 0.02
    assert state.modules["m"].count[0] < 0.1 * len(labels)


def test_nothing_seen_is_the_source() -> None:
    delta, prototypes = Prototypes().move("m", reference())
    assert not delta.any()
    np.testing.assert_array_equal(prototypes, reference().means)


def test_a_shift_is_undone() -> None:
    plain, adapted, state = play(shuffled(), moved(2.5), continuity=Continuity())
    assert plain < 0.9 < adapted
    delta, prototypes = state.move("m", reference())
    assert 0.8 < delta[0] < 2.5 and np.abs(delta[1:]).max() < 0.2  # the right way, and no farther
    np.testing.assert_allclose(prototypes, reference().means + moved(2.5), atol=1.0)


def test_classes_in_order_are_not_taken_for_a_shift() -> None:
    labels = np.sort(shuffled())
    plain, adapted, state = play(labels, moved(0.0))
    assert adapted >= plain - 0.01
    assert np.abs(state.move("m", reference())[0]).max() < 0.3
    shifted, followed, _ = play(labels, moved(2.0))
    assert followed > shifted


def test_one_class_for_ever_leaves_the_others_alone() -> None:
    labels = np.zeros(300, np.intp)
    _, adapted, state = play(labels, moved(0.0))
    assert adapted > 0.97
    rest = draw(shuffled(), moved(0.0), seed=5)
    p = state.predict(["m"], {"m": reference()}, logits(rest)[:, None], rest[:, None], np.ones((len(rest), 1)))
    assert (p.argmax(axis=1) == shuffled()).mean() > 0.95


def test_a_domain_that_fits_and_one_that_does_not() -> None:
    fits = play(shuffled(), moved(0.0))[2].misfit("m", reference())
    far = play(shuffled(), moved(3.0))[2].misfit("m", reference())
    assert fits < 1.5 < 3 < far
    assert Prototypes().misfit("m", reference()) == 0.0


def test_images_from_nowhere_hardly_count() -> None:
    """Black frames, broken frames: sure of one class, and far from everything."""
    far = np.zeros((64, WIDTH))
    far[:, 2:] = 40.0
    far[:, 0] = 30.0
    known = {"m": reference()}
    ones = np.ones((64, 1))
    p = Prototypes().predict(["m"], known, logits(far)[:, None], far[:, None], ones)
    assert p.max() > 0.9
    state = Prototypes().learn(["m"], known, far[:, None], ones, p, 0.0)
    assert state.modules["m"].counts.sum() < 1.0


def test_batches_of_one_end_near_batches_of_many() -> None:
    _, one, a = play(shuffled(), moved(2.0), batch=1)
    _, many, b = play(shuffled(), moved(2.0), batch=64)
    assert abs(one - many) < 0.05
    np.testing.assert_allclose(a.move("m", reference())[0], b.move("m", reference())[0], atol=0.3)


def test_prototypes_are_carried_along_with_the_features() -> None:
    """What was seen, carried by a move of all features, is what would have been seen after it."""
    state = play(shuffled(), moved(1.0), continuity=Continuity())[2]
    by = np.random.default_rng(2).standard_normal(WIDTH)
    seen, carried = state.modules["m"], state.carried("m", by).modules["m"]
    np.testing.assert_array_equal(carried.counts, seen.counts)
    np.testing.assert_allclose(carried.moves(reference().means), seen.moves(reference().means) + by, rtol=1e-9)
    np.testing.assert_allclose(carried.total / carried.count, seen.total / seen.count + by, rtol=1e-9)
    assert state.carried("other", by) is state


def test_the_past_is_forgotten() -> None:
    state = play(shuffled(4000), moved(1.0), batch=64)[2]
    assert state.modules["m"].counts.sum() <= HORIZON + 1e-6


def test_a_module_without_a_signature_takes_part_as_it_is() -> None:
    features = draw(shuffled(20), moved(0.0))
    values = logits(features)[:, None]
    p = Prototypes().predict(["plain"], {}, values, features[:, None], np.ones((20, 1)))
    e = np.exp(values[:, 0] - values[:, 0].max(axis=1, keepdims=True))
    np.testing.assert_allclose(p, e / e.sum(axis=1, keepdims=True), rtol=1e-6)
    assert not Prototypes().learn(["plain"], {}, features[:, None], np.ones((20, 1)), p, 1.0).modules


def test_distance_that_says_nothing_leaves_the_head() -> None:
    dull = reference()
    dull = replace(dull, signature=replace(dull.signature, sharpness=1e6))
    features = draw(shuffled(50), moved(1.0))
    p = Prototypes().predict(["m"], {"m": dull}, logits(features)[:, None], features[:, None], np.ones((50, 1)))
    np.testing.assert_array_equal(p.argmax(axis=1), logits(features).argmax(axis=1))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 20),
    st.floats(-1e4, 1e4),
    st.floats(0, 1e4),
    st.integers(0, 2**31 - 1),
)
def test_whatever_comes_is_a_probability(count: int, level: float, spread: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    features = level + spread * rng.standard_normal((count, 1, WIDTH))
    values = rng.standard_normal((count, 1, CLASSES)) * spread
    known, weights = {"m": reference()}, rng.random((count, 1)) + 1e-6
    state = Prototypes()
    for _ in range(3):
        p = state.predict(["m"], known, values, features, weights)
        assert np.isfinite(p).all() and p.sum(axis=1) == pytest.approx(np.ones(count))
        state = state.learn(["m"], known, features, weights, p, 1.0)
        assert state.finite
