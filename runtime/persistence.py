"""Learned state on disk: one safetensors file, written whole, with the generation before it kept.

`path` is the newest, `path.previous` the one before. A file that is damaged, half there or too new is passed over for
the other, and never takes the other's place; a state of another bundle is refused.
"""

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_bytes

from pluto_edge._files import alone_in, give_name, sweep, write_bytes
from pluto_edge.errors import BundleError, StoreError
from pluto_edge.modules import Dims, SelectorWeights, check_tensors
from pluto_edge.runtime.network import Network
from pluto_edge.runtime.prototypes import Prototypes, Seen
from pluto_edge.runtime.state import Affines, State
from pluto_edge.version import WRITER

SCHEMA_VERSION = 3  # 1 and 2 had mean logits for re-centring, which are passed over

Tensors = dict[str, NDArray[Any]]

log = logging.getLogger("pluto_edge")


def save(path: Path, state: State, bundle: str) -> None:
    tensors: Tensors = {f"selector.{k}": v for k, v in state.selector.tensors.items()}
    tensors |= {f"moments.{k}": v for k, v in state.moments.items()}
    for group, values in (("affines", state.affines), ("momentum", state.momentum)):
        for name, affines in values.items():
            tensors |= {f"{group}.{name}.scale": affines.scale, f"{group}.{name}.bias": affines.bias}
    for name, seen in state.prototypes.modules.items():
        tensors |= {f"prototypes.{name}.counts": seen.counts, f"prototypes.{name}.sums": seen.sums}
    counters = {n: getattr(state, n) for n in ("top", "labels", "average", "steps", "rollbacks", "samples")}
    metadata = {
        "schema_version": str(SCHEMA_VERSION),
        "writer": WRITER,
        "bundle": bundle,
        "counters": json.dumps(counters),
        "digest": _digest(tensors),
    }
    data = to_bytes({k: np.ascontiguousarray(v) for k, v in tensors.items()}, metadata)
    path.parent.mkdir(parents=True, exist_ok=True)
    with alone_in(path.parent) as alone:
        if alone:
            for file in generations(path):
                sweep(file)
        _keep(path)
        write_bytes(path, data)


def generations(path: Path) -> tuple[Path, Path]:
    """Where a state that was saved to `path` may be, newest first."""
    return path, path.with_name(path.name + ".previous")


def saved(path: Path) -> bool:
    """Whether anything was saved to `path`: whoever would start fresh where there is nothing asks this."""
    return any(os.path.lexists(file) for file in generations(path))


def restore(path: Path, exported: State, network: Network) -> State:
    """The newest whole generation."""
    problems = []
    for file in generations(path):
        try:
            metadata, tensors = _read(file)
            if metadata["bundle"] != network.bundle.hash:
                raise BundleError(f"{file}: saved with another bundle; its weights mean nothing here")
            state = _state(tensors, metadata, exported, network, str(file))
        except _NotWhole as cause:
            problems.append(f"{file.name}: {cause}")
            continue
        if problems:
            log.warning("%s: the state before the last is restored (%s)", path, problems[0])
        return state
    raise StoreError(f"{path}: no whole state to restore ({'; '.join(problems)})")


class _NotWhole(StoreError):
    """This file cannot be restored; the other generation may be."""


def _keep(path: Path) -> None:
    """The newest state becomes the previous one, unless it is damaged and the previous is not."""
    newest, previous = generations(path)
    if newest.is_file() and (_whole(newest) or not _whole(previous)):
        give_name(newest, previous)


def _whole(file: Path) -> bool:
    try:
        _read(file)
    except _NotWhole:
        return False
    return True


def _read(file: Path) -> tuple[Mapping[str, str], Tensors]:
    """Metadata and tensors as they were written, of a version that is known here."""
    try:
        with safe_open(file, framework="numpy") as opened:
            metadata = opened.metadata() or {}
            tensors = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
    except FileNotFoundError as cause:
        raise _NotWhole("there is no such file") from cause
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError) as cause:
        raise _NotWhole(f"not a whole safetensors file ({cause})") from cause
    missing = [k for k in ("schema_version", "bundle", "counters", "digest") if k not in metadata]
    if missing:
        raise _NotWhole(f"not a saved state: its metadata has no {missing[0]!r}")
    version = metadata["schema_version"]
    if not (version.isascii() and version.isdecimal() and 1 <= len(version) <= 9):
        raise _NotWhole(f"schema_version: want a positive integer, got {version[:60]!r}")
    if int(version) > SCHEMA_VERSION:
        raise _NotWhole("written by a newer pluto-edge; run: pip install --upgrade pluto-edge")
    if metadata["digest"] != _digest(tensors):
        raise _NotWhole("damaged: its digest differs")
    return metadata, tensors


def _state(tensors: Tensors, metadata: Mapping[str, str], exported: State, network: Network, where: str) -> State:
    dims = network.bundle.manifest.dims
    groups: dict[str, dict[str, NDArray[Any]]] = {
        "selector": {},
        "moments": {},
        "affines": {},
        "momentum": {},
        "prototypes": {},
        "centre": {},
    }
    for key, value in tensors.items():
        group, _, rest = key.partition(".")
        groups[group][rest] = value
    selector_shapes = {k: v.shape for k, v in exported.selector.tensors.items()}
    check_tensors(groups["selector"], selector_shapes, where, StoreError)
    for group in ("affines", "momentum"):
        for key, value in groups[group].items():
            if value.shape != dims.ln_shape or not np.isfinite(value).all():
                raise StoreError(f"{where}: {group}.{key}: want finite {list(dims.ln_shape)}")
    affines = _affines(groups["affines"])
    unknown = sorted(affines.keys() - network.modules.keys())
    if unknown:
        raise StoreError(f"{where}: it has learned for module {unknown[0]!r}, which is not loaded; add it first")
    counters = json.loads(metadata["counters"])
    counters["labels"] = tuple(counters["labels"])
    counters.pop("centre", None)
    return State(
        selector=SelectorWeights(**groups["selector"]),
        moments=groups["moments"],
        affines=affines,
        momentum=_affines(groups["momentum"]),
        prototypes=_prototypes(groups["prototypes"], dims, where),
        **counters,
    )


def _prototypes(group: Tensors, dims: Dims, where: str) -> Prototypes:
    names = sorted({key.rpartition(".")[0] for key in group})
    shapes = {"counts": (dims.classes,), "sums": (dims.classes, dims.width)}
    check_tensors(group, {f"{n}.{k}": v for n in names for k, v in shapes.items()}, where, StoreError)
    for key, value in group.items():
        if value.dtype != np.float64 or not np.isfinite(value).all():
            raise StoreError(f"{where}: prototypes.{key}: want finite float64")
    return Prototypes({n: Seen(group[f"{n}.counts"], group[f"{n}.sums"]) for n in names})


def _affines(group: Mapping[str, NDArray[Any]]) -> dict[str, Affines]:
    names = sorted({key.rpartition(".")[0] for key in group})
    return {name: Affines(group[f"{name}.scale"], group[f"{name}.bias"]) for name in names}


def _digest(tensors: Mapping[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for key in sorted(tensors):
        digest.update(key.encode() + b"\0" + np.ascontiguousarray(tensors[key]).tobytes())
    return digest.hexdigest()
