"""Stores to train into, and runs that are stopped."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pluto_edge.modules import Kind
from pluto_edge.store import Store
from pluto_edge.train.trainer import BackboneChoice, create_store
from tests.shapes import ARCHITECTURE, CLASSES, SIZE


@pytest.fixture
def photos(made: Path) -> Path:
    """Of the folder that a file's own `made` fills; tests only read them."""
    return made / "photos"


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Store:
    """A copy of its own for every test, with what the training kept."""
    shutil.copytree(made / "store", tmp_path / "store")
    return Store(tmp_path / "store")


def new_store(path: Path, weights: Path, kind: Kind = "adapter", classes: Sequence[str] = CLASSES) -> Store:
    """Without a module yet."""
    return create_store(path, BackboneChoice(ARCHITECTURE, SIZE, weights), classes, kind, 4)


def stopped_in_its_second_epoch(train_module: Callable[..., object]) -> Callable[..., object]:
    """`train_module`, until a module of two domains is trained: 48 images in batches of 8, two epochs."""

    def stop(*arguments: object) -> object:
        *first, step = arguments

        def counted(done: int, total: int, note: str) -> None:
            step(done, total, note)  # type: ignore[operator]
            if total == 12 and done == 8:
                raise KeyboardInterrupt

        return train_module(*first, counted)

    return stop
