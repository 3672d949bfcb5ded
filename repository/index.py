"""The index: how the sources of all published modules look, in one file that a device searches by itself.

A device that meets an unknown domain takes the index, compares its own images with it, and learns which modules
were made for what it sees. No image and no statistic of one leaves the device.

The file is safetensors. Modules that fit the same bundles (architecture, sizes, classes, role, backbone) are a
group; `<group>.means` [n,d], `<group>.factors` [n,r,d] and `<group>.noises` [n] say how their sources look, in half
precision, in a few KB a module. The metadata has one entry, `index`: JSON that says which module is which.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from pluto_edge._arrays import Array
from pluto_edge._files import check_name
from pluto_edge._schema import check_once, check_version, decode, encode, parse_json
from pluto_edge.errors import ConfigError, RepositoryError
from pluto_edge.looks import Looks
from pluto_edge.manifest import Manifest
from pluto_edge.modules import Dims, Role
from pluto_edge.repository.layout import IndexEntry
from pluto_edge.signature import LOOK_RANK, Covariance, Signature, half, stack_looks
from pluto_edge.store import read_module, read_module_config

__all__ = ["Index", "Listed", "ModuleSource", "Near", "build"]

SCHEMA_VERSION = 1
MAX_BYTES = 256 * 1024 * 1024  # of an index: 60,000 modules of a ViT-S
MODULE_BYTES = 4096  # for the look of one module's source
LEAST_RANK = 2  # directions that are kept however wide the backbone is
HALF = 0.5  # a module fits where it is trusted more than not
PARTS = ("means", "factors", "noises")


class ModuleSource(Protocol):
    """Where a device finds modules: a repository's client, or a folder."""

    def index(self) -> bytes:
        """The newest index, verified."""
        ...

    def fetch(self, target: str) -> Path:
        """A module's folder on this device, verified, as `Runtime.add_module` takes it."""
        ...


@dataclass(frozen=True)
class Fits:
    """What the modules of a group are, and so which bundles they fit.

    `classes` is the digest of their names; `backbone` is "" where nobody knows which they were made with.
    """

    architecture: str
    dims: Dims
    classes: str
    role: Role
    backbone: str

    def bundle(self, manifest: Manifest) -> bool:
        """Whether the bundle can run them."""
        same = (self.architecture, self.dims) == (manifest.architecture, manifest.dims)
        known = self.backbone in ("", manifest.backbone)
        return same and known and self.classes == classes_digest(manifest.classes)


@dataclass(frozen=True)
class Listed:
    """A module of the index: what to fetch, how many bytes that is and their hash, and who it is."""

    target: str
    sha256: str
    size: int
    name: str

    def __post_init__(self) -> None:
        check_name(self.name, "name", ConfigError)
        if not 0 < len(self.target) <= 1000 or len(self.sha256) != 64 or self.size < 0:
            raise ConfigError(f"not a target with sha256 and size: {self.target[:80]!r}, {self.size}")


@dataclass(frozen=True)
class Near:
    """A module of the index beside some images.

    Attributes:
        module: which it is.
        distance: of the images' mean look from its source's; about 1 by chance alone.
        fit: trust that the images are of its domain, as far as looks tell, 0 to 1.
        evidence: how much more probable an image is in its domain than in all of the index together, in nats.
        ahead: how much more probable it is than in the domain of any module that the device has; where nothing is
            known of these, the evidence.
    """

    module: Listed
    distance: float
    fit: float
    evidence: float
    ahead: float


@dataclass(frozen=True)
class _Group:
    """As it is in the file."""

    fits: Fits
    modules: tuple[Listed, ...]


@dataclass(frozen=True)
class _Known:
    """A group with its tensors; what comparisons need is computed when it is first asked for."""

    fits: Fits
    modules: tuple[Listed, ...]
    means: NDArray[np.floating]
    factors: NDArray[np.floating]
    noises: NDArray[np.floating]

    @cached_property
    def looks(self) -> Looks:
        return Looks.of(self.means, self.factors, self.noises)


@dataclass(frozen=True)
class _File:
    """The JSON of the metadata."""

    groups: tuple[_Group, ...]
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        check_once([m.target for g in self.groups for m in g.modules], "targets")


def classes_digest(classes: Sequence[str]) -> str:
    """Of the names of the classes, in order."""
    return hashlib.sha256(json.dumps(list(classes)).encode()).hexdigest()


def build(entries: Sequence[IndexEntry]) -> bytes:
    """The index of these modules, always the same bytes for the same modules.

    A module without a signature cannot be found by its look, and is left out.
    """
    groups: dict[Fits, list[tuple[Listed, Signature]]] = {}
    for entry in sorted(entries, key=lambda e: e.target):
        config = read_module_config(entry.folder)
        if config.name != entry.name:
            raise RepositoryError(f"{entry.target}: named {entry.name!r}, its description says {config.name!r}")
        signature = read_module(entry.folder, config).signature(RepositoryError)
        if signature is not None:
            fits = Fits(
                config.architecture, config.dims, classes_digest(config.classes), config.role, config.backbone
            )
            listed = Listed(entry.target, entry.sha256, entry.size, entry.name)
            groups.setdefault(fits, []).append((listed, _shortened(signature)))
    tensors: dict[str, NDArray[Any]] = {}
    for number, members in enumerate(groups.values()):
        means, factors, noises = stack_looks([signature for _, signature in members])
        tensors |= {f"{number}.means": half(means), f"{number}.factors": half(factors), f"{number}.noises": noises}
    text = _File(tuple(_Group(fits, tuple(m for m, _ in members)) for fits, members in groups.items()))
    # compact, in ASCII: the file is fetched by every device
    metadata = {"index": json.dumps(encode(text), separators=(",", ":"), sort_keys=True)}
    data: bytes = save(tensors, metadata)
    Index.from_bytes(data)  # what no device would read, because it is too large, is not published
    return data


class Index:
    """The modules that can be found by how their sources look."""

    def __init__(self, groups: Sequence[_Known]) -> None:
        self._groups = tuple(groups)

    @classmethod
    def from_bytes(cls, data: bytes) -> "Index":
        """Raises a `RepositoryError` where the bytes are no index; nothing in them is run or written."""
        if len(data) > MAX_BYTES:
            raise RepositoryError(f"index: {len(data):,} bytes; want at most {MAX_BYTES:,}")
        try:
            tensors = load(data)
        except (SafetensorError, KeyError, TypeError, ValueError, OverflowError) as cause:
            raise RepositoryError(f"index: not a whole safetensors file ({cause})") from cause
        header = parse_json(data[8 : 8 + int.from_bytes(data[:8], "little")], "index", RepositoryError)
        text = (header.get("__metadata__") or {}).get("index", "")
        description = parse_json(text.encode(), "index", RepositoryError)
        check_version(description, SCHEMA_VERSION, "index", RepositoryError)
        described = decode(_File, description, "index", RepositoryError)
        wanted = {f"{number}.{part}" for number in range(len(described.groups)) for part in PARTS}
        if tensors.keys() != wanted:
            wrong = min(tensors.keys() ^ wanted)
            raise RepositoryError(f"index: tensor {wrong[:80]!r} is missing, or one too many")
        return cls([_checked(number, group, tensors) for number, group in enumerate(described.groups)])

    def __len__(self) -> int:
        return sum(len(g.modules) for g in self._groups)

    @property
    def modules(self) -> tuple[Listed, ...]:
        """All that are listed."""
        return tuple(m for g in self._groups for m in g.modules)

    def nearest(
        self, look: Array, count: int, manifest: Manifest, loaded: Sequence[Signature] = ()
    ) -> tuple[Near, ...]:
        """The modules that fit the bundle whose sources look most like the images (x̂ [n,d]): those that
        fit come first, and among them those with the best evidence.

        A generalist is for no domain in particular, and is never among them. `loaded` are the signatures of the
        specialists that the device has: `Near.ahead` compares with them.
        """
        if look.ndim != 2 or look.shape[1] != manifest.dims.width or not len(look):
            raise ConfigError(f"look: want [n,{manifest.dims.width}] of one image or more, got {list(look.shape)}")
        found: list[Near] = []
        for group in self._groups:
            if group.fits.bundle(manifest) and group.fits.role == "specialist" and group.modules:
                found += _compare(group, look, count, loaded)
        return tuple(sorted(found, key=lambda n: (n.fit < HALF, -n.evidence, n.module.target))[:count])


def _compare(group: _Known, look: Array, count: int, loaded: Sequence[Signature]) -> list[Near]:
    looks = group.looks
    rows = looks.place(look)
    any_domain = looks.log_likelihoods_of_any(rows).mean()
    evidence = looks.log_likelihoods(rows).mean(axis=0) - any_domain
    of_loaded = 0.0
    if loaded:
        others = looks.others(*stack_looks(loaded))
        of_loaded = float(others.log_likelihoods(rows).mean(axis=0).max() - any_domain)
    counts = np.full(len(group.modules), float(len(look)))
    distances = looks.distances(rows.mean(axis=0), counts)
    fit = looks.fit(distances, counts)
    best = np.lexsort((-evidence, fit < HALF))[:count]
    columns = (distances, fit, evidence, evidence - of_loaded)
    return [Near(group.modules[i], *(float(column[i]) for column in columns)) for i in best]


def _shortened(signature: Signature) -> Signature:
    """With as many directions as there are bytes for; what the others varied is noise, so that the sum stays."""
    factor = signature.look_factor.astype(np.float64)
    width = factor.shape[1]
    rank = min(LOOK_RANK, max(LEAST_RANK, MODULE_BYTES // (2 * width) - 1))
    order = np.argsort(-np.square(factor).sum(axis=1), kind="stable")
    left_out = float(np.square(factor[order[rank:]]).sum()) / width
    short = Covariance(factor[order[:rank]].astype(np.float32), signature.look_noise + left_out)
    return replace(signature, look_factor=short.factor, look_noise=short.noise)


def _checked(number: int, group: _Group, tensors: dict[str, NDArray[Any]]) -> _Known:
    values = {part: tensors[f"{number}.{part}"] for part in PARTS}
    count = len(group.modules)
    width = group.fits.dims.width
    shapes = {"means": (count, width), "factors": (count, None, width), "noises": (count,)}
    for part, value in values.items():
        want = shapes[part]
        right = value.ndim == len(want) and all(w in (None, n) for w, n in zip(want, value.shape, strict=True))
        if not right or (part == "factors" and not 1 <= value.shape[1] <= LOOK_RANK):
            raise RepositoryError(f"index: {number}.{part}: want shape {want}, got {list(value.shape)}")
        if value.dtype not in (np.float16, np.float32) or not np.isfinite(value).all():
            raise RepositoryError(f"index: {number}.{part}: want finite float16 or float32, got {value.dtype}")
    if not (values["noises"] > 0).all():
        raise RepositoryError(f"index: {number}.noises: want more than 0")
    return _Known(group.fits, group.modules, **values)
