"""Recorded streams of the coloured patches, made once a run."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pluto_edge.evaluate.recorded import RecordedNetwork
from pluto_edge.evaluate.targets import TargetStream, find_targets, prepare
from pluto_edge.manifest import Bundle
from pluto_edge.runtime.engine.session import Engine


@pytest.fixture(scope="session")
def make_network(make_bundle: Callable[..., Path]) -> Callable[..., RecordedNetwork]:
    def make(kind: str = "vpt") -> RecordedNetwork:
        return RecordedNetwork(Bundle(make_bundle(kind)), Engine("cpu", 1))

    return make


@pytest.fixture(scope="session")
def make_stream(folders: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., TargetStream]:
    cache = tmp_path_factory.mktemp("cache")

    def make(network: RecordedNetwork, name: str) -> TargetStream:
        manifest = network.bundle.manifest
        (target,) = find_targets(folders, [name], manifest.classes)
        stream = prepare(target, manifest.preprocessing, cache)
        network.record(stream, cache)
        return stream

    return make
