"""Labelled folders as streams: which images, in which order, prepared once and then read from a mapped file."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pluto_edge._arrays import Array, Indices
from pluto_edge._files import sha256
from pluto_edge._schema import encode
from pluto_edge._text import did_you_mean
from pluto_edge.domains import domain_folders
from pluto_edge.errors import ConfigError
from pluto_edge.preprocess import (
    IMAGE_SUFFIXES,
    ImageBatch,
    Preprocessing,
    image_files,
    open_image,
)
from pluto_edge.seen import Seen, number_of

Order = Literal["shuffled", "classes"]

PART = 64  # images whose pixels are in memory while a folder is prepared


@dataclass(frozen=True)
class LeftOut:
    """Images of a target that the bundle's modules were made from.

    Attributes:
        train: training images; these are always left out.
        validation: validation images that are left out.
        kept: validation images that are used, because a class would have no image without them.
        lost: classes of which only training images are there, and so none remains.
    """

    train: int = 0
    validation: int = 0
    kept: int = 0
    lost: tuple[str, ...] = ()

    def __str__(self) -> str:
        """What was left out, for a sentence that asks it."""
        counts = {"training": self.train, "validation": self.validation}
        said = [" and ".join(f"{n} {what} images" for what, n in counts.items() if n) or "nothing"]
        if self.kept:
            said.append(f"{self.kept} validation images are used, as a class would have none without them")
        if self.lost:
            said.append(f"no image remains of {', '.join(self.lost)}")
        if self == LeftOut():
            said.append("no image was seen in training")
        return "; ".join(said)


@dataclass(frozen=True)
class Target:
    """A domain to be evaluated on: its images, and the class that each one's folder names."""

    name: str
    files: tuple[Path, ...]
    labels: tuple[int, ...]
    digest: str  # of the files' names and contents
    left_out: LeftOut | None = None  # nothing where it is not known which images were trained on

    def __len__(self) -> int:
        return len(self.files)


def find_targets(
    data: Path | Mapping[str, Path],
    names: Sequence[str],
    classes: Sequence[str],
    limit: int | None = None,
    seen: Seen | None = None,
) -> tuple[Target, ...]:
    """The domains of `data`, a root or folders by name; all where `names` is empty; `a+b` is two of them, mixed.

    Images that are among `seen` are left out, and then at most `limit` are taken of each.
    """
    folders = domain_folders(data) if isinstance(data, Path) else data
    if len(set(names)) < len(names):
        raise ConfigError(f"--target: {', '.join(names)}: a target is there twice")
    return tuple(_find(folders, name, classes, limit, seen) for name in names or folders)


def _find(
    folders: Mapping[str, Path], name: str, classes: Sequence[str], limit: int | None, seen: Seen | None
) -> Target:
    parts = [name] if name in folders else name.split("+")
    unknown = [p for p in parts if p not in folders]
    if unknown:
        root = next(iter(folders.values())).parent
        hint = did_you_mean(unknown[0], folders)
        raise ConfigError(f"{root}: no domain {unknown[0]!r}; there are: {', '.join(folders)}{hint}")
    found = {f: part for part in parts for f in domain_files(folders[part])}
    files = list(found)
    for file in files:
        folder = folders[found[file]]
        if file.parent == folder:
            raise ConfigError(
                f"{file}: is in no class folder; want root/<domain>/<class>/images. "
                f"If {folder.name!r} is a class, the root is one level up, --data {folder.parent.parent}"
            )
        if file.parent.name not in classes:
            raise ConfigError(
                f"{file}: {file.parent.name!r} is no class of the bundle; want root/<domain>/<class>/images, "
                f"with the classes {', '.join(classes[:12])}{' …' if len(classes) > 12 else ''}"
            )
    left_out = None
    if seen is not None:
        files, left_out = unseen(files, seen)
        if not files:
            raise ConfigError(
                f"{folder.parent}: {name}: all {left_out.train} images were trained on, so none remains to be "
                "evaluated on; give images that `pluto train` did not learn from, or other domains with --target"
            )
    if limit is not None:  # the same images for every seed: a seed is an order
        chosen = np.random.default_rng(0).permutation(len(files))[:limit]
        files = [files[i] for i in sorted(chosen)]
    labels = tuple(classes.index(f.parent.name) for f in files)
    places = {f: f"{found[f]}/{f.relative_to(folders[found[f]]).as_posix()}" for f in files}
    return Target(name, tuple(files), labels, _digest(places), left_out)


def unseen(files: Sequence[Path], seen: Seen) -> tuple[list[Path], LeftOut]:
    """The files whose images are not among `seen`; validation images stay if a class would have none without."""
    numbers = np.array([number_of(sha256(f)) for f in files], np.uint64)
    learned = np.isin(numbers, seen.train)
    validation = np.isin(numbers, seen.validation) & ~learned
    names = np.array([f.parent.name for f in files])
    there = set(names[~learned])
    use = there != set(names[~learned & ~validation])
    kept = ~learned if use else ~learned & ~validation
    found = [f for f, keep in zip(files, kept, strict=True) if keep]
    count = int(validation.sum())
    lost = tuple(map(str, sorted(set(names) - there)))
    return found, LeftOut(int(learned.sum()), 0 if use else count, count if use else 0, lost)


def domain_files(folder: Path) -> list[Path]:
    """A domain's images; where it is split into train/ and test/ or val/, those that were not trained on."""
    held = [folder / p for p in ("test", "val") if (folder / p).is_dir()]
    if held and (folder / "train").is_dir():
        folder = held[0]
    files = image_files(folder)
    if not files:
        raise ConfigError(f"{folder}: holds no image ({', '.join(sorted(IMAGE_SUFFIXES))})")
    return files


def _digest(places: Mapping[Path, str]) -> str:
    """Of the images' bytes and of where they are below the root, wherever that is."""
    total = hashlib.sha256()
    for file, place in places.items():
        total.update(f"{place}\0{sha256(file)}\n".encode())
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
class ModuleOutputs:
    """Every module as exported on every image: logits [n,N,K], features [n,N,d] and x̂ [n,d]. What does not learn
    needs no more."""

    logits: Array
    features: Array
    x_hat: Array


class TargetStream:
    """A target's images as the network wants them, and what the exported modules said of them."""

    def __init__(self, target: Target, preprocessing: Preprocessing, pixels: NDArray[np.uint8]) -> None:
        self.target = target
        self.preprocessing = preprocessing
        self.pixels = pixels
        self.outputs: ModuleOutputs | None = None

    def batches(self, order: Indices, size: int) -> Iterator["TargetBatch"]:
        """The images in this order, `size` at a time; the last batch may be smaller."""
        for start in range(0, len(order), size):
            yield TargetBatch(self, order[start : start + size])


class TargetBatch(ImageBatch):
    """Images of a stream, by index. Their pixels are read when they are asked for: most methods need none, because
    the stream has the modules' outputs already."""

    def __init__(self, stream: TargetStream, indices: Indices) -> None:
        super().__init__(_Crops(stream.pixels, indices), stream.preprocessing, cropped=True)
        self.stream = stream
        self.indices = indices

    def part(self, indices: Indices) -> "TargetBatch":
        """The images at `indices` of this batch, still of the same stream."""
        return TargetBatch(self.stream, self.indices[indices])


class _Crops(Sequence[NDArray[np.uint8]]):
    """Chosen images of a mapped file, each read when it is asked for."""

    def __init__(self, pixels: NDArray[np.uint8], indices: Indices) -> None:
        self._pixels = pixels
        self._indices = indices

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, at: Any) -> Any:
        return self._pixels[self._indices[at]]


def prepare(
    target: Target, preprocessing: Preprocessing, cache: Path, advance: Callable[[int], None] = lambda count: None
) -> TargetStream:
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
    return TargetStream(target, preprocessing, np.load(file, mmap_mode="r"))
