"""LookSAM: one gradient instead of two in most steps. The trajectory against torch is in test_algorithm.py."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pluto_edge import AdaptConfig, ConfigError, Runtime
from pluto_edge.bench.workload import steady
from pluto_edge.runtime.algorithm.looksam import ALPHA, Sharp
from pluto_edge.runtime.engine.affines import Affines
from tests.runtime.algorithm.test_algorithm import count_images

BATCH = 20  # enough for alignment


def random_affines(seed: int) -> Affines:
    scale, bias = np.random.default_rng(seed).standard_normal((2, 5, 8)).astype(np.float32)
    return Affines(scale, bias)


def dot(a: Affines, b: Affines) -> float:
    return float((a.scale * b.scale).sum() + (a.bias * b.bias).sum())


def test_what_is_kept_lies_across_the_gradient() -> None:
    plain, sharp = random_affines(0), random_affines(1)
    kept = Sharp.of(plain, sharp, every=4)
    assert kept.left == 3 and kept.used().left == 2
    assert dot(kept.across, plain) == pytest.approx(0, abs=1e-4)
    rest = sharp.plus(kept.across, -1.0)  # what is taken off is along the gradient
    assert abs(dot(rest, plain)) == pytest.approx(rest.norm * plain.norm, rel=1e-5)


def test_it_is_added_in_proportion_to_the_gradient() -> None:
    kept = Sharp.of(random_affines(0), random_affines(1), every=2)
    later = random_affines(2)
    added = kept.beside(later).plus(later, -1.0)
    assert added.norm == pytest.approx(ALPHA * later.norm, rel=1e-5)
    assert dot(added, kept.across) == pytest.approx(added.norm * kept.across.norm, rel=1e-5)


def test_nothing_is_divided_by_zero() -> None:
    zero = random_affines(0).times(0.0)
    plain = random_affines(1)
    assert Sharp.of(zero, plain, 2).across == plain
    assert Sharp.of(plain, plain.times(2.0), 2).beside(plain).finite
    assert Sharp(zero, 1).beside(plain) is plain


@pytest.mark.parametrize("paper", [True, False])
def test_most_steps_compute_one_gradient(make_bundle: Callable[..., Path], paper: bool) -> None:
    config = steady(AdaptConfig.paper() if paper else AdaptConfig(objective="entropy"))
    images = np.random.default_rng(5).integers(0, 256, (BATCH, 44, 36, 3), dtype=np.uint8)
    gradients = {}
    for every in (1, 3):
        with Runtime(make_bundle(), "cpu", 1, config=replace(config, sam_every=every)) as runtime:
            calls = count_images(runtime)
            gradients[every] = []
            for _ in range(7):
                calls.clear()
                runtime.step(images)
                gradients[every].append(calls["adapt"] // BATCH)
            assert bool(runtime.learner.state.sharp) == (every > 1)
            runtime.reset()
            assert not runtime.learner.state.sharp
    assert gradients == {1: [2] * 7, 3: [2, 1, 1, 2, 1, 1, 2]}


def test_another_domain_and_another_module_start_anew(make_bundle: Callable[..., Path]) -> None:
    config = replace(steady(AdaptConfig.paper()), sam_every=3)
    images = np.random.default_rng(5).integers(0, 256, (BATCH, 44, 36, 3), dtype=np.uint8)
    with Runtime(make_bundle(), "cpu", 1, config=config) as runtime:
        runtime.step(images)
        state = runtime.learner.state
        (name,) = state.sharp
        assert state.finite and not replace(state, sharp={name: Sharp(random_affines(0).times(np.inf), 1)}).finite
        assert not state.reopened(state.selector).sharp and not state.without_module(name).sharp
        assert not state.shrunk(0.5, state.selector, {}).sharp
        assert state.of({name: state.digests[name]}).sharp and not state.of({name: "another"}).sharp


def test_nonsense_is_refused() -> None:
    with pytest.raises(ConfigError, match="sam_every: want at least 1, got 0"):
        AdaptConfig(sam_every=0)
