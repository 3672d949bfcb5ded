"""Learned state on disk: one safetensors file, written whole, with the generation before it kept.

`path` is the newest, `path.previous` the one before. A file that is damaged, half there or too new is passed over
for the other, and never takes the other's place; a state of another bundle is refused.
"""

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_bytes

from pluto_edge._files import alone_in, give_name, sweep, write_bytes
from pluto_edge._schema import decode
from pluto_edge.errors import BundleError, ConfigError, StoreError
from pluto_edge.modules import Dims, SelectorWeights, check_tensors
from pluto_edge.runtime.algorithm.prototypes import Prototypes, Seen
from pluto_edge.runtime.algorithm.state import State
from pluto_edge.runtime.engine.affines import Affines
from pluto_edge.runtime.engine.network import Network
from pluto_edge.version import WRITER

# 1 and 2 had mean logits for re-centring, which are passed over; up to 3 the digest was of the tensors alone;
# up to 4 prototypes had no mean of all images, and it did not say which modules it had learned with
SCHEMA_VERSION = 5
GROUPS = ("selector", "moments", "affines", "momentum", "prototypes", "centre")

Tensors = dict[str, NDArray[Any]]

log = logging.getLogger("pluto_edge")


def save(path: Path, state: State, bundle: str) -> None:
    """Write what was learned with the bundle of this hash; the file that was there is kept as `path.previous`."""
    tensors: Tensors = {f"selector.{k}": v for k, v in state.selector.tensors.items()}
    tensors |= {f"moments.{k}": v for k, v in state.moments.items()}
    for group, values in (("affines", state.affines), ("momentum", state.momentum)):
        for name, affines in values.items():
            tensors |= {f"{group}.{name}.scale": affines.scale, f"{group}.{name}.bias": affines.bias}
    for name, seen in state.prototypes.modules.items():
        tensors |= {f"prototypes.{name}.{part}": value for part, value in vars(seen).items()}
    counters = {f.name: getattr(state, f.name) for f in fields(_Counters)}
    metadata = {
        "schema_version": str(SCHEMA_VERSION),
        "writer": WRITER,
        "bundle": bundle,
        "counters": json.dumps(counters),
    }
    metadata["digest"] = digest_of(tensors, metadata)
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


def owner(path: Path) -> str:
    """The hash of the bundle that the newest whole generation was saved with; "" where there is none."""
    for file in generations(path):
        try:
            return _read(file)[0]["bundle"]
        except _NotWhole:
            continue
    return ""


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
    if metadata["digest"] != digest_of(tensors, metadata):
        raise _NotWhole("damaged: its digest differs")
    return metadata, tensors


@dataclass(frozen=True)
class _Counters:
    """What a state has beside tensors."""

    top: str | None
    labels: tuple[int, ...]
    average: float | None
    steps: int
    rollbacks: int
    samples: int
    digests: dict[str, str] = field(default_factory=dict)  # none in files of earlier versions

    def __post_init__(self) -> None:
        for name in ("steps", "rollbacks", "samples"):
            if not 0 <= getattr(self, name) < 2**63:
                raise ConfigError(f"{name}: want at least 0, got {getattr(self, name)}")


def _state(tensors: Tensors, metadata: Mapping[str, str], exported: State, network: Network, where: str) -> State:
    dims = network.bundle.manifest.dims
    groups: dict[str, Tensors] = {name: {} for name in GROUPS}
    for key, value in tensors.items():
        group, _, rest = key.partition(".")
        if group not in groups:
            raise _NotWhole(f"tensor {key!r} is not part of a state")
        groups[group][rest] = value
    affines, momentum = (_affines(groups[name], name, dims.ln_shape) for name in ("affines", "momentum"))
    prototypes = _prototypes(groups["prototypes"], dims, int(metadata["schema_version"]))
    state = State(
        selector=SelectorWeights(**_selector(groups["selector"], exported)),
        moments=_moments(groups["moments"], exported),
        affines=affines,
        momentum=momentum,
        prototypes=prototypes,
        unmoved=prototypes,
        **vars(_counters(metadata["counters"], dims.classes)),
    )
    unknown = sorted((affines.keys() | momentum.keys()) - network.modules.keys())
    if unknown:
        raise StoreError(f"{where}: it has learned for module {unknown[0]!r}, which is not loaded; add it first")
    loaded = network.modules.digests
    others = [n for n, digest in state.digests.items() if loaded.get(n, digest) != digest]
    if others:
        raise StoreError(f"{where}: it has learned for another module {others[0]!r} than the one that is loaded")
    return state.learned_with(loaded)


def _counters(text: str, classes: int) -> _Counters:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as cause:
        raise _NotWhole(f"counters: not valid JSON ({cause})") from cause
    if isinstance(data, dict):
        data.pop("centre", None)  # of earlier versions
        unknown = sorted(data.keys() - {f.name for f in fields(_Counters)})
        if unknown:
            raise _NotWhole(f"counters: {unknown[0]!r} is not one of them")
    counters = decode(_Counters, data, "counters", _NotWhole)
    wrong = [n for n in counters.labels if not 0 <= n < classes]
    if wrong:
        raise _NotWhole(f"counters.labels: want 0 to {classes - 1}, got {wrong[0]}")
    return counters


def _selector(group: Tensors, exported: State) -> Tensors:
    _check(group, {k: v.shape for k, v in exported.selector.tensors.items()}, "selector", np.float32)
    return group


def _moments(group: Tensors, exported: State) -> Tensors:
    """Adam's memory, whole or not there."""
    if group:
        shapes: dict[str, tuple[int, ...]] = {"t": (1,)}
        for key, value in exported.selector.tensors.items():
            shapes |= {f"m.{key}": value.shape, f"v.{key}": value.shape}
        _check(group, shapes, "moments", np.float64)
        for key, value in group.items():
            if not key.startswith("m.") and (value < 0).any():
                raise _NotWhole(f"moments.{key}: want at least 0")
    return group


def _affines(group: Tensors, what: str, shape: tuple[int, ...]) -> dict[str, Affines]:
    names = sorted({key.rpartition(".")[0] for key in group})
    _check(group, {f"{n}.{k}": shape for n in names for k in ("scale", "bias")}, what, np.float32)
    return {name: Affines(group[f"{name}.scale"], group[f"{name}.bias"]) for name in names}


def _prototypes(group: Tensors, dims: Dims, version: int) -> Prototypes:
    names = sorted({key.rpartition(".")[0] for key in group})
    empty = vars(Seen.nothing(dims.classes, dims.width))
    if version < 5:
        group = {f"{n}.{part}": empty[part] for n in names for part in ("count", "total")} | group
    _check(group, {f"{n}.{k}": v.shape for n in names for k, v in empty.items()}, "prototypes", np.float64)
    for name in names:
        for part in ("counts", "count"):
            if (group[f"{name}.{part}"] < 0).any():
                raise _NotWhole(f"prototypes.{name}.{part}: want at least 0")
    return Prototypes({n: Seen(**{part: group[f"{n}.{part}"] for part in empty}) for n in names})


def _check(
    group: Tensors, shapes: dict[str, tuple[int, ...]], what: str, dtype: type[np.float32] | type[np.float64]
) -> None:
    """Exactly these tensors, of one type and finite."""
    check_tensors(group, shapes, what, _NotWhole)
    for key, value in group.items():
        if value.dtype != dtype or not np.isfinite(value).all():
            raise _NotWhole(f"{what}.{key}: want finite {np.dtype(dtype)}, got {value.dtype}")


def digest_of(tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> str:
    """Of everything that a state is made of."""
    found = hashlib.sha256()
    whole = int(metadata["schema_version"]) > 3
    if whole:
        found.update(json.dumps([metadata["bundle"], metadata["counters"]]).encode())
    for key in sorted(tensors):
        value = np.ascontiguousarray(tensors[key])
        kind = f"{value.dtype}{value.shape}" if whole else ""
        found.update(key.encode() + b"\0" + kind.encode() + value.tobytes())
    return found.hexdigest()
