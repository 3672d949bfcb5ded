"""Bundles whose hashes are right and whose contents are not: graphs, weights, tensors, numbers of the manifest.

Must happen: a `PlutoError`, when the bundle is opened or at the first prediction or step; or predictions that are
finite. No graph may hang or crash the process.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from safetensors.numpy import load_file

from attacks.harness import Case
from attacks.mutate import mutate_bytes, mutate_json, mutate_tensors, to_safetensors
from attacks.world import check_prediction, copy_bundle, frames, quiet_graphs
from pluto_edge import Runtime

SECONDS = 60.0
GRAPHS = ("embed.onnx", "forward.onnx", "adapt.onnx")


@contextmanager
def attack(place: Path) -> Iterator[Case]:
    """Cases that open a bundle whose contents were changed and whose hashes were put right."""
    quiet_graphs()
    folder = copy_bundle(place)
    manifest = json.loads((folder / "manifest.json").read_bytes())
    good = {name: (folder / name).read_bytes() for name in manifest["files"]}
    tensors = {n: load_file(folder / n) for n in good if n.endswith(".safetensors") and n != "seen.safetensors"}

    def case(rng: Random) -> None:
        name = rng.choice(GRAPHS) if rng.random() < 0.4 else rng.choice([*good])
        data = good[name]
        if name in tensors and rng.random() < 0.8:
            data = to_safetensors(mutate_tensors(rng, tensors[name]))
        elif name != "weights.bin" or rng.random() < 0.5:
            data = mutate_bytes(rng, data)
        description = json.dumps({**manifest, "files": {**manifest["files"], name: _entry(data)}}).encode()
        if rng.random() < 0.2:
            description = mutate_json(rng, description, 1)
        (folder / name).write_bytes(data)
        (folder / "manifest.json").write_bytes(description)
        try:
            _use(folder)
        finally:
            (folder / name).write_bytes(good[name])

    yield case


def _entry(data: bytes) -> dict[str, Any]:
    return {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}


def _use(folder: Path) -> None:
    with Runtime(folder, "cpu", 1) as runtime:
        check_prediction(runtime.predict(frames()[:2]), 2)
        check_prediction(runtime.step(frames()[:16]), 16)
        check_prediction(runtime.predict(frames()[:2]), 2)
