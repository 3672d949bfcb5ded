"""Intervals and tests against what can be counted out, and the sentence that is made of them."""

from fractions import Fraction
from itertools import product
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pluto_edge.evaluate.results import ENSEMBLE, PROBABILITIES, Protocol, Result
from pluto_edge.evaluate.significance import DRAWS, Scores, collect, interval, mcnemar
from pluto_edge.evaluate.verdict import Comparison, compare, find

COUNT = 200


@pytest.mark.parametrize(
    "better, worse, p",
    [
        (0, 0, 1.0),
        (5, 5, 1.0),
        (10, 2, 0.03857421875),  # 2 (1 + 12 + 66) / 2^12
        (0, 6, 0.03125),
        (1, 0, 1.0),
    ],
)
def test_mcnemar(better: int, worse: int, p: float) -> None:
    assert mcnemar(better, worse) == pytest.approx(p, rel=1e-6) == mcnemar(worse, better)


@given(st.integers(0, 300), st.integers(0, 300))
def test_mcnemar_is_the_binomial(better: int, worse: int) -> None:
    count = better + worse
    tail = Fraction(sum(comb(count, k) for k in range(min(better, worse) + 1)), 2**count)
    assert mcnemar(better, worse) == pytest.approx(float(min(1, 2 * tail)), rel=1e-9)


def test_mcnemar_of_many_images() -> None:
    assert mcnemar(50_000, 50_000) == 1.0
    assert 0 <= mcnemar(60_000, 40_000) < 1e-300


def test_orders_are_not_images() -> None:
    """The same images in other orders change the mean of each, never their number."""
    first, again = np.array([1, 0, 1]), np.array([1, 1, 0])
    found = collect([((0, 1, 2), first), ((2, 0, 1), again)])
    assert found.points.tolist() == [2, 0, 2] and found.orders.tolist() == [2, 2, 2]
    some = np.random.default_rng(0).integers(0, 2, 50)
    once = collect([(range(50), some)])
    assert interval([once]) == interval([collect([(range(50), some)] * 3)])


def test_images_that_were_shots_in_some_order() -> None:
    found = collect([((1, 2), np.array([1, 0])), ((2, 3), np.array([1, 1]))])
    assert found.points.tolist() == [1, 1, 1] and found.orders.tolist() == [1, 2, 1]
    assert found.mean == 0.75, "three of four predictions, as in the table"


def test_the_interval_is_that_of_all_resamples() -> None:
    """Six images: all 6^6 ways to draw them, counted out."""
    points, orders = np.array([3, 1, 0, -1, 2, 0]), np.array([3, 3, 3, 3, 2, 1])
    index = np.array(list(product(range(6), repeat=6)))
    exact = points[index].sum(axis=1) / orders[index].sum(axis=1)
    low, high = interval([Scores(points, orders)])
    assert abs((exact <= low).mean() - 0.025) < 0.012 and abs((exact <= high).mean() - 0.975) < 0.012


def test_the_interval_is_that_of_drawing_images() -> None:
    rng = np.random.default_rng(1)
    targets = [Scores(rng.integers(-3, 4, n), np.full(n, 3)) for n in (400, 90)]
    means = np.zeros(20_000)
    for scores in targets:
        for i in range(len(means)):
            drawn = rng.integers(0, len(scores.points), len(scores.points))
            means[i] += scores.points[drawn].sum() / scores.orders[drawn].sum() / len(targets)
    np.testing.assert_allclose(interval(targets), np.quantile(means, [0.025, 0.975]), atol=0.01)
    assert DRAWS == 2000 and interval(targets) == interval(targets), "the same every time"


def test_the_interval_covers_the_truth() -> None:
    rng, inside = np.random.default_rng(2), 0
    for _ in range(300):
        low, high = interval([Scores(rng.binomial(1, 0.7, 300), np.ones(300, np.int64))])
        inside += low <= 0.7 <= high
    assert 0.9 < inside / 300 < 0.99


def made(method: str, target: str, shares: tuple[float, ...], seed: int = 0) -> Result:
    """One order: right with these shares by row, on images that are the same for every method."""
    names = (ENSEMBLE, PROBABILITIES) if len(shares) == 2 else ("blend",)
    order = np.random.default_rng(seed).permutation(COUNT)
    predicted = {}
    for name, share in zip(names, shares, strict=True):
        right = np.arange(COUNT) < round(share * COUNT)
        predicted[name] = tuple(int(not r) for r in right[order])
    modules = {"a": predicted[names[0]]} if len(shares) == 2 else {}
    return Result(
        key="k",
        method=method,
        config={},
        target=target,
        seed=seed,
        protocol=Protocol(COUNT, 1),
        batches=(COUNT,),
        images=tuple(map(int, order)),
        truth=(0,) * COUNT,
        predicted={**modules, **predicted},
        unadapted=(0,) * COUNT,
    )


def everywhere(method: str, *shares: float, targets: tuple[str, ...] = ("x", "y")) -> list[Result]:
    return [made(method, t, shares, seed) for t in targets for seed in range(2)]


def test_comparisons_by_image() -> None:
    results = [*everywhere("neo", 0.5, 0.6), *everywhere("pluto", 0.7)]
    found = find(results)
    assert found.ours == "pluto" and [a.rival for a in found.against] == [
        "neo ensemble",
        "neo ensemble of probabilities",
    ]
    first = found.against[0]
    assert set(first.targets) == {"x", "y"}
    one = first.targets["x"]
    assert (one.better, one.worse) == (40, 0) and one.difference == pytest.approx(0.2)
    assert 0.1 < one.low < 0.2 < one.high < 0.3 and one.p == pytest.approx(2 / 2**40)
    assert (first.average.better, first.average.worse) == (80, 0) and first.average.significant
    assert first.average.high - first.average.low < one.high - one.low, "two targets say more than one"
    turned = one.turned()
    assert (turned.low, turned.high, turned.worse) == (-one.high, -one.low, 40)


def test_orders_cancel_out() -> None:
    """Right in one order of two where the other is right in the other: neither is better."""
    a, b = made("pluto", "x", (1.0,), 0), made("pluto", "x", (0.0,), 1)
    c, d = made("another", "x", (0.0,), 0), made("another", "x", (1.0,), 1)
    found = find([a, b, c, d])
    (against,) = found.against
    assert against.average == Comparison(0.0, 0.0, 0.0, 0, 0, 1.0)
    assert found.verdict == "pluto 50.0 did not win: it is level with the best rival, another 50.0, on x."


def test_what_learns_nothing_is_no_rival_but_is_told_of() -> None:
    """Zero-shot is PLUTO without learning: where that is better, the verdict says so after the best rival."""
    results = [*everywhere("pluto", 0.6), *everywhere("another", 0.5), *everywhere("zero-shot", 0.8)]
    found = find(results)
    assert "ahead of the best rival, another 50.0" in found.verdict
    assert "Its variant zero-shot, 80.0, is better by 20.0 points" in found.verdict


def test_significance_needs_both() -> None:
    assert Comparison(0.1, 0.05, 0.15, 30, 10, 0.002).significant
    assert not Comparison(0.1, -0.01, 0.15, 30, 10, 0.002).significant
    assert not Comparison(0.1, 0.05, 0.15, 12, 9, 0.66).significant
    assert not Comparison(0.1, 0.05, 0.15, 10, 30, 0.002).significant, "they contradict each other"
    assert Comparison(-0.1, -0.15, -0.05, 10, 30, 0.002).significant


def test_verdict_of_a_winner() -> None:
    results = [*everywhere("neo", 0.5, 0.6), *everywhere("pluto", 0.7), *everywhere("pluto-rho-0", 0.65)]
    text = find(results).verdict
    assert text.startswith(
        "pluto 70.0 is ahead of the best rival, neo ensemble of probabilities 60.0, by 10.0 points (95"
    )
    assert text.endswith("p < 0.001) on average over 2 targets; the difference is significant.")


def test_verdict_of_a_narrow_winner() -> None:
    text = find([*everywhere("neo", 0.5, 0.5, targets=("x",)), *everywhere("pluto", 0.51, targets=("x",))]).verdict
    assert "by 1.0 points" in text and text.endswith("p = 0.500) on x; the difference is not significant.")


def test_verdict_of_a_loser() -> None:
    results = [*everywhere("neo", 0.8, 0.6), *everywhere("pluto", 0.7), *everywhere("pluto-rho-0", 0.75)]
    text = find(results).verdict
    assert text.startswith("pluto 70.0 did not win: it is behind the best rival, neo ensemble 80.0, by 10.0 points")
    assert "Its variant pluto-rho-0, 75.0, is better by 5.0 points (95 % interval" in text


def test_who_is_compared() -> None:
    few = [*everywhere("single", 0.5, 0.5), *everywhere("zero-shot", 0.6)]
    assert find(few).ours == "zero-shot"
    assert find([*few, *everywhere("pluto:top_m=2", 0.6)]).ours == "pluto:top_m=2"
    assert find([*few, *everywhere("pluto:top_m=2", 0.6), *everywhere("pluto", 0.6)]).ours == "pluto"
    alone = find(everywhere("single", 0.5, 0.55))
    assert alone.ours is None and not alone.against
    assert "the best of the others is uniform average of probabilities, 55.0 on average over 2" in alone.verdict
    assert "no other method ran" in find(everywhere("pluto", 0.5)).verdict


def test_all_methods_see_the_same_stream() -> None:
    results = [made("pluto", "x", (0.5,), 0), made("zero-shot", "x", (0.5,), 0)]
    ours, theirs = find(results).rows
    broken = [results[0], made("zero-shot", "x", (0.5,), 1)]
    with pytest.raises(AssertionError, match="the same stream"):
        compare(broken, ours, theirs)
