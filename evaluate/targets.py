"""Labelled folders as streams: which images, in which order, prepared once and then read from a mapped file."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pluto_edge._files import sha256
from pluto_edge._schema import encode
from pluto_edge.errors import ConfigError
from pluto_edge.preprocess import IMAGE_SUFFIXES, ImageBatch, Preprocessing, image_files
from pluto_edge.runtime.run import open_image

Array = NDArray[np.float32]
Indices = NDArray[np.intp]
Order = Literal["shuffled", "classes"]

PART = 64  # images whose pixels are in memory while a folder is prepared


@dataclass(frozen=True)
class Target:
    """A domain to be evaluated on: its images, and the class that each one's folder names."""

    name: str
    files: tuple[Path, ...]
    labels: tuple[int, ...]
    digest: str  # of the files' names and contents

    def __len__(self) -> int:
        return len(self.files)


def find_targets(
    root: Path, names: Sequence[str], classes: Sequence[str], limit: int | None = None
) -> tuple[Target, ...]:
    """The domains below `root`, all of them where `names` is empty; `a+b` is two of them, mixed."""
    if not root.is_dir():
        raise ConfigError(f"{root}: no such folder; want root/<domain>/<class>/images")
    there = sorted(p.name for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not there:
        raise ConfigError(f"{root}: holds no domain folder; want root/<domain>/<class>/images")
    if len(set(names)) < len(names):
        raise ConfigError(f"--target: {', '.join(names)}: a target is there twice")
    return tuple(_find(root, name, there, classes, limit) for name in names or there)


def _find(root: Path, name: str, there: Sequence[str], classes: Sequence[str], limit: int | None) -> Target:
    parts = [name] if name in there else name.split("+")
    unknown = [p for p in parts if p not in there]
    if unknown:
        raise ConfigError(f"{root}: no domain {unknown[0]!r}; there are: {', '.join(there)}")
    files = [f for part in parts for f in domain_files(root / part)]
    if limit is not None:  # the same images for every seed: a seed is an order
        chosen = np.random.default_rng(0).permutation(len(files))[:limit]
        files = [files[i] for i in sorted(chosen)]
    for file in files:
        if file.parent.name not in classes:
            raise ConfigError(
                f"{file}: {file.parent.name!r} is no class of the bundle; want root/<domain>/<class>/images, "
                f"with the classes {', '.join(classes[:12])}{' …' if len(classes) > 12 else ''}"
            )
    labels = tuple(classes.index(f.parent.name) for f in files)
    return Target(name, tuple(files), labels, _digest(root, files))


def domain_files(folder: Path) -> list[Path]:
    """A domain's images; where it is split into train/ and val/ or test/, those that were not trained on."""
    held = [folder / p for p in ("val", "test") if (folder / p).is_dir()]
    if held and (folder / "train").is_dir():
        folder = held[0]
    files = image_files(folder)
    if not files:
        raise ConfigError(f"{folder}: holds no image ({', '.join(sorted(IMAGE_SUFFIXES))})")
    return files


def _digest(root: Path, files: Sequence[Path]) -> str:
    total = hashlib.sha256()
    for file in files:
        total.update(f"{file.relative_to(root).as_posix()}\0{sha256(file)}\n".encode())
    return total.hexdigest()


def arrange(labels: Sequence[int], order: Order, seed: int) -> Indices:
    """The stream's order: all shuffled, or class after class (in an order of the seed's), shuffled within."""
    rng = np.random.default_rng(seed)
    shuffled = rng.permutation(len(labels))
    if order == "shuffled":
        return shuffled
    rank = rng.permutation(max(labels) + 1)
    return shuffled[np.argsort(rank[np.array(labels)[shuffled]], kind="stable")]


@dataclass(frozen=True)
class Recording:
    """Every module as exported on every image: logits [n,N,K], features [n,N,d] and x̂ [n,d]. What does not learn
    needs no more."""

    logits: Array
    features: Array
    x_hat: Array


class Stream:
    """A target's images as the network wants them, and what the exported modules said of them."""

    def __init__(self, target: Target, preprocessing: Preprocessing, pixels: NDArray[np.uint8]) -> None:
        self.target, self.preprocessing, self.pixels = target, preprocessing, pixels
        self.recording: Recording | None = None

    def normalised(self, indices: Indices) -> Array:
        return self.preprocessing.normalise(self.pixels[indices])

    def batches(self, order: Indices, size: int) -> Iterator["StreamBatch"]:
        for start in range(0, len(order), size):
            yield StreamBatch(self, order[start : start + size])


class StreamBatch(ImageBatch):
    """Images of a stream, by index; pixels are looked up when they are asked for."""

    def __init__(self, stream: Stream, indices: Indices) -> None:
        self.stream, self.indices = stream, indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, part: slice) -> Array:
        return self.stream.normalised(self.indices[part])

    def take(self, indices: Indices) -> Array:
        return self.stream.normalised(self.indices[indices])

    def part(self, indices: Indices) -> "StreamBatch":
        return StreamBatch(self.stream, self.indices[indices])


def prepare(
    target: Target, preprocessing: Preprocessing, cache: Path, advance: Callable[[int], None] = lambda count: None
) -> Stream:
    """Decode and resize every image once; a second run maps the file of the first."""
    key = hashlib.sha256(json.dumps([target.digest, encode(preprocessing)]).encode()).hexdigest()[:16]
    file = cache / f"pixels-{key}.npy"
    if not file.exists():
        cache.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(f".{os.getpid()}.partial")  # another process may want the same
        shape = (len(target), *preprocessing.size, 3)
        pixels = np.lib.format.open_memmap(partial, mode="w+", dtype=np.uint8, shape=shape)
        for start in range(0, len(target), PART):
            part = target.files[start : start + PART]
            pixels[start : start + len(part)] = [preprocessing.crop(open_image(f)) for f in part]
            advance(len(part))
        pixels.flush()
        del pixels
        partial.replace(file)
    return Stream(target, preprocessing, np.load(file, mmap_mode="r"))
