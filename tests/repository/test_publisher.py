"""A repository as its publisher sees it: what is refused, who must sign, what a device sees of it."""

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from securesystemslib.signer import CryptoSigner

from pluto_edge.errors import ConfigError, RepositoryError
from pluto_edge.manifest import Bundle, FileEntry
from pluto_edge.repository import keys
from pluto_edge.repository.address import Address
from pluto_edge.repository.client import Client
from pluto_edge.repository.layout import Release, read_target, target_bytes
from pluto_edge.repository.model_signature import sign_bundle, verify_bundle
from pluto_edge.repository.publisher import Publisher
from pluto_edge.repository.upload import upload
from tests.bundles import edit, seal
from tests.faults import every_fault
from tests.repository.conftest import DIGITS, Store

Make = Callable[..., Path]
FOG = DIGITS / "store/modules/fog"


def pulled(store: Store, tmp_path: Path, selector: str = "stable") -> Path:
    """What a new device gets."""
    cache = tmp_path / "devices" / str(len(list(tmp_path.glob("devices/*"))))
    return Client(store.url, root=store.root, cache=cache).pull(Address(store.url, "meter", selector))


# What is refused


def test_a_bundle_that_was_changed(broken: Path, repository: Store) -> None:
    (broken / "selector.safetensors").write_bytes(b"no")
    with pytest.raises(RepositoryError, match=r"selector\.safetensors has 2 bytes.*it is not added"):
        repository.publisher.add_bundle(broken, "meter", "1.0")
    assert repository.publisher.releases() == [] and not repository.publisher.roles.staged_roles()


def test_a_bundle_that_is_not_finite(broken: Path, repository: Store) -> None:
    file = broken / "modules/domain-1.safetensors"
    tensors = load_file(file)
    tensors["head_bias"][0] = float("nan")
    save_file(tensors, file)
    seal(broken, "modules/domain-1.safetensors")
    with pytest.raises(RepositoryError, match="head_bias: holds NaN or infinity; it is not added"):
        repository.publisher.add_bundle(broken, "meter", "1.0")


def test_a_bundle_that_disagrees_with_torch(broken: Path, repository: Store) -> None:
    edit(broken, lambda m: m["parity"][2].update(error=1.0, tolerance=0.5))
    with pytest.raises(RepositoryError, match=r"is 1 away from torch, 0\.5 is allowed; it is not added"):
        repository.publisher.add_bundle(broken, "meter", "1.0")
    edit(broken, lambda m: m.update(parity=[]))
    with pytest.raises(RepositoryError, match="was never compared with torch"):
        repository.publisher.add_bundle(broken, "meter", "1.0")


def test_a_module_without_a_signature(repository: Store, make_store: Callable[..., object]) -> None:
    folder = make_store().path / "modules/domain-0"  # type: ignore[attr-defined]
    with pytest.raises(RepositoryError, match="has no signature, so that no device would find it"):
        repository.publisher.add_module(folder)


def test_a_module_that_is_not_finite(repository: Store, tmp_path: Path) -> None:
    folder = tmp_path / "fog"
    shutil.copytree(FOG, folder)
    tensors = load_file(folder / "adapter_model.safetensors")
    tensors["head_bias"][0] = float("inf")
    save_file(tensors, folder / "adapter_model.safetensors")
    with pytest.raises(RepositoryError, match="head_bias: holds NaN or infinity"):
        repository.publisher.add_module(folder)


def test_a_version_is_used_once(make_bundle: Make, repository: Store) -> None:
    publisher = repository.publisher
    publisher.add_bundle(make_bundle(), "meter", "1.0")
    with pytest.raises(RepositoryError, match=r"meter@1\.0: is there already"):
        publisher.add_bundle(make_bundle("adapter"), "meter", "1.0")
    repository.publish()
    publisher.revoke_release("meter", "1.0", "wrong")
    for version, bundle in (("1.0", make_bundle("adapter")), ("1.1", make_bundle())):  # the version, the content
        with pytest.raises(RepositoryError, match=r"was revoked \(wrong\); it is not published again"):
            publisher.add_bundle(bundle, "meter", version)


def test_a_module_by_its_content(repository: Store, tmp_path: Path) -> None:
    """A revoked content does not come back; another one under the same name may."""
    publisher = repository.publisher
    publisher.add_module(FOG)
    publisher.revoke_module("fog")
    with pytest.raises(RepositoryError, match="was revoked"):
        publisher.add_module(FOG)
    other = tmp_path / "fog"
    shutil.copytree(FOG, other)
    tensors = load_file(other / "adapter_model.safetensors")
    save_file({**tensors, "head_bias": tensors["head_bias"] + 1}, other / "adapter_model.safetensors")
    publisher.add_module(other)
    assert [m.name for m in publisher.modules()] == ["fog"]


# Blobs and the index


def test_a_content_is_kept_once(make_bundle: Make, repository: Store) -> None:
    publisher = repository.publisher
    one = publisher.add_bundle(make_bundle(), "meter", "1.0")
    other = publisher.add_bundle(make_bundle(modules=2), "meter", "1.1", channels=["beta"])
    shared = {e.sha256 for e in one.blobs} & {e.sha256 for e in other.blobs}
    assert one.files["weights.bin"].sha256 in shared
    blobs = {p.name for p in (publisher.folder / "blobs").iterdir()}
    assert blobs == {e.sha256 for e in (*one.blobs, *other.blobs)}


def test_the_index_is_of_the_modules_that_are_live(repository: Store) -> None:
    publisher = repository.publisher
    for name in ("fog", "clear"):
        publisher.add_module(DIGITS / "store/modules" / name)
    with publisher.index_entries() as entries:
        assert [(e.target, e.name) for e in entries] == [
            ("modules/clear.json", "clear"),
            ("modules/fog.json", "fog"),
        ]
        assert all((e.folder / "adapter_config.json").is_file() for e in entries)
    repository.publish()
    first = publisher.roles.next_targets().targets["index/modules.safetensors"]
    publisher.revoke_module("fog")
    repository.publish()
    with publisher.index_entries() as entries:
        assert [e.name for e in entries] == ["clear"]
    assert publisher.roles.next_targets().targets["index/modules.safetensors"].hashes != first.hashes


# Who must sign


def test_two_people_sign_one_after_the_other(
    make_repository: Callable[..., Store], make_bundle: Make, tmp_path: Path
) -> None:
    store = make_repository(thresholds={"targets": 2})
    one, other = store.signers["targets"]
    online = [*store.signers["snapshot"], *store.signers["timestamp"]]
    store.publisher.add_bundle(make_bundle(), "meter", "1.0")
    (missing,) = store.publisher.publish([one, *online]).waiting
    assert (missing.role, missing.signatures, missing.keys) == ("targets", 1, (other.public_key.keyid,))
    with pytest.raises(RepositoryError, match="is not published"):
        pulled(store, tmp_path)
    done = store.publisher.publish([other])
    assert [m.role for m in done.waiting] == ["snapshot", "timestamp"] and not done.versions
    assert store.publisher.publish(online).versions == {"targets": 2, "snapshot": 2, "timestamp": 3}
    assert Bundle(pulled(store, tmp_path))


def test_a_change_wants_all_signatures_anew(make_repository: Callable[..., Store], make_bundle: Make) -> None:
    store = make_repository(thresholds={"targets": 2})
    one, other = store.signers["targets"]
    store.publisher.add_bundle(make_bundle(), "meter", "1.0")
    store.publisher.publish([one])
    store.publisher.add_bundle(make_bundle("adapter"), "meter", "1.1")
    missing = {m.role: m.signatures for m in store.publisher.publish([other]).waiting}
    assert missing["targets"] == 1


def test_keys_are_rotated(repository: Store, make_bundle: Make, tmp_path: Path) -> None:
    """A device with the first root follows; the key that was taken out signs nothing any more."""
    publisher = repository.publisher
    publisher.add_bundle(make_bundle(), "meter", "1.0")
    repository.publish()
    old = repository.signers["targets"][0]
    new = CryptoSigner.generate_ed25519()
    publisher.rotate("targets", add=[new.public_key], remove=[old.public_key.keyid[:12]])
    repository.signers["targets"] = [new]
    repository.publish()
    assert publisher.roles.root().version == 2
    assert Bundle(pulled(repository, tmp_path))
    publisher.add_bundle(make_bundle("adapter"), "meter", "1.1")
    repository.signers["targets"] = [old]
    (missing,) = publisher.publish(repository.all_signers).waiting
    assert missing.keys == (new.public_key.keyid,)


def test_the_root_is_rotated_by_old_and_new(repository: Store, tmp_path: Path, make_bundle: Make) -> None:
    publisher = repository.publisher
    publisher.add_bundle(make_bundle(), "meter", "1.0")
    old = repository.signers["root"][0]
    new = CryptoSigner.generate_ed25519()
    publisher.rotate("root", add=[new.public_key], remove=[old.public_key.keyid])
    assert next(m.role for m in publisher.publish([new]).waiting) == "root"
    assert publisher.roles.root().version == 1
    repository.publish()
    assert publisher.roles.root().version == 2
    assert Bundle(pulled(repository, tmp_path))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"threshold": 2}, "2 signatures of 1 keys"),
        ({"remove": ["zzz"]}, "0 keys start with 'zzz'"),
    ],
)
def test_no_rotation_into_nothing(change: dict[str, object], message: str, repository: Store) -> None:
    with pytest.raises((RepositoryError, ConfigError), match=message):
        repository.publisher.rotate("targets", **change)  # type: ignore[arg-type]
    assert not repository.publisher.roles.staged_roles()


def test_a_site_publishes_its_own(repository: Store, tmp_path: Path) -> None:
    publisher = repository.publisher
    lab = CryptoSigner.generate_ed25519()
    with pytest.raises(RepositoryError, match="lab: no such site"):
        publisher.add_module(FOG, site="lab")
    publisher.delegate("lab", [lab.public_key])
    repository.more = [lab]
    repository.publish()
    publisher.add_module(FOG, site="lab")
    online = [*repository.signers["snapshot"], *repository.signers["timestamp"]]
    assert publisher.publish([lab, *online]).waiting == (), "the targets' key may stay offline"
    client = Client(repository.url, root=repository.root, cache=tmp_path / "cache")
    assert (client.module("fog", "lab") / "adapter_config.json").is_file()
    assert client.index("lab").is_file()
    publisher.revoke_module("fog", "moved", site="lab")
    publisher.publish([lab, *online])
    with pytest.raises(RepositoryError, match="fog: was revoked: moved"):
        client.module("fog", "lab")


def test_the_timestamp_is_renewed_and_the_rest_when_due(make_repository: Callable[..., Store]) -> None:
    store = make_repository(days={"snapshot": 0})  # half of which is always over
    assert store.publisher.publish(store.all_signers).versions == {"snapshot": 2, "timestamp": 2}
    calm = make_repository("calm")
    assert calm.publisher.publish(calm.all_signers).versions == {"timestamp": 2}


# Keys


def test_keys_are_private(tmp_path: Path, repository: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "keys/root.pem"
    public = keys.new_key(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert keys.load_public(keys.public_file(file)).keyid == public.keyid
    assert [s.public_key.keyid for s in keys.load_signers([file.parent])] == [public.keyid]
    with pytest.raises(RepositoryError, match="keys are not overwritten"):
        keys.new_key(file)
    file.chmod(0o644)
    with pytest.raises(RepositoryError, match="others may read this private key; run: chmod 600"):
        keys.load_signers([file])
    inside = repository.publisher.folder / "root.pem"
    keys.new_key(inside)
    with pytest.raises(RepositoryError, match="a private key inside of the repository"):
        keys.load_signers([inside], outside=repository.publisher.folder)


def test_keys_with_a_passphrase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "root.pem"
    monkeypatch.setenv(keys.PASSPHRASE, "a secret")
    keys.new_key(file)
    assert len(keys.load_signers([file])) == 1
    monkeypatch.setenv(keys.PASSPHRASE, "another")
    with pytest.raises(RepositoryError, match="or a wrong passphrase"):
        keys.load_signers([file])
    monkeypatch.delenv(keys.PASSPHRASE)
    with pytest.raises(RepositoryError, match=f"is encrypted; set {keys.PASSPHRASE}"):
        keys.load_signers([file])


@pytest.mark.parametrize(
    "data", [b"", b"no key", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"]
)
def test_what_is_no_key(data: bytes, tmp_path: Path) -> None:
    file = tmp_path / "a.pem"
    file.write_bytes(data)
    file.chmod(0o600)
    with pytest.raises(RepositoryError, match="not a private key in PEM"):
        keys.load_signers([file])
    with pytest.raises(RepositoryError, match="not a public key in PEM"):
        keys.load_public(file)


# Elsewhere


@pytest.mark.parametrize("scheme", ["file", "memory"])
def test_upload(scheme: str, repository: Store, make_bundle: Make, tmp_path: Path) -> None:
    to = (tmp_path / "served").as_uri() if scheme == "file" else f"memory://{tmp_path.name}"
    publisher = repository.publisher
    publisher.add_bundle(make_bundle(), "meter", "1.0")
    with pytest.raises(RepositoryError, match="is not published"):
        upload(publisher, to)
        Client(to, root=repository.root, cache=tmp_path / "c").pull(Address(to, "meter"))
    repository.publish()
    first = upload(publisher, to)
    assert upload(publisher, to).files == 0 < first.files
    client = Client(to, root=repository.root, cache=tmp_path / "cache")
    assert Bundle(client.pull(Address(to, "meter")))
    publisher.add_bundle(make_bundle(modules=2), "meter", "1.1")
    repository.publish()
    assert upload(publisher, to).bytes < first.bytes / 2, "weights are there already"
    assert len(Bundle(client.pull(Address(to, "meter"))).manifest.modules) == 2


def test_an_upload_refers_to_nothing_that_is_missing(
    repository: Store, make_bundle: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    monkeypatch.setattr("pluto_edge.repository.upload._Store.write", lambda self, name, local: written.append(name))
    repository.publisher.add_bundle(make_bundle(), "meter", "1.0")
    repository.publish()
    upload(repository.publisher, (tmp_path / "served").as_uri())
    kinds = [name.split("/")[0] for name in written]
    assert kinds == sorted(kinds, key=["blobs", "targets", "metadata"].index)
    assert written[-1] == "metadata/timestamp.json" and written[-2].endswith(".snapshot.json")
    assert not [n for n in written if ".staged" in n]


def test_nobodys_later_publication_is_overwritten(repository: Store, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(repository.publisher.folder, copy)
    repository.publish()
    upload(repository.publisher, "memory://later")
    with pytest.raises(RepositoryError, match="was it published from another folder"):
        upload(Publisher(copy), "memory://later")
    with pytest.raises(RepositoryError, match="web servers are read from"):
        upload(repository.publisher, "https://store.example")
    with pytest.raises(RepositoryError, match="fsspec cannot write there"):
        upload(repository.publisher, "nosuch://store")
    fsspec.filesystem("memory").rm("/", recursive=True)


# Sudden ends


def test_sudden_ends(tmp_path: Path, make_repository: Callable[..., Store]) -> None:
    """Whatever fails and whenever: devices see what was before, or all of what is new."""
    store = make_repository("start")
    start = store.publisher.folder
    work = tmp_path / "work"

    def prepare() -> None:
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(start, work)

    def act() -> None:
        publisher = Publisher(work)
        if not publisher.modules():
            publisher.add_module(FOG)
        publisher.publish(store.all_signers)

    def check() -> None:
        cache = tmp_path / "cache"
        shutil.rmtree(cache, ignore_errors=True)
        client = Client(work.as_uri(), root=store.root, cache=cache)
        try:
            assert (client.module("fog") / "adapter_model.safetensors").is_file()
        except RepositoryError as error:
            assert "fog: is not published" in str(error)

    assert every_fault(prepare, act, check, step=1 if os.environ.get("PLUTO_EVERY_FAULT") else 13) > 50
    assert not Publisher(work).roles.staged_roles() and [m.name for m in Publisher(work).modules()] == ["fog"]


# Model signatures


def test_a_model_signature_travels_with_the_release(repository: Store, make_bundle: Make, tmp_path: Path) -> None:
    keys.new_model_key(tmp_path / "me.pem")
    keys.new_model_key(tmp_path / "other.pem")
    signature = tmp_path / "bundle.sig"
    sign_bundle(make_bundle(), tmp_path / "me.pem", signature)
    repository.publisher.add_bundle(make_bundle(), "meter", "1.0", signature=signature)
    repository.publish()
    folder = pulled(repository, tmp_path)
    verify_bundle(folder, folder.with_suffix(".sig"), tmp_path / "me.pub")
    with pytest.raises(RepositoryError, match="is not a signature of it"):
        verify_bundle(folder, folder.with_suffix(".sig"), tmp_path / "other.pub")


def test_a_model_signature_is_of_all_files(broken: Path, tmp_path: Path) -> None:
    keys.new_model_key(tmp_path / "me.pem")
    sign_bundle(broken, tmp_path / "me.pem", tmp_path / "s.sig")
    (broken / "more.txt").write_text("more")
    with pytest.raises(RepositoryError, match="is not a signature of it"):
        verify_bundle(broken, tmp_path / "s.sig", tmp_path / "me.pub")
    with pytest.raises(RepositoryError, match=r"more\.txt is not part of the bundle"):
        sign_bundle(broken, tmp_path / "me.pem", tmp_path / "t.sig")
    (broken / "more.txt").unlink()
    keys.new_key(tmp_path / "ed.pem")
    with pytest.raises(RepositoryError, match="want a key of the curve P-256"):
        sign_bundle(broken, tmp_path / "ed.pem", tmp_path / "t.sig")


# Descriptions


@given(st.dictionaries(st.text(max_size=12), st.integers(-5, 2**50), max_size=4))
def test_a_release_stays_in_its_folder(files: dict[str, int]) -> None:
    """Whatever names files have: a release with them is refused, or each is a path below its folder."""
    entries = {name: FileEntry("0" * 64, max(size, 0)) for name, size in files.items()}
    try:
        release = Release("meter", "1.0", {"manifest.json": FileEntry("1" * 64, 1), **entries})
    except ConfigError:
        return
    root = Path("/bundle")
    assert all((root / name).resolve().is_relative_to(root) for name in release.files)
    assert read_target(Release, target_bytes(release), "x") == release


@given(st.binary(max_size=200))
def test_descriptions_that_are_none(data: bytes) -> None:
    with pytest.raises(RepositoryError):
        read_target(Release, data, "releases/meter/1.0.json")
