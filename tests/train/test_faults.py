"""`pluto train` on disks that fail, killed, without power, with readers in between: it goes on, to the same end.

A training run makes some 250 calls. Here a few of them go wrong. With the environment variable PLUTO_EVERY_FAULT=1
every one of them does, in every way, which takes some minutes.
"""

import hashlib
import os
import shutil
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from pluto_edge._files import write_text
from pluto_edge.store import Store
from pluto_edge.train import module, report, trainer
from pluto_edge.train.data import scan
from pluto_edge.train.recipe import Recipe, SelectorRecipe
from pluto_edge.train.trainer import BackboneChoice, create_store, run_train
from pluto_edge.vit.backbone import create, load_backbone
from tests.conftest import TINY
from tests.faults import every_fault, hidden
from tests.shapes import ARCHITECTURE, CLASSES, SIZE, write_domain

STEP = int(os.environ.get("PLUTO_EVERY_FAULT", "64"))
OPTIONS = {**TINY, "depth": 1}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little is computed; what is written is written every time."""
    monkeypatch.setattr(module, "PROBE_DECAYS", module.PROBE_DECAYS[:1])
    monkeypatch.setattr(report, "heat_map", lambda matrix, path: write_text(path, "a picture"))
    backbone = cache(lambda name: load_backbone(Store(name)))
    monkeypatch.setattr(trainer, "load_backbone", lambda store: backbone(store.path))


def test_every_fault_of_a_training_run(tmp_path: Path, quick: None) -> None:
    torch.manual_seed(0)
    for name in ("dawn", "noon"):
        write_domain(tmp_path / "photos", name, 4)
    save_file(create(ARCHITECTURE, (SIZE, SIZE), OPTIONS).state_dict(), tmp_path / "weights")
    choice = BackboneChoice(ARCHITECTURE, SIZE, tmp_path / "weights", options=OPTIONS)
    create_store(tmp_path / "fresh", choice, CLASSES, "adapter", 2)
    domains, place = scan(tmp_path / "photos"), tmp_path / "place/store"
    ended: list[bool] = []  # without a fault
    clean: dict[str, str] = {}  # what a run without faults makes

    def prepare() -> None:
        shutil.rmtree(place.parent, ignore_errors=True)
        shutil.copytree(tmp_path / "fresh", place)

    def act() -> None:
        ended.clear()
        recipe, selector = Recipe(epochs=1, batch=8), SelectorRecipe(epochs=1)
        run_train(Store(place), domains, recipe=recipe, selector=selector)
        ended.append(True)

    def check() -> None:
        """A store that can be used at every moment: what it lists is there. In the end it is the same store."""
        store = Store(place)
        store.load_selector()
        store.load_seen()
        for name in store.names:
            store.load_module(name)
        assert not ended or not clean or digests() == clean

    def digests() -> dict[str, str]:
        files = [place / "selector.safetensors", place / "store.json", *sorted((place / "modules").rglob("*.*"))]
        return {str(f.relative_to(place)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}

    prepare()
    act()
    clean = digests()
    assert every_fault(prepare, act, check, step=STEP) > 100
    assert digests() == clean and hidden(place / "modules") == []
