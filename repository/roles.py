"""A repository's signed metadata: what is published, what is staged for the next publication, and who may sign it.

What is staged lies in `.staged/`: the next version of a role, without the signatures that it still needs. Several
people may sign it one after another; when there are enough, it is published.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from pluto_edge._files import write_bytes
from pluto_edge.errors import ConfigError, MissingExtraError, RepositoryError
from pluto_edge.repository.layout import METADATA

try:
    from securesystemslib.signer import Signer, SSlibKey
    from tuf.api.exceptions import RepositoryError as TufError
    from tuf.api.metadata import Metadata, MetaFile, Root, Signed, Snapshot, Targets, Timestamp
    from tuf.api.serialization.json import JSONSerializer
except ImportError as cause:
    raise MissingExtraError("tuf", "repo") from cause

__all__ = ["EXPIRES", "TOP", "Missing", "Roles"]

TOP = (Root.type, Targets.type, Snapshot.type, Timestamp.type)
EXPIRES = {Root.type: 365, Targets.type: 365, Snapshot.type: 30, Timestamp.type: 7}  # days
STAGED = ".staged"
_DAYS = "x-pluto-edge-expires-days"  # in the metadata: how long the next version holds
_COMPACT = JSONSerializer(compact=True)

S = TypeVar("S", Root, Snapshot, Targets, Timestamp)


@dataclass(frozen=True)
class Missing:
    """A role that cannot be published yet: how many signatures it lacks, and the keys that may give them."""

    role: str
    signatures: int
    keys: tuple[str, ...]


class Roles:
    """The metadata of the repository in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.published = folder / METADATA
        self.staged = folder / STAGED

    def create(
        self, keys: Mapping[str, Sequence[SSlibKey]], thresholds: Mapping[str, int], days: Mapping[str, int]
    ) -> None:
        """Stage the first version of root and targets."""
        self.published.mkdir(parents=True)
        self.staged.mkdir()
        root = Root(version=1, consistent_snapshot=True)
        for role in TOP:
            root.roles[role].threshold = thresholds.get(role, 1)
            for key in keys[role]:
                root.add_key(key, role)
            check_threshold(root, role)
        root.unrecognized_fields[_DAYS] = {**EXPIRES, **days}
        self._write_staged(Targets.type, Metadata(Targets(version=1)))
        self._write_staged(Root.type, Metadata(root))

    # reading

    def root(self) -> Root:
        """The newest root; the one that is staged where none is published yet."""
        newest = self.newest_file(Root.type)
        if newest:
            return self._read(self.published / f"{newest}.root.json", Root).signed
        staged = self._staged(Root.type, Root)
        if staged is None:
            raise RepositoryError(f"{self.folder}: not a repository; make one: pluto repo init {self.folder}")
        return staged.signed

    def timestamp(self) -> Timestamp | None:
        """The published timestamp, if there is one."""
        file = self.published / "timestamp.json"
        return self._read(file, Timestamp).signed if file.is_file() else None

    def snapshot(self) -> Snapshot | None:
        """The published snapshot, if there is one."""
        stamp = self.timestamp()
        if stamp is None:
            return None
        return self._read(self.published / f"{stamp.snapshot_meta.version}.snapshot.json", Snapshot).signed

    def targets(self, role: str = Targets.type) -> Targets | None:
        """What a role has published, if anything."""
        snapshot = self.snapshot()
        meta = None if snapshot is None else snapshot.meta.get(f"{role}.json")
        if meta is None:
            return None
        return self._read(self.published / f"{meta.version}.{role}.json", Targets).signed

    def published_targets(self) -> list[str]:
        """The roles that have published targets: the repository's own, and those of sites."""
        snapshot = self.snapshot()
        return [] if snapshot is None else [name.removesuffix(".json") for name in snapshot.meta]

    def next_targets(self, role: str = Targets.type) -> Targets:
        """What a role will have published after the next publication; empty where it is new."""
        staged = self._staged(role, Targets)
        return staged.signed if staged else self.targets(role) or Targets(version=1)

    def staged_roles(self) -> list[str]:
        """Roles with changes that are not published, root first."""
        names = sorted(file.stem for file in self.staged.glob("*.json"))
        return sorted(names, key=lambda name: (name != Root.type, name))

    def staged_signatures(self, role: str) -> int:
        """How many people have signed what is staged of a role."""
        return len(self._any(self.staged / f"{role}.json").signatures)

    def newest_file(self, role: str) -> int:
        """The highest version of a role that was ever written here; 0 where there is none."""
        pattern = re.compile(rf"(\d+)\.{re.escape(role)}\.json")
        return max((int(m[1]) for f in self.published.iterdir() if (m := pattern.fullmatch(f.name))), default=0)

    # changing

    @contextmanager
    def edit_targets(self, role: str = Targets.type) -> Iterator[Targets]:
        """Change what a role publishes next; whoever had signed it signs it again."""
        signed = self.next_targets(role)
        before = signed.to_dict()
        yield signed
        if signed.to_dict() != before:
            self._stage(role, signed)

    def renew_targets(self, role: str) -> None:
        """Stage what a role has published as a new version."""
        self._stage(role, self.next_targets(role))

    def _stage(self, role: str, signed: Targets) -> None:
        signed.version = 1 + self.newest_file(role)
        self._write_staged(role, Metadata(signed))

    @contextmanager
    def edit_root(self) -> Iterator[Root]:
        """Change keys, thresholds or expiry; the old keys and the new ones sign it."""
        staged = self._staged(Root.type, Root)
        root = staged.signed if staged else self.root()
        yield root
        root.version = 1 + self.newest_file(Root.type)
        for role in TOP:
            check_threshold(root, role)
        self._write_staged(Root.type, Metadata(root))

    def sign(self, role: str, signers: Sequence[Signer]) -> Missing | None:
        """Sign what is staged of a role with those keys that may; says what it still lacks."""
        staged = self._any(self.staged / f"{role}.json")
        if not staged.signatures:
            root = staged.signed if role == Root.type else self.root()
            staged.signed.expires = _after(days_of(root, role))
        allowed = self._keyids(role)
        for signer in signers:
            if signer.public_key.keyid in allowed:
                staged.sign(signer, append=True)
        self._write_staged(role, staged)
        missing, keys = self._missing(role, staged)
        return Missing(role, missing, tuple(sorted(keys))) if missing else None

    def publish_staged(self, role: str) -> int:
        """What is staged and signed becomes a file of the repository, that no snapshot has yet; its version."""
        staged = self._any(self.staged / f"{role}.json")
        version: int = staged.signed.version
        self._write(self.published / f"{version}.{role}.json", staged)
        return version

    def clear(self, role: str) -> None:
        """Nothing is staged of a role any more."""
        (self.staged / f"{role}.json").unlink(missing_ok=True)

    def publish_snapshot(self, versions: Mapping[str, int], signers: Sequence[Signer]) -> int | None:
        """A new snapshot, with these versions of roles that have changed; None where none is needed."""
        before = self.snapshot()
        if before is not None and not versions and not self._renew(before):
            return None
        snapshot = before or Snapshot()
        for role, version in versions.items():
            data = (self.published / f"{version}.{role}.json").read_bytes()
            snapshot.meta[f"{role}.json"] = MetaFile.from_data(version, data, ["sha256"])
        snapshot.version = 1 + self.newest_file(Snapshot.type)
        self._publish(snapshot, f"{snapshot.version}.snapshot.json", signers)
        return snapshot.version

    def _renew(self, snapshot: Snapshot) -> bool:
        return self.due(snapshot, Snapshot.type) or not self.is_signed(Snapshot.type)

    def publish_timestamp(self, signers: Sequence[Signer], version: int) -> int:
        """A new timestamp of this snapshot: from here on devices see what was published; its version."""
        before = self.timestamp()
        data = (self.published / f"{version}.snapshot.json").read_bytes()
        meta = MetaFile.from_data(version, data, ["sha256"])
        stamp = Timestamp(version=1 + (before.version if before else 0), snapshot_meta=meta)
        self._publish(stamp, "timestamp.json", signers)
        return stamp.version

    def lacking(self, role: str, signers: Sequence[Signer]) -> Missing | None:
        """What a role would lack if these signed it."""
        allowed = self._keyids(role)
        have = {s.public_key.keyid for s in signers} & allowed
        missing = self.root().roles[role].threshold - len(have)
        return Missing(role, missing, tuple(sorted(allowed - have))) if missing > 0 else None

    def _publish(self, signed: Snapshot | Timestamp, name: str, signers: Sequence[Signer]) -> None:
        signed.expires = _after(days_of(self.root(), signed.type))
        metadata: Metadata[Any] = Metadata(signed)
        allowed = self._keyids(signed.type)
        for signer in signers:
            if signer.public_key.keyid in allowed:
                metadata.sign(signer, append=True)
        self.root().verify_delegate(signed.type, metadata.signed_bytes, metadata.signatures)
        self._write(self.published / name, metadata)

    def due(self, signed: Signed, role: str) -> bool:
        """Whether half of the time is over for which this holds."""
        return signed.expires - datetime.now(UTC) < timedelta(days=days_of(self.root(), role)) / 2

    def is_signed(self, role: str) -> bool:
        """Whether what a role has published is signed by the keys of today."""
        snapshot = self.snapshot()
        assert snapshot is not None
        version = snapshot.version if role == Snapshot.type else snapshot.meta[f"{role}.json"].version
        metadata = self._any(self.published / f"{version}.{role}.json")
        result = self._delegator(role).get_verification_result(role, metadata.signed_bytes, metadata.signatures)
        return bool(result)

    def forget_published(self) -> None:
        """Nothing is staged that is published already: a run was killed before it could tidy up."""
        snapshot = self.snapshot()
        meta = {} if snapshot is None else snapshot.meta
        for role in self.staged_roles():
            staged = self._any(self.staged / f"{role}.json")
            known = meta.get(f"{role}.json")
            newest = self.newest_file(role) if role == Root.type else known.version if known else 0
            if staged.signed.version <= newest:
                self.clear(role)

    def _keyids(self, role: str) -> set[str]:
        """Whose signatures count: for a root, the keys of the old one and of the new one."""
        if role == Root.type:
            staged = self._staged(role, Root)
            roots = [self.root(), *([staged.signed] if staged else [])]
            return {keyid for root in roots for keyid in root.roles[role].keyids}
        return set(self._delegator(role).get_delegated_role(role).keyids)

    def _missing(self, role: str, staged: Metadata[Any]) -> tuple[int, set[str]]:
        if role == Root.type:
            before = self.root() if self.newest_file(Root.type) else None
            result = staged.signed.get_root_verification_result(before, staged.signed_bytes, staged.signatures)
            missing = max(result.first.missing, result.second.missing)
            return missing, set(result.unsigned)
        own = self._delegator(role).get_verification_result(role, staged.signed_bytes, staged.signatures)
        return own.missing, set(own.unsigned)

    def _delegator(self, role: str) -> Root | Targets:
        """Who says which keys sign for a role: the root, or the targets for a site."""
        return self.root() if role in TOP else self.next_targets()

    # files

    def _staged(self, role: str, kind: type[S]) -> Metadata[S] | None:
        file = self.staged / f"{role}.json"
        return self._read(file, kind) if file.is_file() else None

    def _read(self, file: Path, kind: type[S]) -> Metadata[S]:
        metadata = self._any(file)
        if not isinstance(metadata.signed, kind):
            raise RepositoryError(f"{file}: want {kind.type}, got {metadata.signed.type}")
        return metadata

    def _any(self, file: Path) -> Metadata[Any]:
        try:
            return Metadata.from_bytes(file.read_bytes())
        except (OSError, TufError) as cause:
            raise RepositoryError(f"{file}: cannot be read as metadata ({cause})") from cause

    def _write_staged(self, role: str, metadata: Metadata[Any]) -> None:
        self.staged.mkdir(exist_ok=True)
        self._write(self.staged / f"{role}.json", metadata)

    def _write(self, file: Path, metadata: Metadata[Any]) -> None:
        write_bytes(file, metadata.to_bytes(_COMPACT))


def check_threshold(root: Root, role: str) -> None:
    """A role has as many keys as must sign for it."""
    found = root.roles[role]
    if not 1 <= found.threshold <= len(found.keyids):
        raise ConfigError(
            f"{role}: {found.threshold} signatures of {len(found.keyids)} keys; want 1 to all of them"
        )


def days_of(root: Root, role: str) -> int:
    """How long the next version of a role holds; a site's is like the targets."""
    kept: dict[str, int] = root.unrecognized_fields.get(_DAYS, EXPIRES)
    return kept.get(role, kept[Targets.type])


def _after(days: int) -> datetime:
    return datetime.now(UTC).replace(microsecond=0) + timedelta(days=days)
