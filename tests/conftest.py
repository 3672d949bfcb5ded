"""Small random stores and bundles, and labelled folders, made once a run."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# one thread: what is computed here is small, and two threads on a busy machine wait for each other; NumPy asks once
os.environ.setdefault("OMP_NUM_THREADS", "1")
# no plan that somebody has measured on this machine; processes that tests start have it, too
os.environ["PLUTO_EDGE_CACHE"] = tempfile.mkdtemp(prefix="pluto-edge-tests-")

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from pluto_edge.export.exporter import run_export
from pluto_edge.export.random_store import make_random_store
from pluto_edge.modules import Kind
from pluto_edge.store import Store
from pluto_edge.vit.backbone import create
from tests import shapes

TINY = {"embed_dim": 48, "depth": 3, "num_heads": 3, "patch_size": 8}
SIZE = (40, 32)
CLASSES = 7
DOMAINS = {"noise": 60, "other": 24, "source": 30}


def tiny_store(path: Path, kind: Kind = "vpt", modules: int = 3, seed: int = 0) -> Store:
    return make_random_store(
        path,
        architecture="vit_tiny_patch16_224",
        options=dict(TINY),
        image_size=SIZE,
        kind=kind,
        size=4,
        classes=CLASSES,
        modules=modules,
        seed=seed,
    )


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Two processes for the whole suite; none for a file or a folder, so that these start at once."""
    return 2 if config.args_source is config.ArgsSource.TESTPATHS else 0


@pytest.fixture(scope="session", params=["vpt", "adapter"])
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param


@pytest.fixture(scope="session")
def make_store(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Store]:
    """A session-wide store that tests only read."""
    made: dict[tuple[Kind, int], Store] = {}

    def make(kind: Kind = "vpt", modules: int = 3) -> Store:
        if (kind, modules) not in made:
            made[kind, modules] = tiny_store(tmp_path_factory.mktemp("store") / "store", kind, modules)
        return made[kind, modules]

    return make


@pytest.fixture(scope="session")
def make_bundle(make_store: Callable[..., Store], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A session-wide bundle that tests only read."""
    made: dict[tuple[object, ...], Path] = {}

    def make(kind: Kind = "vpt", modules: int = 3, precision: str = "fp32", **form: Any) -> Path:
        key = (kind, modules, precision, *form.items())
        if key not in made:
            out = tmp_path_factory.mktemp("bundle") / "bundle"
            run_export(make_store(kind, modules).path, out, precision=precision, **form)  # type: ignore[arg-type]
            made[key] = out
        return made[key]

    return make


@pytest.fixture
def broken(make_bundle: Callable[..., Path], tmp_path: Path) -> Path:
    """A copy of a bundle that a test may damage; `tests/bundles.py` has how."""
    shutil.copytree(make_bundle(), tmp_path / "bundle")
    return tmp_path / "bundle"


@pytest.fixture
def frames() -> np.ndarray:
    """Eleven NHWC uint8 images, larger than the backbone's."""
    return np.random.default_rng(7).integers(0, 256, (11, 50, 61, 3), dtype=np.uint8)


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """root/<domain>/class-<i>/<n>.png; classes come in turn."""
    root, rng = tmp_path_factory.mktemp("domains"), np.random.default_rng(11)
    for name, count in DOMAINS.items():
        for index in range(count):
            folder = root / name / f"class-{index % 7}"
            folder.mkdir(parents=True, exist_ok=True)
            patches = rng.integers(0, 256, (5, 4, 3), dtype=np.uint8)
            Image.fromarray(patches).resize((44, 50), Image.Resampling.BICUBIC).save(folder / f"{index}.png")
    return root


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    root = tmp_path / "photos"
    for name in ("dawn", "noon"):
        shapes.write_domain(root, name)
    return root


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    file = tmp_path_factory.mktemp("weights") / "vit.safetensors"
    save_file(create(shapes.ARCHITECTURE, (shapes.SIZE, shapes.SIZE), {}).state_dict(), file)
    return file
