"""Learned state on disk: one safetensors file, written whole, with the generation before it kept.

`path` is the newest, `path.previous` the one before. A file that is damaged or half there is passed over for the
other; a state of another bundle is refused.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_bytes

from pluto_edge._files import write_bytes
from pluto_edge.errors import BundleError, StoreError
from pluto_edge.modules import Dims, SelectorWeights, check_tensors
from pluto_edge.runtime.network import Network
from pluto_edge.runtime.prototypes import Prototypes, Seen
from pluto_edge.runtime.state import Affines, State
from pluto_edge.version import WRITER

SCHEMA_VERSION = 3  # 1 and 2 had mean logits for re-centring, which are passed over

Tensors = dict[str, NDArray[Any]]


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
    if path.exists():
        path.replace(_previous(path))
    write_bytes(path, data)


def restore(path: Path, exported: State, network: Network) -> State:
    """The newest whole generation."""
    problems = []
    for file in (path, _previous(path)):
        try:
            metadata, tensors = _read(file)
        except (OSError, SafetensorError, ValueError, KeyError) as cause:
            problems.append(f"{file.name}: {cause}")
            continue
        if metadata["bundle"] != network.bundle.hash:
            raise BundleError(f"{file}: saved with another bundle; its weights mean nothing here")
        return _state(tensors, json.loads(metadata["counters"]), exported, network, str(file))
    raise StoreError(f"{path}: no whole state to restore ({'; '.join(problems)})")


def _read(file: Path) -> tuple[Mapping[str, str], Tensors]:
    with safe_open(file, framework="numpy") as opened:
        metadata = opened.metadata() or {}
        tensors = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
    if int(metadata["schema_version"]) > SCHEMA_VERSION:
        raise StoreError(f"{file}: written by a newer pluto-edge; run: pip install --upgrade pluto-edge")
    if metadata["digest"] != _digest(tensors):
        raise ValueError("damaged: its digest differs")
    return metadata, tensors


def _state(tensors: Tensors, counters: dict[str, Any], exported: State, network: Network, where: str) -> State:
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


def _previous(path: Path) -> Path:
    return path.with_name(path.name + ".previous")
