"""A repository at one moment: every answer is vouched for by the root of trust."""

from dataclasses import dataclass
from typing import NoReturn

from pluto_edge.errors import ConfigError, MissingExtraError, RepositoryError
from pluto_edge.manifest import FileEntry
from pluto_edge.repository.address import Address
from pluto_edge.repository.fetcher import Fetcher
from pluto_edge.repository.layout import (
    TARGETS,
    Channel,
    ModuleRelease,
    Release,
    Revocations,
    T,
    channel_target,
    check_blob,
    module_target,
    read_target,
    release_target,
    revoked_target,
)

try:
    from tuf.api.metadata import TargetFile
    from tuf.ngclient import Updater
except ImportError as cause:
    raise MissingExtraError("tuf", "fleet") from cause

__all__ = ["Found", "RevokedError", "Session"]

MAX_DESCRIPTION = 1024 * 1024  # bytes


class RevokedError(RepositoryError):
    """What was asked for was taken back by those who had published it."""


@dataclass(frozen=True)
class Found:
    """A target that is published: hash and length of its bytes, and where they are below the address."""

    entry: FileEntry
    path: str


class Session:
    """Lasts as long as the block that it was made in."""

    def __init__(self, updater: Updater, fetcher: Fetcher, url: str) -> None:
        self._updater = updater
        self._fetcher = fetcher
        self._url = url

    def find(self, target: str) -> Found | None:
        """Where a target's bytes are; None where it is not published."""
        info = self._updater.get_targetinfo(target)
        return None if info is None else _found(info)

    def describe(self, cls: type[T], target: str) -> T | None:
        """A target that is a description of this kind; None where it is not published."""
        info = self._updater.get_targetinfo(target)
        if info is None:
            return None
        found = _found(info)
        if found.entry.size > MAX_DESCRIPTION:
            raise RepositoryError(f"{target}: {found.entry.size:,} bytes; want {MAX_DESCRIPTION:,} at most")
        data = self._fetcher.download_bytes(f"{self._url}/{found.path}", found.entry.size)
        info.verify_length_and_hashes(data)
        return read_target(cls, data, target)

    def release(self, address: Address, known: str | None = None) -> Release:
        """The release that an address stands for now; `known` is the content that it stood for before."""
        channel = self.describe(Channel, channel_target(address.bundle, address.selector))
        version = address.selector if channel is None else channel.current
        release = self.describe(Release, release_target(address.bundle, version))
        if release is None:
            self._explain(release_target(address.bundle, version), str(address), known=known)
        if (release.bundle, release.version) != (address.bundle, version):
            raise RepositoryError(f"{address}: the repository describes {release.bundle}@{release.version} there")
        return release

    def module(self, name: str, site: str = "", known: str | None = None) -> ModuleRelease:
        """A module that is published by itself, by the repository or by a site."""
        target = module_target(name, site)
        module = self.describe(ModuleRelease, target)
        if module is None:
            self._explain(target, name, site, known)
        if module.name != name:
            raise RepositoryError(f"{name}: the repository describes the module {module.name} there")
        return module

    def _explain(self, target: str, what: str, site: str = "", known: str | None = None) -> NoReturn:
        revoked = (self.describe(Revocations, revoked_target(site)) or Revocations()).of(target, known)
        if revoked is not None:
            why = f": {revoked.reason}" if revoked.reason else ""
            raise RevokedError(f"{what}: was revoked{why}; take another version")
        raise RepositoryError(f"{what}: is not published in {self._url}; is it spelled right?")


def _found(info: TargetFile) -> Found:
    if list(info.hashes) != ["sha256"]:
        raise RepositoryError(f"{info.path}: want its sha256, got {', '.join(info.hashes) or 'no hash'}")
    try:
        entry = FileEntry(info.hashes["sha256"], info.length)
        check_blob(entry, info.path)
    except ConfigError as cause:
        raise RepositoryError(str(cause)) from cause
    (path,) = info.get_prefixed_paths()
    return Found(entry, f"{TARGETS}/{path}")
