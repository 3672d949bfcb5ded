"""The index: what every published module's source looked like, in one file that a device searches."""

from collections.abc import Sequence

import numpy as np
from safetensors.numpy import save

from pluto_edge._schema import to_text
from pluto_edge.errors import RepositoryError
from pluto_edge.repository.layout import IndexEntry
from pluto_edge.store import read_module, read_module_config

__all__ = ["build"]


def build(entries: Sequence[IndexEntry]) -> bytes:
    """A safetensors file: mean and variance of how each module's source looks; its header says whose they are."""
    rows = []
    tensors = {}
    for number, entry in enumerate(entries):
        config = read_module_config(entry.folder)
        signature = read_module(entry.folder, config).signature(RepositoryError)
        if signature is None:
            raise RepositoryError(f"{entry.target}: has no signature")
        looks = signature.looks
        tensors[f"{number}.look_mean"] = signature.look_mean.astype(np.float32)
        tensors[f"{number}.look_variance"] = (np.square(looks.factor).sum(axis=0) + looks.noise).astype(np.float32)
        rows.append({"target": entry.target, "sha256": entry.sha256, "size": entry.size, "name": entry.name})
    return bytes(save(tensors, {"modules": to_text(rows)}))
