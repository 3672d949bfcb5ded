"""Which domain a stream shows, and that "none of these" is an answer."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pluto_edge.runtime.algorithm.evidence import Domains, trust
from pluto_edge.signature import Covariance, Signature

WIDTH = 24
Wide = NDArray[np.float64]

rng = np.random.default_rng(0)
MIX = np.eye(WIDTH) + 0.4 * rng.standard_normal((WIDTH, WIDTH)) / np.sqrt(WIDTH)
CENTRES = {name: rng.standard_normal(WIDTH) * 1.2 for name in ("fog", "night", "rain", "snow")}
LOUD = {"fog": 0.6, "night": 0.3, "rain": 1.0, "snow": 1.0}


def draw(name: str, count: int, seed: int = 1) -> Wide:
    noise = np.random.default_rng([seed, len(name)]).standard_normal((count, WIDTH)) @ MIX
    return np.asarray(CENTRES[name] + LOUD[name] * noise)


def signature(name: str) -> Signature:
    looks = draw(name, 400, seed=9)
    mean = looks.mean(axis=0)
    covariance = Covariance.of(looks - mean, 32, 0.0)
    rows = np.zeros((2, WIDTH), np.float32)
    return Signature(
        class_means=rows,
        feature_factor=rows[:1],
        activation_mean=rows,
        activation_std=rows + 1,
        look_mean=mean.astype(np.float32),
        look_factor=covariance.factor,
        feature_noise=1.0,
        look_noise=covariance.noise,
        temperature=1.0,
        sharpness=1.0,
        images=400.0,
    )


def domains(*names: str) -> Domains:
    found = Domains.of({n: signature(n) for n in names})
    assert found is not None
    return found


@pytest.mark.parametrize("name", ["fog", "night", "rain"])
@pytest.mark.parametrize("count", [16, 64])
def test_a_known_domain_is_named(name: str, count: int) -> None:
    known = domains("fog", "night", "rain")
    shares = known.weigh(draw(name, count), draw(name, count)).mean(axis=0)
    assert known.names[shares.argmax()] == name
    assert shares.max() > 0.9


@pytest.mark.parametrize("name", ["fog", "night", "rain", "snow"])
def test_an_unknown_domain_belongs_to_nobody(name: str) -> None:
    others = [n for n in CENTRES if n != name]
    shares = domains(*others).weigh(draw(name, 64), draw(name, 64))
    assert shares.sum(axis=1).max() < 0.1


def test_a_mixed_batch_is_told_apart_image_by_image() -> None:
    known = domains("fog", "night", "rain")
    recent = np.concatenate([draw("fog", 32), draw("rain", 32)])
    shares = known.weigh(recent, recent)
    assert (shares[:32].argmax(axis=1) == 0).mean() > 0.9
    assert (shares[32:].argmax(axis=1) == 2).mean() > 0.9


def test_stakes_divide_the_odds_where_domains_are_mixed() -> None:
    known = domains("fog", "night", "rain")
    both = np.concatenate([draw("fog", 32), draw("rain", 32)])
    plain = known.weigh(both, both)
    at_stake = known.weigh(both, both, 10.0)
    open_ones = (plain > 1e-6) & (plain < 1 - 1e-6)
    before, after = plain[open_ones] / (1 - plain[open_ones]), at_stake[open_ones] / (1 - at_stake[open_ones])
    assert open_ones.any()
    np.testing.assert_allclose(before / after, 10.0, rtol=0.01)


def test_stakes_leave_a_stream_of_one_domain_alone() -> None:
    known = domains("fog", "night", "rain")
    recent = draw("fog", 64)
    np.testing.assert_allclose(known.weigh(recent, recent, 10.0), known.weigh(recent, recent), rtol=1e-6)


def test_what_is_recent_decides_about_one_image() -> None:
    """An image that could be of either domain is taken for what the stream shows."""
    known = domains("fog", "rain")
    between = (CENTRES["fog"] + CENTRES["rain"])[None] / 2
    for name, column in (("fog", 0), ("rain", 1)):
        assert known.weigh(draw(name, 64), between)[0].argmax() == column


def test_nobody_has_a_signature() -> None:
    assert Domains.of({}) is None


def test_one_module_alone() -> None:
    assert domains("fog").weigh(draw("fog", 32), draw("fog", 32)).mean() > 0.9
    assert domains("fog").weigh(draw("snow", 32), draw("snow", 32)).max() < 0.1


def test_the_order_of_modules_changes_nothing() -> None:
    images = draw("night", 20)
    a = domains("fog", "night", "rain").weigh(images, images)
    b = domains("rain", "fog", "night").weigh(images, images)
    np.testing.assert_allclose(a[:, [2, 0, 1]], b, atol=1e-9)


def test_a_constant_source_does_not_divide_by_zero() -> None:
    flat = replace(signature("fog"), look_factor=np.zeros((1, WIDTH), np.float32), look_noise=1e-30)
    known = Domains.of({"flat": flat, "rain": signature("rain")})
    assert known is not None
    assert np.isfinite(known.weigh(draw("rain", 8), draw("rain", 8))).all()


def test_trust_falls_with_the_misfit() -> None:
    values = [trust(m) for m in (0.0, 1.0, 1.7, 1.9, 10.0)]
    assert values == sorted(values, reverse=True)
    assert values[1] > 0.9 and values[-1] < 0.01


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 30), st.integers(1, 10), st.floats(-1e6, 1e6), st.floats(0, 1e6), st.integers(0, 2**31 - 1))
def test_shares_are_shares(recent: int, count: int, level: float, spread: float, seed: int) -> None:
    dice = np.random.default_rng(seed)
    known = domains("fog", "night", "rain")
    shares = known.weigh(
        level + spread * dice.standard_normal((recent, WIDTH)),
        level + spread * dice.standard_normal((count, WIDTH)),
    )
    assert np.isfinite(shares).all() and (shares >= 0).all() and (shares.sum(axis=1) <= 1 + 1e-9).all()


def test_without_recent_images_the_images_themselves_count() -> None:
    """A reset or a change of domain empties what is recent, perhaps while a step weighs its images."""
    known, images = domains("fog", "night", "rain"), draw("night", 16)
    np.testing.assert_array_equal(known.weigh(images[:0], images), known.weigh(images, images))
