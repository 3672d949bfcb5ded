"""The module that learns from all domains: when it is trained, on what, and that it goes on where it was."""

import json
from pathlib import Path

import pytest
import torch

from pluto_edge.cli import main
from pluto_edge.store import Store
from pluto_edge.train import trainer
from pluto_edge.train.cache import Cache
from pluto_edge.train.data import scan
from pluto_edge.train.features import Embedded, accuracy
from pluto_edge.train.home import SHARES
from pluto_edge.train.module import train_module
from pluto_edge.train.pool import Pool
from pluto_edge.train.recipe import Recipe, SelectorRecipe
from pluto_edge.train.trainer import TrainReport, run_train
from pluto_edge.vit.backbone import load_backbone
from pluto_edge.vit.torch_vit import TorchViT
from tests.shapes import write_domain
from tests.train.conftest import new_store, stopped_in_its_second_epoch

RECIPE = Recipe(epochs=2, batch=8)


class Lines:
    """A `Progress` that keeps what was said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def step(self, task: str, done: int, total: int, note: str = "") -> None: ...

    def say(self, line: str) -> None:
        self.said.append(line)


@pytest.fixture
def store(weights: Path, tmp_path: Path) -> Store:
    return new_store(tmp_path / "store", weights)


def train(store: Store, photos: Path, **more: object) -> TrainReport:
    selector = SelectorRecipe(epochs=2)
    return run_train(Store(store.path), scan(photos), recipe=RECIPE, selector=selector, **more)  # type: ignore[arg-type]


def test_it_is_the_module_of_all_images_together(store: Store, photos: Path) -> None:
    report = train(store, photos)
    store = Store(store.path)
    assert (store.specialists, store.generalist) == (("dawn", "noon"), "generalist")
    config = store.module_config("generalist")
    assert config.domains == ("dawn", "noon") and config.metrics["images"] == 48
    assert set(config.homes) == {"dawn", "noon"} and set(config.homes.values()) <= set(SHARES)
    vit, domains = TorchViT(load_backbone(store)), scan(photos)
    parts: dict[str, list[Embedded]] = {"train": [], "val": []}
    for cache in (Cache(store, d) for d in domains):
        cache.fill(vit)
        for part, found in parts.items():
            found.append(cache.embedded(part))
    joined = {
        part: Embedded(*(torch.cat([getattr(f, n) for f in found]) for n in ("tokens", "x_hat", "labels")))
        for part, found in parts.items()
    }
    alone = train_module(vit, store.config.dims, joined["train"], joined["val"], RECIPE)
    tensors = store.load_module("generalist").tensors
    for name, value in alone.module.items():
        torch.testing.assert_close(torch.from_numpy(tensors[name]), value, rtol=0, atol=0)
    whole = {**vit.backbone_ln(), **alone.module}
    for domain, val in zip(domains, parts["val"], strict=True):
        with torch.no_grad():
            found = accuracy(vit.logits(val.tokens, whole), val.labels)
        assert report.matrix["generalist"][domain.name] == pytest.approx(found)
    text = (store.path / "README.md").read_text()
    assert f"generalist {report.generalist:.3f}" in text
    assert not (store.path / ".work/tokens").exists() or not list((store.path / ".work/tokens").glob("generalist*"))


def test_none_where_it_is_not_wanted_or_there_is_one_domain(
    store: Store, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["train", "--data", str(photos), "--into", str(store.path), "--epochs", "1", "--batch", "8"]
    assert main([*common, "--only", "dawn", "--json"]) == 0
    assert Store(store.path).names == ("dawn",)
    assert json.loads(capsys.readouterr().out)["generalist"] is None
    assert main([*common, "--no-generalist"]) == 0
    assert Store(store.path).names == ("dawn", "noon") and Store(store.path).generalist is None
    assert "generalist" not in capsys.readouterr().out
    before = (store.path / "selector.safetensors").read_bytes()
    assert main([*common, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert Store(store.path).names == ("dawn", "noon", "generalist") and report["generalist"] > 0
    assert (store.path / "selector.safetensors").read_bytes() == before, "the selector is of specialists only"


def test_it_is_trained_anew_when_a_domain_is_added(store: Store, photos: Path) -> None:
    train(store, photos)
    first = store.module_file("generalist").read_bytes()
    again = Lines()
    train(store, photos, progress=again)
    assert again.said == [] and store.module_file("generalist").read_bytes() == first
    write_domain(photos, "night")
    train(store, photos, generalist=False)
    assert store.module_file("generalist").read_bytes() == first
    lines = Lines()
    train(store, photos, progress=lines)
    assert lines.said == ["generalist: trained anew, for it has not seen night", "generalist: done"]
    assert store.module_file("generalist").read_bytes() != first
    assert Store(store.path).names == ("dawn", "noon", "night", "generalist")
    config = Store(store.path).module_config("generalist")
    assert config.domains == ("dawn", "night", "noon") and set(config.homes) == set(config.domains)


def test_without_all_images_it_is_left_as_it_is(store: Store, photos: Path, tmp_path: Path) -> None:
    train(store, photos)
    first, lines = store.module_file("generalist").read_bytes(), Lines()
    write_domain(tmp_path / "more", "night")
    train(store, tmp_path / "more", progress=lines)
    assert Store(store.path).names == ("dawn", "noon", "night", "generalist")
    assert store.module_file("generalist").read_bytes() == first
    assert lines.said[0].startswith("generalist: left as it is, without night; it wants the images of all domains")


def test_it_goes_on_to_the_same_bytes(
    store: Store, photos: Path, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped in its second epoch, when the specialists are done."""
    with monkeypatch.context() as patched:
        patched.setattr(trainer, "train_module", stopped_in_its_second_epoch(trainer.train_module))
        with pytest.raises(KeyboardInterrupt):
            train(store, photos)
    assert Store(store.path).names == ("dawn", "noon")
    pool = Pool(Store(store.path), tuple(scan(photos)))
    assert pool.checkpoint.is_file()
    train(store, photos)
    assert not pool.checkpoint.exists()
    whole = new_store(tmp_path / "whole", weights)
    train(whole, photos)
    for name in ("dawn", "noon", "generalist"):
        assert store.module_file(name).read_bytes() == whole.module_file(name).read_bytes()
