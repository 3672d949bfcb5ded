"""Disks that are full, processes that die, power cuts and readers in between, up to three times in a row.

Must happen: the old or the new is there, whole, whatever was hit; a run without faults then ends well and leaves
nothing temporary behind. `tests/pluto_edge/test_files.py` has every single fault; here they come one after another.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import get_args

import numpy as np

from attacks.harness import Case, Escape
from attacks.world import STORE
from pluto_edge._files import found, read_tensors, whole_folder, write_tensors, write_text
from pluto_edge.errors import PlutoError, StoreError
from pluto_edge.modules import Module
from pluto_edge.store import Store
from tests.faults import Faults, Killed, Mode, faulty, hidden


@dataclass(frozen=True)
class _Write:
    """Something that is written over and over: how, and which version is there."""

    prepare: Callable[[], None]
    write: Callable[[int], None]
    version: Callable[[], int]


@contextmanager
def attack(place: Path) -> Iterator[Case]:
    """Cases that read while a write is interrupted."""
    writes = [_file(place), _folder(place), _module(place)]
    calls = [_count(w) for w in writes]

    def case(rng: Random) -> None:
        which = rng.randrange(len(writes))
        write = writes[which]
        exchange = rng.random() < 0.5
        write.prepare()
        allowed = {0}
        for version in range(1, rng.randint(1, 3) + 1):
            allowed.add(version)

            def look(allowed: set[int] = allowed, write: _Write = write) -> None:
                if write.version() not in allowed:
                    raise Escape("neither the old nor the new is there")

            faults = Faults(rng.randint(1, calls[which] + 3), rng.choice(get_args(Mode)), look)
            try:
                with faulty(faults, exchange):
                    write.write(version)
            except (OSError, Killed):
                pass
            look()
        with faulty(Faults(), exchange):
            write.write(9)
        if write.version() != 9:
            raise Escape("a run without faults did not end well")
        left = [h for h in hidden(place) if not h.endswith(".tmp")]  # of files the next save sweeps them
        if left:
            raise Escape(f"{left[0]} is left behind")

    yield case


def _count(write: _Write) -> int:
    write.prepare()
    with faulty(Faults(), exchange=True) as faults:
        write.write(1)
    return faults.calls


def _fresh(place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()


def _file(place: Path) -> _Write:
    file = place / "file/t.safetensors"

    def write(version: int) -> None:
        write_tensors(file, {"t": np.full(3, version, np.float32)})

    def prepare() -> None:
        _fresh(file.parent)
        write(0)

    return _Write(prepare, write, lambda: int(read_tensors(file, StoreError)["t"][0]))


def _folder(place: Path) -> _Write:
    target = place / "folder/target"

    def write(version: int) -> None:
        with whole_folder(target) as folder:
            for name in ("a", "b"):
                write_text(folder / name, str(version))

    def prepare() -> None:
        _fresh(target.parent)
        write(0)

    def version() -> int:
        a, b = ((found(target) / name).read_text() for name in ("a", "b"))
        if a != b or len(list(target.iterdir())) != 2:
            raise Escape("half a folder")
        return int(a)

    return _Write(prepare, write, version)


def _module(place: Path) -> _Write:
    """One module of a store, whose other files stay."""
    path = place / "store"
    name = "fog"
    path.mkdir()
    shutil.copy(STORE / "store.json", path)
    module = Store(STORE).load_module(name)
    config = Store(STORE).module_config(name)
    store = Store(path)

    def write(version: int) -> None:
        bias = np.full_like(module.tensors["head_bias"], version)
        store.write_module(Module(name, module.dims, {**module.tensors, "head_bias": bias}), config)

    def prepare() -> None:
        shutil.rmtree(path / "modules", ignore_errors=True)
        write(0)

    def version() -> int:
        try:
            return int(Store(path).load_module(name).tensors["head_bias"][0])
        except PlutoError as error:  # it is never damaged
            raise Escape(str(error)) from error

    return _Write(prepare, write, version)
