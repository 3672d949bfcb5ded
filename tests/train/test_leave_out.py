"""A store without one of its domains: nothing of it is left, and nothing is trained twice."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from pluto_edge.errors import ConfigError, StoreError
from pluto_edge.export.exporter import run_export
from pluto_edge.seen import hashes_of
from pluto_edge.store import Store
from pluto_edge.train import leave_out as library
from pluto_edge.train.data import Domain, scan
from pluto_edge.train.leave_out import leave_out
from pluto_edge.train.recipe import Recipe, SelectorRecipe
from pluto_edge.train.trainer import run_train
from tests.shapes import write_domain
from tests.train.conftest import new_store, stopped_in_its_second_epoch

RECIPE, SELECTOR = Recipe(epochs=2, batch=8), SelectorRecipe(epochs=2)


def trained(path: Path, weights: Path, domains: list[Domain]) -> Store:
    store = new_store(path, weights)
    run_train(store, domains, recipe=RECIPE, selector=SELECTOR)
    return Store(path)


@pytest.fixture(scope="module")
def made(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`photos` of three domains and the `store` that was trained on them."""
    place = tmp_path_factory.mktemp("leave-out")
    for name in ("dawn", "noon", "night"):
        write_domain(place / "photos", name)
    trained(place / "store", weights, scan(place / "photos"))
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


def test_it_is_the_store_that_never_knew_the_target(
    store: Store, photos: Path, weights: Path, tmp_path: Path
) -> None:
    """The same bytes as a store that was trained without it, and no file that names it."""
    without = leave_out(store, scan(photos), "night", tmp_path / "without", RECIPE, SELECTOR)
    assert without.names == ("dawn", "noon", "generalist")
    assert (without.specialists, without.generalist) == (("dawn", "noon"), "generalist")
    sources = [d for d in scan(photos) if d.name != "night"]
    fresh = trained(tmp_path / "fresh", weights, sources)
    for file in ("store.json", "selector.safetensors", "seen.safetensors", "backbone.safetensors"):
        assert (without.path / file).read_bytes() == (fresh.path / file).read_bytes(), file
    for name in without.names:
        for file in sorted((without.path / "modules" / name).iterdir()):
            assert file.read_bytes() == (fresh.path / "modules" / name / file.name).read_bytes(), file
    for file in without.path.rglob("*"):
        assert "night" not in file.name and (file.is_dir() or b"night" not in file.read_bytes())
    seen = without.load_seen()
    assert seen is not None
    target = hashes_of(s.path for d in scan(photos) if d.name == "night" for s in (*d.train, *d.val))
    assert not np.isin(target, [*seen.train, *seen.validation]).any()
    assert len(seen.train) == sum(len(d.train) for d in sources)
    assert store.names == ("dawn", "night", "noon", "generalist"), "the store itself stays"
    run_export(without.path, tmp_path / "bundle")


def test_the_second_time_nothing_is_trained_or_decoded(
    store: Store, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_out(store, scan(photos), "night", tmp_path / "first", RECIPE, SELECTOR)
    assert not list((store.path / ".work").rglob("tokens/*"))

    def never(*arguments: object) -> None:
        raise AssertionError("again")

    monkeypatch.setattr(library, "generalist_one", never)
    monkeypatch.setattr(library, "embed_one", never)
    leave_out(store, scan(photos), "night", tmp_path / "second", RECIPE, SELECTOR)
    for name in ("selector.safetensors", "modules/generalist/adapter_model.safetensors"):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()
    with pytest.raises(AssertionError, match="again"):
        leave_out(store, scan(photos), "night", tmp_path / "third", Recipe(epochs=1, batch=8), SELECTOR)
    assert not (tmp_path / "third").exists()
    plain = leave_out(store, scan(photos), "dawn", tmp_path / "plain", RECIPE, SELECTOR, generalist=False)
    assert plain.names == ("night", "noon") and plain.generalist is None


def test_a_stopped_generalist_goes_on_to_the_same_bytes(
    store: Store, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(library, "train_module", stopped_in_its_second_epoch(library.train_module))
        with pytest.raises(KeyboardInterrupt):
            leave_out(store, scan(photos), "night", tmp_path / "stopped", RECIPE, SELECTOR)
    assert not (tmp_path / "stopped").exists()
    (checkpoint,) = (store.path / ".work/without").glob("*.safetensors")
    stopped = leave_out(store, scan(photos), "night", tmp_path / "stopped", RECIPE, SELECTOR)
    assert not checkpoint.exists()
    (store.path / ".work/without/night/key.json").unlink()
    whole = leave_out(store, scan(photos), "night", tmp_path / "whole", RECIPE, SELECTOR)
    assert stopped.module_file("generalist").read_bytes() == whole.module_file("generalist").read_bytes()


def test_weights_may_be_given(store: Store, photos: Path, tmp_path: Path) -> None:
    fixed = {k: torch.from_numpy(store.load_module("dawn").tensors[k]) for k in store.config.dims.shapes}
    file = tmp_path / "night.safetensors"
    save_file(fixed, file)
    without = leave_out(store, scan(photos), "night", tmp_path / "out", RECIPE, SELECTOR, weights=file)
    module, config = without.load_module("generalist"), without.module_config("generalist")
    for name, value in fixed.items():
        np.testing.assert_array_equal(module.tensors[name], value)
    assert module.signature(StoreError) is not None
    assert config.role == "generalist" and set(config.metrics) == {"accuracy", "images"}
    save_file({**fixed, "head_bias": torch.zeros(9)}, file)
    with pytest.raises(ConfigError, match=r"night.safetensors: head_bias: want shape \[3\], got \[9\]"):
        leave_out(store, scan(photos), "night", tmp_path / "wrong", RECIPE, SELECTOR, weights=file)
    with pytest.raises(ConfigError, match="not a file of a trained module's tensors"):
        leave_out(store, scan(photos), "dawn", tmp_path / "wrong", RECIPE, SELECTOR, weights=tmp_path / "absent")


def test_what_is_refused(store: Store, photos: Path, tmp_path: Path) -> None:
    domains = scan(photos)
    with pytest.raises(StoreError, match="no module of a domain 'dusk'; there are: dawn, night, noon"):
        leave_out(store, domains, "dusk", tmp_path / "out", RECIPE, SELECTOR)
    with pytest.raises(ConfigError, match="module 'noon': its domain's folder is not among those given"):
        leave_out(store, domains[:2], "dawn", tmp_path / "out", RECIPE, SELECTOR)
    with pytest.raises(StoreError, match="exists and is not empty"):
        leave_out(store, domains, "dawn", store.path, RECIPE, SELECTOR)
    assert not (tmp_path / "out").exists()
