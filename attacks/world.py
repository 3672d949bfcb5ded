"""What is attacked: the digits that ship with the repository, which need no torch, and frames of them."""

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attacks.harness import Escape
from pluto_edge import Prediction, Runtime

ROOT = Path(__file__).resolve().parent.parent
BUNDLE, STORE = ROOT / "examples/digits/bundle", ROOT / "examples/digits/store"


def quiet_graphs() -> None:
    """ONNX Runtime would print what it thinks of every broken graph."""
    from pluto_edge._ort import onnxruntime

    onnxruntime.set_default_logger_severity(4)


@contextmanager
def runtime(**options: Any) -> Iterator[Runtime]:
    """The digits, on one thread of the CPU."""
    with Runtime(BUNDLE, "cpu", 1, verify=False, **options) as opened:
        yield opened


def copy_bundle(place: Path) -> Path:
    """A bundle of one's own to break."""
    return Path(shutil.copytree(BUNDLE, place / "bundle"))


def copy_store(place: Path) -> Path:
    """A store of one's own to break."""
    return Path(shutil.copytree(STORE, place / "store"))


@lru_cache(maxsize=1)
def frames() -> NDArray[np.uint8]:
    """Sixty-four digits, [64, 32, 32, 3], of all conditions."""
    sys.path.insert(0, str(ROOT / "examples/digits"))
    import meter

    rng = np.random.default_rng(0)
    conditions = list({**meter.CONDITIONS, **meter.UNSEEN}.values())
    made = [conditions[i % len(conditions)](meter.render(rng, i % 10, fonts=()), rng) for i in range(64)]
    return np.stack(made)


def some(rng: Random, count: int) -> NDArray[np.uint8]:
    """So many of the frames, at random."""
    return frames()[[rng.randrange(64) for _ in range(count)]]


def check_prediction(said: Prediction, images: int) -> None:
    """Whatever a prediction says, it says in numbers."""
    for name in ("logits", "probabilities", "weights", "entropy"):
        value = getattr(said, name)
        if len(value) != images or not np.isfinite(value).all():
            raise Escape(f"{name} is not finite, or not of {images} images")
    sums = said.probabilities.sum(axis=1)
    if not np.allclose(sums, 1, atol=1e-3):
        raise Escape("probabilities do not sum to 1")
