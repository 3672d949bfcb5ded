"""Modules with signatures that were made up, for tests of what finds and tries modules."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pluto_edge._files import write_tensors, write_text
from pluto_edge._schema import to_text
from pluto_edge.modules import Dims
from pluto_edge.signature import Signature
from pluto_edge.store import MODULE_FILE, Store

NOISE = 0.01  # variance of the looks in every direction


def signature(dims: Dims, at: float = 0.0, seed: int = 0) -> Signature:
    """Of a source whose looks are around `at` in every channel."""
    rng = np.random.default_rng(seed)

    def rows(*shape: int) -> Any:
        return rng.normal(size=shape).astype(np.float32)

    return Signature(
        class_means=rows(dims.classes, dims.width),
        feature_factor=0.1 * rows(4, dims.width),
        activation_mean=rows(dims.depth + 1, dims.width),
        activation_std=1 + np.abs(rows(dims.depth + 1, dims.width)),
        look_mean=np.full(dims.width, at, np.float32),
        look_factor=0.01 * rows(6, dims.width),
        feature_noise=1.0,
        look_noise=NOISE,
        temperature=1.0,
        sharpness=0.1,
        images=400.0,
    )


def copy_module(store: Store, folder: Path, name: str, at: float, seed: int, **changes: Any) -> None:
    """The store's first module under another name, with a signature."""
    first = store.names[0]
    config = replace(store.module_config(first), name=name, **changes)
    tensors = {**store.load_module(first).tensors, **signature(config.dims, at, seed).tensors}
    folder.mkdir(parents=True)
    write_tensors(folder / MODULE_FILE, tensors)
    write_text(folder / "adapter_config.json", to_text(config))
