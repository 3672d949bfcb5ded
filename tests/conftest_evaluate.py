"""Labelled folders of coloured patches, and recorded streams of them, made once a run."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pluto_edge.evaluate.recorded import RecordedNetwork
from pluto_edge.evaluate.targets import Stream, find_targets, prepare
from pluto_edge.manifest import Bundle
from pluto_edge.runtime.session import Engine

DOMAINS = {"noise": 60, "other": 24, "source": 30}


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """root/<domain>/class-<i>/<n>.png; classes come in turn."""
    root, rng = tmp_path_factory.mktemp("domains"), np.random.default_rng(11)
    for name, count in DOMAINS.items():
        for index in range(count):
            folder = root / name / f"class-{index % 7}"
            folder.mkdir(parents=True, exist_ok=True)
            patches = rng.integers(0, 256, (5, 4, 3), dtype=np.uint8)
            Image.fromarray(patches).resize((44, 50), Image.Resampling.BICUBIC).save(folder / f"{index}.png")
    return root


@pytest.fixture(scope="session")
def make_network(make_bundle: Callable[..., Path]) -> Callable[..., RecordedNetwork]:
    def make(kind: str = "vpt") -> RecordedNetwork:
        return RecordedNetwork(Bundle(make_bundle(kind)), Engine("cpu", 1))

    return make


@pytest.fixture(scope="session")
def make_stream(folders: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Stream]:
    cache = tmp_path_factory.mktemp("cache")

    def make(network: RecordedNetwork, name: str) -> Stream:
        manifest = network.bundle.manifest
        (target,) = find_targets(folders, [name], manifest.classes)
        stream = prepare(target, manifest.preprocessing, cache)
        network.record(stream, cache)
        return stream

    return make
