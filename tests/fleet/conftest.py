"""Two bundles of the digits that differ in one module."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pluto_edge._files import sha256
from tests.digits import BUNDLE


@pytest.fixture
def make_other(tmp_path: Path) -> Callable[..., Path]:
    """A copy of the bundle in which files were changed by functions of their tensors, and the manifest says so."""

    def make(name: str = "other", **changes: Callable[[dict[str, np.ndarray]], None]) -> Path:
        out = tmp_path / name
        shutil.copytree(BUNDLE, out)
        manifest = json.loads((out / "manifest.json").read_text())
        for module, change in changes.items():
            file = out / "modules" / f"{module}.safetensors"
            tensors = load_file(file)
            change(tensors)
            save_file(tensors, file)
            manifest["files"][f"modules/{module}.safetensors"] = {
                "sha256": sha256(file),
                "size": file.stat().st_size,
            }
        manifest["tools"]["made for"] = name
        (out / "manifest.json").write_text(json.dumps(manifest))
        return out

    return make
