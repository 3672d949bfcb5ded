"""Small labelled folders: coloured shapes whose colours shift from domain to domain."""

from pathlib import Path

import numpy as np
from PIL import Image

ARCHITECTURE, SIZE = "test_vit", 32  # timm's own for tests: 6 blocks of 64 channels, 0.3 million parameters
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


TINTS = {"dawn": (230, 140, 90), "noon": (240, 240, 200), "night": (40, 40, 120), "dusk": (150, 60, 110)}


def write_domain(root: Path, name: str, per_class: int = 10, classes: tuple[str, ...] = CLASSES) -> None:
    rng = np.random.default_rng(sum(map(ord, name)))
    for label in classes:
        folder = root / name / label
        folder.mkdir(parents=True)
        for i in range(per_class):
            shape(label, rng, TINTS[name]).save(folder / f"{i}.png")
