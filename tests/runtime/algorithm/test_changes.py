"""The change detector: quiet on one domain, quick on the next."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pluto_edge.runtime.algorithm.changes import HISTORY, WINDOW, ChangeDetector

NAMES = ("clear", "fog", "night")


def signals(
    rng: np.random.Generator, lean: int, sharp: float, entropy: float, count: int, looks: float = 0.0
) -> list[tuple]:
    """Frames of one domain: weights around one module, entropy around a level, x̂ around a point."""
    mean = np.full(len(NAMES), 1.0)
    mean[lean] = sharp
    levels = np.clip(rng.normal(entropy, 0.12, count), 0, 1).tolist()
    return [(e, rng.dirichlet(mean), rng.normal(looks, 1, 40)) for e in levels]


def run(detector: ChangeDetector, frames: list[tuple]) -> list[tuple[int, str]]:
    found = [(i, detector.update(*f)) for i, f in enumerate(frames)]
    return [(i, text) for i, text in found if text]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), lean=st.integers(0, 2), entropy=st.floats(0.05, 0.9))
def test_one_domain_is_no_change(seed: int, lean: int, entropy: float) -> None:
    frames = signals(np.random.default_rng(seed), lean, 4.0, entropy, 1500)
    assert len(run(ChangeDetector(NAMES), frames)) <= 1  # five sigmas of autocorrelation-free noise: next to never


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), before=st.integers(HISTORY + WINDOW, 600))
def test_another_module_is_a_change(seed: int, before: int) -> None:
    rng = np.random.default_rng(seed)
    frames = signals(rng, 0, 6.0, 0.2, before) + signals(rng, 1, 6.0, 0.2, 200)
    at, text = next(f for f in run(ChangeDetector(NAMES), frames) if f[0] >= before)
    assert at < before + WINDOW and ("fog" in text or "clear" in text)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_a_higher_entropy_is_a_change(seed: int) -> None:
    rng = np.random.default_rng(seed)
    frames = signals(rng, 0, 4.0, 0.15, 150) + signals(rng, 0, 4.0, 0.6, 100)
    at, text = next(f for f in run(ChangeDetector(NAMES), frames) if f[0] >= 150)  # a false alarm may come before
    assert at < 150 + WINDOW
    assert text.startswith("entropy 0.")


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_other_looks_are_a_change(seed: int) -> None:
    rng = np.random.default_rng(seed)
    frames = signals(rng, 0, 4.0, 0.3, 150) + signals(rng, 0, 4.0, 0.3, 100, looks=1.0)
    at, text = next(f for f in run(ChangeDetector(NAMES), frames) if f[0] >= 150)  # a false alarm may come before
    assert at < 150 + WINDOW
    assert text.startswith("looks ")


def test_a_first_domain_is_no_change_however_short() -> None:
    rng = np.random.default_rng(0)
    detector = ChangeDetector(NAMES)
    assert not run(detector, signals(rng, 0, 6.0, 0.2, HISTORY + WINDOW - 1))


def test_constant_signals() -> None:
    detector = ChangeDetector(NAMES)
    x = np.ones(8)
    assert not run(detector, [(0.5, np.array([1.0, 0.0, 0.0]), x)] * 200)
    (change,) = run(detector, [(0.5, np.array([0.0, 1.0, 0.0]), x)] * 100)
    assert "clear 1.00 to" in change[1]


@pytest.mark.parametrize("before", [3, 20, 100, 300])
def test_other_modules_are_no_change(before: int) -> None:
    """Entropy and weights jump with the modules that run; their past starts anew and tells the next change."""
    rng, detector = np.random.default_rng(before), ChangeDetector(NAMES)
    assert not run(detector, signals(rng, 0, 6.0, 0.2, before))
    detector.other_modules()
    assert not run(detector, signals(rng, 1, 6.0, 0.6, HISTORY + 2 * WINDOW))
    ((at, text),) = run(detector, signals(rng, 2, 6.0, 0.6, WINDOW))
    assert at < WINDOW and ("night" in text or "fog" in text)


def test_other_looks_are_a_change_whatever_modules_run() -> None:
    rng, detector = np.random.default_rng(0), ChangeDetector(NAMES)
    assert not run(detector, signals(rng, 0, 4.0, 0.3, 100))
    detector.other_modules()
    ((at, text),) = run(detector, signals(rng, 1, 4.0, 0.6, WINDOW, looks=1.0))
    assert at < WINDOW and text.startswith("looks ")
