"""The files of a repository's signed metadata: what is published, and what is staged for the next publication."""

import re
from pathlib import Path
from typing import Any, TypeVar

from pluto_edge._files import write_bytes
from pluto_edge.errors import MissingExtraError, RepositoryError
from pluto_edge.repository.layout import METADATA

try:
    from tuf.api.exceptions import RepositoryError as TufError
    from tuf.api.metadata import Metadata, MetaFile, Root, Snapshot, Targets, Timestamp
    from tuf.api.serialization.json import JSONSerializer
except ImportError as cause:
    raise MissingExtraError("tuf", "repo") from cause

__all__ = ["MetadataFiles"]

STAGED = ".staged"
_COMPACT = JSONSerializer(compact=True)

S = TypeVar("S", Root, Snapshot, Targets, Timestamp)


class MetadataFiles:
    """Those of the repository in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.published = folder / METADATA
        self.staged = folder / STAGED

    def root(self) -> Root:
        """The newest root; the one that is staged where none is published yet."""
        newest = self.newest_file(Root.type)
        if newest:
            return self._read(self.published / f"{newest}.root.json", Root).signed
        staged = self.read_staged(Root.type, Root)
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
        return [role for role, _ in self.listed()]

    def next_targets(self, role: str = Targets.type) -> Targets:
        """What a role will have published after the next publication; empty where it is new."""
        staged = self.read_staged(role, Targets)
        return staged.signed if staged else self.targets(role) or Targets(version=1)

    def staged_roles(self) -> list[str]:
        """Roles with changes that are not published, root first."""
        names = sorted(file.stem for file in self.staged.glob("*.json"))
        return sorted(names, key=lambda name: (name != Root.type, name))

    def staged_signatures(self, role: str) -> int:
        """How many people have signed what is staged of a role."""
        return len(self.read(self.staged / f"{role}.json").signatures)

    def newest_file(self, role: str) -> int:
        """The highest version of a role that was ever written here; 0 where there is none."""
        pattern = re.compile(rf"(\d+)\.{re.escape(role)}\.json")
        return max((int(m[1]) for f in self.published.iterdir() if (m := pattern.fullmatch(f.name))), default=0)

    def listed(self) -> list[tuple[str, MetaFile]]:
        """The roles with targets that the snapshot lists."""
        snapshot = self.snapshot()
        return [] if snapshot is None else [(n.removesuffix(".json"), m) for n, m in snapshot.meta.items()]

    def read_staged(self, role: str, kind: type[S]) -> Metadata[S] | None:
        """What is staged of a role, if anything."""
        file = self.staged / f"{role}.json"
        return self._read(file, kind) if file.is_file() else None

    def _read(self, file: Path, kind: type[S]) -> Metadata[S]:
        metadata = self.read(file)
        if not isinstance(metadata.signed, kind):
            raise RepositoryError(f"{file}: want {kind.type}, got {metadata.signed.type}")
        return metadata

    def read(self, file: Path) -> Metadata[Any]:
        """The metadata in a file, of whatever role."""
        try:
            return Metadata.from_bytes(file.read_bytes())
        except (OSError, TufError) as cause:
            raise RepositoryError(f"{file}: cannot be read as metadata ({cause})") from cause

    def write_staged(self, role: str, metadata: Metadata[Any]) -> None:
        """From now on this is staged of a role."""
        self.staged.mkdir(exist_ok=True)
        self.write(self.staged / f"{role}.json", metadata)

    def write(self, file: Path, metadata: Metadata[Any]) -> None:
        """Whole or not at all."""
        write_bytes(file, metadata.to_bytes(_COMPACT))
