"""A step beyond the paper, on a bundle whose modules know their sources."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pluto_edge import Runtime
from pluto_edge.config import AdaptConfig
from pluto_edge.manifest import Bundle
from pluto_edge.preprocess import ImageBatch
from pluto_edge.runtime import judging
from pluto_edge.runtime.algorithm import beyond
from pluto_edge.runtime.algorithm import step as algorithm
from pluto_edge.runtime.algorithm.affine_step import ALIGN_FROM
from pluto_edge.runtime.algorithm.alignment import align
from pluto_edge.runtime.algorithm.selection import Blend
from pluto_edge.runtime.algorithm.state import State
from pluto_edge.runtime.engine.modules import Modules
from pluto_edge.runtime.engine.network import Network
from pluto_edge.runtime.engine.session import Engine
from pluto_edge.runtime.engine.timing import Stages
from pluto_edge.runtime.learner import Learner
from pluto_edge.store import Store
from tests.runtime.algorithm.signed import DOMAINS, GENERALIST, images, signed_bundle


@pytest.fixture(scope="module")
def bundle(make_store: Callable[..., Store], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return signed_bundle(make_store(kind="adapter"), tmp_path_factory.mktemp("signed") / "bundle")


@pytest.fixture(scope="module")
def network(bundle: Path) -> Network:
    return Network(Bundle(bundle), Engine("cpu", 1))


def batch(network: Network, domain: str, count: int = 32, seed: int = 1) -> ImageBatch:
    preprocessing = network.bundle.manifest.preprocessing
    return ImageBatch(images(domain, count, preprocessing.size, seed), preprocessing)


def test_roles_and_references(network: Network) -> None:
    modules = network.modules
    assert modules.generalist == GENERALIST
    assert modules.specialists == ("domain-0", "domain-1")
    assert set(modules.references) == {"domain-0", "domain-1", GENERALIST}
    domains = beyond.known_domains(modules)
    assert domains is not None and domains.names == modules.specialists
    assert beyond.known_domains(modules) is domains


@pytest.mark.parametrize("domain", ["domain-0", "domain-1"])
def test_a_known_domain_runs_its_own_module_and_no_other(network: Network, domain: str) -> None:
    blend, passed = Learner(network, AdaptConfig()).predict(batch(network, domain))
    assert passed.names == (domain,)
    assert blend.names[blend.order[0]] == domain
    assert blend.weights[:, list(network.modules).index(domain)].min() > 0.9


def test_a_module_that_is_worse_at_home_leaves_its_say_to_the_generalist(bundle: Path) -> None:
    own = Network(Bundle(bundle), Engine("cpu", 1))
    for share, ran in ((0.0, {GENERALIST}), (0.5, {"domain-0", GENERALIST})):
        generalist = replace(own.modules[GENERALIST], homes={"domain-0": share})
        own.modules = Modules({**own.modules, GENERALIST: generalist})
        blend, passed = Learner(own, AdaptConfig()).predict(batch(own, "domain-0"))
        assert set(passed.names) == ran
        assert blend.weights[:, 0].max() == pytest.approx(share, abs=0.05)
        assert Learner(own, AdaptConfig()).predict(batch(own, "domain-1"))[1].names == ("domain-1",)


def test_steps_start_anew_where_another_domain_begins(network: Network) -> None:
    learner = Learner(network, AdaptConfig(sam=None))
    for seed in range(3):
        learner.step(batch(network, "domain-0", seed=seed))
    assert [e.kind for e in learner.events] == ["step"] * 3
    learner.step(batch(network, "domain-1", seed=3))
    assert [e.kind for e in learner.events][3:] == ["change", "step"]
    assert set(learner.state.prototypes.modules) == {"domain-1"}  # nothing of the domain before it
    fresh = Learner(network, AdaptConfig(sam=None))
    again, _ = fresh.step(batch(network, "domain-1", seed=4))
    learner.reset()
    blend, _ = learner.step(batch(network, "domain-1", seed=4))
    assert [e.kind for e in learner.events][-2:] == ["reset", "step"]
    np.testing.assert_array_equal(blend.logits, again.logits)


def test_the_papers_steps_notice_no_change(network: Network) -> None:
    learner = Learner(network, AdaptConfig.paper())
    for seed, domain in enumerate(("domain-0", "domain-0", "domain-1")):
        learner.step(batch(network, domain, seed=seed))
    assert learner.counts["change"] == 0


def test_an_unknown_domain_runs_the_generalist_alone(network: Network) -> None:
    _, passed = Learner(network, AdaptConfig()).predict(batch(network, "other"))
    assert passed.names == (GENERALIST,)


def test_without_a_generalist_specialists_have_a_say_of_their_own_at_home(bundle: Path) -> None:
    own = Network(Bundle(bundle), Engine("cpu", 1))
    specialists = {n: m for n, m in own.modules.items() if n != GENERALIST}
    for share, least, most in ((1.0, 0.9, 1.0), (0.5, 0.4, 1.0), (0.0, 0.0, 0.9)):
        own.modules = Modules({n: replace(m, homes={n: share}) for n, m in specialists.items()})
        assert own.modules.homes == dict.fromkeys(specialists, share)
        blend, passed = Learner(own, AdaptConfig(selector=False)).predict(batch(own, "domain-0"))
        assert set(passed.names) == ({"domain-0"} if share == 1 else set(specialists))
        assert least <= blend.weights[:, 0].mean() <= most


def test_of_many_specialists_those_are_asked_whose_sources_look_nearest(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Network(Bundle(bundle), Engine("cpu", 1))
    unsigned = replace(own.modules["domain-1"], reference=None)
    own.modules = Modules({**{n: m for n, m in own.modules.items() if n != GENERALIST}, "unsigned": unsigned})
    monkeypatch.setattr(beyond, "SHORTLIST", 1)
    for domain in ("domain-0", "domain-1"):
        look = own.look(batch(own, domain)).x_hat
        recognised = beyond.recognise(own.modules, look, look, AdaptConfig())
        assert recognised.asked == (domain, "unsigned")  # nobody knows what that one's source looks like
    everyone = beyond.recognise(own.modules, look, look, AdaptConfig(weighting="selector"))
    assert everyone.asked == own.modules.specialists


def test_without_a_generalist_the_unknown_is_left_to_the_selector(bundle: Path) -> None:
    with Runtime(bundle) as runtime:
        runtime.remove_module(GENERALIST)
        pixels = images("other", 8, runtime.manifest.preprocessing.size)
        unknown = runtime.predict(pixels)
        assert set(unknown.selected) == {"domain-0", "domain-1"}
        runtime.learner.config = AdaptConfig(weighting="selector", prototypes=False)
        np.testing.assert_allclose(unknown.weights, runtime.predict(pixels).weights, atol=0.06)


def test_the_paper_never_asks_the_generalist(network: Network) -> None:
    learner = Learner(network, AdaptConfig.paper())
    _, passed = learner.predict(batch(network, "domain-0"))
    assert passed.names == network.modules.specialists
    learner.step(batch(network, "domain-0"))
    assert GENERALIST not in learner.state.affines and not learner.state.prototypes.modules


def test_the_paper_is_algorithm_1_bit_for_bit(network: Network) -> None:
    """What goes beyond it stands beside it: with the switch the step is `algorithm.propose` and nothing else."""
    config, images_ = AdaptConfig.paper(), batch(network, "domain-1")
    learner = Learner(network, config)
    blend, _ = learner.step(images_)
    proposal = algorithm.propose(network, State(network.selector), images_, config, Stages())
    np.testing.assert_array_equal(blend.logits, proposal.blend.logits)
    for name, affines in proposal.state.affines.items():
        np.testing.assert_array_equal(learner.state.affines[name].scale, affines.scale)


def test_the_generalist_alone(network: Network) -> None:
    learner = Learner(network, AdaptConfig(weighting="generalist"))
    _, passed = learner.predict(batch(network, "domain-0"))
    assert passed.names == (GENERALIST,)
    learner.step(batch(network, "domain-0"))
    assert set(learner.state.prototypes.modules) == {GENERALIST}


@pytest.mark.parametrize("every", [1, 5])
def test_steps_bring_the_activations_back(network: Network, every: int) -> None:
    """Twenty steps on one batch: the loss that they descend on falls, with LookSAM, too."""
    config = AdaptConfig(
        weighting="generalist",
        objective="align",
        continuity=False,
        filter=False,
        guard=False,
        ln_lr=0.1,
        sam_every=every,
    )
    learner, data = Learner(network, config), batch(network, "other", 48)
    source = network.modules.references[GENERALIST].signature

    def loss() -> float:
        passed = network.run(data, learner.state.affines, [GENERALIST], activations=True)
        assert passed.activations is not None
        return align(passed.activations[:, 0], source.activation_mean, source.activation_std).loss

    before = loss()
    for _ in range(20):
        learner.step(data)
    assert loss() < 0.9 * before


@pytest.mark.parametrize("objective", ["entropy", "align", "both", "teach"])
def test_every_objective_moves_the_top_module_only(network: Network, objective: str) -> None:
    config = AdaptConfig(filter=False, guard=False, continuity=False)
    learner = Learner(network, replace(config, objective=objective))  # type: ignore[arg-type]
    _, event = learner.step(batch(network, "other"))
    assert event.kind == "step" and event.top == GENERALIST
    assert set(learner.state.affines) == {GENERALIST}


@pytest.mark.parametrize("domain", ["domain-0", "domain-1"])
def test_a_known_domain_has_nothing_to_undo(network: Network, domain: str) -> None:
    learner = Learner(network, AdaptConfig(filter=False, guard=False, continuity=False))
    _, event = learner.step(batch(network, domain, 64))
    assert event.kind == "step" and event.top == domain
    assert not learner.state.affines
    assert learner.state.prototypes.modules


def test_a_run_of_one_class_aligns_nothing(network: Network) -> None:
    """Its statistics are those of the class, whatever the domain is. (This random network says one of most.)"""
    config = AdaptConfig(filter=False, guard=False)
    learner = Learner(network, replace(config, sam=None))
    learner.step(batch(network, "other"))  # the first run of a stream is not known for one yet
    learner.config = config
    blend, _ = learner.step(batch(network, "other"))
    assert len(set(blend.logits.argmax(axis=1))) == 1
    assert not learner.state.affines
    heedless = Learner(network, replace(config, continuity=False))
    heedless.step(batch(network, "other"))
    assert set(heedless.state.affines) == {GENERALIST}


def test_too_few_images_align_nothing(network: Network) -> None:
    learner = Learner(network, AdaptConfig(filter=False, continuity=False))
    learner.step(batch(network, "other", ALIGN_FROM - 1))
    assert not learner.state.affines
    assert learner.state.prototypes.modules  # which learn from every image


def test_no_reliable_image_moves_no_affine(network: Network) -> None:
    learner = Learner(network, AdaptConfig(entropy_margin=1e-9, continuity=False))
    learner.step(batch(network, "other"))
    assert not learner.state.affines


def test_micro_batches_change_nothing(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    config = AdaptConfig(filter=False, guard=False, continuity=False)
    data = batch(network, "other", 24)
    whole = Learner(network, config)
    whole.step(data)
    monkeypatch.setattr(network.graphs, "micro_batch", 5)
    monkeypatch.setattr(network.graphs, "micro_batch_adapt", 3)
    parts = Learner(network, config)
    parts.step(data)
    assert whole.state.affines
    for name, affines in whole.state.affines.items():
        np.testing.assert_allclose(parts.state.affines[name].scale, affines.scale, rtol=0, atol=2e-6)


def test_predictions_change_nothing(network: Network) -> None:
    learner = Learner(network, AdaptConfig())
    before = learner.state
    first = learner.predict(batch(network, "domain-0"))[0]
    learner.predict(batch(network, "other"))
    np.testing.assert_array_equal(learner.predict(batch(network, "domain-0"))[0].logits, first.logits)
    assert learner.state is before


def test_reset_is_exact(bundle: Path) -> None:
    with Runtime(bundle, config=AdaptConfig(guard=False)) as runtime:
        size = runtime.manifest.preprocessing.size
        before = runtime.predict(images("other", 8, size))
        for seed in range(3):
            runtime.step(images("other", 32, size, seed))
        assert not np.array_equal(runtime.predict(images("other", 8, size)).probabilities, before.probabilities)
        runtime.reset()
        np.testing.assert_array_equal(runtime.predict(images("other", 8, size)).probabilities, before.probabilities)


def test_what_was_learned_is_saved_and_restored(bundle: Path, tmp_path: Path) -> None:
    config = AdaptConfig(guard=False)
    with Runtime(bundle, config=config) as runtime, Runtime(bundle, config=config) as other:
        size = runtime.manifest.preprocessing.size
        for seed in range(2):
            runtime.step(images("other", 32, size, seed))
        runtime.save(tmp_path / "state")
        other.restore(tmp_path / "state")
        a, b = runtime.learner.state.prototypes.modules, other.learner.state.prototypes.modules
        assert a.keys() == b.keys() != set()
        for name in a:
            np.testing.assert_array_equal(a[name].sums, b[name].sums)
        probe = images("other", 64, size, 9)
        np.testing.assert_allclose(
            other.predict(probe).probabilities, runtime.predict(probe).probabilities, atol=0.02
        )


def test_a_stream_turns_to_the_right_module_within_sixteen_frames(bundle: Path) -> None:
    with Runtime(bundle) as runtime, runtime.stream(background=False, batch=32) as stream:
        size = runtime.manifest.preprocessing.size
        for domain in ("domain-0", "domain-1", "other"):
            frames = images(domain, 48, size, 3)
            leads = [max(zip(p.weights[0], p.modules, strict=True))[1] for p in map(stream, frames[:, None])]
            want = domain if domain in runtime.modules else GENERALIST
            assert leads[16:].count(want) >= 0.95 * len(leads[16:])
        assert set(DOMAINS) > {"domain-0"}


def test_a_mixed_batch_asks_both(network: Network) -> None:
    size = network.bundle.manifest.preprocessing.size
    pixels = np.concatenate([images(d, 20, size, 4) for d in ("domain-0", "domain-1")])
    blend, passed = Learner(network, AdaptConfig()).predict(
        ImageBatch(pixels, network.bundle.manifest.preprocessing)
    )
    assert set(passed.names) >= {"domain-0", "domain-1"}
    columns = [list(network.modules).index(d) for d in ("domain-0", "domain-1")]
    assert blend.weights[:20, columns[0]].mean() > 0.9 and blend.weights[20:, columns[1]].mean() > 0.9


def test_a_module_that_only_looks_right_leaves_its_say(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    """x̂ may take one domain for another; the features of its module find out, without a step."""
    domains = beyond.known_domains(network.modules)
    assert domains is not None
    mistaken = np.zeros(2)
    mistaken[0] = 1.0
    monkeypatch.setattr(
        type(domains), "weigh", lambda self, recent, images, stakes: np.tile(mistaken, (len(images), 1))
    )
    learner = Learner(network, AdaptConfig())
    assert learner.predict(batch(network, "domain-0", 48))[1].names == ("domain-0",)
    assert GENERALIST in learner.predict(batch(network, "other", 48))[1].names
    frames = images("other", 48, network.bundle.manifest.preprocessing.size, 8)
    ran = [
        learner.watch(ImageBatch(frame[None], network.bundle.manifest.preprocessing))[1].names for frame in frames
    ]
    assert ran[0] == ("domain-0",) and ran[-1] == (GENERALIST,), "a stream keeps what it has found"


@pytest.mark.parametrize("failure", ["rolled back", "raised"])
def test_a_step_that_is_taken_back_leaves_nothing_of_how_its_images_looked(
    bundle: Path, failure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else who has a say next would be decided by images that count for nothing."""
    with Runtime(bundle, threads=1) as runtime:
        config, size = runtime.manifest.adaptation, runtime.manifest.preprocessing.size
    config = replace(config, entropy_margin=1e-9, prototypes=False)  # no image is reliable
    with Runtime(bundle, threads=1, config=config) as runtime:
        known = images("domain-1", 4, size, 5)
        before = runtime.predict(known).probabilities
        if failure == "raised":
            monkeypatch.setattr(judging, "judge", lambda *arguments: 1 / 0)
        for seed in range(4):
            with pytest.raises(ZeroDivisionError) if failure == "raised" else nullcontext():
                runtime.step(images("other", 16, size, seed))
        assert {e.kind for e in runtime.events} == {"rollback"}
        np.testing.assert_array_equal(runtime.predict(known).probabilities, before)


def said(network: Network, *rows: dict[int, float]) -> Blend:
    """A prediction in which the given classes have these logits."""
    logits = np.zeros((len(rows), network.bundle.manifest.dims.classes))
    for row, values in zip(logits, rows, strict=True):
        row[list(values)] = list(values.values())
    names = tuple(network.modules)
    return Blend(logits, np.full((len(rows), len(names)), 1 / len(names)), np.arange(len(names)), names)


def test_a_run_of_one_class_decides_a_doubtful_image_until_it_is_forgotten(network: Network) -> None:
    learner = Learner(network, AdaptConfig())
    doubtful = said(network, {0: 1.0, 1: 1.2})
    assert learner.follow(doubtful, keep=False).logits.argmax() == 1
    learner.follow(said(network, *[{0: 4.0}] * 20))
    assert learner.follow(doubtful, keep=False).logits.argmax() == 0
    sure = said(network, {1: 9.0})
    assert learner.follow(sure, keep=False).logits.argmax() == 1
    learner.reset()
    assert learner.follow(doubtful).logits.argmax() == 1
    learner.config = AdaptConfig(continuity=False)
    np.testing.assert_array_equal(learner.follow(doubtful).logits, doubtful.logits)


def test_a_step_that_is_taken_back_tells_nothing_of_the_next_image(network: Network) -> None:
    """Predictions are no part of a stream, and what is rolled back was never there."""
    learner = Learner(network, AdaptConfig(sam="sample", prototypes=False, entropy_margin=1e-9))
    before = learner.recent.continuity
    _, event = learner.step(batch(network, "domain-0"))
    assert event.kind == "rollback" and learner.recent.continuity is before
    learner.predict(batch(network, "domain-0"))
    assert learner.recent.continuity is before
