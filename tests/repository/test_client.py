"""A device and a repository that means well: what is fetched, kept, repaired and forgotten."""

import json
import logging
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from attacks.catalogue.hostile_repository import URL, Simulator
from pluto_edge import Runtime
from pluto_edge.errors import ConfigError, MissingExtraError, RepositoryError
from pluto_edge.manifest import MANIFEST, Bundle
from pluto_edge.repository.address import Address
from pluto_edge.repository.cache import known_repositories
from pluto_edge.repository.client import Client, resolve
from pluto_edge.repository.fetcher import Limits
from tests.bundles import contents
from tests.faults import every_fault, hidden
from tests.repository.conftest import DIGITS, Store, Web

Make = Callable[..., Path]
Serve = Callable[[Path], Web]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("PLUTO_ROOT", raising=False)
    monkeypatch.setenv("PLUTO_EDGE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "repositories"


def client_of(store: Store, url: str = "") -> Client:
    return Client(url or store.url, root=store.root)


# What is fetched


def test_a_bundle_by_its_address(repository: Store, make_bundle: Make, cache: Path) -> None:
    repository.publisher.add_bundle(make_bundle(), "meter", "1.0")
    repository.publish()
    folder = resolve(f"{repository.url}/meter", root=repository.root)
    assert contents(folder) == contents(make_bundle())
    assert folder.is_relative_to(cache) and folder.name == Bundle(folder).hash
    assert resolve(f"{repository.url}/meter@1.0") == folder, "the root of trust is kept"
    assert not hidden(cache)


def test_a_runtime_by_its_address(
    repository: Store, make_bundle: Make, cache: Path, frames: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.publisher.add_bundle(make_bundle(), "meter", "1.0")
    repository.publish()
    monkeypatch.setenv("PLUTO_ROOT", str(repository.root))
    with Runtime(f"{repository.url}/meter", threads=1) as runtime, Runtime(make_bundle(), threads=1) as other:
        assert np.array_equal(runtime.predict(frames).probabilities, other.predict(frames).probabilities)


def test_a_module_for_a_runtime(repository: Store, cache: Path) -> None:
    repository.publisher.add_bundle(DIGITS / "bundle", "meter", "1.0")
    repository.publisher.add_module(DIGITS / "store/modules/fog")
    repository.publish()
    client = client_of(repository)
    with Runtime(client.pull(Address(repository.url, "meter")), threads=1) as runtime:
        runtime.remove_module("fog")
        assert runtime.add_module(client.module("fog")) == "fog"
    index = client.index()
    assert index.read_bytes() and index.is_relative_to(cache)


def test_only_what_is_missing_is_fetched(repository: Store, make_bundle: Make, serve: Serve, cache: Path) -> None:
    """Two releases with the same backbone: its weights come once, and are on the disk once."""
    publisher = repository.publisher
    publisher.add_bundle(make_bundle(), "meter", "1.0")
    repository.publish()
    web = serve(publisher.folder)
    client = client_of(repository, web.url)
    address = Address(web.url, "meter")
    first = client.pull(address)
    fetched = [path for path, _ in web.asked if path.startswith("/blobs/")]
    assert len(fetched) == len(set(fetched)) > 5
    web.asked.clear()
    assert client.pull(address) == first
    assert [p for p, _ in web.asked if not p.startswith("/metadata/")] == [
        p for p, _ in web.asked if p.startswith("/targets/")
    ], "no blob"
    publisher.add_bundle(make_bundle(modules=2), "meter", "1.1")
    repository.publish()
    web.asked.clear()
    second = client.pull(address)
    again = {path for path, _ in web.asked if path.startswith("/blobs/")} & set(fetched)
    assert second != first and not again
    assert (first / "weights.bin").samefile(second / "weights.bin")


def test_progress_counts_bytes(repository: Store, make_bundle: Make, cache: Path) -> None:
    release = repository.publisher.add_bundle(make_bundle(), "meter", "1.0")
    repository.publish()
    told: list[tuple[int, int]] = []
    client_of(repository).pull(Address(repository.url, "meter"), lambda done, total: told.append((done, total)))
    total = sum(entry.size for entry in release.blobs)
    assert told[-1] == (total, total) and [d for d, _ in told] == sorted(d for d, _ in told)


def test_channels(repository: Store, make_bundle: Make, cache: Path) -> None:
    publisher = repository.publisher
    publisher.add_bundle(make_bundle(), "meter", "1.0")
    publisher.add_bundle(make_bundle("adapter"), "meter", "1.1", channels=["beta"])
    repository.publish()
    client = client_of(repository)
    stable, beta = (client.pull(Address(repository.url, "meter", c)) for c in ("stable", "beta"))
    assert stable != beta
    publisher.point("meter", "stable", "1.1")
    repository.publish()
    assert client.pull(Address(repository.url, "meter")) == beta
    for wrong in ("gamma", "2.0"):
        with pytest.raises(RepositoryError, match=f"meter@{wrong}: is not published"):
            client.pull(Address(repository.url, "meter", wrong))


# Broken connections


def largest(store: Store) -> str:
    blob = max((store.publisher.folder / "blobs").iterdir(), key=lambda p: p.stat().st_size)
    return f"/blobs/{blob.name}"


@pytest.mark.parametrize("ranges", [True, False])
def test_a_file_goes_on_where_it_broke_off(
    ranges: bool, repository: Store, make_bundle: Make, serve: Serve, cache: Path
) -> None:
    repository.publisher.add_bundle(make_bundle(), "meter", "1.0")
    repository.publish()
    web = serve(repository.publisher.folder)
    web.ranges = ranges
    path = largest(repository)
    web.breaks[path] = 1000
    folder = client_of(repository, web.url).pull(Address(web.url, "meter"))
    assert contents(folder) == contents(make_bundle())
    assert [part for p, part in web.asked if p == path] == ["", "bytes=1000-"]


def test_the_next_process_goes_on(repository: Store, make_bundle: Make, serve: Serve, cache: Path) -> None:
    repository.publisher.add_bundle(make_bundle(), "meter", "1.0")
    repository.publish()
    web = serve(repository.publisher.folder)
    path = largest(repository)
    whole = (repository.publisher.folder / path.lstrip("/")).read_bytes()
    client = client_of(repository, web.url)
    client.cache.make()
    partial = client.cache.partial / Path(path).name
    partial.write_bytes(whole[:700])
    assert contents(client.pull(Address(web.url, "meter"))) == contents(make_bundle())
    assert [part for p, part in web.asked if p == path] == ["bytes=700-"]


@pytest.mark.parametrize("left", [b"x" * 700, b"x" * 10**7, None])
def test_a_part_that_is_damaged(
    left: bytes | None, repository: Store, make_bundle: Make, serve: Serve, cache: Path
) -> None:
    """It is fetched again from its first byte; also where all bytes are there, and wrong."""
    repository.publisher.add_bundle(make_bundle(), "meter", "1.0")
    repository.publish()
    web = serve(repository.publisher.folder)
    path = largest(repository)
    size = (repository.publisher.folder / path.lstrip("/")).stat().st_size
    client = client_of(repository, web.url)
    client.cache.make()
    (client.cache.partial / Path(path).name).write_bytes(bytes(size) if left is None else left)
    assert contents(client.pull(Address(web.url, "meter"))) == contents(make_bundle())


def test_a_server_that_stays_silent(tmp_path: Path, repository: Store, cache: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        client = Client(url, root=repository.root, limits=Limits(idle=0.1))
        with pytest.raises(RepositoryError, match=r"no answer within 0\.1 s"):
            client.pull(Address(url, "meter"))


# Away from the network


def test_offline_it_goes_on(
    repository: Store,
    make_bundle: Make,
    serve: Serve,
    cache: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    repository.publisher.add_bundle(make_bundle(), "meter", "1.0")
    repository.publish()
    web = serve(repository.publisher.folder)
    folder = resolve(f"{web.url}/meter", root=repository.root)
    web.server.shutdown()
    web.server.server_close()
    with caplog.at_level(logging.WARNING, "pluto_edge"):
        assert resolve(f"{web.url}/meter") == folder
    assert "not brought up to date" in caplog.text and "going on with what is here" in caplog.text
    with pytest.raises(RepositoryError, match="cannot be reached"):
        resolve(f"{web.url}/other")
    (folder / MANIFEST).chmod(0o644)
    (folder / MANIFEST).write_text("{}")
    with pytest.raises(RepositoryError), caplog.at_level(logging.ERROR, "pluto_edge"):
        resolve(f"{web.url}/meter")
    assert f"{folder / MANIFEST}: is damaged" in caplog.text


# Damage


def damage(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.chmod(0o644)
    file.write_bytes(data)  # the same file, so that the blob is damaged as well


def test_what_is_damaged_is_named_and_fetched_again(repository: Store, make_bundle: Make, cache: Path) -> None:
    repository.publisher.add_bundle(make_bundle(), "meter", "1.0")
    repository.publisher.add_module(DIGITS / "store/modules/fog")
    repository.publish()
    client = client_of(repository)
    folder = client.pull(Address(repository.url, "meter"))
    module = client.module("fog")
    index = client.index()
    assert client.verify() == []
    files = [folder / "weights.bin", folder / "modules/domain-1.safetensors", index, module / "adapter_config.json"]
    for file in files[:-1]:
        damage(file)
    files[-1].unlink()
    found = client.verify(repair=False)
    assert sorted(d.file for d in found) == sorted(files) and not any(d.repaired for d in found)
    assert all(d.repaired for d in client.verify())
    assert client.verify() == [] and contents(folder) == contents(make_bundle())


def test_a_damaged_file_is_healed_by_the_next_pull(repository: Store, make_bundle: Make, cache: Path) -> None:
    repository.publisher.add_bundle(make_bundle(), "meter", "1.0")
    repository.publish()
    folder = resolve(f"{repository.url}/meter", root=repository.root)
    damage(folder / "forward.onnx")
    assert resolve(f"{repository.url}/meter") == folder
    assert contents(folder) == contents(make_bundle())


def test_damage_that_cannot_be_repaired(repository: Store, make_bundle: Make, cache: Path) -> None:
    repository.publisher.add_bundle(make_bundle(), "meter", "1.0")
    repository.publish()
    client = client_of(repository)
    folder = client.pull(Address(repository.url, "meter"))
    damage(folder / "weights.bin")
    for blob in (repository.publisher.folder / "blobs").iterdir():
        blob.unlink()
    (found,) = client.verify()
    assert found.file == folder / "weights.bin" and not found.repaired


# Revocation


def test_a_revoked_release(repository: Store, make_bundle: Make, cache: Path) -> None:
    """Devices of a channel go to the release before; those that asked for it by its version are told why not."""
    publisher = repository.publisher
    publisher.add_bundle(make_bundle(), "meter", "1.0")
    publisher.add_bundle(make_bundle("adapter"), "meter", "1.1")
    repository.publish()
    client = client_of(repository)
    address, pinned = (Address(repository.url, "meter", s) for s in ("stable", "1.1"))
    bad = client.pull(address)
    assert client.pull(pinned) == bad
    publisher.revoke_release("meter", "1.1", "classes are mixed up")
    repository.publish()
    assert client.pull(address) != bad and client.cached(pinned) == bad
    with pytest.raises(RepositoryError, match=r"meter@1\.1: was revoked: classes are mixed up"):
        resolve(str(pinned))
    assert client.cached(pinned) is None, "not even offline"
    publisher.revoke_release("meter", "1.0")
    repository.publish()
    with pytest.raises(RepositoryError, match="meter@stable: was revoked"):
        resolve(str(address))


def test_sync_says_what_became_of_each(repository: Store, make_bundle: Make, cache: Path) -> None:
    publisher = repository.publisher
    publisher.add_bundle(make_bundle(), "meter", "1.0")
    for name in ("fog", "clear"):
        publisher.add_module(DIGITS / "store/modules" / name)
    repository.publish()
    client = client_of(repository)
    client.pull(Address(repository.url, "meter"))
    for name in ("fog", "clear"):
        client.module(name)
    publisher.add_bundle(make_bundle("adapter"), "meter", "1.1")
    publisher.revoke_module("fog", "trained on rain")
    repository.publish()
    (known,) = known_repositories()
    outcomes = {s.name: s for s in Client(known.url).sync()}
    assert (outcomes["meter@stable"].version, outcomes["meter@stable"].said) == ("1.1", "is new")
    assert outcomes["clear"].said == "is the newest" and not outcomes["clear"].revoked
    assert outcomes["fog"].revoked and "fog: was revoked: trained on rain" in outcomes["fog"].said
    assert [k.name for k in known.names()] == ["meter@stable", "clear"]


def test_what_is_not_used_is_pruned(repository: Store, make_bundle: Make, cache: Path) -> None:
    publisher = repository.publisher
    client = client_of(repository)
    folders = []
    for version, bundle in (("1", make_bundle()), ("2", make_bundle("adapter")), ("3", make_bundle(modules=2))):
        publisher.add_bundle(bundle, "meter", version)
        repository.publish()
        folders.append(client.pull(Address(repository.url, "meter")))
    assert client.cache.prune() > 0 and client.cache.prune() == 0
    assert [f.exists() for f in folders] == [False, True, True], "this one, and the one before"
    Bundle(folders[1])
    assert client.verify() == []


# Two at once, and sudden ends


def test_two_processes_at_once(repository: Store, make_bundle: Make, serve: Serve, cache: Path) -> None:
    repository.publisher.add_bundle(make_bundle(), "meter", "1.0")
    repository.publish()
    web = serve(repository.publisher.folder)
    code = (
        "import sys; from pluto_edge.repository import client as c; print(c.resolve(sys.argv[1], root=sys.argv[2]))"
    )
    command = [sys.executable, "-c", code, f"{web.url}/meter", str(repository.root)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    folders = {process.communicate()[0].strip() for process in running}
    assert [process.returncode for process in running] == [0, 0] and len(folders) == 1
    assert contents(Path(folders.pop())) == contents(make_bundle())
    fetched = [path for path, _ in web.asked if path.startswith("/blobs/")]
    assert len(fetched) == len(set(fetched)), "the second found what the first had fetched"


def test_sudden_ends(tmp_path: Path) -> None:
    """Whatever fails and whenever: a name stands for the old bundle or the new one, and either is whole."""
    simulator = Simulator(DIGITS / "bundle")
    start = tmp_path / "start"
    start.mkdir()
    old = simulator.client(start).pull(Simulator.address).name
    other = tmp_path / "other"
    shutil.copytree(DIGITS / "bundle", other)
    text = json.loads((other / MANIFEST).read_text())
    (other / MANIFEST).write_text(json.dumps({**text, "writer": "another"}))
    new = simulator.add_release(other, "1.1").content
    simulator.publish()
    work = tmp_path / "work"

    def prepare() -> None:
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(start, work)

    def act() -> None:
        try:
            simulator.client(work).pull(Simulator.address)
        except RepositoryError as error:  # a lock that fails
            raise OSError(str(error)) from error

    def check() -> None:
        folder = simulator.client(work).cached(Simulator.address)
        assert folder is not None and folder.name in (old, new)
        Bundle(folder)

    assert every_fault(prepare, act, check, step=1 if os.environ.get("PLUTO_EVERY_FAULT") else 9) > 100
    assert simulator.client(work).cached(Simulator.address).name == new  # type: ignore[union-attr]


# Addresses


@pytest.mark.parametrize(
    "text, parts",
    [
        ("https://store.example/meter", ("https://store.example", "meter", "stable")),
        ("https://store.example/a/b/meter@beta", ("https://store.example/a/b", "meter", "beta")),
        ("s3://bucket/store/meter@1.2", ("s3://bucket/store", "meter", "1.2")),
        ("file:///srv/store/meter/", ("file:///srv/store", "meter", "stable")),
        ("memory://store/meter", ("memory://store", "meter", "stable")),
    ],
)
def test_addresses(text: str, parts: tuple[str, str, str]) -> None:
    address = Address.parse(text)
    assert (address.repository, address.bundle, address.selector) == parts
    assert Address.parse(str(address)) == address


@pytest.mark.parametrize(
    "text",
    [
        "https://",
        "https://meter",
        "https:///meter@",
        "meter",
        "https://a/me ter",
        "https://a/?q/m",
    ],
)
def test_no_addresses(text: str) -> None:
    with pytest.raises(ConfigError):
        Address.parse(text)


def test_without_tuf(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code = """
import sys
sys.modules["tuf"] = None
from pluto_edge import MissingExtraError, Runtime
try:
    Runtime("https://store.example/meter")
except MissingExtraError as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.strip() == str(MissingExtraError("tuf", "fleet"))


def test_a_repository_is_known_by_its_address(cache: Path, tmp_path: Path) -> None:
    one, other = Client(URL), Client(f"{URL}/")
    assert one.cache.folder == other.cache.folder != Client(f"{URL}/x").cache.folder
    assert os.environ["PLUTO_EDGE_CACHE"] in str(one.cache.folder)
