"""What passes and gradients hold, and that objectives are exact whatever the micro-batches."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from pluto_edge import Runtime, tolerances
from pluto_edge.errors import ConfigError
from pluto_edge.export.parity import rows_error
from pluto_edge.modules import Kind
from pluto_edge.preprocess import ImageBatch
from pluto_edge.runtime.algorithm.alignment import align
from pluto_edge.runtime.engine.network import Network
from pluto_edge.runtime.engine.objective import Objective
from pluto_edge.store import Store
from pluto_edge.tolerances import relative_error
from pluto_edge.vit.backbone import load_backbone
from pluto_edge.vit.torch_vit import TorchViT

NAME, ROWS, WIDTH, CLASSES = "domain-1", 4, 48, 7


@pytest.fixture
def opened(make_bundle: Callable[..., Path], kind: Kind, frames: np.ndarray) -> tuple[Network, ImageBatch]:
    runtime = Runtime(make_bundle(kind))
    return runtime.learner.network, ImageBatch(frames, runtime.manifest.preprocessing)


class Torch:
    """The same module in torch, on the same images."""

    def __init__(self, store: Store, batch: ImageBatch) -> None:
        vit = TorchViT(load_backbone(store))
        self.affines = [v.clone().requires_grad_() for v in vit.backbone_ln().values()]
        fixed = {k: torch.from_numpy(v) for k, v in store.load_module(NAME).tensors.items() if k != "logit_means"}
        self.module = {**fixed, "ln_scale": self.affines[0], "ln_bias": self.affines[1]}
        self.tokens = vit.embed(torch.from_numpy(batch[:]))[0]
        self.activations = vit.activations(self.tokens, self.module)
        self.log_p = vit.logits(self.tokens, self.module).log_softmax(dim=-1)
        self.entropy = -(self.log_p.exp() * self.log_p).sum(dim=-1)

    def gradients(self, loss: torch.Tensor) -> list[np.ndarray]:
        return [g.numpy() for g in torch.autograd.grad(loss, self.affines, retain_graph=True)]


@pytest.fixture
def reference(make_store: Callable[..., Store], kind: Kind, opened: tuple[Network, ImageBatch]) -> Torch:
    return Torch(make_store(kind), opened[1])


def test_a_pass_has_features_and_if_asked_for_activations(
    opened: tuple[Network, ImageBatch], reference: Torch
) -> None:
    network, batch = opened
    plain, full = network.run(batch, {}), network.run(batch, {}, activations=True)
    assert plain.activations is None and full.activations is not None
    assert full.activations.shape == (len(batch), 3, ROWS, WIDTH)
    np.testing.assert_array_equal(full.features, full.activations[:, :, -1])
    np.testing.assert_array_equal(plain.features, full.features)
    got = full.activations[:, full.names.index(NAME)]
    assert rows_error(got, reference.activations.detach()) < tolerances.ACTIVATIONS_FP32
    module = network.modules[NAME].tensors
    logits = (
        full.features[:, full.names.index(NAME)] @ module["head_weight"].numpy().T + module["head_bias"].numpy()
    )
    assert relative_error(logits, full.of(NAME)) < tolerances.LOGITS_FP32


@pytest.mark.parametrize("size", [1, 2, 100])
def test_the_gradient_graph_gives_the_same_activations(opened: tuple[Network, ImageBatch], size: int) -> None:
    network, batch = opened
    network.graphs.micro_batch = network.graphs.micro_batch_adapt = size
    plain = network.run(batch, {}, activations=True)
    both = network.run(batch, {}, differentiate=NAME, activations=True)
    assert plain.activations is not None and both.activations is not None and both.gradient is not None
    column = both.names.index(NAME)
    np.testing.assert_array_equal(both.gradient.activations, both.activations[:, column])
    for other in range(3):
        error = rows_error(both.activations[:, other], plain.activations[:, other])
        assert error < tolerances.ACTIVATIONS_FP32


def test_passes_that_are_seen_carry_what_they_hold(opened: tuple[Network, ImageBatch]) -> None:
    network, batch = opened
    parts = [batch.part(np.arange(4)), batch.part(np.arange(4, len(batch)))]
    full = network.run(batch, {}, activations=True)
    ran = []
    forward = network.graphs.forward
    network.graphs.forward = lambda inputs: ran.append(1) or forward(inputs)  # type: ignore[assignment, func-returns-value]

    plain = [network.run(p, {}) for p in parts]
    ran.clear()
    again = network.run(batch, {}, seen=plain)
    assert not ran and again.activations is None
    assert relative_error(again.features, full.features) < tolerances.ACTIVATIONS_FP32
    assert network.run(batch, {}, seen=plain, activations=True).activations is not None
    assert ran  # what was seen without activations has to run again

    whole = [network.run(p, {}, activations=True) for p in parts]
    ran.clear()
    again = network.run(batch, {}, seen=whole, activations=True)
    assert not ran and again.activations is not None and full.activations is not None
    assert rows_error(again.activations[:, 0], full.activations[:, 0]) < tolerances.ACTIVATIONS_FP32
    assert network.run(batch, {}, seen=[whole[0], plain[1]]).activations is None


@pytest.mark.parametrize("count", [1, 2, 11])
@pytest.mark.parametrize("size", [1, 3, 100])
def test_an_objective_of_all_terms_is_autograds(
    opened: tuple[Network, ImageBatch], reference: Torch, count: int, size: int
) -> None:
    """Mean entropy of the reliable, alignment of the whole batch, cross-entropy; samples in another order."""
    network, batch = opened
    network.graphs.micro_batch_adapt = size
    rng = np.random.default_rng(count)
    samples = rng.permutation(len(batch))[:count]
    chosen = torch.from_numpy(samples)
    mean, std = rng.standard_normal((ROWS, WIDTH)), 0.1 + rng.random((ROWS, WIDTH))
    target = rng.random((count, CLASSES)).astype(np.float32)

    entropy, a = reference.entropy[chosen], reference.activations[chosen].double()
    threshold = float(entropy.detach().quantile(0.6)) + 1e-6
    reliable = entropy < threshold
    moments = (a.mean(dim=0), mean), (a.var(dim=0, correction=0).clamp_min(1e-30).sqrt(), std)
    aligned = sum((got - torch.from_numpy(want)).square().mean(dim=-1).sum() for got, want in moments)
    crossed = -(torch.from_numpy(target) * reference.log_p[chosen]).sum()
    want = reference.gradients(3 * entropy[reliable].mean() + 20 * aligned + crossed)

    first = network.run(batch.part(samples), {}, [NAME], activations=True)
    assert first.activations is not None
    found = align(first.activations[:, 0], mean, std)
    assert found.loss == pytest.approx(float(aligned.detach()), rel=1e-4)
    objective = Objective(threshold, 3 / int(reliable.sum()), 20 * found.offset, 20 * found.slope, target)
    got = network.gradient(batch, samples, NAME, network.modules[NAME].exported, objective)
    np.testing.assert_array_equal(got.reliable, np.flatnonzero(reliable))
    assert got.loss == pytest.approx(float(entropy[reliable].mean().detach()), rel=1e-4)
    assert relative_error(got.d_affines.scale, want[0]) < tolerances.GRADIENT
    assert relative_error(got.d_affines.bias, want[1]) < tolerances.GRADIENT

    if count == len(batch):  # the same from the pass that gives the logits
        whole = batch.part(samples)
        both = network.run(whole, {}, [NAME], differentiate=NAME, objective=objective).gradient
        assert both is not None
        assert relative_error(both.d_affines.scale, want[0]) < tolerances.GRADIENT


def test_one_target_is_the_gradient_of_cross_entropy(opened: tuple[Network, ImageBatch], reference: Torch) -> None:
    network, batch = opened
    labels = np.arange(len(batch)) % CLASSES
    target = np.eye(CLASSES, dtype=np.float32)[labels] / len(batch)
    want = reference.gradients(torch.nn.functional.nll_loss(reference.log_p, torch.from_numpy(labels)))
    everyone, exported = np.arange(len(batch)), network.modules[NAME].exported
    got = network.gradient(batch, everyone, NAME, exported, Objective(entropy_weight=0.0, target=target))
    assert relative_error(got.d_affines.scale, want[0]) < tolerances.GRADIENT
    assert relative_error(got.d_affines.bias, want[1]) < tolerances.GRADIENT


@pytest.mark.parametrize("term", ["offset", "slope", "target"])
def test_a_mean_of_entropies_stands_alone(term: str) -> None:
    with pytest.raises(ConfigError, match=f"entropy_weight: {term}.*1 / reliable"):
        Objective(**{term: np.zeros((2, 3), np.float32)})


@pytest.mark.parametrize("rows", [1, 4, 22])
def test_a_target_of_other_samples_is_refused(opened: tuple[Network, ImageBatch], rows: int) -> None:
    network, batch = opened
    objective = Objective(entropy_weight=0.0, target=np.zeros((rows, CLASSES), np.float32))
    with pytest.raises(ConfigError, match=f"target: want a row for each of 11 samples, got {rows} rows"):
        network.gradient(batch, np.arange(11), NAME, network.modules[NAME].exported, objective)
    with pytest.raises(ConfigError, match="target: want a row"):
        network.run(batch, {}, differentiate=NAME, objective=objective)
