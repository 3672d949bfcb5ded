"""A copy of a bundle that a test may damage."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pluto_edge._files import sha256


@pytest.fixture
def broken(make_bundle: Callable[..., Path], tmp_path: Path) -> Path:
    shutil.copytree(make_bundle(), tmp_path / "bundle")
    return tmp_path / "bundle"


def edit(bundle: Path, change: Callable[[dict], None]) -> None:
    """Another manifest."""
    file = bundle / "manifest.json"
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data))


def seal(bundle: Path, name: str) -> None:
    """The manifest has the checksum and size of the file as it is now."""
    file = bundle / name
    edit(bundle, lambda m: m["files"][name].update(sha256=sha256(file), size=file.stat().st_size))
