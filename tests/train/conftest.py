"""Stores to train into, and runs that are stopped."""

from collections.abc import Callable, Sequence
from pathlib import Path

from pluto_edge.modules import Kind
from pluto_edge.store import Store
from pluto_edge.train.trainer import BackboneChoice, create_store
from tests.shapes import ARCHITECTURE, CLASSES, SIZE


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
