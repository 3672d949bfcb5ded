"""The bundle of the meter digits, which is small and real, and images in its conditions."""

import sys
from functools import lru_cache
from pathlib import Path

import numpy as np

from pluto_edge import Runtime

ROOT = Path(__file__).parent.parent / "examples" / "digits"
BUNDLE, MODULES = ROOT / "bundle", ROOT / "store" / "modules"


@lru_cache(maxsize=32)
def draw(condition: str, count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Images [n,32,32,3] and digits."""
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    import meter

    rng = np.random.default_rng(seed)
    labels = rng.integers(10, size=count)
    change = {**meter.CONDITIONS, **meter.UNSEEN}[condition]
    return np.stack([change(meter.render(rng, int(d), fonts=()), rng) for d in labels]), labels


def device(*gone: str) -> Runtime:
    """A runtime without some of the modules."""
    runtime = Runtime(BUNDLE, providers="cpu", threads=1, plan=None)
    for name in gone:
        runtime.remove_module(name)
    return runtime
