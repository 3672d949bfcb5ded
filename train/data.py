"""Labelled folders as domains: `root/<domain>/<class>/*`, with or without `train/` and `val/` in between."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image

from pluto_edge._files import check_name
from pluto_edge.domains import DomainFolders, domain_folders
from pluto_edge.errors import ConfigError
from pluto_edge.preprocess import image_files, to_rgb, visible_folders
from pluto_edge.train.corruptions import corrupt

GENERALIST = "generalist"  # the module that learns from all domains; no domain has its name


@dataclass(frozen=True)
class Sample:
    """An image's file and its class."""

    path: Path
    label: int


@dataclass(frozen=True)
class Domain:
    """One source domain: where its images are, and the corruption that makes it, if one does."""

    name: str
    classes: tuple[str, ...]
    train: tuple[Sample, ...]
    val: tuple[Sample, ...]
    corruption: tuple[str, int] | None = None
    seed: int = 0

    def read(self, sample: Sample) -> Image.Image:
        """The image, corrupted in the way of this domain; the same every time."""
        image = read_image(sample.path)
        if self.corruption is None:
            return image
        name, severity = self.corruption
        seed = self.seed + zlib.crc32(sample.path.name.encode())
        return Image.fromarray(corrupt(np.asarray(image), name, severity, seed))


def read_image(path: Path) -> Image.Image:
    """The image in a file as RGB."""
    with Image.open(path) as image:
        return to_rgb(image)


def scan(root: Path, *, val_share: float = 0.2, per_class: int | None = None, seed: int = 0) -> list[Domain]:
    """The domains below `root`, sorted by name; every domain must have the same classes.

    Without `train/` and `val/` folders every class is split by `seed`. `per_class` bounds the training images
    of each class.
    """
    found = DomainFolders(domain_folders(root))
    return scan_folders(found, val_share=val_share, per_class=per_class, seed=seed)


def scan_folders(
    data: DomainFolders, *, val_share: float = 0.2, per_class: int | None = None, seed: int = 0
) -> list[Domain]:
    """The same of folders that may be anywhere, in their order, and with the order of the classes that is given."""
    domains = [
        _scan_domain(name, folder, data.classes, val_share, per_class, seed)
        for name, folder in data.folders.items()
    ]
    first = domains[0]
    for domain in domains[1:]:
        if domain.classes != first.classes:
            only = sorted(set(domain.classes) ^ set(first.classes))
            raise ConfigError(
                f"{data.folders[domain.name]}: {domain.name} and {first.name} do not have the same classes; they "
                f"differ in {', '.join(only[:5])}"
            )
    return domains


def corrupted(
    clean: Domain, names: Sequence[str], severities: Sequence[int], seed: int, per_class: int | None = None
) -> list[Domain]:
    """One clean domain as many: `fog-3` is fog of severity 3.

    With `per_class` every one of them has its own draw of that many training images a class.
    """
    return [
        replace(
            clean,
            name=f"{name}-{severity}",
            train=_drawn(clean, f"{name}-{severity}", seed, per_class),
            corruption=(name, severity),
            seed=seed,
        )
        for name in names
        for severity in severities
    ]


def _drawn(clean: Domain, name: str, seed: int, per_class: int | None) -> tuple[Sample, ...]:
    """At most `per_class` training images of each class, by seed and name."""
    if per_class is None:
        return clean.train
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    order = [clean.train[i] for i in rng.permutation(len(clean.train))]
    return tuple(s for label in range(len(clean.classes)) for s in _of(label, order)[:per_class])


def _of(label: int, samples: Sequence[Sample]) -> list[Sample]:
    return [s for s in samples if s.label == label]


def _scan_domain(
    name: str, folder: Path, order: tuple[str, ...] | None, val_share: float, per_class: int | None, seed: int
) -> Domain:
    check_name(name, f"{folder.parent}: domain", ConfigError)
    if name == GENERALIST:
        raise ConfigError(
            f"{folder}: no domain may be named {GENERALIST!r}, that is the module of all of them; rename the folder"
        )
    below = set(visible_folders(folder))
    split = "train" in below and bool(below & {"val", "test"})
    parts = {"train": folder / "train", "val": folder / ("val" if "val" in below else "test")}
    there = visible_folders(parts["train"] if split else folder)
    if not there and image_files(folder):
        raise ConfigError(
            f"{folder}: its images are in no class folder; want root/<domain>/<class>/images. "
            f"If {folder.name!r} is a class, the root is one level up, --data {folder.parent.parent}"
        )
    classes = tuple(there) if order is None else order
    strange = sorted(set(there) - set(classes))
    if strange:
        raise ConfigError(f"{folder}: {strange[0]!r} is none of the classes {', '.join(classes[:12])}")
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    train: list[Sample] = []
    val: list[Sample] = []
    for label, called in enumerate(classes):
        if split:
            files, held = image_files(parts["train"] / called), image_files(parts["val"] / called)
            files = [files[i] for i in rng.permutation(len(files))]
        else:
            found = image_files(folder / called)
            found = [found[i] for i in rng.permutation(len(found))]
            count = max(1, round(val_share * len(found))) if len(found) > 1 else 0
            held, files = found[:count], found[count:]
        train += [Sample(p, label) for p in files[:per_class]]
        val += [Sample(p, label) for p in held]
    domain = Domain(name, classes, tuple(train), tuple(val))
    check_enough(domain)
    return domain


def check_enough(domain: Domain) -> None:
    """Two classes or more, a training image of each, and validation images."""
    if len(domain.classes) < 2:
        found = ", ".join(domain.classes) or "none"
        raise ConfigError(f"domain {domain.name}: want two classes or more, found {found}")
    for what, samples in (("training", domain.train), ("validation", domain.val)):
        if not samples:
            raise ConfigError(f"domain {domain.name}: it has no {what} image")
    missing = sorted(set(range(len(domain.classes))) - {s.label for s in domain.train})
    if missing:
        raise ConfigError(f"domain {domain.name}: class {domain.classes[missing[0]]!r} has no training image")
