"""Cells of a matrix: what one module says of one domain's held-out images, a small file each.

A cell's name has a digest of all that it depends on, the module, the graphs that it runs in and the images, so that
one that is there is never computed again. The job is a column: a domain's images are decoded and embedded once for
all modules that have no cell yet.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from pluto_edge._files import write_text
from pluto_edge._schema import check_version, decode, encode, read_json
from pluto_edge.errors import ConfigError
from pluto_edge.evaluate.targets import Target
from pluto_edge.manifest import EMBED, FORWARD, WEIGHTS, Bundle, Manifest
from pluto_edge.preprocess import ImageBatch
from pluto_edge.runtime.engine.network import Network
from pluto_edge.runtime.engine.session import Engine
from pluto_edge.train.progress import RunProgress
from pluto_edge.version import WRITER

SCHEMA_VERSION = 1
FOLDER = "cells"
PART = 64  # images whose pixels are in memory, and between two reports of progress
NOTHING = -1  # in the place of a class: the module's logits are not finite


@dataclass(frozen=True)
class Cell:
    """The classes, by number, that a module gave a domain's images; `NOTHING` where it gave none."""

    module: str
    domain: str
    predicted: tuple[int, ...]
    key: str
    writer: str = WRITER
    schema_version: int = SCHEMA_VERSION


def backbone_digest(manifest: Manifest) -> str:
    """Of what all modules share when they predict: graphs, weights, preprocessing and classes. Other modules, or
    another selector, leave it as it is."""
    files = [manifest.files[name].sha256 for name in (EMBED, FORWARD, WEIGHTS)]
    described = [files, encode(manifest.preprocessing), manifest.classes]
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()


def module_digest(manifest: Manifest, name: str) -> str:
    """Of a module's file."""
    entry = next(m for m in manifest.modules if m.name == name)
    return manifest.files[entry.file].sha256


def cell_key(manifest: Manifest, module: str, target: Target) -> str:
    """A digest of all that the cell depends on."""
    described = [SCHEMA_VERSION, backbone_digest(manifest), module_digest(manifest, module), target.digest]
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()


def cell_file(out: Path, manifest: Manifest, module: str, target: Target) -> Path:
    """Where the cell is kept, whether or not it is there yet."""
    return out / FOLDER / target.name / f"{module}-{cell_key(manifest, module, target)[:16]}.json"


def read_cell(path: Path, target: Target, key: str) -> Cell:
    """A cell that was computed for these images; another one, or a damaged one, is a `ConfigError`."""
    data = read_json(path, ConfigError)
    check_version(data, SCHEMA_VERSION, str(path), ConfigError)
    cell = decode(Cell, data, path.name, ConfigError)
    if len(cell.predicted) != len(target) or cell.key != key:
        raise ConfigError(f"{path}: is not of these {len(target)} images; delete the file, and it is computed anew")
    return cell


def fill_column(
    path: Path,
    digest: str,
    names: Sequence[str],
    target: Target,
    out: Path,
    providers: str,
    threads: int | None,
    progress: RunProgress,
) -> str:
    """A job: these modules of the bundle at `path`, whose hash is `digest`, on all images of the target."""
    network = _network(path, digest, providers, threads)
    manifest = network.bundle.manifest
    task = f"{target.name}: {len(names)} modules"
    progress.step(task, 0, len(target))
    parts = []
    for start in range(0, len(target), PART):
        batch = ImageBatch(list(target.files[start : start + PART]), manifest.preprocessing)
        logits = network.run(batch, {}, names).logits
        finite = np.isfinite(logits).all(axis=2)
        parts.append(np.where(finite, logits.argmax(axis=2), NOTHING))
        progress.step(task, start + len(batch), len(target))
    predicted = np.concatenate(parts)
    for column, name in enumerate(n for n in manifest.names if n in names):  # the order of the logits
        file = cell_file(out, manifest, name, target)
        file.parent.mkdir(parents=True, exist_ok=True)
        said = tuple(map(int, predicted[:, column]))
        cell = Cell(name, target.name, said, cell_key(manifest, name, target))
        write_text(file, json.dumps(encode(cell), sort_keys=True) + "\n")
    return target.name


@lru_cache(maxsize=1)
def _network(path: Path, digest: str, providers: str, threads: int | None) -> Network:
    """Opened once in every process: a worker fills many columns."""
    bundle = Bundle(path)
    if bundle.hash != digest:
        raise ConfigError(
            f"{path}: the bundle was replaced while its matrix was computed; run the same command again"
        )
    return Network(bundle, Engine.of(bundle.manifest.precision, providers, threads))
