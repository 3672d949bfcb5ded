"""The bounds by which adaptation is judged: a collapse, or one class? help, or harm little by little?"""

import numpy as np
import pytest

from pluto_edge.runtime import guard

# all at once


def test_thresholds_scale_with_classes() -> None:
    rng = np.random.default_rng(0)
    for classes in (2, 7, 10, 100, 1000):
        spread = list(rng.integers(0, classes, guard.window(classes)))
        assert not guard.few_classes(spread, classes)
        assert guard.few_classes([3 % classes] * len(spread), classes)
        mostly = [0] * (len(spread) * 19 // 20) + spread[: len(spread) // 20]
        assert guard.few_classes(mostly, classes)


def test_verdicts() -> None:
    def evidence(adapted: list[int], plain: list[int], sure: float = 0.5, plain_sure: float = 0.8):
        return [(a, b, sure, plain_sure) for a, b in zip(adapted, plain, strict=True)]

    spread = [i % 7 for i in range(28)]
    assert "collapse of classes" in (guard.verdict(evidence([2] * 28, spread), 7) or "")
    assert guard.verdict(evidence([2] * 28, [2] * 20 + spread[:8]), 7) is None  # really one class
    assert guard.verdict(evidence(spread, spread), 7) is None
    assert guard.verdict(evidence([2] * 8, spread[:8]), 7) is None  # too few to tell
    assert "collapse of entropy" in (guard.verdict(evidence(spread, spread, 0.001, 1.0), 7) or "")
    assert guard.verdict(evidence(spread, spread, 0.001, 0.01), 7) is None  # an easy stream


def test_suspicion_needs_enough_predictions_and_few_classes_or_low_entropy() -> None:
    spread = [i % 7 for i in range(28)]
    assert not guard.suspicion(spread, 1.0, 7)
    assert guard.suspicion([2] * 28, 1.0, 7)
    assert guard.suspicion(spread, 0.5 * guard.LOW_ENTROPY * np.log(7), 7)
    assert not guard.suspicion([2] * (guard.MIN_SAMPLES - 1), 0.0, 7)  # too few to tell


def test_it_looks_back_far_enough_to_see_every_class_twice() -> None:
    assert [guard.window(n) for n in (2, 32, 100, 1000)] == [64, 64, 200, guard.MAX_WINDOW]


def test_evidence_is_label_and_entropy_both_ways() -> None:
    adapted, exported = np.array([[0.5, 0.5], [0.0, 1.0]]), np.array([[1.0, 0.0], [0.5, 0.5]])
    ln2 = pytest.approx(np.log(2))
    assert guard.compare(adapted, exported) == ((0, 0, ln2, 0.0), (1, 0, 0.0, ln2))


# little by little


def compared(images: int, differing: float, wrong: float) -> list[guard.Contradiction]:
    return [(i < differing * images, wrong) for i in range(images)]


def test_how_much_may_stay() -> None:
    """As often as they expect to be wrong: help. Twice as often: harm. Four times: more harm, less stays."""
    assert guard.may_stay(compared(64, differing=0.25, wrong=0.25)) == 1
    assert guard.may_stay(compared(64, differing=0.5, wrong=0.25)) == pytest.approx(guard.HELPFUL / 2)
    assert guard.may_stay(compared(64, differing=1.0, wrong=0.25)) == pytest.approx(guard.HELPFUL / 4)
    assert guard.may_stay(compared(guard.FEWEST - 1, differing=1.0, wrong=0.1)) == 1  # too few to tell
    assert guard.may_stay(()) == 1
    assert guard.look_closer(compared(64, 0.25, 0.25)) and not guard.look_closer(compared(64, 0.125, 0.25))


def test_contradictions() -> None:
    adapted, exported = np.array([[0.9, 0.1], [0.9, 0.1]]), np.array([[0.6, 0.4], [0.3, 0.7]])
    assert guard.contradictions(adapted, exported) == ((False, pytest.approx(0.4)), (True, pytest.approx(0.3)))


def test_multiplied_opinions_are_less_sure_than_they_say() -> None:
    """Two classifiers that agree, multiplied: the root is what either of them says; nobody is contradicted more."""
    one = np.array([[0.7, 0.2, 0.1], [0.4, 0.35, 0.25]])
    both = one**2 / (one**2).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(guard.tempered(both), one, rtol=1e-12)
    plain = guard.contradictions(one, both)
    fair = guard.contradictions(one, both, multiplied=True)
    assert [d for d, _ in plain] == [d for d, _ in fair] == [False, False]
    np.testing.assert_allclose([w for _, w in fair], 1 - one.max(axis=1), rtol=1e-12)
    assert np.isfinite(guard.tempered(np.array([[1.0, 0.0, 0.0]]))).all()
