"""Which images a store was made from, so that an evaluation can leave them out.

An image is the first eight bytes of the sha256 of its file: a copy under another name is the same image, a resized
or corrupted one is another. `seen.safetensors` has the sorted numbers of training and of validation images, and in
its metadata the modules that they were for.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from pluto_edge._files import sha256, write_bytes
from pluto_edge._schema import Error

Hashes = NDArray[np.uint64]

PARTS = ("train", "validation")


@dataclass(frozen=True)
class Seen:
    """Images by their numbers, sorted, each once. `modules` are those whose images are all among them."""

    train: Hashes
    validation: Hashes
    modules: tuple[str, ...] = ()

    def __or__(self, other: "Seen") -> "Seen":
        train, validation = (np.union1d(getattr(self, p), getattr(other, p)) for p in PARTS)
        return Seen(train, validation, tuple(dict.fromkeys((*self.modules, *other.modules))))

    def unknown(self, names: Sequence[str]) -> list[str]:
        """Of these modules, those whose images are not known."""
        return [n for n in names if n not in self.modules]


def number_of(digest: str) -> int:
    """The image's number, from its file's sha256 in hexadecimal digits."""
    return int(digest[:16], 16)


def hashes_of(files: Iterable[Path]) -> Hashes:
    """The numbers of these images, sorted, each once."""
    return np.unique(np.array([number_of(sha256(f)) for f in sorted(set(files))], np.uint64))


def write_seen(path: Path, seen: Seen) -> None:
    """Writes `seen.safetensors`."""
    tensors = {p: np.ascontiguousarray(getattr(seen, p)) for p in PARTS}
    write_bytes(path, save(tensors, {"modules": json.dumps(seen.modules)}))


def read_seen(path: Path, error: Error) -> Seen:
    """Reads `seen.safetensors`; whatever is wrong with it is an `error`."""
    try:
        with safe_open(path, framework="np") as file:
            parts = {p: file.get_tensor(p) for p in PARTS}
            modules = json.loads((file.metadata() or {}).get("modules", "[]"))
    except (SafetensorError, OSError, ValueError, TypeError) as cause:
        raise error(f"{path}: not a whole safetensors file of seen images ({cause})") from cause
    for name, values in parts.items():
        if values.dtype != np.uint64 or values.ndim != 1 or (values[1:] <= values[:-1]).any():
            raise error(f"{path}: {name}: want sorted, different uint64 in one row")
    if not isinstance(modules, list) or not all(isinstance(m, str) for m in modules):
        raise error(f"{path}: modules: want a list of names, got {str(modules)[:60]}")
    return Seen(parts["train"], parts["validation"], tuple(modules))
