"""What is lost little by little: the score against the exported weights, and the way back by degrees."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pluto_edge import AdaptConfig, Runtime
from pluto_edge.preprocess import ImageBatch
from pluto_edge.runtime import guard
from pluto_edge.runtime.algorithm import affine_step
from pluto_edge.runtime.algorithm.state import State
from pluto_edge.runtime.engine.network import Network

DIGITS = Path(__file__).parents[2] / "examples/digits"
CONFIG = AdaptConfig(selector_lr=0.02, ln_lr=0.01, entropy_margin=0.95)
AGGRESSIVE = AdaptConfig(continuity=False, ln_lr=0.6, filter=False, objective="align")


@pytest.fixture
def gradual(monkeypatch: pytest.MonkeyPatch) -> None:
    """No suspicion of a sudden collapse, which noise on random modules raises."""
    monkeypatch.setattr(guard, "suspicion", lambda *arguments: False)


def images(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (16, 40, 32, 3), dtype=np.uint8)


def distances(state: State, network: Network) -> tuple[float, float]:
    """How far affines and selector are from the exported weights."""
    moved = [a.plus(network.modules[n].exported, -1.0).norm for n, a in state.affines.items()]
    exported = network.selector.tensors
    return sum(moved), sum(float(np.abs(v - exported[k]).sum()) for k, v in state.selector.tensors.items())


@pytest.mark.usefixtures("gradual")
def test_by_degrees_and_then_altogether(make_bundle: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime(make_bundle(), config=CONFIG)
    monkeypatch.setattr(guard, "may_stay", lambda compared: 1.0)
    for seed in range(3):
        runtime.step(images(seed))
    exported = Runtime(make_bundle(), config=CONFIG).predict(images(9))
    before = runtime.learner.state
    assert before.affines and before.momentum and [e.kind for e in runtime.events] == ["step"] * 3
    monkeypatch.setattr(guard, "may_stay", lambda compared: 0.4)
    for degree in (1, 2):
        said = runtime.step(images(9))
        state = runtime.learner.state
        want = np.array(distances(before, runtime.learner.network)) * 0.4**degree
        assert distances(state, runtime.learner.network) == pytest.approx(want, rel=1e-3)
        assert state.kept == pytest.approx(0.4**degree) and not state.momentum and not state.compared
        assert (
            runtime.events[-1].kind == "rollback" and "40% of what was learned stays" in runtime.events[-1].reason
        )
    runtime.step(images(9))
    assert "all that was learned is taken back" in runtime.events[-1].reason
    assert not runtime.learner.state.affines and runtime.learner.state.selector is runtime.learner.network.selector
    np.testing.assert_array_equal(runtime.predict(images(9)).logits, exported.logits)
    assert said.labels.tolist() == exported.labels.tolist()  # a batch that raised the doubt is not predicted by it
    assert runtime.learner.state.rollbacks == 3


@pytest.mark.usefixtures("gradual")
def test_what_does_no_harm_gets_its_credit_back(make_bundle: Callable[..., Path]) -> None:
    runtime = Runtime(make_bundle(), config=CONFIG)
    runtime.step(images(0))
    learner = runtime.learner
    learner.state = replace(learner.state, kept=0.3, compared=((False, 0.5),) * guard.RECENT)
    runtime.step(images(1))
    assert (
        runtime.events[-1].kind == "step"
        and learner.state.kept == 1
        and len(learner.state.compared) == guard.RECENT
    )


@pytest.mark.usefixtures("gradual")
def test_one_image_in_four_is_compared(make_bundle: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """In batches of any size, and without waiting for a prediction's turn; without the guard none is."""
    monkeypatch.setattr(guard, "look_closer", lambda compared: False)
    for size, steps in ((16, 3), (1, 9)):
        runtime = Runtime(make_bundle(), config=replace(CONFIG, min_reliable=0, entropy_margin=1.0))
        for seed in range(steps):
            runtime.step(images(seed)[:size])
        assert len(runtime.learner.state.compared) == {16: 8, 1: 2}[size]  # before the first there was nothing
    unguarded = Runtime(make_bundle(), config=replace(CONFIG, guard=False))
    for seed in range(3):
        unguarded.step(images(seed))
    assert unguarded.learner.state.compared == ()


# a small dose of benchmarks/collapse.py


@pytest.fixture
def draw(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    monkeypatch.setattr(sys, "path", [str(DIGITS), *sys.path])
    import meter

    def draw(count: int, seed: int, digit: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Digits at night, or one of them only, and which they are."""
        rng = np.random.default_rng(seed)
        labels = rng.integers(0, 10, count) if digit is None else np.full(count, digit)
        night = meter.CONDITIONS["low_light"]
        return np.stack([night(meter.render(rng, int(k), fonts=()), rng) for k in labels]), labels

    return draw


def fed(config: AdaptConfig, way: str, images: np.ndarray, judged: np.ndarray) -> np.ndarray:
    """What a bundle says that was fed these images, 32 at a time."""
    with Runtime(DIGITS / "bundle", threads=1, config=config, verify=False) as runtime:
        if way == "steps":
            for start in range(0, len(images), 32):
                runtime.step(images[start : start + 32])
            return runtime.predict(judged).labels
        with runtime.stream(batch=32, background=False) as stream:
            for frame in images:
                stream(frame)
            batch = ImageBatch(judged, runtime.manifest.preprocessing)
            return stream.learner.predict(batch)[0].probabilities.argmax(axis=1)


@pytest.mark.parametrize("way", ["steps", "stream"])
def test_a_stream_of_one_class_does_no_lasting_harm(draw, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard alone: what was learned may lead as far as it likes."""
    monkeypatch.setattr(affine_step, "RADIUS", np.inf)
    judged, labels = draw(400, 2)
    images = np.concatenate([draw(8 * 32, 0, digit=3)[0], draw(5 * 32, 1)[0]])
    configs = {"guarded": AGGRESSIVE, "loose": replace(AGGRESSIVE, guard=False)}
    right = {n: (fed(c, way, images, judged) == labels).mean() for n, c in configs.items()}
    right["plain"] = (fed(AGGRESSIVE, way, images[:0], judged) == labels).mean()
    assert right["loose"] < right["plain"] - 0.05  # the attack is one
    assert right["guarded"] >= right["plain"] - 0.02


def test_a_stream_of_one_class_teaches_nothing(draw) -> None:
    """With no guard and thirty times the rate: a batch counts as far as it shows the classes evenly."""
    judged, labels = draw(400, 2)
    heedless = replace(AGGRESSIVE, objective="teach", guard=False)
    plain = (fed(heedless, "steps", judged[:0], judged) == labels).mean()
    assert (fed(heedless, "steps", draw(13 * 32, 0, digit=3)[0], judged) == labels).mean() >= plain - 0.02
