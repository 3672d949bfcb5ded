"""Module folders with signatures, whose sources look as they are told."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.repository.modules import copy_module


@pytest.fixture
def make_module(make_store: Callable[..., object], tmp_path: Path) -> Callable[..., Path]:
    """`make_module(name, at=…)`: the folder of a module whose source's mean look is `at` in every channel."""

    def make(name: str, at: float = 0.0, seed: int = 0, **changes: object) -> Path:
        folder = tmp_path / "modules" / name
        shutil.rmtree(folder, ignore_errors=True)
        copy_module(make_store(), folder, name, at, seed, **changes)  # type: ignore[arg-type]
        return folder

    return make
