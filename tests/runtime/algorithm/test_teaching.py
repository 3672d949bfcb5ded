"""What a batch teaches: what is sure, and nothing of one class alone; and how far what was learned may lead."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pluto_edge import AdaptConfig
from pluto_edge.manifest import Bundle
from pluto_edge.preprocess import ImageBatch
from pluto_edge.runtime.algorithm.affine_step import FADES, RADIUS
from pluto_edge.runtime.algorithm.prototypes import SURE
from pluto_edge.runtime.algorithm.teaching import WEIGHT, evenness, lessons
from pluto_edge.runtime.engine.network import Network
from pluto_edge.runtime.engine.session import Engine
from pluto_edge.runtime.learner import Learner

CLASSES = 4
DIGITS = Path(__file__).parents[3] / "examples/digits"
MODULE = "clear"  # alone, it meets digits at night
CONFIG = AdaptConfig(guard=False, continuity=False)


@pytest.fixture(scope="module")
def network() -> Network:
    network = Network(Bundle(DIGITS / "bundle"), Engine("cpu", 1))
    for name in set(network.modules) - {MODULE}:
        network.remove(name)
    return network


@pytest.fixture(scope="module")
def night(network: Network) -> ImageBatch:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(DIGITS), *sys.path])
        import meter
    rng = np.random.default_rng(0)
    dark = meter.CONDITIONS["low_light"]
    frames = [dark(meter.render(rng, int(k), fonts=()), rng) for k in rng.permutation(64) % 10]
    return ImageBatch(np.stack(frames), network.bundle.manifest.preprocessing)


def said(images: int, seed: int, sharpness: float = 6.0) -> np.ndarray:
    """Probabilities, some of them sure."""
    logits = sharpness * np.random.default_rng(seed).standard_normal((images, CLASSES))
    return np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)


def certain(*counts: int) -> np.ndarray:
    """So many images of each class, beyond doubt."""
    return np.repeat(np.eye(len(counts)), counts, axis=0)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(0, 10**6))
def test_only_what_is_sure_is_taught(images: int, seed: int) -> None:
    probabilities = said(images, seed)
    targets = lessons(probabilities)
    unsure = probabilities.max(axis=1) <= SURE
    assert not targets[unsure].any()
    assert (targets[~unsure].argmax(axis=1) == probabilities[~unsure].argmax(axis=1)).all()
    assert (np.count_nonzero(targets, axis=1) <= 1).all()  # who is sure of one class is of no other
    assert 0 <= targets.sum() <= WEIGHT * (1 + 1e-6)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(0, 10**6), st.permutations(range(CLASSES)))
def test_classes_are_as_good_as_each_other(images: int, seed: int, order: list[int]) -> None:
    probabilities = said(images, seed)
    np.testing.assert_allclose(lessons(probabilities[:, order]), lessons(probabilities)[:, order], rtol=1e-5)
    assert evenness(probabilities[:, order]) == pytest.approx(evenness(probabilities))
    assert 0 <= evenness(probabilities) <= 1


def test_every_sure_image_counts_alike() -> None:
    targets = lessons(certain(30, 2, 0, 0))
    np.testing.assert_allclose(targets.max(axis=1), WEIGHT / 32, rtol=1e-6)
    np.testing.assert_allclose(lessons(certain(8, 8, 8, 8)).sum(), WEIGHT, rtol=1e-6)


@pytest.mark.parametrize(
    ("counts", "wanted"),
    [
        ((8, 8, 8, 8), 1.0),
        ((32, 0, 0, 0), 0.0),
        ((16, 16, 0, 0), (1 / 3) ** 2),
        ((1, 1, 0, 0), 1.0),
        ((1, 0, 0, 0), 0.0),
    ],
)
def test_evenness(counts: tuple[int, ...], wanted: float) -> None:
    assert evenness(certain(*counts)) == pytest.approx(wanted, rel=1e-3)


@pytest.mark.parametrize("classes", [2, 7, 65, 1000])
def test_a_shuffled_batch_counts_nearly_in_full_however_many_classes_there_are(classes: int) -> None:
    rng = np.random.default_rng(classes)
    shown = [evenness(np.eye(classes)[rng.integers(classes, size=64)]) for _ in range(20)]
    assert np.mean(shown) > 0.75


def test_the_head_comes_to_say_what_the_blend_is_sure_of(network: Network, night: ImageBatch) -> None:
    """The loss of the first lessons, in torch, falls, and farther than by alignment alone."""

    def falls(config: AdaptConfig) -> tuple[float, float]:
        learner = Learner(network, config)
        target = torch.from_numpy(lessons(learner.predict(night)[0].probabilities))
        losses = []
        for _ in range(20):
            logits = network.run(night, learner.state.affines, [MODULE]).of(MODULE)
            losses.append(float(-(target * torch.log_softmax(torch.from_numpy(logits), dim=1)).sum()))
            learner.step(night)
        return losses[0], losses[-1]

    first, last = falls(replace(CONFIG, objective="teach"))
    assert last < 0.8 * first
    assert last < falls(replace(CONFIG, objective="align"))[1]


def test_what_is_not_learned_again_fades(network: Network, night: ImageBatch) -> None:
    exported = network.modules[MODULE].exported
    learner = Learner(network, replace(CONFIG, ln_momentum=0.0))
    learner.step(night)
    learned = learner.state.affines[MODULE].plus(exported, -1.0).norm
    assert learned > 0
    learner.config = replace(learner.config, ln_lr=1e-12)
    learner.step(night)
    left = learner.state.affines[MODULE].plus(exported, -1.0).norm
    assert left == pytest.approx((1 - FADES) * learned, rel=1e-3)


def test_no_rate_leads_far_away(network: Network, night: ImageBatch) -> None:
    """Fifty times the rate, and no guard: what was learned stays within reach of what was exported."""
    exported = network.modules[MODULE].exported
    learner = Learner(network, replace(CONFIG, ln_lr=1.0, filter=False))
    for _ in range(5):
        learner.step(night)
        distance = learner.state.affines[MODULE].plus(exported, -1.0).norm
        assert distance <= RADIUS * exported.norm * (1 + 1e-5)
    assert distance > 0.9 * RADIUS * exported.norm
