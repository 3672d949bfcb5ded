"""A hostile repository in memory, behind the transport of the fetcher: whoever holds some keys may say anything.

    simulator = Simulator(bundle)                  # honest, with one release of `meter` in the channel `stable`
    client = simulator.client(tmp_path)
    client.pull(simulator.address)
    simulator.serve_timestamp([])                  # without a signature; and so on
    client.pull(simulator.address)                 # raises RepositoryError

`root`, `targets`, `snapshot` and `timestamp` are the metadata that is signed next; `signers` has the keys of each.
`publish()` is what an honest repository does. `files` is what is served, by path: anything may be put there.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic
from typing import Any

from securesystemslib.signer import CryptoSigner
from tuf.api.exceptions import DownloadHTTPError
from tuf.api.metadata import (
    TOP_LEVEL_ROLE_NAMES,
    DelegatedRole,
    Delegations,
    Metadata,
    MetaFile,
    Root,
    Snapshot,
    TargetFile,
    Targets,
    Timestamp,
)

from pluto_edge.manifest import FileEntry
from pluto_edge.repository.address import Address
from pluto_edge.repository.client import Client
from pluto_edge.repository.fetcher import Fetcher, Limits, Opened
from pluto_edge.repository.layout import (
    Channel,
    Release,
    blob_path,
    channel_target,
    release_target,
    site_patterns,
    target_bytes,
)

URL = "https://store.example"
TIMESTAMP = "metadata/timestamp.json"
CHUNK = 4096
QUICK = Limits(idle=1.0, grace=20.0, rate=1e6, total=10**8)


class Simulator:
    """Serves what it is told to, signed by whom it is told."""

    def __init__(self, bundle: Path | None = None, *, threshold: int = 1) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []  # paths, in order
        self.streams: dict[
            str, Callable[[int], Iterator[bytes]]
        ] = {}  # by path: bytes from `start` on, of any kind
        self.ranges = True
        expires = datetime.now(UTC).replace(microsecond=0) + timedelta(days=30)
        self.root = Root(expires=expires, consistent_snapshot=True)
        self.targets = Targets(expires=expires)
        self.snapshot = Snapshot(expires=expires)
        self.timestamp = Timestamp(expires=expires)
        self.sites: dict[str, Targets] = {}
        self.signers: dict[str, list[CryptoSigner]] = {role: [] for role in TOP_LEVEL_ROLE_NAMES}
        for role in sorted(TOP_LEVEL_ROLE_NAMES):
            for _ in range(threshold):
                self.add_key(role)
            self.root.roles[role].threshold = threshold
        self.serve_root()
        self.root_file = self.files["metadata/1.root.json"]
        if bundle is not None:
            self.add_release(bundle)
        self.publish()

    address = Address(URL, "meter")

    # what an honest repository does

    def publish(self) -> None:
        """New versions of targets, snapshot and timestamp, each of which refers to the one before."""
        if "metadata/1.targets.json" in self.files:
            self.targets.version += 1
            self.snapshot.version += 1
            self.timestamp.version += 1
        self.serve_targets()
        for name in self.sites:
            self.serve_targets(name)
        self.serve_snapshot()
        self.serve_timestamp()

    def add_release(
        self, bundle: Path, version: str = "1.0", channel: str = "stable", name: str = "meter"
    ) -> Release:
        """A release of the bundle in this folder, which the channel points at."""
        files = {p.relative_to(bundle).as_posix(): p.read_bytes() for p in bundle.rglob("*") if p.is_file()}
        return self.add_files(files, version, channel, name)

    def add_files(
        self, files: dict[str, bytes], version: str = "1.0", channel: str = "stable", name: str = "meter"
    ) -> Release:
        """A release of these files, which the channel points at."""
        release = Release(name, version, {n: self.blob(data) for n, data in files.items()})
        self.put(release_target(name, version), target_bytes(release))
        self.put(channel_target(name, channel), target_bytes(Channel(name, channel, (version,))))
        return release

    def blob(self, data: bytes) -> FileEntry:
        """A content that is served; gives what descriptions say of it."""
        info = TargetFile.from_data("blob", data, ["sha256"])
        self.files[blob_path(info.hashes["sha256"])] = data
        return FileEntry(info.hashes["sha256"], info.length)

    def put(self, target: str, data: bytes, site: str | None = None) -> TargetFile:
        """A target of the repository's own role, or of a site's."""
        info = TargetFile.from_data(target, data, ["sha256"])
        (path,) = info.get_prefixed_paths()
        self.files[f"targets/{path}"] = data
        (self.sites[site] if site else self.targets).targets[target] = info
        return info

    def add_site(self, site: str) -> str:
        """A site that signs for itself; gives the name of its role."""
        role = f"site-{site}"
        self.sites[role] = Targets(expires=self.targets.expires)
        self.signers[role] = [CryptoSigner.generate_ed25519()]
        delegations = self.targets.delegations or Delegations({}, {})
        assert delegations.roles is not None
        delegations.roles[role] = DelegatedRole(role, [], 1, True, paths=site_patterns(site))
        self.targets.delegations = delegations
        self.targets.add_key(self.signers[role][0].public_key, role)
        return role

    # keys

    def add_key(self, role: str) -> CryptoSigner:
        """One more key for a role; the root must be served anew."""
        signer = CryptoSigner.generate_ed25519()
        self.root.add_key(signer.public_key, role)
        self.signers[role].append(signer)
        return signer

    def replace_keys(self, role: str) -> None:
        """As after a compromise: other keys for a role; the root must be served anew."""
        for signer in self.signers[role]:
            self.root.revoke_key(signer.public_key.keyid, role)
        count = len(self.signers[role])
        self.signers[role] = []
        for _ in range(count):
            self.add_key(role)

    # signing, with whatever keys

    def sign(self, signed: Any, signers: list[CryptoSigner]) -> bytes:
        """Metadata with the signatures of these."""
        metadata: Metadata[Any] = Metadata(signed)
        for signer in signers:
            metadata.sign(signer, append=True)
        return metadata.to_bytes()

    def serve_root(self, signers: list[CryptoSigner] | None = None) -> None:
        """The root as it is now, beside those before it."""
        chosen = self.signers["root"] if signers is None else signers
        self.files[f"metadata/{self.root.version}.root.json"] = self.sign(self.root, chosen)

    def serve_targets(self, role: str = "targets", signers: list[CryptoSigner] | None = None) -> None:
        """And what the next snapshot says of them."""
        signed = self.sites.get(role, self.targets)
        data = self.sign(signed, self.signers[role] if signers is None else signers)
        self.files[f"metadata/{signed.version}.{role}.json"] = data
        self.snapshot.meta[f"{role}.json"] = MetaFile.from_data(signed.version, data, ["sha256"])

    def serve_snapshot(self, signers: list[CryptoSigner] | None = None) -> None:
        """And what the next timestamp says of it."""
        data = self.sign(self.snapshot, self.signers["snapshot"] if signers is None else signers)
        self.files[f"metadata/{self.snapshot.version}.snapshot.json"] = data
        self.timestamp.snapshot_meta = MetaFile.from_data(self.snapshot.version, data, ["sha256"])

    def serve_timestamp(self, signers: list[CryptoSigner] | None = None) -> None:
        """From now on devices see what the snapshot lists."""
        self.files[TIMESTAMP] = self.sign(self.timestamp, self.signers["timestamp"] if signers is None else signers)

    # the transport

    def open(self, url: str, start: int, idle: float) -> Opened:
        """A file, or a stream of whatever bytes."""
        path = url.removeprefix(f"{URL}/")
        self.asked.append(path)
        start = start if self.ranges else 0
        if path in self.streams:
            return Opened(start, self.streams[path](start))
        if path not in self.files:
            raise DownloadHTTPError(f"{url}: the server says 404", 404)
        return Opened(start, self._chunks(self.files[path][start:]))

    def _chunks(self, data: bytes) -> Iterator[bytes]:
        for at in range(0, len(data), CHUNK):
            yield data[at : at + CHUNK]

    def client(self, folder: Path, limits: Limits = QUICK, *, clock: Callable[[], float] = monotonic) -> Client:
        """A device that keeps what it knows in `folder`, and was given the first root."""
        root = folder / "given.root.json"
        if not root.exists():
            root.write_bytes(self.root_file)
        return Client(URL, root=root, cache=folder / "cache", fetcher=Fetcher(self, limits, clock=clock))
