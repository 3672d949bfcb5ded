"""A repository's signed metadata: what is published, what is staged for the next publication, and who may sign it.

What is staged lies in `.staged/`: the next version of a role, without the signatures that it still needs. Several
people may sign it one after another; when there are enough, it is published.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pluto_edge.errors import ConfigError, MissingExtraError
from pluto_edge.repository.metadata_files import MetadataFiles

try:
    from securesystemslib.signer import Signer, SSlibKey
    from tuf.api.metadata import Metadata, MetaFile, Root, Signed, Snapshot, Targets, Timestamp
except ImportError as cause:
    raise MissingExtraError("tuf", "repo") from cause

__all__ = ["EXPIRES", "TOP", "Missing", "Roles"]

TOP = (Root.type, Targets.type, Snapshot.type, Timestamp.type)
EXPIRES = {Root.type: 365, Targets.type: 365, Snapshot.type: 30, Timestamp.type: 7}  # days
_DAYS = "x-pluto-edge-expires-days"  # in the metadata: how long the next version holds


@dataclass(frozen=True)
class Missing:
    """A role that cannot be published yet: how many signatures it lacks, and the keys that may give them."""

    role: str
    signatures: int
    keys: tuple[str, ...]


@dataclass(frozen=True)
class RoleState:
    """What a role has published, until when that holds, and who must sign; `staged` says what waits."""

    role: str
    version: int
    expires: str
    threshold: int
    keys: tuple[str, ...]
    staged: str = ""


class Roles(MetadataFiles):
    """The metadata of the repository in `folder`, and how it changes."""

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
        self.write_staged(Targets.type, Metadata(Targets(version=1)))
        self.write_staged(Root.type, Metadata(root))

    def states(self) -> list[RoleState]:
        """All roles that have published something."""
        snapshot = self.snapshot()
        stamp = self.timestamp()
        if snapshot is None or stamp is None:
            return []
        signed: dict[str, Signed] = {Root.type: self.root(), Snapshot.type: snapshot, Timestamp.type: stamp}
        signed |= {role: self.read(self.published / f"{m.version}.{role}.json").signed for role, m in self.listed()}
        return [self._state(role, one) for role, one in signed.items()]

    def _state(self, role: str, signed: Signed) -> RoleState:
        keys = self._delegator(role).get_delegated_role(role)
        waits = f"{self.staged_signatures(role)} signatures" if role in self.staged_roles() else ""
        return RoleState(
            role, signed.version, f"{signed.expires:%Y-%m-%dT%H:%M:%SZ}", keys.threshold, tuple(keys.keyids), waits
        )

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
        self.write_staged(role, Metadata(signed))

    @contextmanager
    def edit_root(self) -> Iterator[Root]:
        """Change keys, thresholds or expiry; the old keys and the new ones sign it."""
        staged = self.read_staged(Root.type, Root)
        root = staged.signed if staged else self.root()
        yield root
        root.version = 1 + self.newest_file(Root.type)
        for role in TOP:
            check_threshold(root, role)
        self.write_staged(Root.type, Metadata(root))

    def sign(self, role: str, signers: Sequence[Signer]) -> Missing | None:
        """Sign what is staged of a role with those keys that may; says what it still lacks."""
        staged = self.read(self.staged / f"{role}.json")
        if not staged.signatures:
            root = staged.signed if role == Root.type else self.root()
            staged.signed.expires = _after(days_of(root, role))
        allowed = self._keyids(role)
        for signer in signers:
            if signer.public_key.keyid in allowed:
                staged.sign(signer, append=True)
        self.write_staged(role, staged)
        missing, keys = self._missing(role, staged)
        return Missing(role, missing, tuple(sorted(keys))) if missing else None

    def publish_staged(self, role: str) -> int:
        """What is staged and signed becomes a file of the repository, that no snapshot has yet; its version."""
        staged = self.read(self.staged / f"{role}.json")
        version: int = staged.signed.version
        self.write(self.published / f"{version}.{role}.json", staged)
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
        self.write(self.published / name, metadata)

    def due(self, signed: Signed, role: str) -> bool:
        """Whether half of the time is over for which this holds."""
        return signed.expires - datetime.now(UTC) < timedelta(days=days_of(self.root(), role)) / 2

    def is_signed(self, role: str) -> bool:
        """Whether what a role has published is signed by the keys of today."""
        snapshot = self.snapshot()
        assert snapshot is not None
        version = snapshot.version if role == Snapshot.type else snapshot.meta[f"{role}.json"].version
        metadata = self.read(self.published / f"{version}.{role}.json")
        result = self._delegator(role).get_verification_result(role, metadata.signed_bytes, metadata.signatures)
        return bool(result)

    def forget_published(self) -> None:
        """Nothing is staged that is published already: a run was killed before it could tidy up."""
        snapshot = self.snapshot()
        meta = {} if snapshot is None else snapshot.meta
        for role in self.staged_roles():
            staged = self.read(self.staged / f"{role}.json")
            known = meta.get(f"{role}.json")
            newest = self.newest_file(role) if role == Root.type else known.version if known else 0
            if staged.signed.version <= newest:
                self.clear(role)

    def _keyids(self, role: str) -> set[str]:
        """Whose signatures count: for a root, the keys of the old one and of the new one."""
        if role == Root.type:
            staged = self.read_staged(role, Root)
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
