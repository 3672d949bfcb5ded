"""Small labelled folders: coloured shapes whose colours shift from domain to domain."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from pluto_edge.export.backbone import create

ARCHITECTURE, SIZE = "vit_tiny_patch16_224", 32
CLASSES = ("bars", "disc", "square")


def shape(name: str, rng: np.random.Generator, tint: tuple[int, int, int]) -> Image.Image:
    y, x = np.mgrid[0:40, 0:40]
    cy, cx, r = rng.uniform(14, 26), rng.uniform(14, 26), rng.uniform(8, 12)
    masks = {
        "bars": (x // 5) % 2 == 0,
        "disc": (y - cy) ** 2 + (x - cx) ** 2 < r**2,
        "square": (abs(y - cy) < r) & (abs(x - cx) < r),
    }
    picture = np.where(masks[name][..., None], np.array(tint), 255 - np.array(tint))
    noisy = picture + rng.normal(0, 20, picture.shape)
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


TINTS = {"dawn": (230, 140, 90), "noon": (240, 240, 200), "night": (40, 40, 120)}


def write_domain(root: Path, name: str, per_class: int = 10, classes: tuple[str, ...] = CLASSES) -> None:
    rng = np.random.default_rng(sum(map(ord, name)))
    for label in classes:
        folder = root / name / label
        folder.mkdir(parents=True)
        for i in range(per_class):
            shape(label, rng, TINTS[name]).save(folder / f"{i}.png")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    root = tmp_path / "photos"
    for name in ("dawn", "noon"):
        write_domain(root, name)
    return root


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    file = tmp_path_factory.mktemp("weights") / "vit.safetensors"
    save_file(create(ARCHITECTURE, (SIZE, SIZE), {}).state_dict(), file)
    return file
