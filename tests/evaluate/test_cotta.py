"""CoTTA against a second implementation, with the same views and the same weights restored."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from pluto_edge.errors import ConfigError
from pluto_edge.evaluate.adapters import Bench, CottaConfig
from pluto_edge.evaluate.cotta import Cotta, augment
from pluto_edge.evaluate.recorded import RecordedNetwork
from pluto_edge.evaluate.targets import TargetBatch, TargetStream
from pluto_edge.store import Store
from pluto_edge.tolerances import TRAJECTORY_AFFINES, TRAJECTORY_LOGITS, relative_error
from tests.conftest import tiny_store
from tests.reference.torch_baselines import TorchCotta

NAME, BATCH = "domain-2", 10


@pytest.fixture
def bench(make_network: Callable[..., RecordedNetwork], make_store: Callable[..., Store], kind: str) -> Bench:
    return Bench(make_network(kind), BATCH, seed=5, store=make_store(kind).path)


@pytest.fixture
def batches(bench: Bench, make_stream: Callable[..., TargetStream]) -> list[TargetBatch]:
    stream = make_stream(bench.network, "noise")
    return list(stream.batches(np.arange(len(stream.target)), BATCH))[:3]


def test_cotta(bench: Bench, batches: list[TargetBatch], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two batches averaged over views, one not. (Before the first view student and teacher are the same, and
    nothing is learned.)"""
    config = CottaConfig(lr=0.05, teacher=0.9, restore=0.2, views=2)
    adapter, reference = Cotta(bench, NAME, config), TorchCotta(Store(bench.store), NAME, 0.05, 0.9)
    start = {k: v.detach().clone() for k, v in adapter.student.weights.items()}
    dice, noise = torch.Generator().manual_seed(5), torch.Generator().manual_seed(1)
    for confidence, batch in zip((1.1, 0.0, 1.1), batches, strict=True):
        adapter.config = replace(config, confidence=confidence)
        pixels = torch.from_numpy(batch[0 : len(batch)])
        views = [pixels + 0.1 * torch.randn(pixels.shape, generator=noise) for _ in range(2)]
        waiting = list(views)
        monkeypatch.setattr(adapter, "_view", lambda _, waiting=waiting: waiting.pop(0))
        masks = {k: torch.rand(v.shape, generator=dice) < 0.2 for k, v in adapter.student.weights.items()}
        want = reference.step(pixels, views if confidence > 1 else [pixels], masks)
        assert relative_error(adapter.step(batch), want.numpy()) < TRAJECTORY_LOGITS
        for which, model in ((0, adapter.student), (1, adapter.teacher), (2, adapter.anchor)):
            expected = reference.tensors(which)
            assert expected.keys() == model.weights.keys()
            for key, value in model.weights.items():
                assert relative_error(value.detach(), expected[key].detach()) < TRAJECTORY_AFFINES, (which, key)
    moved = {k for k, v in adapter.student.weights.items() if not torch.equal(v, start[k])}
    assert "head_weight" in moved and "backbone.blocks.0.attn.qkv.weight" in moved
    assert "backbone.patch_embed.proj.weight" in moved
    assert adapter.notes == {"batches averaged over views": 2}


def test_predicting_changes_nothing(bench: Bench, batches: list[TargetBatch]) -> None:
    adapter = Cotta(bench, NAME, CottaConfig(confidence=0.0))
    exported = bench.network.logits(batches[0], NAME, None)
    assert relative_error(adapter.predict(batches[0]), exported) < TRAJECTORY_LOGITS
    adapter.step(batches[1])
    assert np.array_equal(adapter.predict(batches[0]), adapter.predict(batches[0]))


def test_the_seed_decides(bench: Bench, batches: list[TargetBatch]) -> None:
    config = CottaConfig(confidence=1.1, views=2)
    runs = []
    for seed in (5, 5, 6):
        adapter = Cotta(replace(bench, seed=seed), NAME, config)
        runs.append(np.concatenate([adapter.step(b) for b in batches]))
    assert np.array_equal(runs[0], runs[1]) and not np.array_equal(runs[0], runs[2])


def test_another_store_is_refused(bench: Bench, batches: list[TargetBatch], tmp_path: Path, kind: str) -> None:
    other = tiny_store(tmp_path / "other", kind, seed=9)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="--store"):
        Cotta(replace(bench, store=other.path), NAME, CottaConfig()).step(batches[0])
    wrong = tiny_store(tmp_path / "wrong", "adapter" if kind == "vpt" else "vpt")
    with pytest.raises(ConfigError, match="not the store"):
        Cotta(replace(bench, store=wrong.path), NAME, CottaConfig())


def test_neutral_draws_leave_an_image_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.rand(4, 3, 40, 32, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(torch, "rand", lambda *_, **__: torch.tensor([0.5]))
    out = augment(images, torch.Generator().manual_seed(0))
    assert float((out - images).abs().max()) < 0.03  # the noise, and next to no blur
    monkeypatch.setattr(torch, "rand", lambda *_, **__: torch.tensor([0.499999]))
    out = augment(images, torch.Generator().manual_seed(0))
    assert float((out.flip(-1) - images).abs().max()) < 0.03
    out = augment(images, torch.Generator().manual_seed(0), mirror=False)
    assert float((out - images).abs().max()) < 0.03


@pytest.mark.parametrize("seed", range(8))
def test_views_are_images(seed: int) -> None:
    images = torch.rand(2, 3, 32, 40, generator=torch.Generator().manual_seed(seed))
    out = augment(images, torch.Generator().manual_seed(seed))
    assert out.shape == images.shape and float(out.min()) >= 0 and float(out.max()) <= 1
    assert float((out - images).abs().mean()) > 0.02
