"""Every baseline that runs on exported graphs against torch, and the numbers that its published code has."""

from collections.abc import Callable
from math import log
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pluto_edge.config import AdaptConfig
from pluto_edge.errors import ConfigError
from pluto_edge.evaluate import norms
from pluto_edge.evaluate.adapters import Bench, Neo, NoConfig, Single
from pluto_edge.evaluate.methods import choose, known
from pluto_edge.evaluate.pluto import Pluto, ZeroShot
from pluto_edge.evaluate.recorded import RecordedNetwork
from pluto_edge.evaluate.targets import TargetBatch, TargetStream
from pluto_edge.runtime.algorithm.selector import entropy, softmax
from pluto_edge.runtime.engine.network import Network
from pluto_edge.runtime.engine.session import Graph
from pluto_edge.runtime.learner import Learner
from pluto_edge.store import Store
from pluto_edge.tolerances import GRADIENT, LOGITS_FP32, TRAJECTORY_AFFINES, TRAJECTORY_LOGITS, relative_error
from tests.reference.torch_baselines import Base, TorchEata, TorchNeo, TorchSar, TorchTent, entropy_of

NAME, CLASSES, BATCH = "domain-1", 7, 16


@pytest.fixture(scope="session")
def bench(make_network: Callable[..., RecordedNetwork], kind: str) -> Bench:
    return Bench(make_network(kind), BATCH)


@pytest.fixture(scope="session")
def stream(make_stream: Callable[..., TargetStream], bench: Bench) -> TargetStream:
    return make_stream(bench.network, "noise")


@pytest.fixture(scope="session")
def store(make_store: Callable[..., Store], kind: str) -> Store:
    return make_store(kind)


def batches(stream: TargetStream) -> list[TargetBatch]:
    return list(stream.batches(np.random.default_rng(3).permutation(len(stream.target)), BATCH))


def pixels(batch: TargetBatch) -> torch.Tensor:
    return torch.from_numpy(batch[0 : len(batch)])


def margin_of(stream: TargetStream, share: float = 0.6) -> float:
    """As a share of ln K: the entropy below which this share of the samples is at the start."""
    assert stream.outputs is not None
    return float(np.quantile(entropy(softmax(stream.outputs.logits[:, 1])), share) / log(CLASSES))


def distance_of(stream: TargetStream, share: float) -> float:
    """The cosine with the mean prediction below which this share of the samples is at the start."""
    assert stream.outputs is not None
    p = softmax(stream.outputs.logits[:, 1])
    mean = p.mean(axis=0)
    return float(np.quantile(p @ mean / np.linalg.norm(p, axis=1) / np.linalg.norm(mean), share))


def follow(
    adapter: norms.NormAdapter,
    reference: Base,
    stream: TargetStream,
    arrange: Callable[[int], None] = lambda index: None,
) -> None:
    start = adapter.affines
    for index, batch in enumerate(batches(stream)):
        arrange(index)
        want = reference.step(pixels(batch)).numpy()  # type: ignore[attr-defined]
        assert relative_error(adapter.step(batch), want) < TRAJECTORY_LOGITS
        for got, ref in zip((adapter.affines.scale, adapter.affines.bias), reference.affines, strict=True):
            assert relative_error(got, ref) < TRAJECTORY_AFFINES
        assert relative_error(adapter.predict(batch), reference(pixels(batch)).detach().numpy()) < TRAJECTORY_LOGITS
    assert adapter.affines.plus(start, -1).norm > 1e-2, "nothing was learned, so nothing was tested"


def test_the_rate_is_sars_for_vits(bench: Bench) -> None:
    assert norms.Tent(bench, NAME, norms.TentConfig()).lr == pytest.approx(0.001 / 64 * BATCH)
    assert norms.Sar(Bench(bench.network, 1), NAME, norms.SarConfig()).lr == pytest.approx(2 * 0.001 / 64)
    assert norms.Sar(bench, NAME, norms.SarConfig()).margin == pytest.approx(0.4 * log(CLASSES))
    assert norms.Eata(bench, NAME, norms.EataConfig()).d_margin == 0.4


def test_tent(bench: Bench, stream: TargetStream, store: Store) -> None:
    follow(norms.Tent(bench, NAME, norms.TentConfig(lr=0.08)), TorchTent(store, NAME, 0.02), stream)


@pytest.mark.parametrize("share", [0.6, 0.99])
def test_eta(bench: Bench, stream: TargetStream, store: Store, share: float) -> None:
    margin, distance = margin_of(stream, share), distance_of(stream, 0.7)
    config = norms.EataConfig(lr=0.08, e_margin=margin, d_margin=distance)
    reference = TorchEata(store, NAME, 0.02, margin * log(CLASSES), distance)
    adapter = norms.Eata(bench, NAME, config)
    follow(adapter, reference, stream)
    assert any(0 < kept < reliable for reliable, kept in reference.counts), "the second filter did nothing"
    assert adapter.notes == {"learned from": sum(kept for _, kept in reference.counts), "steps held by Fisher": 0}


def test_eata_with_fisher(
    bench: Bench, stream: TargetStream, store: Store, make_stream: Callable[..., TargetStream]
) -> None:
    source = make_stream(bench.network, "source")
    bench = Bench(bench.network, BATCH, sources={NAME: source})
    margin, distance = margin_of(stream), distance_of(stream, 0.8)
    config = norms.EataConfig(lr=0.002, e_margin=margin, d_margin=distance, fisher_size=24)
    adapter = norms.Eata(bench, NAME, config)
    reference = TorchEata(store, NAME, 0.0005, margin * log(CLASSES), distance)
    order = np.random.default_rng(0).permutation(len(source.target))[:24]
    reference.learn_fisher([pixels(b) for b in source.batches(order, BATCH)])
    assert adapter.fisher is not None and reference.fisher is not None
    rows = len(reference.scale)
    fishers = (adapter.fisher.scale, reference.fisher[:rows]), (adapter.fisher.bias, reference.fisher[rows:])
    for got, want in fishers:
        assert relative_error(got, torch.stack(want).numpy()) < 10 * GRADIENT
    for batch in batches(stream):
        want_logits = reference.step(pixels(batch)).numpy()
        assert relative_error(adapter.step(batch), want_logits) < TRAJECTORY_LOGITS
        for got, ref in zip((adapter.affines.scale, adapter.affines.bias), reference.affines, strict=True):
            assert relative_error(got, ref) < TRAJECTORY_AFFINES
    free = norms.Eata(Bench(bench.network, BATCH), NAME, config)
    for batch in batches(stream):
        free.step(batch)
    moved = [a.affines.plus(a.exported, -1).norm for a in (adapter, free)]
    assert 0 < moved[0] < moved[1], "the Fisher term holds the affines back"


@pytest.mark.parametrize("resets, gaps", [((), ()), ((0, 1), ()), ((), (1, 3))])
def test_sar(
    bench: Bench, stream: TargetStream, store: Store, resets: tuple[int, ...], gaps: tuple[int, ...]
) -> None:
    """Momentum survives the batches that end in a recovery, and moves in those without a reliable sample."""
    margin = margin_of(stream)
    adapter = norms.Sar(bench, NAME, norms.SarConfig(lr=0.08, e_margin=margin))
    rows = 4  # two of the three blocks, as nine of a ViT-B's twelve
    assert adapter.rows == tuple(range(rows))
    reference = TorchSar(store, NAME, 0.02, margin * log(CLASSES), 0.2, rows)

    def arrange(index: int) -> None:
        adapter.recovery = reference.recovery = 5.0 if index in resets else 0.0
        adapter.margin = reference.margin = 0.0 if index in gaps else margin * log(CLASSES)

    follow(adapter, reference, stream, arrange)
    assert adapter.resets == reference.resets == len(resets)


def test_neo(bench: Bench, stream: TargetStream, store: Store) -> None:
    adapter, reference = Neo(bench, NAME, NoConfig()), TorchNeo(store, NAME)
    for batch in batches(stream):
        assert relative_error(adapter.step(batch), reference.step(pixels(batch)).numpy()) < LOGITS_FP32
    frozen = adapter.predict(batches(stream)[0])
    assert np.array_equal(frozen, adapter.predict(batches(stream)[0]))


def test_single_and_zero_shot_never_run_the_network(
    bench: Bench, stream: TargetStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Network.run(bench.network, batches(stream)[0], {})

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network was run")

    monkeypatch.setattr(Graph, "__call__", refuse)
    batch = batches(stream)[0]
    single = Single(bench, NAME, NoConfig())
    assert relative_error(single.step(batch), plain.logits[:, 1]) < LOGITS_FP32
    ZeroShot(bench, "", AdaptConfig()).step(batch)
    Pluto(bench, "", AdaptConfig(sam=None)).step(batch)
    Neo(bench, NAME, NoConfig()).step(batch)


@pytest.mark.parametrize("config", [AdaptConfig(), AdaptConfig(sam=None, top_m=2), AdaptConfig(sam="sample")])
def test_pluto_is_the_runtimes(bench: Bench, stream: TargetStream, config: AdaptConfig) -> None:
    """What is taken from the recording changes nothing."""
    plain = Learner(Network(bench.network.bundle, bench.network.engine), config)
    adapter = Pluto(bench, "", config)
    for batch in batches(stream)[:3]:
        assert relative_error(adapter.step(batch), plain.step(batch)[0].logits) < TRAJECTORY_LOGITS
        assert relative_error(adapter.predict(batch), plain.predict(batch)[0].logits) < TRAJECTORY_LOGITS
    assert adapter.notes["taken back"] == plain.state.rollbacks


def test_recorded_features_are_the_networks(bench: Bench, stream: TargetStream) -> None:
    """Activations are not recorded: who wants them runs the modules."""
    plain = Network(bench.network.bundle, bench.network.engine)
    batch = batches(stream)[1]
    want = plain.run(batch, {}, activations=True)
    recorded, full = bench.network.run(batch, {}), bench.network.run(batch, {}, activations=True)
    assert recorded.activations is None and full.activations is not None
    assert relative_error(recorded.features, want.features) < LOGITS_FP32
    assert relative_error(full.activations, want.activations) < LOGITS_FP32


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(-3, 3, width=32), min_size=CLASSES, max_size=CLASSES), st.integers(0, BATCH - 1))
def test_pull_back_is_autograd_for_any_loss(
    bench: Bench, stream: TargetStream, store: Store, direction: list[float], sample: int
) -> None:
    batch, d = batches(stream)[0], np.array(direction)
    logits = bench.network.logits(batch, NAME, None)[sample].astype(np.float64)
    exported = bench.network.modules[NAME].exported
    got = bench.network.pull_back(batch, sample, NAME, exported, logits, d)
    reference = Base(store, NAME)
    loss = (reference(pixels(batch)[sample : sample + 1])[0] * torch.tensor(direction)).sum()
    gradient = torch.autograd.grad(loss, reference.params)
    rows, size = len(reference.scale), max(float(torch.stack(gradient).abs().max()), 1e-3)
    want = torch.stack(gradient).numpy()
    assert np.abs(np.concatenate([got.scale, got.bias]) - want).max() / size < 5 * GRADIENT
    assert rows == len(got.scale)


def test_entropy_of_the_references_is_the_runtimes(bench: Bench, stream: TargetStream) -> None:
    batch = batches(stream)[0]
    found = bench.network.gradient(batch, np.arange(4), NAME, bench.network.modules[NAME].exported)
    assert relative_error(found.entropy, entropy_of(torch.from_numpy(found.logits)).numpy()) < LOGITS_FP32


def test_settings_in_a_name() -> None:
    (tent, pluto) = choose(["tent:lr=1", "pluto:sam=null,top_m=2"], AdaptConfig(rho=0.1))
    assert tent.config == norms.TentConfig(lr=1.0) and tent.name == "tent:lr=1"
    assert pluto.config == AdaptConfig(rho=0.1, sam=None, top_m=2)
    assert [m.name for m in choose([], AdaptConfig())] == list(known(AdaptConfig()))


@pytest.mark.parametrize(
    "name, what",
    [
        (
            "tennt",
            "no method 'tennt'; there are: single, neo, t3a, lame, tent, eata, sar, foa, cotta, zero-shot, pluto",
        ),
        ("tent:rate=1", "no setting 'rate'; tent has: lr, momentum"),
        ("single:lr=1", "single has: none"),
        ("pluto:rho=-1", "rho: want"),
        ("pluto:sam=fast", "sam: want"),
        ("t3a:filter_k=0", "filter_k: want a whole number of at least 1, got 0"),
        ("lame:neighbours=many", "neighbours: want a whole number"),
        ("lame:affinity=linear", "affinity: want knn or rbf"),
        ("", "no method ''"),
    ],
)
def test_unknown_methods_and_settings(name: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        choose([name], AdaptConfig())


def test_a_method_twice() -> None:
    with pytest.raises(ConfigError, match="twice"):
        choose(["tent", "tent"], AdaptConfig())


def test_cotta_says_what_it_lacks(bench: Bench) -> None:
    cotta = known(AdaptConfig())["cotta"]
    assert "--store" in cotta.missing(bench)
    assert cotta.missing(Bench(bench.network, BATCH, store=Path("store"))) == ""
