"""What a repository holds, and where.

repository/
  metadata/                          The Update Framework's: root, targets, snapshot, timestamp, one for each site
  targets/releases/<bundle>/<version>.json      Release: a bundle's files and their blobs
  targets/channels/<bundle>/<channel>.json      Channel: which release devices of this channel run
  targets/modules/<name>.json                   ModuleRelease: one module's files and their blobs
  targets/index/modules.safetensors             the signatures of all modules
  targets/revoked.json                          Revocations: what was taken back
  targets/sites/<site>/...                      modules, index and revocations that a site signs itself
  blobs/<sha256>                                the files themselves, each content once

Files below targets/ have their hash before their name, as consistent snapshots want it. A blob is in no metadata:
the description that lists it is, with the blob's hash and length.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeVar

from pluto_edge._files import check_name
from pluto_edge._schema import check_once, check_version, decode, parse_json, to_text
from pluto_edge.errors import ConfigError, RepositoryError
from pluto_edge.manifest import MANIFEST, FileEntry
from pluto_edge.modules import Role
from pluto_edge.store import MODULE_FILE
from pluto_edge.version import WRITER

__all__ = [
    "Channel",
    "IndexEntry",
    "ModuleRelease",
    "Release",
    "Revocation",
    "Revocations",
    "blob_path",
    "channel_target",
    "index_target",
    "module_target",
    "read_target",
    "release_target",
    "revoked_target",
    "site_role",
    "target_bytes",
]

SCHEMA_VERSION = 1
METADATA, TARGETS, BLOBS = "metadata", "targets", "blobs"
DEFAULT_CHANNEL = "stable"
MODULE_CONFIG = "adapter_config.json"
MAX_FILES = 10_000
MAX_BLOB = 1 << 40  # bytes
_SHA256 = re.compile("[0-9a-f]{64}")

T = TypeVar("T")


def check_files(files: Mapping[str, FileEntry], needed: str) -> None:
    """Names that stay inside of a folder, hashes that are hashes, and the one file that must be there."""
    if needed not in files:
        raise ConfigError(f"files: {needed!r} is not listed")
    if len(files) > MAX_FILES:
        raise ConfigError(f"files: want {MAX_FILES:,} at most, got {len(files):,}")
    for name, entry in files.items():
        path = PurePosixPath(name)
        if path.is_absolute() or str(path) != name or "\\" in name or "\0" in name:
            raise ConfigError(f"files: {name[:120]!r} is not a path inside of a folder")
        for part in path.parts:
            check_name(part, "files", ConfigError)
        check_blob(entry, f"files.{name}")


def check_blob(entry: FileEntry, where: str) -> None:
    """A hash in hexadecimal digits, which becomes a file's name, and a length that a file can have."""
    if not _SHA256.fullmatch(entry.sha256) or not 0 <= entry.size <= MAX_BLOB:
        raise ConfigError(f"{where}: not a sha256 and a size: {entry.sha256!r}, {entry.size}")


@dataclass(frozen=True)
class Release:
    """One version of a bundle: its files by name. `signature` is an OpenSSF model signature of all of them."""

    bundle: str
    version: str
    files: dict[str, FileEntry]
    signature: FileEntry | None = None
    notes: str = ""
    writer: str = WRITER
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        check_name(self.bundle, "bundle", ConfigError)
        check_name(self.version, "version", ConfigError)
        check_files(self.files, MANIFEST)
        if self.signature is not None:
            check_blob(self.signature, "signature")

    @property
    def content(self) -> str:
        """What tells this bundle from every other: the sha256 of its manifest."""
        return self.files[MANIFEST].sha256

    @property
    def blobs(self) -> tuple[FileEntry, ...]:
        """Every content once, the signature included."""
        more = () if self.signature is None else (self.signature,)
        return tuple({entry.sha256: entry for entry in (*self.files.values(), *more)}.values())


@dataclass(frozen=True)
class Channel:
    """The releases that a channel has pointed at, oldest first: devices run the last one."""

    bundle: str
    channel: str
    versions: tuple[str, ...]
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        check_name(self.bundle, "bundle", ConfigError)
        check_name(self.channel, "channel", ConfigError)
        check_once(self.versions, "versions")
        for version in self.versions:
            check_name(version, "versions", ConfigError)
        if not self.versions:
            raise ConfigError("versions: a channel points at one release at least")

    @property
    def current(self) -> str:
        """The version that devices of this channel run."""
        return self.versions[-1]


@dataclass(frozen=True)
class ModuleRelease:
    """One module by itself: the files of its folder in a store, which `Runtime.add_module` takes."""

    name: str
    role: Role
    architecture: str
    files: dict[str, FileEntry]
    writer: str = WRITER
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        check_name(self.name, "name", ConfigError)
        check_files(self.files, MODULE_FILE)
        check_files(self.files, MODULE_CONFIG)

    @property
    def content(self) -> str:
        """What tells this module from every other: the sha256 of its tensors."""
        return self.files[MODULE_FILE].sha256

    @property
    def blobs(self) -> tuple[FileEntry, ...]:
        """Every content once."""
        return tuple({entry.sha256: entry for entry in self.files.values()}.values())


@dataclass(frozen=True)
class Revocation:
    """Something that was taken back: the target that described it, its content, and why."""

    target: str
    content: str
    reason: str = ""

    def __post_init__(self) -> None:
        if not _SHA256.fullmatch(self.content):
            raise ConfigError(f"content: want a sha256, got {self.content!r}")


@dataclass(frozen=True)
class Revocations:
    """All that was taken back so far; none of it, by name or by content, is published again."""

    entries: tuple[Revocation, ...] = ()
    schema_version: int = SCHEMA_VERSION

    def of(self, target: str, content: str | None = None) -> Revocation | None:
        """Why this target, or this content, is not to be used; None where nothing is against it."""
        return next((e for e in self.entries if e.target == target or e.content == content), None)


@dataclass(frozen=True)
class IndexEntry:
    """A module that is published, for the index: its target, hash and size of its tensors' file, and its folder."""

    target: str
    sha256: str
    size: int
    name: str
    folder: Path


def blob_path(sha256: str) -> str:
    """Where a content is, below the repository's address."""
    return f"{BLOBS}/{sha256}"


def release_target(bundle: str, version: str) -> str:
    """The description of one version of a bundle."""
    return f"releases/{_safe(bundle, 'bundle')}/{_safe(version, 'version')}.json"


def channel_target(bundle: str, channel: str) -> str:
    """Which version a channel has."""
    return f"channels/{_safe(bundle, 'bundle')}/{_safe(channel, 'channel')}.json"


def module_target(name: str, site: str = "") -> str:
    """The description of a module, the repository's own or a site's."""
    return f"{_below(site)}modules/{_safe(name, 'module')}.json"


def index_target(site: str = "") -> str:
    """The signatures of all modules, the repository's own or a site's."""
    return f"{_below(site)}index/modules.safetensors"


def revoked_target(site: str = "") -> str:
    """What was taken back by the repository or by a site."""
    return f"{_below(site)}revoked.json"


def site_role(site: str) -> str:
    """The name of the role that signs what a site publishes."""
    return f"site-{_safe(site, 'site')}"


def site_patterns(site: str) -> list[str]:
    """Which targets a site may sign; a star stands for one part of a path."""
    return [f"{_below(site)}*", f"{_below(site)}*/*"]


def read_target(cls: type[T], data: bytes, target: str) -> T:
    """A description of this kind in a target's bytes."""
    found = parse_json(data, target, RepositoryError)
    check_version(found, SCHEMA_VERSION, target, RepositoryError)
    return decode(cls, found, target, RepositoryError)


def target_bytes(value: object) -> bytes:
    """A description as it is published: the same description is always the same bytes."""
    return to_text(value).encode()


def _below(site: str) -> str:
    return f"sites/{_safe(site, 'site')}/" if site else ""


def _safe(name: str, what: str) -> str:
    return check_name(name, what, RepositoryError)
