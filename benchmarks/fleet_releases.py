"""The repository of `fleet.py`: made by pluto-edge's own publisher, then plain files in memory.

1.0 is the bundle as it is; 1.1 has one module that was changed; 1.2 has one whose answers are of the wrong classes,
which no check of a file can notice; last 1.2 is revoked.
"""

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save

from pluto_edge._files import write_bytes, write_text
from pluto_edge._schema import to_text
from pluto_edge.manifest import MANIFEST, Bundle
from pluto_edge.repository import keys
from pluto_edge.repository.layout import BLOBS, METADATA, TARGETS
from pluto_edge.repository.publisher import Publisher
from pluto_edge.repository.roles import TOP

Tensors = dict[str, np.ndarray]


@dataclass(frozen=True)
class Served:
    """What was served from one publication on: every file by its path, and what the whole bundle weighs."""

    version: str
    files: dict[str, bytes]
    bundle_bytes: int


def publications(bundle: Path, folder: Path) -> tuple[list[Served], Path]:
    """The four publications, and the file of the root of trust."""
    public = {role: [keys.new_key(folder / "keys" / f"{role}.pem")] for role in TOP}
    repository = Publisher.create(folder / "store", public)
    signers = keys.load_signers([folder / "keys"])
    name = Bundle(bundle).manifest.names[0]
    found = []
    for version, change in (("1.0", None), ("1.1", _retrained), ("1.2", _wrong)):
        made = bundle if change is None else _changed(bundle, folder / version, name, change)
        release = repository.add_bundle(made, "meter", version)
        repository.publish(signers)
        found.append(Served(version, _files(repository.folder), sum(blob.size for blob in release.blobs)))
    repository.revoke_release("meter", "1.2", "answers are of the wrong classes")
    repository.publish(signers)
    found.append(Served("1.1", _files(repository.folder), found[1].bundle_bytes))
    return found, folder / "store" / METADATA / "1.root.json"


def _files(folder: Path) -> dict[str, bytes]:
    served = [file for top in (METADATA, TARGETS, BLOBS) for file in (folder / top).rglob("*") if file.is_file()]
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in served}


def _changed(bundle: Path, target: Path, name: str, change: Callable[[Tensors], None]) -> Path:
    """A copy of a bundle in which one module is another."""
    shutil.copytree(bundle, target)
    manifest = json.loads((target / MANIFEST).read_bytes())
    (file,) = [n for n in manifest["files"] if Path(n).name == f"{name}.safetensors"]
    with safe_open(target / file, framework="numpy") as opened:
        tensors = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
        metadata = opened.metadata()
    change(tensors)
    data = save(tensors, metadata)
    write_bytes(target / file, data)
    manifest["files"][file] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
    write_text(target / MANIFEST, to_text(manifest))
    return target


def _retrained(tensors: Tensors) -> None:
    """Another training run would leave other numbers everywhere: so are these."""
    rng = np.random.default_rng(0)
    tensors["head_weight"] = tensors["head_weight"] * rng.normal(1, 0.01, tensors["head_weight"].shape).astype("f4")


def _wrong(tensors: Tensors) -> None:
    """Every class is taken for the next one."""
    for name in ("head_weight", "head_bias"):
        tensors[name] = np.ascontiguousarray(np.roll(tensors[name], 1, axis=0))
