"""A disk that is really full: a small file system in memory, with room for less and less.

Mounting one wants root; elsewhere these tests are skipped. `test_files.py` plays full disks without it.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pluto_edge.errors import StoreError
from pluto_edge.modules import Dims, Module, SelectorWeights
from pluto_edge.runtime import persistence
from pluto_edge.runtime.algorithm.state import State
from pluto_edge.runtime.engine.network import Modules
from pluto_edge.store import Store
from tests.bundles import contents, write_over
from tests.faults import hidden

PAGE = 4096
SIZE = 2 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("mounting a file system wants root")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", place], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def leave(disk: Path, pages: int) -> None:
    """Fill the disk until only so many pages are free."""
    free = os.statvfs(disk).f_bavail
    (disk / "ballast").write_bytes(bytes(PAGE * max(free - pages, 0)))


def squeeze(disk: Path, need: int, act: Callable[[], object], check: Callable[[], object]) -> int:
    """`act` with less and less room, from `need` pages on; gives how often there was too little."""
    failed = 0
    for pages in sorted({*range(0, 12), *range(12, need, max(need // 8, 1))}):
        leave(disk, pages)
        try:
            act()
        except OSError as error:
            assert "No space left" in str(error)
            failed += 1
        check()
        (disk / "ballast").unlink()
        act()
        check()
    return failed


def test_a_state(disk: Path, tmp_path: Path) -> None:
    """Whoever cannot save keeps what was saved."""
    selector = SelectorWeights.random(width=96, classes=10, hidden_x=32, hidden_l=32, out=32)
    manifest = SimpleNamespace(dims=Dims("vpt", 1, 96, 1, 10))
    network: Any = SimpleNamespace(bundle=SimpleNamespace(hash="h", manifest=manifest), modules=Modules())
    file, alone = disk / "state", tmp_path / "alone"
    steps = iter(range(1000))

    def save() -> None:
        persistence.save(file, State(selector, steps=next(steps)), "h")

    save()

    def check() -> None:
        """The newest is whole: there is no other where it is looked for."""
        shutil.copy(file, alone)
        persistence.restore(alone, State(selector), network)

    assert squeeze(disk, 24, save, check) >= 1  # the generation before the last makes room
    assert sorted(p.name for p in disk.iterdir()) == ["state", "state.previous"]


def test_a_module(disk: Path, make_store: Callable[..., Store]) -> None:
    source, name = make_store(), "domain-0"
    for file in ("store.json", f"modules/{name}"):
        (disk / file).parent.mkdir(exist_ok=True)
        (shutil.copytree if file != "store.json" else shutil.copy)(source.path / file, disk / file)
    store = Store(disk)
    old, config = source.load_module(name), source.module_config(name)
    new = Module(name, old.dims, {**old.tensors, "head_bias": old.tensors["head_bias"] + 1})

    def check() -> None:
        found = Store(disk).load_module(name).tensors["head_bias"]
        assert any(np.array_equal(found, m.tensors["head_bias"]) for m in (old, new))

    assert squeeze(disk, 24, lambda: store.write_module(new, config), check) >= 1
    assert hidden(disk) == []
    with pytest.raises(StoreError):
        Store(disk).load_module("domain-1")


def test_a_bundle_over_an_old_one(disk: Path, make_bundle: Callable[..., Path]) -> None:
    made = make_bundle("vpt", 1)
    files = contents(made)
    total = sum(len(data) for data in files.values())
    assert 2 * total < SIZE - 64 * PAGE, "the disk of this test is too small for two bundles"
    target = disk / "bundle"

    def export() -> None:
        write_over(target, files)

    export()

    def check() -> None:
        assert contents(target) == files

    assert squeeze(disk, total // PAGE + 24, export, check) > 10
    assert hidden(disk) == []
