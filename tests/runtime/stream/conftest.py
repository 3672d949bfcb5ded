"""A runtime over a tiny bundle that learns eagerly, and frames of noise for its streams."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from pluto_edge import AdaptConfig, Runtime

CONFIG = AdaptConfig(selector_lr=0.02, ln_lr=0.01, entropy_margin=0.95, guard=False)
BATCH = 16


def frames(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 50, 44, 3), dtype=np.uint8)


@pytest.fixture
def runtime(make_bundle: Callable[..., Path]) -> Iterator[Runtime]:
    with Runtime(make_bundle(), config=CONFIG) as opened:
        yield opened
