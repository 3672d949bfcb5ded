"""The attacks of The Update Framework's catalogue, each from a repository that is hostile in just that way.

What a device has stays; nothing that was attacked is used.
"""

import copy
import itertools
import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import sleep

import pytest
from securesystemslib.signer import CryptoSigner

from attacks.hostile_repository import TIMESTAMP, URL, Simulator
from pluto_edge.errors import RepositoryError
from pluto_edge.manifest import Bundle
from pluto_edge.repository.client import Client, resolve
from pluto_edge.repository.fetcher import Limits
from pluto_edge.repository.layout import (
    ModuleRelease,
    Release,
    module_target,
    release_target,
    target_bytes,
)

PAST = datetime.now(UTC).replace(microsecond=0) - timedelta(days=1)


@pytest.fixture
def simulator(make_bundle: Callable[..., Path]) -> Simulator:
    return Simulator(make_bundle())


@pytest.fixture
def client(simulator: Simulator, tmp_path: Path) -> Client:
    return simulator.client(tmp_path)


def next_release(simulator: Simulator, make_bundle: Callable[..., Path]) -> Release:
    """Another bundle as version 1.1; it is not published yet."""
    return simulator.add_release(make_bundle("adapter"), "1.1")


def refused(client: Client, match: str) -> None:
    """The attack is noticed, and what was here is what is here, whole."""
    before = client.cached(Simulator.address)
    with pytest.raises(RepositoryError, match=match):
        client.pull(Simulator.address)
    after = client.cached(Simulator.address)
    assert after == before
    if after is not None:
        Bundle(after)
    folder = client.cache.folder / "bundles"
    assert [p.name for p in folder.iterdir()] == ([after.name] if after else [])


def test_an_honest_repository(simulator: Simulator, client: Client, make_bundle: Callable[..., Path]) -> None:
    """Else the refusals below would say nothing."""
    first = client.pull(Simulator.address)
    release = next_release(simulator, make_bundle)
    simulator.publish()
    second = client.pull(Simulator.address)
    assert first != second and second.name == release.content
    assert Bundle(second).manifest.dims.kind == "adapter"


# Arbitrary installation


def test_another_blob(simulator: Simulator, client: Client) -> None:
    path = max((p for p in simulator.files if p.startswith("blobs/")), key=lambda p: len(simulator.files[p]))
    true = simulator.files[path]
    simulator.files[path] = true[:-1] + bytes([true[-1] ^ 1])
    refused(client, "is not what was signed; it is thrown away")
    assert not list(client.cache.partial.iterdir())
    simulator.files[path] = true
    assert Bundle(client.pull(Simulator.address))


def test_another_description(simulator: Simulator, client: Client) -> None:
    path = next(p for p in simulator.files if p.endswith(".1.0.json"))
    simulator.files[path] = simulator.files[path].replace(b'"1.0"', b'"1.1"')
    refused(client, "hash")


@pytest.mark.parametrize("role", ["targets", "snapshot", "timestamp"])
def test_metadata_of_a_stranger(role: str, simulator: Simulator, client: Client) -> None:
    client.pull(Simulator.address)
    stranger = CryptoSigner.generate_ed25519()
    simulator.signers[role] = [stranger]
    simulator.publish()
    refused(client, f"{role} was signed by 0/1 keys")


def test_unsigned_metadata(simulator: Simulator, client: Client) -> None:
    simulator.serve_timestamp([])
    refused(client, "timestamp was signed by 0/1 keys")


def test_a_bundle_that_is_signed_and_does_not_open(simulator: Simulator, client: Client) -> None:
    """Whoever has the keys can publish nonsense; it takes nobody's place."""
    client.pull(Simulator.address)
    simulator.add_files({"manifest.json": b"{}"}, "1.1")
    simulator.publish()
    refused(client, "was published and is not usable")


@pytest.mark.parametrize("name", ["../../../evil", "/evil", "modules/../../x", "a\\b", "..", "a/", "CON\0"])
def test_files_outside_of_the_bundle(name: str, simulator: Simulator, client: Client, tmp_path: Path) -> None:
    """Signed by those who may: a path that leads out of the folder is refused all the same."""
    release = simulator.add_files({"manifest.json": b"{}"}, "1.1")
    text = target_bytes(release).replace(
        b'"manifest.json"',
        f'"manifest.json": {{"sha256": "{"0" * 64}", "size": 0}}, "{name}"'.replace("\\", "\\\\")
        .replace("\0", "\\u0000")
        .encode(),
    )
    simulator.put(release_target("meter", "1.1"), text)
    simulator.publish()
    refused(client, "not a path inside of a folder|not a safe name")


@pytest.mark.parametrize("digest", ["../" * 21 + "x", "A" * 64, "0" * 63])
def test_hashes_that_are_paths(digest: str, simulator: Simulator, client: Client) -> None:
    release = simulator.add_files({"manifest.json": b"{}"}, "1.1")
    simulator.put(
        release_target("meter", "1.1"), target_bytes(release).replace(release.content.encode(), digest.encode())
    )
    simulator.publish()
    refused(client, "not a sha256 and a size")


# Rollback


def test_an_older_timestamp(simulator: Simulator, client: Client, make_bundle: Callable[..., Path]) -> None:
    old = simulator.files[TIMESTAMP]
    next_release(simulator, make_bundle)
    simulator.publish()
    client.pull(Simulator.address)
    simulator.files[TIMESTAMP] = old
    refused(client, "New timestamp version 1 must be >= 2")


def test_an_older_snapshot(simulator: Simulator, client: Client) -> None:
    """Whoever has the timestamp's key alone cannot bring an older snapshot back."""
    simulator.publish()
    client.pull(Simulator.address)
    simulator.snapshot.version = 1
    simulator.serve_snapshot()
    simulator.timestamp.version += 1
    simulator.serve_timestamp()
    refused(client, "New snapshot version must be >= 2")


def test_older_targets(simulator: Simulator, client: Client, make_bundle: Callable[..., Path]) -> None:
    """Whoever has the online keys, timestamp and snapshot, cannot bring an older release back."""
    old = copy.deepcopy(simulator.snapshot.meta)
    next_release(simulator, make_bundle)
    simulator.publish()
    client.pull(Simulator.address)
    simulator.snapshot.meta = old
    simulator.snapshot.version += 1
    simulator.serve_snapshot()
    simulator.timestamp.version += 1
    simulator.serve_timestamp()
    refused(client, r"targets.json version")


def test_what_was_seen_is_seen_by_the_next_process(
    simulator: Simulator, client: Client, make_bundle: Callable[..., Path], tmp_path: Path
) -> None:
    old = dict(simulator.files)
    simulator.publish()
    client.pull(Simulator.address)
    simulator.files = old
    refused(simulator.client(tmp_path), "New timestamp version 1 must be >= 2")


def test_what_was_seen_is_kept_though_the_rest_failed(
    simulator: Simulator, client: Client, make_bundle: Callable[..., Path]
) -> None:
    """A timestamp that was seen cannot be taken back by withholding what it refers to."""
    client.pull(Simulator.address)
    old = dict(simulator.files)
    simulator.publish()
    del simulator.files["metadata/2.snapshot.json"]
    refused(client, "404")
    simulator.files = old
    refused(client, "New timestamp version 1 must be >= 2")


def test_a_role_that_vanishes_from_the_snapshot(simulator: Simulator, client: Client) -> None:
    simulator.add_site("lab")
    simulator.publish()
    client.pull(Simulator.address)
    del simulator.snapshot.meta["site-lab.json"]
    simulator.snapshot.version += 1
    simulator.serve_snapshot()
    simulator.timestamp.version += 1
    simulator.serve_timestamp()
    refused(client, "missing info for 'site-lab.json'")


# Freeze


@pytest.mark.parametrize("role", ["root", "timestamp", "snapshot", "targets"])
def test_a_frozen_repository(
    role: str, simulator: Simulator, client: Client, make_bundle: Callable[..., Path]
) -> None:
    """Metadata that has expired brings nothing new."""
    client.pull(Simulator.address)
    next_release(simulator, make_bundle)
    getattr(simulator, role).expires = PAST
    if role == "root":
        simulator.root.version += 1
        simulator.serve_root()
    simulator.publish()
    refused(client, "expired")


def test_a_device_goes_on_with_what_it_has(
    simulator: Simulator,
    client: Client,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = client.pull(Simulator.address)
    simulator.timestamp.expires = PAST
    simulator.publish()
    monkeypatch.setattr("pluto_edge.repository.client.transport_of", lambda _: simulator)
    with caplog.at_level(logging.WARNING, "pluto_edge"):
        assert resolve(f"{URL}/meter", cache=tmp_path / "cache") == folder
    assert "not brought up to date" in caplog.text and "timestamp.json is expired" in caplog.text


# Mix and match


def test_files_of_two_moments(simulator: Simulator, client: Client, make_bundle: Callable[..., Path]) -> None:
    simulator.publish()
    mixed = simulator.files["metadata/2.targets.json"]
    next_release(simulator, make_bundle)
    simulator.publish()
    simulator.files["metadata/3.targets.json"] = mixed
    refused(client, r"length|hash")


def test_a_snapshot_of_another_moment(simulator: Simulator, client: Client) -> None:
    simulator.publish()
    simulator.files["metadata/2.snapshot.json"] = simulator.files["metadata/1.snapshot.json"]
    refused(client, r"length|hash|version")


def test_a_release_under_another_name(simulator: Simulator, client: Client) -> None:
    """One bundle's description in the place of another's, signed."""
    release = simulator.add_files({"manifest.json": b"{}"}, "9", name="other")
    simulator.put(release_target("meter", "1.0"), target_bytes(release))
    simulator.publish()
    refused(client, "the repository describes other@9 there")


# Endless data


def endless(_start: int) -> Iterator[bytes]:
    return itertools.repeat(bytes(65536))


@pytest.mark.parametrize(
    "part", [TIMESTAMP, "metadata/2.root.json", "metadata/1.snapshot.json", "metadata/1.targets.json"]
)
def test_endless_metadata(part: str, simulator: Simulator, client: Client) -> None:
    simulator.streams[part] = endless
    refused(client, "more than the .* bytes that it may have")


def test_an_endless_description(simulator: Simulator, client: Client) -> None:
    simulator.streams[next(p for p in simulator.files if p.endswith("stable.json"))] = endless
    refused(client, "more than the .* bytes that it may have")


def test_an_endless_blob(simulator: Simulator, client: Client) -> None:
    path = max((p for p in simulator.files if p.startswith("blobs/")), key=lambda p: len(simulator.files[p]))
    simulator.streams[path] = endless
    refused(client, "more than the .* bytes that it may have")
    kept = sum(p.stat().st_size for p in client.cache.partial.iterdir())
    assert kept <= len(simulator.files[path]), "never more on the disk than was signed"


def test_a_release_beyond_all_bounds(simulator: Simulator, client: Client) -> None:
    """Signed lengths are bounded, too: by the limits, and by what is free on the disk."""
    release = simulator.add_files({"manifest.json": b"{}"}, "1.1")
    size = f'"size": {2 * 10**8}'.encode()
    simulator.put(release_target("meter", "1.1"), target_bytes(release).replace(b'"size": 2', size))
    simulator.publish()
    refused(client, "200.0 MB to fetch; 100.0 MB are allowed")


def test_a_description_beyond_all_bounds(simulator: Simulator, client: Client) -> None:
    release = simulator.add_files({"manifest.json": b"{}"}, "1.1")
    simulator.put(release_target("meter", "1.1"), target_bytes(release) + b" " * 2 * 1024 * 1024)
    simulator.publish()
    refused(client, "want 1,048,576 at most")


# Slow retrieval


def drip(data: bytes) -> Callable[[int], Iterator[bytes]]:
    def chunks(start: int) -> Iterator[bytes]:
        for byte in data[start:]:
            sleep(0.01)
            yield bytes([byte])

    return chunks


@pytest.mark.parametrize("part", [TIMESTAMP, "metadata/1.targets.json", "blobs/"])
def test_a_repository_that_drips(part: str, simulator: Simulator, tmp_path: Path) -> None:
    path = max((p for p in simulator.files if p.startswith(part)), key=lambda p: len(simulator.files[p]))
    simulator.streams[path] = drip(simulator.files[path])
    client = simulator.client(tmp_path, Limits(idle=1.0, grace=0.2, rate=1e9, total=10**8))
    refused(client, "which is too slow")


# Fast forward


def test_versions_that_jump_and_their_recovery(
    simulator: Simulator, client: Client, make_bundle: Callable[..., Path]
) -> None:
    """Stolen online keys let versions jump, so that honest ones look old; new keys end that."""
    client.pull(Simulator.address)
    simulator.timestamp.version = simulator.snapshot.version = 2**31
    simulator.serve_snapshot()
    simulator.serve_timestamp()
    client.pull(Simulator.address)
    simulator.timestamp.version = simulator.snapshot.version = 2
    release = next_release(simulator, make_bundle)
    simulator.publish()
    refused(client, "must be >= 2147483648")
    for role in ("timestamp", "snapshot"):
        simulator.replace_keys(role)
    simulator.root.version += 1
    simulator.serve_root()
    simulator.publish()
    assert client.pull(Simulator.address).name == release.content


# Key compromise


@pytest.mark.parametrize("role", ["targets", "snapshot", "timestamp"])
def test_fewer_keys_than_the_threshold(role: str, make_bundle: Callable[..., Path], tmp_path: Path) -> None:
    simulator = Simulator(make_bundle(), threshold=2)
    client = simulator.client(tmp_path)
    client.pull(Simulator.address)
    simulator.signers[role] = simulator.signers[role][:1]
    simulator.publish()
    refused(client, f"{role} was signed by 1/2 keys")


def test_one_key_twice_is_one_key(make_bundle: Callable[..., Path], tmp_path: Path) -> None:
    simulator = Simulator(make_bundle(), threshold=2)
    client = simulator.client(tmp_path)
    simulator.signers["targets"] = simulator.signers["targets"][:1] * 2
    simulator.publish()
    refused(client, "targets was signed by 1/2 keys")


def test_a_root_by_fewer_than_the_threshold(make_bundle: Callable[..., Path], tmp_path: Path) -> None:
    simulator = Simulator(make_bundle(), threshold=2)
    client = simulator.client(tmp_path)
    client.pull(Simulator.address)
    stolen = simulator.signers["root"][:1]
    simulator.replace_keys("targets")
    simulator.root.version += 1
    simulator.serve_root(stolen)
    simulator.publish()
    refused(client, "root was signed by 1/2 keys")


def test_a_root_that_the_old_one_did_not_sign(simulator: Simulator, client: Client) -> None:
    client.pull(Simulator.address)
    simulator.replace_keys("root")
    simulator.root.version += 1
    simulator.serve_root()  # by the new keys alone
    refused(client, "root was signed by 0/1 keys")


def test_root_keys_are_replaced_by_those_who_may(simulator: Simulator, client: Client) -> None:
    client.pull(Simulator.address)
    old = list(simulator.signers["root"])
    simulator.replace_keys("root")
    simulator.root.version += 1
    simulator.serve_root([*old, *simulator.signers["root"]])
    simulator.publish()
    client.pull(Simulator.address)
    simulator.root.version += 1
    simulator.serve_root(old)  # those keys are worth nothing any more
    refused(client, "root was signed by 0/1 keys")


def test_a_root_that_goes_back(simulator: Simulator, client: Client) -> None:
    simulator.files["metadata/2.root.json"] = simulator.files["metadata/1.root.json"]
    refused(client, "Expected root version 2 instead got version 1")


# Sites


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


# Trust on first use


def test_no_root_no_trust(simulator: Simulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLUTO_ROOT", raising=False)
    monkeypatch.setattr("pluto_edge.repository.client.transport_of", lambda _: simulator)
    with pytest.raises(RepositoryError, match=r"there is no root of trust .* pluto pull ADDRESS --root root\.json"):
        Client(URL, cache=tmp_path).pull(Simulator.address)
    assert not simulator.asked, "nobody was asked for it"


def test_another_repositorys_root(simulator: Simulator, tmp_path: Path) -> None:
    client = Simulator().client(tmp_path)
    client = simulator.client(tmp_path)  # with the root that is there already
    with pytest.raises(RepositoryError, match="was signed by 0/1 keys"):
        client.pull(Simulator.address)
