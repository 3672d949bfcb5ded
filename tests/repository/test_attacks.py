"""The attacks of The Update Framework's catalogue, each from a repository that is hostile in just that way.

What a device has stays; nothing that was attacked is used. Most of them are those of `attacks/`, each once.
"""

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from random import Random

import pytest

from attacks import CATALOGUE
from attacks.catalogue.arbitrary_installation import HASHES, PATHS, mishashed, misnamed
from attacks.catalogue.device import Device
from attacks.catalogue.hostile_repository import URL, Simulator
from pluto_edge.errors import RepositoryError
from pluto_edge.manifest import Bundle
from pluto_edge.repository.client import Client, resolve
from pluto_edge.repository.layout import ModuleRelease, module_target, release_target, target_bytes

TRIES = {name: import_module(f"attacks.catalogue.{name}").TRIES for name in CATALOGUE}
EACH = [(name, tried) for name, tries in TRIES.items() for tried in tries.variants]


@pytest.fixture
def simulator(make_bundle: Callable[..., Path]) -> Simulator:
    return Simulator(make_bundle())


@pytest.fixture
def client(simulator: Simulator, tmp_path: Path) -> Client:
    return simulator.client(tmp_path)


def test_an_honest_repository(simulator: Simulator, client: Client, make_bundle: Callable[..., Path]) -> None:
    """Else the refusals below would say nothing."""
    first = client.pull(Simulator.address)
    release = simulator.add_release(make_bundle("adapter"), "1.1")
    simulator.publish()
    second = client.pull(Simulator.address)
    assert first != second and second.name == release.content
    assert Bundle(second).manifest.dims.kind == "adapter"


@pytest.mark.parametrize("name, tried", EACH)
def test_the_catalogue(name: str, tried: str, tmp_path: Path) -> None:
    """Whatever is not refused for the reason that is wanted, or changes what the device has, raises `Escape`."""
    story = TRIES[name].play(tried, tmp_path, Random(0))
    assert story.refused or tried == "files that nobody has signed"


@pytest.mark.parametrize("name", PATHS)
def test_files_outside_of_the_bundle(name: str, tmp_path: Path) -> None:
    """Signed by those who may: a path that leads out of the folder is refused all the same."""
    misnamed(Device(tmp_path), name)


@pytest.mark.parametrize("digest", HASHES)
def test_hashes_that_are_paths(digest: str, tmp_path: Path) -> None:
    mishashed(Device(tmp_path), digest)


def test_a_blob_that_is_not_what_was_signed_is_thrown_away(simulator: Simulator, client: Client) -> None:
    path = max((p for p in simulator.files if p.startswith("blobs/")), key=lambda p: len(simulator.files[p]))
    simulator.files[path] = bytes(len(simulator.files[path]))
    with pytest.raises(RepositoryError, match="is not what was signed; it is thrown away"):
        client.pull(Simulator.address)
    assert not list(client.cache.partial.iterdir())


def test_a_device_goes_on_with_what_it_has(
    simulator: Simulator,
    client: Client,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = client.pull(Simulator.address)
    simulator.timestamp.expires = datetime.now(UTC).replace(microsecond=0) - timedelta(days=1)
    simulator.publish()
    monkeypatch.setattr("pluto_edge.repository.client.transport_of", lambda _: simulator)
    with caplog.at_level(logging.WARNING, "pluto_edge"):
        assert resolve(f"{URL}/meter", cache=tmp_path / "cache") == folder
    assert "not brought up to date" in caplog.text and "timestamp.json is expired" in caplog.text


def module(name: str) -> ModuleRelease:
    entry = Simulator().blob(b"{}")
    files = {"adapter_config.json": entry, "adapter_model.safetensors": entry}
    return ModuleRelease(name, "specialist", "vit_tiny_patch16_224", files)


def test_a_site_signs_for_itself_alone(simulator: Simulator, client: Client) -> None:
    """What it signs for others, or for the repository, is not there."""
    lab = simulator.add_site("lab")
    simulator.add_site("plant")
    for target in (
        module_target("fog"),
        module_target("fog", "plant"),
        release_target("meter", "6"),
        "sites/lab/a/b/c",
    ):
        simulator.put(target, target_bytes(module("fog")), lab)
    simulator.publish()
    for name, site in (("fog", ""), ("fog", "plant")):
        with pytest.raises(RepositoryError, match="fog: is not published"):
            client.module(name, site)
    simulator.put(module_target("fog", "lab"), target_bytes(module("fog")), lab)
    simulator.sites[lab].version += 1
    simulator.publish()
    with pytest.raises(RepositoryError, match="404"):  # it is found; its blobs were not served
        client.module("fog", "lab")


def test_no_root_no_trust(simulator: Simulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLUTO_ROOT", raising=False)
    monkeypatch.setattr("pluto_edge.repository.client.transport_of", lambda _: simulator)
    with pytest.raises(RepositoryError, match=r"there is no root of trust .* pluto pull ADDRESS --root root\.json"):
        Client(URL, cache=tmp_path).pull(Simulator.address)
    assert not simulator.asked, "nobody was asked for it"
