"""What is computed once: every image decoded once, nothing reused that is of other images or weights."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from pluto_edge.errors import ConfigError, StoreError
from pluto_edge.store import Store
from pluto_edge.train import data, trainer
from pluto_edge.train.cache import WORK, Cache
from pluto_edge.train.data import Domain, Sample, scan
from pluto_edge.train.recipe import Recipe, SelectorRecipe
from pluto_edge.train.trainer import TrainReport, run_train
from pluto_edge.vit.backbone import load_backbone
from pluto_edge.vit.torch_vit import TorchViT
from tests.shapes import write_domain
from tests.train.conftest import new_store


@pytest.fixture
def store(weights: Path, tmp_path: Path) -> Store:
    return new_store(tmp_path / "store", weights, "vpt")


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The images that were decoded, in order."""
    seen: list[str] = []
    original: Callable[[Path], object] = data.read_image

    def read(path: Path) -> object:
        seen.append(str(path))
        return original(path)

    monkeypatch.setattr(data, "read_image", read)
    return seen


def train(store: Path, photos: Path, **more: object) -> TrainReport:
    recipe, selector = Recipe(epochs=1, batch=8), SelectorRecipe(epochs=2)
    return run_train(Store(store), scan(photos), recipe=recipe, selector=selector, **more)  # type: ignore[arg-type]


def images(domain: Domain) -> list[Sample]:
    return [*domain.train, *domain.val]


def test_tokens_are_the_backbones(store: Store, photos: Path) -> None:
    domain = scan(photos)[0]
    vit, cache = TorchViT(load_backbone(store)), Cache(store, domain)
    assert not cache.has_tokens
    cache.fill(vit)
    assert cache.has_tokens
    for part in ("train", "val"):
        samples, found = getattr(domain, part), cache.embedded(part)
        pixels = np.stack([store.config.preprocessing(domain.read(s)) for s in samples])
        with torch.no_grad():
            tokens, x_hat = vit.embed(torch.from_numpy(pixels))
        torch.testing.assert_close(found.tokens, tokens)
        torch.testing.assert_close(found.x_hat, x_hat)
        assert found.labels.tolist() == [s.label for s in samples]


def test_every_image_is_decoded_once(store: Store, photos: Path, decoded: list[str]) -> None:
    train(store.path, photos)
    assert sorted(decoded) == sorted(str(s.path) for d in scan(photos) for s in images(d))
    assert not (store.path / WORK / "tokens").exists() and not (store.path / WORK / "order.json").exists()
    decoded.clear()
    train(store.path, photos)  # all is there: only the selector is trained again
    assert decoded == []


def test_x_hat_and_labels_are_stored_once_a_domain(store: Store, photos: Path) -> None:
    train(store.path, photos)
    work = store.path / WORK
    assert {p.name for p in (work / "features").iterdir()} == {"dawn.safetensors", "noon.safetensors"}
    for file in (work / "logits").iterdir():
        parts = {"val"} if file.name.startswith("generalist@") else {"train", "val"}
        assert set(load_file(file)) == parts
    assert len(list((work / "logits").iterdir())) == 6


def test_a_stopped_run_decodes_nothing_again(
    store: Store, photos: Path, decoded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = trainer.train_one

    def stop(path: Path, domains: tuple[Domain, ...], *more: object) -> str:
        if domains[0].name == "noon":
            raise KeyboardInterrupt
        return original(path, domains, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(trainer, "train_one", stop)
    with pytest.raises(KeyboardInterrupt):
        train(store.path, photos)
    assert Store(store.path).names == ("dawn",)
    monkeypatch.setattr(trainer, "train_one", original)
    decoded.clear()
    train(store.path, photos)
    assert decoded == [] and Store(store.path).names == ("dawn", "noon", "generalist")


@pytest.mark.parametrize("change", ["touched", "added", "split"])
def test_other_images_are_computed_again(store: Store, photos: Path, decoded: list[str], change: str) -> None:
    before = train(store.path, photos)
    decoded.clear()
    if change == "touched":
        os.utime(photos / "dawn/disc/0.png", ns=(1, 1))
    elif change == "added":
        (photos / "dawn/disc/new.png").write_bytes((photos / "dawn/disc/0.png").read_bytes())
    domains = scan(photos, seed=1 if change == "split" else 0)
    with pytest.raises(StoreError, match="no logits of these images of dawn"):
        Cache(Store(store.path), domains[0]).source("train", ["dawn"])
    recipe, selector = Recipe(epochs=1, batch=8), SelectorRecipe(epochs=2)
    after = run_train(Store(store.path), domains, recipe=recipe, selector=selector)
    again = {"dawn", "noon"} if change == "split" else {"dawn"}
    assert {Path(p).parts[-3] for p in decoded} == again
    assert set(after.matrix) == set(before.matrix)


def test_logits_of_other_weights_are_computed_again(store: Store, photos: Path) -> None:
    train(store.path, photos)
    store = Store(store.path)
    cache = Cache(store, scan(photos)[0])
    assert cache.absent(store.names) == []
    module = store.load_module("noon")
    module.tensors["head_bias"] = module.tensors["head_bias"] + 1
    store.save_module(module, store.module_config("noon"))
    assert cache.absent(store.names) == ["noon"]


def test_the_selector_may_see_some_images_only(store: Store, photos: Path) -> None:
    train(store.path, photos)
    store = Store(store.path)
    vit, drawn = TorchViT(load_backbone(store)), []
    for domain in scan(photos)[:2]:
        whole, some = Cache(store, domain).source("train", store.specialists), Cache(store, domain, 5)
        assert some.absent(store.specialists) == list(store.specialists)
        some.fill(vit)
        some.add_logits(vit, store.specialists)
        found = some.source("train", store.specialists)
        index = [int((whole.x_hat == x).all(dim=1).nonzero()[0]) for x in found.x_hat]
        assert len(set(index)) == 5
        torch.testing.assert_close(found.logits, whole.logits[index])
        assert found.labels.tolist() == whole.labels[index].tolist()
        drawn.append(index)
    assert drawn[0] != drawn[1], "corruptions of the same images: each domain draws others"


def test_unreadable_images_are_left_out_by_name(store: Store, photos: Path) -> None:
    bad = photos / "dawn/disc/broken.png"
    bad.write_bytes(b"not an image")
    half = photos / "dawn/disc/half.png"
    half.write_bytes((photos / "dawn/disc/0.png").read_bytes()[:200])
    cache = Cache(store, scan(photos)[0])
    cache.fill(TorchViT(load_backbone(store)))
    assert set(cache.unreadable) == {str(bad), str(half)}
    assert len(cache.kept.train) + len(cache.kept.val) == 30
    assert [len(cache.embedded(p)) for p in ("train", "val")] == [len(cache.kept.train), len(cache.kept.val)]


def test_a_class_of_unreadable_images_is_refused(store: Store, photos: Path) -> None:
    for file in (photos / "dawn/disc").iterdir():
        file.write_bytes(b"not an image")
    cache = Cache(store, scan(photos)[0])
    with pytest.raises(ConfigError, match=r"class 'disc' has no training image that can be read; .*/dawn/disc/"):
        cache.fill(TorchViT(load_backbone(store)))
    assert not cache.has_tokens and list((store.path / WORK / "tokens").iterdir()) == []


def test_a_checkpoint_of_other_images_is_not_gone_on_from(store: Store, photos: Path, tmp_path: Path) -> None:
    vit = TorchViT(load_backbone(store))
    results = []
    for seed in (0, 1):
        cache = Cache(store, scan(photos, seed=seed)[0])
        cache.fill(vit)
        parts = cache.embedded("train"), cache.embedded("val")
        file = tmp_path / "checkpoint"
        results.append(trainer.train_module(vit, store.config.dims, *parts, Recipe(epochs=2, batch=8), file))
    fresh = trainer.train_module(vit, store.config.dims, *parts, Recipe(epochs=2, batch=8))
    torch.testing.assert_close(results[1].module, fresh.module, rtol=0, atol=0)


def test_a_checkpoint_of_an_earlier_optimizer_is_not_gone_on_from(
    store: Store, photos: Path, tmp_path: Path
) -> None:
    """Its memory would be none that AdamW knows."""
    vit = TorchViT(load_backbone(store))
    cache = Cache(store, scan(photos)[0])
    cache.fill(vit)
    parts = cache.embedded("train"), cache.embedded("val")
    file = tmp_path / "checkpoint"
    fresh = trainer.train_module(vit, store.config.dims, *parts, Recipe(epochs=2, batch=8), file)
    with safe_open(file, framework="pt") as opened:
        counters = opened.metadata()
    del counters["optimizer"]
    broken = {k: v + 1 if k.startswith("now.") else v for k, v in load_file(file).items()}
    save_file(broken, file, {**counters, "epoch": "1"})
    again = trainer.train_module(vit, store.config.dims, *parts, Recipe(epochs=2, batch=8), file)
    torch.testing.assert_close(again.module, fresh.module, rtol=0, atol=0)


def test_order_survives_a_stop(store: Store, photos: Path) -> None:
    """noon finished before dawn, then the run was stopped: the order is still that of the folders."""
    order = trainer._Order(store, ["dawn", "noon"])
    order.list("noon")
    assert store.names == ("noon",)
    again = trainer._Order(Store(store.path), ["dawn"])
    again.list("dawn")
    assert Store(store.path).names == ("dawn", "noon")
    again.forget()
    write_domain(photos, "night")
    last = trainer._Order(Store(store.path), ["night"])
    last.list("night")
    assert Store(store.path).names == ("dawn", "noon", "night")
