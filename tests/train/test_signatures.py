"""Signatures: in every module's file, of the right images, and added to stores that have none."""

import shutil
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from pluto_edge.cli import main
from pluto_edge.errors import StoreError
from pluto_edge.signature import FLOORS, PREFIX, Covariance, Signature
from pluto_edge.store import Store
from pluto_edge.train.cache import Cache
from pluto_edge.train.data import Domain, Sample, scan
from pluto_edge.train.signature import make_signature
from pluto_edge.vit.backbone import load_backbone
from pluto_edge.vit.torch_vit import TorchViT
from tests.reference.covariance import dense
from tests.shapes import ARCHITECTURE, SIZE, write_domain


@pytest.fixture(scope="module")
def made(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`photos` of two domains and the `store` that was trained on them."""
    place = tmp_path_factory.mktemp("signatures")
    for name in ("dawn", "noon"):
        write_domain(place / "photos", name)
    where = ["--data", str(place / "photos"), "--out", str(place / "store"), "--bottleneck", "4"]
    backbone = ["--backbone", ARCHITECTURE, "--weights", str(weights), "--image-size", str(SIZE)]
    assert main(["train", *where, *backbone, "--epochs", "2", "--batch", "8", "--quiet"]) == 0
    return place


@pytest.fixture
def photos(made: Path) -> Path:
    """Tests only read them."""
    return made / "photos"


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Store:
    """A copy of its own for every test, with what the training kept."""
    shutil.copytree(made / "store", tmp_path / "store")
    return Store(tmp_path / "store")


def pixels(store: Store, domain: Domain, samples: tuple[Sample, ...]) -> torch.Tensor:
    return torch.from_numpy(np.stack([store.config.preprocessing(domain.read(s)) for s in samples]))


def images(store: Store, domains: list[Domain], part: str) -> tuple[torch.Tensor, NDArray[np.int64]]:
    found = torch.cat([pixels(store, d, getattr(d, part)) for d in domains])
    return found, np.array([s.label for d in domains for s in getattr(d, part)])


@pytest.mark.parametrize(("name", "sources"), [("dawn", {"dawn"}), ("generalist", {"dawn", "noon"})])
def test_it_is_of_the_source(store: Store, photos: Path, name: str, sources: set[str]) -> None:
    """Computed here from the images themselves, with nothing of the trainer's."""
    module = store.load_module(name)
    found = module.signature(StoreError)
    assert found is not None
    domains = [d for d in scan(photos) if d.name in sources]
    vit = TorchViT(load_backbone(store))
    params = {k: torch.from_numpy(v) for k, v in module.tensors.items() if not k.startswith(PREFIX)}
    val, labels = images(store, domains, "val")
    with torch.no_grad():
        tokens, seen = vit.embed(val)
        rows = vit.activations(tokens, {**vit.backbone_ln(), **params}).numpy().astype(np.float64)
        looks = torch.cat([vit.embed(images(store, domains, "train")[0])[1], seen]).numpy()
    means = np.stack([rows[labels == k, -1].mean(axis=0) for k in range(3)])
    within = Covariance.of(rows[:, -1] - means[labels], 16, 0.2)
    centred = looks - looks.mean(axis=0)
    half = {"rtol": 2e-3, "atol": 2e-3}  # the file's precision
    np.testing.assert_allclose(found.class_means, means, **half)
    np.testing.assert_allclose(found.activation_mean, rows.mean(axis=0), **half)
    np.testing.assert_allclose(found.activation_std, rows.std(axis=0), **half)
    np.testing.assert_allclose(found.look_mean, looks.mean(axis=0), **half)
    np.testing.assert_allclose(dense(found.features), dense(within), **half)
    spreads = [dense(Covariance.of(centred, 32, floor)) for floor in FLOORS]  # which one is chosen below
    assert min(np.abs(dense(found.looks) - s).max() for s in spreads) < 5e-3
    assert found.images == len(labels)
    assert found.temperature > 0 and found.sharpness > 0
    stored = load_file(store.module_file(name))
    assert {stored[PREFIX + f.name].dtype for f in fields(Signature) if PREFIX + f.name in stored} == {
        np.dtype(np.float16)
    }
    assert "logit_means" not in stored


def folders(store: Store) -> dict[str, bytes]:
    return {str(p.relative_to(store.path)): p.read_bytes() for p in sorted(store.path.rglob("modules/*/*"))}


def strip(store: Store, *names: str) -> None:
    """As an earlier version wrote the modules."""
    for name in names:
        file = store.module_file(name)
        kept = {k: v for k, v in load_file(file).items() if not k.startswith(PREFIX)}
        save_file({**kept, "logit_means": np.zeros((2, 3), np.float32)}, file)


def test_an_older_store_gets_the_same_bytes(store: Store, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = folders(store)
    strip(store, *store.names)
    assert folders(store) != before
    assert main(["signatures", str(store.path), "--data", str(photos), "--quiet"]) == 0
    assert folders(store) == before
    assert not list((store.path / ".work/tokens").iterdir())
    assert main(["signatures", str(store.path), "--data", str(photos)]) == 0
    assert "0 signatures added, 3 modules had one" in capsys.readouterr().out


def test_logits_stay_valid(store: Store, photos: Path) -> None:
    """Those that were computed with the same weights before the signature was there."""
    strip(store, "noon")
    (dawn, noon) = (Cache(store, d) for d in scan(photos))
    assert dawn.absent(store.names) == noon.absent(store.names) == ["noon"]
    for cache in (dawn, noon):  # as if they had been computed with the older file
        cache.fill(TorchViT(load_backbone(store)))
        cache.add_logits(TorchViT(load_backbone(store)), ["noon"])
    assert main(["signatures", str(store.path), "--data", str(photos), "--quiet"]) == 0
    assert dawn.absent(store.names) == noon.absent(store.names) == []


def test_only_what_has_none_unless_forced(store: Store, photos: Path) -> None:
    before = folders(store)
    odd = load_file(store.module_file("dawn"))
    odd[PREFIX + "look_mean"] = odd[PREFIX + "look_mean"] + 1
    save_file(odd, store.module_file("dawn"))
    strip(store, "noon")
    assert main(["signatures", str(store.path), "--data", str(photos), "--quiet"]) == 0
    different = {k for k, v in folders(store).items() if v != before[k]}
    assert different == {"modules/dawn/adapter_model.safetensors"}
    assert main(["signatures", str(store.path), "--data", str(photos), "--quiet", "--force"]) == 0
    assert folders(store) == before


def test_wrong_images_are_refused_before_anything_is_written(
    store: Store, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    strip(store, *store.names)
    before = folders(store)
    assert main(["signatures", str(store.path), "--data", str(photos), "--seed", "1", "--quiet"]) == 2
    assert "are not those of its training; give --per-class, --val-share and --seed" in capsys.readouterr().err
    write_domain(tmp_path / "other", "dawn")
    assert main(["signatures", str(store.path), "--data", str(tmp_path / "other"), "--quiet"]) == 2
    assert "module 'noon': there is no folder 'noon' among the domains (dawn)" in capsys.readouterr().err
    assert folders(store) == before


def test_the_floor_makes_held_out_images_most_likely() -> None:
    """Few images of many channels want a smooth covariance, many want their own."""
    rng = np.random.default_rng(0)
    mix = rng.standard_normal((40, 40))
    few, many = (rng.standard_normal((count, 40)) @ mix for count in (30, 3000))
    rows = rng.standard_normal((20, 2, 40))
    labels = np.arange(20) % 3

    def share(looks: np.ndarray) -> float:
        """What every direction gets, as a share of the mean variance."""
        found = make_signature(rows, labels, np.zeros((3, 40)), np.zeros(3), looks)
        return found.look_noise / float(looks.var(axis=0).mean())

    assert share(few) > 3 * share(many)
