"""T3A and LAME against torch on arrays, and on a bundle where its graphs give features."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from pluto_edge.config import AdaptConfig
from pluto_edge.evaluate.adapters import Adapter, Bench, features_of, gives_features
from pluto_edge.evaluate.features import Lame, LameConfig, Supports, T3a, T3aConfig, adjusted
from pluto_edge.evaluate.methods import known
from pluto_edge.evaluate.recorded import RecordedNetwork
from pluto_edge.evaluate.targets import TargetBatch, TargetStream
from pluto_edge.runtime.algorithm.selector import softmax
from pluto_edge.store import Store
from pluto_edge.tolerances import LOGITS_FP32, relative_error
from tests.reference.torch_baselines import Base, TorchT3a, torch_lame

CLASSES, WIDTH, BATCH, NAME = 5, 12, 16, "domain-1"

needs_features = pytest.mark.skipif(not gives_features(), reason="the graphs give logits only")


def head(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((CLASSES, WIDTH)), rng.standard_normal(CLASSES)


def clouds(count: int, seed: int, noise: float = 0.8) -> np.ndarray:
    """Features about one centre for each class, all shifted: another domain."""
    rng = np.random.default_rng(seed)
    weight, _ = head()
    return weight[rng.integers(0, CLASSES, count)] + noise * rng.standard_normal((count, WIDTH)) + 0.3


def double(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.asarray(array, np.float64))


@pytest.mark.parametrize("keep", [1, 3, 100])
def test_t3a(keep: int) -> None:
    weight, bias = head()
    supports, reference = Supports(weight, bias, keep), TorchT3a(double(weight), double(bias), keep)
    for seed in range(4):
        features = clouds(BATCH, seed)
        assert relative_error(supports.logits(features), reference.predict(double(features)).numpy()) < 1e-9
        supports.add(features, features @ weight.T + bias)
        want = reference.step(double(features)).numpy()
        assert relative_error(supports.logits(features), want) < 1e-9
    assert np.bincount(supports.labels).max() <= keep


def test_t3a_starts_with_the_heads_directions() -> None:
    """Its weights, where the head tells them apart: the logits are cosines times the features' lengths."""
    weight = np.eye(CLASSES, WIDTH) * 4
    features = clouds(BATCH, 0)
    found = Supports(weight, np.zeros(CLASSES), 100).logits(features)
    np.testing.assert_allclose(found, features[:, :CLASSES])


def test_a_class_that_the_head_never_says_has_no_support() -> None:
    weight, bias = head()
    bias = np.array([0, 0, 0, 0, -1e3])
    supports = Supports(weight, bias, 100)
    assert 4 not in supports.labels and (supports.logits(clouds(3, 0))[:, 4] == 0).all()


@pytest.mark.parametrize("affinity", ["knn", "rbf"])
@pytest.mark.parametrize("count, neighbours", [(40, 5), (40, 2), (4, 5), (2, 5)])
def test_lame(affinity: str, count: int, neighbours: int) -> None:
    weight, bias = head()
    features = clouds(count, 1)
    logits = features @ weight.T + bias
    config = LameConfig(neighbours, affinity)  # type: ignore[arg-type]
    got = softmax(adjusted(logits, features, config))
    want = torch_lame(double(logits), double(features), neighbours, affinity).numpy()
    # the published code stops when the energy stands still to 1e-8, the reference goes on
    np.testing.assert_allclose(got, want, atol=2e-3)
    assert not np.allclose(got, softmax(logits), atol=1e-2), "nothing was corrected, so nothing was tested"


@pytest.mark.parametrize("affinity", ["knn", "rbf"])
def test_lame_alone_and_with_twins(affinity: str) -> None:
    weight, bias = head()
    features = np.repeat(clouds(1, 2), 6, axis=0)
    logits = features @ weight.T + bias
    config = LameConfig(affinity=affinity)  # type: ignore[arg-type]
    for part in (slice(0, 1), slice(0, 6)):
        found = adjusted(logits[part], features[part], config)
        assert np.isfinite(found).all() and (found.argmax(axis=1) == logits[0].argmax()).all()
    assert np.allclose(softmax(adjusted(logits[:1], features[:1], LameConfig())), softmax(logits[:1]), atol=1e-8)


def test_lame_makes_neighbours_agree() -> None:
    """One unsure image among five sure ones that look the same."""
    features = np.ones((6, WIDTH)) + 0.01 * np.random.default_rng(0).standard_normal((6, WIDTH))
    logits = np.tile([4.0, 0.0, 0.0, 0.0, 0.0], (6, 1))
    logits[3] = [0.0, 0.5, 0.0, 0.0, 0.0]
    assert adjusted(logits, features, LameConfig())[3].argmax() == 0


def test_without_features_they_are_skipped(
    make_network: Callable[..., RecordedNetwork], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(make_network("adapter"), BATCH)
    for gives, said in ((False, "the graphs give logits only"), (True, "")):
        monkeypatch.setattr("pluto_edge.evaluate.methods.gives_features", lambda gives=gives: gives)
        for name in ("t3a", "lame"):
            reason = known(AdaptConfig())[name].missing(bench)
            assert said in reason and bool(reason) == bool(said)


class Fixture:
    """A stream's batches with features as torch has them."""

    def __init__(self, network: RecordedNetwork, stream: TargetStream, store: Store) -> None:
        self.base, self.bench = Base(store, NAME), Bench(network, BATCH)
        self.batches = list(stream.batches(np.random.default_rng(3).permutation(len(stream.target)), BATCH))

    @torch.no_grad()
    def features(self, batch: TargetBatch) -> torch.Tensor:
        vit = self.base.vit
        return vit.features(vit.embed(torch.from_numpy(batch[0 : len(batch)]))[0], self.base.module)

    @property
    def head(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.base.module["head_weight"], self.base.module["head_bias"]


@pytest.fixture
def real(
    make_network: Callable[..., RecordedNetwork],
    make_stream: Callable[..., TargetStream],
    make_store: Callable[..., Store],
) -> Fixture:
    network = make_network("adapter")
    return Fixture(network, make_stream(network, "noise"), make_store("adapter"))


@pytest.fixture
def adapted(real: Fixture, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Adapter]:
    """Adapters on the real network; where its graphs give no features, torch's stand in."""

    def make(kind: type, config: object) -> Adapter:
        if not gives_features():
            stand_in = lambda network, batch, module: real.features(batch).numpy()  # noqa: E731
            monkeypatch.setattr("pluto_edge.evaluate.features.features_of", stand_in)
        return kind(real.bench, NAME, config)  # type: ignore[no-any-return]

    return make


def test_t3a_on_a_stream(real: Fixture, adapted: Callable[..., Adapter]) -> None:
    adapter, reference = adapted(T3a, T3aConfig(filter_k=2)), TorchT3a(*real.head, keep=2)
    for batch in real.batches:
        want = reference.step(real.features(batch)).numpy()
        assert relative_error(adapter.step(batch), want) < LOGITS_FP32
    frozen = adapter.predict(real.batches[0])
    assert np.array_equal(frozen, adapter.predict(real.batches[0])), "a prediction adds no support"


def test_lame_on_a_stream(real: Fixture, adapted: Callable[..., Adapter]) -> None:
    adapter = adapted(Lame, LameConfig())
    for batch in real.batches:
        logits = real.bench.network.logits(batch, NAME, None)
        want = adjusted(logits, real.features(batch).numpy(), LameConfig())
        assert relative_error(adapter.step(batch), want) < LOGITS_FP32
        assert np.array_equal(adapter.step(batch), adapter.predict(batch)), "nothing is kept"


@needs_features
def test_the_graphs_features_are_torchs(real: Fixture) -> None:
    for batch in real.batches:
        got = features_of(real.bench.network, batch, NAME)
        assert relative_error(got, real.features(batch).numpy()) < LOGITS_FP32
