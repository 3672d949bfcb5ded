"""Many modules: few run, and what they say is what they would have said beside all the others."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import ceil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pluto_edge import AdaptConfig, Runtime
from pluto_edge.errors import ConfigError
from pluto_edge.evaluate.recorded import RecordedNetwork
from pluto_edge.evaluate.targets import find_targets, prepare
from pluto_edge.manifest import Bundle
from pluto_edge.modules import SelectorWeights
from pluto_edge.runtime import selector, shortlist
from pluto_edge.runtime.learner import Learner
from pluto_edge.runtime.network import Network, Pass
from pluto_edge.runtime.session import Engine

N, M, PROBE, BATCH = 20, 3, 4, 16
TENTH = ceil(N / shortlist.TURNS)
CONFIG = AdaptConfig(top_m=M, probe=PROBE, selector_lr=0.02, ln_lr=0.01, entropy_margin=0.95, guard=False)
FULL = replace(CONFIG, probe=0)


def frames(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 40, 32, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def bundle(make_bundle: Callable[..., Path]) -> Path:
    return make_bundle(modules=N)


@pytest.fixture
def sharp(monkeypatch: pytest.MonkeyPatch) -> None:
    """A selector that tells the modules apart: the random one hardly does."""
    original = Bundle.load_selector

    def load(opened: Bundle) -> SelectorWeights:
        g = original(opened)
        return replace(g, scale_x=2 * g.scale_x, scale_l=2 * g.scale_l)

    monkeypatch.setattr(Bundle, "load_selector", load)


@pytest.fixture
def runtime(bundle: Path, sharp: None) -> Iterator[Runtime]:
    with Runtime(bundle, config=CONFIG) as opened:
        yield opened


class Calls:
    """How many images each module was run on, by either graph."""

    def __init__(self, network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
        self.images: Counter[str] = Counter()
        owners = {id(m.tensors["head_bias"]): n for n, m in network.modules.items()}
        original = network._run

        def run(graph: object, inputs: dict) -> object:
            if "head_bias" in inputs:
                self.images[owners[id(inputs["head_bias"])]] += inputs["tokens"].numpy().shape[0]
            return original(graph, inputs)

        monkeypatch.setattr(network, "_run", run)

    def take(self) -> Counter[str]:
        images, self.images = self.images, Counter()
        return images


def standing(runtime: Runtime) -> dict[str, float]:
    return dict(runtime._learner.state.standing)


def listed(runtime: Runtime) -> set[str]:
    return set(shortlist.choose(standing(runtime), runtime.modules, runtime.config) or ())


# when it acts


@pytest.mark.parametrize(
    ("modules", "changes"), [(shortlist.MANY, {}), (N, {"top_m": None}), (N, {"top_m": N}), (N, {"probe": 0})]
)
def test_it_acts_with_many_modules_of_which_few_are_blended(modules: int, changes: dict[str, object]) -> None:
    names = [f"m{i}" for i in range(N)]
    everyone = dict.fromkeys(names, 0.1)
    assert shortlist.choose(everyone, names, CONFIG) is not None
    assert shortlist.choose(everyone, names[:modules], replace(CONFIG, **changes)) is None
    assert shortlist.choose(dict.fromkeys(names[1:], 0.1), names, CONFIG) is None


def test_fewer_images_than_none() -> None:
    with pytest.raises(ConfigError, match="probe: want 0 images or more, got -1"):
        AdaptConfig(probe=-1)


@given(images=st.integers(1, 300), count=st.integers(1, 40))
def test_images_are_spread_over_the_batch(images: int, count: int) -> None:
    at = shortlist.spread(images, count)
    assert len(at) == len(set(at)) == min(images, count) and at[0] == 0 and at[-1] < images
    if len(at) > 1:
        assert at[-1] == images - 1 and np.ptp(np.diff(at)) <= 1


def test_batches_of_a_probe_run_everything(bundle: Path, sharp: None) -> None:
    """Bit for bit what it is without, also what is predicted afterwards."""
    one, other = (Runtime(bundle, config=replace(CONFIG, probe=p)) for p in (BATCH, 0))
    for seed in range(4):
        images = frames(BATCH, seed)
        a, b = one.step(images), other.step(images)
        for field in ("logits", "weights"):
            np.testing.assert_array_equal(getattr(a, field), getattr(b, field))
        assert a.selected == b.selected and one.events[-1].weights == other.events[-1].weights
        np.testing.assert_array_equal(one.predict(frames(30)).logits, other.predict(frames(30)).logits)
    mine, full = one._learner.state, other._learner.state
    assert not mine.standing and mine.affines.keys() == full.affines.keys()
    for key, value in mine.selector.tensors.items():
        np.testing.assert_array_equal(value, full.selector.tensors[key])


# what it computes


def test_on_the_shortlist_weights_and_blend_are_those_of_all_modules(bundle: Path, sharp: None) -> None:
    """Where the same modules are selected; nothing learns, as the selector's gradient is of those that run."""
    frozen = {"selector": False, "recentre": 0.0, "sam": None}
    few, all_run = (Runtime(bundle, config=replace(c, **frozen)) for c in (CONFIG, FULL))
    same = 0
    for seed in range(6):
        images = frames(BATCH, seed)
        got, want = few.step(images), all_run.step(images)
        assert got.modules == want.modules == few.modules
        assert got.weights.shape == (BATCH, N) and ((got.weights > 0).sum(axis=1) <= M).all()
        np.testing.assert_allclose(got.weights.sum(axis=1), 1, atol=1e-6)
        event = few.events[-1]
        assert tuple(event.weights) == few.modules and event.top == got.selected[0]
        assert {n for n, w in event.weights.items() if w} == set(got.selected)
        if set(got.selected) == set(want.selected):
            same += 1
            np.testing.assert_allclose(got.weights, want.weights, atol=1e-6)
            np.testing.assert_allclose(got.logits, want.logits, atol=1e-5)
    assert same > 0


def test_a_survey_selects_what_all_modules_on_its_images_select(runtime: Runtime) -> None:
    images = frames(BATCH)
    got = runtime.step(images)
    at = shortlist.spread(BATCH, PROBE)
    passed = runtime._network.run(runtime._batch(images[at]), {})
    weights = selector.weights(runtime._network.selector, passed.x_hat, passed.logits)
    _, order = selector.select(weights, M)
    assert set(got.selected) == {passed.names[i] for i in order}


def test_what_runs(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(runtime._network, monkeypatch)
    sam = 2 * BATCH  # two more gradients at most, of the top module
    runtime.step(frames(BATCH))
    first = calls.take()
    assert min(first.values()) == PROBE and set(first) == set(runtime.modules)
    assert first.total() <= N * PROBE + M * BATCH + TENTH * PROBE + sam
    before = listed(runtime)
    runtime.step(frames(BATCH, 1))
    steady = calls.take()
    assert {n for n, count in steady.items() if count >= BATCH} == before
    assert len(steady) == M + TENTH and steady.total() <= M * BATCH + TENTH * PROBE + sam
    prediction = runtime.predict(frames(5))
    assert calls.take() == dict.fromkeys(prediction.selected, 5) and set(prediction.selected) == listed(runtime)
    assert prediction.modules == runtime.modules and prediction.weights.shape == (5, N)


def test_a_small_batch_neither_starts_it_nor_stops_it(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(runtime._network, monkeypatch)
    runtime.step(frames(PROBE))
    assert len(calls.take()) == N and not standing(runtime)
    runtime.step(frames(BATCH))
    calls.take()
    runtime.step(frames(2))
    assert len(calls.take()) == M + TENTH


def test_all_modules_are_tried_in_turn(runtime: Runtime) -> None:
    """The standing that is oldest is refreshed next, so nobody waits longer than a round."""
    runtime.step(frames(BATCH))
    tried: list[str] = []
    for seed in range(1, shortlist.TURNS + 1):
        before = standing(runtime)
        runtime.step(frames(BATCH, seed))
        after = standing(runtime)
        assert set(after) == set(runtime.modules)
        assert list(after)[: N - M - TENTH] == [n for n in before if n in list(after)[: N - M - TENTH]]
        tried += list(after)[N - M - TENTH :]
    assert set(tried) == set(runtime.modules)


def test_a_better_module_outside_the_shortlist_is_found(runtime: Runtime) -> None:
    """The module that weighs most is said to stand lowest: its turn comes, and it is back on the list."""
    images = frames(BATCH)
    runtime.step(images)
    learner = runtime._learner
    best = learner.state.top
    assert best is not None
    others = {n: s for n, s in learner.state.standing.items() if n != best}
    names = list(others)
    wrong = {**{n: others[n] for n in names[:TENTH]}, best: 0.0, **{n: others[n] for n in names[TENTH:]}}
    learner.state = replace(learner.state, standing=wrong)
    selected = [best in runtime.step(images).selected for _ in range(3)]
    assert selected == [False, False, True]  # others have their turn, then it is tried, then it runs
    assert runtime.events[-1].top == best


def test_a_module_with_broken_logits_stands_lowest(runtime: Runtime) -> None:
    network = runtime._network
    passed = network.run(runtime._batch(frames(PROBE)), {})
    logits = passed.logits.copy()
    logits[0, 2, 1] = np.nan
    found = shortlist.survey(network.selector, [replace(passed, logits=logits)], M)
    assert found[runtime.modules[2]] == 0 and np.isfinite(list(found.values())).all()
    assert sum(sorted(found.values())[-M:]) == pytest.approx(1)


# when it starts anew


def test_who_starts_it_anew(runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(runtime._network, monkeypatch)
    runtime.step(frames(BATCH))
    learner, name = runtime._learner, runtime.modules[0]
    runtime.save(tmp_path / "state")
    for again in (
        lambda: learner.reopen("another domain"),
        runtime.reset,
        lambda: runtime.reset(name),
        lambda: runtime.restore(tmp_path / "state"),
    ):
        again()
        calls.take()
        runtime.predict(frames(2))
        assert calls.take() == dict.fromkeys(runtime.modules, 2)
        runtime.step(frames(BATCH))
        assert len(calls.take()) == N
        runtime.predict(frames(2))
        assert len(calls.take()) == M


def test_modules_that_come_and_go(bundle: Path, make_bundle: Callable[..., Path], sharp: None) -> None:
    runtime = Runtime(bundle, config=CONFIG)
    runtime.step(frames(BATCH))
    gone = runtime.predict(frames(1)).selected[0]
    runtime.remove_module(gone)
    prediction = runtime.predict(frames(3))
    assert (
        gone not in prediction.modules and len(prediction.selected) == M and prediction.weights.shape == (3, N - 1)
    )
    runtime.step(frames(BATCH, 1))
    learner = runtime._learner
    learner.state = replace(learner.state, standing=dict.fromkeys(runtime.modules[1:], 0.1))  # as if one had come
    assert learner.surveying
    runtime.step(frames(BATCH, 2))
    assert not learner.surveying
    for name in runtime.modules[: N - 1 - shortlist.MANY]:
        runtime.remove_module(name)
    assert not learner.surveying
    runtime.step(frames(BATCH, 3))
    assert sum(w > 0 for w in runtime.events[-1].weights.values()) == shortlist.MANY


@pytest.mark.parametrize("margin", [1e-6, 0.95])
def test_steps_that_are_not_taken_keep_the_standing(bundle: Path, sharp: None, margin: float) -> None:
    config = replace(CONFIG, entropy_margin=margin, min_reliable=1 if margin < 0.5 else 1000)
    runtime = Runtime(bundle, config=config)
    runtime.step(frames(BATCH))
    assert runtime.events[-1].kind == ("rollback" if margin < 0.5 else "gather")
    assert set(standing(runtime)) == set(runtime.modules) and not runtime._learner.state.affines


def test_the_guard_judges_what_ran(bundle: Path, sharp: None, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime(bundle, config=replace(CONFIG, guard=True))
    for seed in range(3):
        runtime.step(frames(BATCH, seed))
    learner = runtime._learner
    monkeypatch.setattr("pluto_edge.runtime.guard.suspicion", lambda *a: True)
    monkeypatch.setattr("pluto_edge.runtime.guard.verdict", lambda *a: "collapse")
    calls = Calls(runtime._network, monkeypatch)
    images = frames(BATCH, 9)
    before = listed(runtime)
    prediction = runtime.step(images)
    assert runtime.events[-1].reason == "collapse" and set(calls.take()) < set(runtime.modules)
    passed = runtime._network.run(runtime._batch(images), {}, tuple(before))
    want = selector.weights(runtime._network.selector, passed.x_hat, passed.logits)
    np.testing.assert_allclose(prediction.weights, passed.widened(want), atol=1e-5)
    assert not learner.state.standing and not learner.state.affines


# streams


def test_a_stream_surveys_its_first_frames(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(runtime._network, monkeypatch)
    line = runtime.stream(batch=BATCH, background=False)
    images = frames(2 * BATCH)
    for number, frame in enumerate(images[: BATCH - 1], 1):
        prediction = line(frame)
        assert len(calls.take()) == (N if number <= PROBE else M)
        assert prediction.modules == runtime.modules and len(prediction.selected) == M
    before = listed_of(line.learner)
    line(images[BATCH - 1])
    counts = calls.take()
    assert line.events[-1].kind == "step" and len(counts) == M + TENTH
    assert sum(c == PROBE for c in counts.values()) >= TENTH  # tried; the shortlist's frames were seen already
    assert all(counts[n] <= 1 + 2 * BATCH for n in before)
    line.learner.reopen("another domain")
    line(images[BATCH])
    assert len(calls.take()) == N
    assert not line.metrics.changes - 1  # the one above: a new shortlist is none


def listed_of(learner: Learner) -> set[str]:
    return set(shortlist.choose(learner.state.standing, learner.network.modules, learner.config) or ())


def test_another_shortlist_is_no_change_of_domain(runtime: Runtime) -> None:
    line = runtime.stream(batch=BATCH, every=1000, background=False)
    images = frames(140)
    for frame in images[:70]:
        line(frame)
    detector, before = line._detector, listed_of(line.learner)
    upside_down = {n: -s for n, s in line.learner.state.standing.items()}
    line.learner.state = replace(line.learner.state, standing=upside_down)
    assert not before & listed_of(line.learner)
    for frame in images[70:]:
        line(frame)
    assert line._detector is detector and not line.metrics.changes
    assert line.timeline[0].modules == line.timeline[-1].modules == runtime.modules


def test_a_stream_of_small_batches_runs_everything(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(runtime._network, monkeypatch)
    line = runtime.stream(batch=PROBE, background=False)
    for frame in frames(3 * PROBE):
        line(frame)
        assert len(calls.take()) == N


def test_a_frozen_stream_surveys_too_and_again_after_a_change(runtime: Runtime) -> None:
    line = runtime.stream(batch=BATCH, background=False)
    line.frozen = True
    bright, dark = frames(60) // 4 + 190, frames(30, seed=1) // 4
    for frame in bright:
        line(frame)
    assert not line.learner.surveying and not line.metrics.changes
    for frame in dark:
        line(frame)
        if line.metrics.changes:
            break
    assert line.learner.surveying and line.learner.state.selector is runtime._network.selector


# recorded evaluations


def test_a_recorded_network_gives_the_same(
    bundle: Path, folders: Path, tmp_path: Path, sharp: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = RecordedNetwork(Bundle(bundle), Engine("cpu", 1))
    manifest = network.bundle.manifest
    (target,) = find_targets(folders, ["noise"], manifest.classes)
    stream = prepare(target, manifest.preprocessing, tmp_path)
    network.record(stream, tmp_path)
    plain = Network(Bundle(bundle), Engine("cpu", 1))
    one, other = Learner(network, CONFIG), Learner(plain, CONFIG)
    for batch in stream.batches(np.arange(60), 20):
        got, _ = one.step(batch)
        want, _ = other.step(batch)
        np.testing.assert_allclose(got.logits, want.logits, atol=1e-4)
        assert list(one.state.standing) == list(other.state.standing)
    assert isinstance(one.predict(batch)[1], Pass) and len(one.predict(batch)[1].names) == M
