"""Bundles that a test may change."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pluto_edge._files import sha256, whole_folder, write_bytes


def edit(bundle: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Another manifest."""
    file = bundle / "manifest.json"
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data))


def seal(bundle: Path, name: str) -> None:
    """The manifest has the checksum and size of the file as it is now."""
    file = bundle / name
    edit(bundle, lambda m: m["files"][name].update(sha256=sha256(file), size=file.stat().st_size))


def contents(bundle: Path) -> dict[Path, bytes]:
    """Every file, by its place in the bundle."""
    return {p.relative_to(bundle): p.read_bytes() for p in bundle.rglob("*") if p.is_file()}


def write_over(target: Path, files: Mapping[Path, bytes]) -> None:
    """As an export writes a bundle, in the place of one that may be there."""
    with whole_folder(target) as folder:
        (folder / "modules").mkdir()
        for name, data in files.items():
            write_bytes(folder / name, data)
