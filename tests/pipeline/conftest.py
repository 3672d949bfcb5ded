"""Repositories to build into, and what a build is told."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pluto_edge.pipeline.build import Built, build
from pluto_edge.repository.keys import load_signers, new_key
from pluto_edge.repository.publisher import Publisher
from pluto_edge.repository.roles import TOP
from pluto_edge.train.jobs import Workers
from tests import shapes

Build = Callable[..., Built]


@pytest.fixture
def make_build(tmp_path: Path, weights: Path) -> Build:
    """Builds of the folders in `data` into a folder of a name, which has a repository and keys of its own."""

    def make(data: Path, name: str = "one", **more: Any) -> Built:
        folder = tmp_path / name
        if not folder.exists():
            public = {role: [new_key(folder / "keys" / f"{role}.pem")] for role in TOP}
            Publisher.create(folder / "repo", public).publish(load_signers([folder / "keys"]))
        training = {
            "backbone": shapes.ARCHITECTURE,
            "weights": weights,
            "image_size": shapes.SIZE,
            "epochs": 2,
            "batch": 8,
            **more.pop("training", {}),
        }
        arguments = {"name": "shapes", "least": 0.0, "workers": Workers(threads=1), **more}
        signers = load_signers([folder / "keys"])
        return build(data, folder / "work", folder / "repo", signers, training=training, **arguments)

    return make
