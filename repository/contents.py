"""What a repository holds, on the workstation: descriptions and blobs, published or staged."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pluto_edge._files import alone_in, finish, sha256, write_bytes
from pluto_edge.errors import MissingExtraError, RepositoryError
from pluto_edge.manifest import FileEntry
from pluto_edge.repository.layout import (
    BLOBS,
    TARGETS,
    Channel,
    IndexEntry,
    ModuleRelease,
    Release,
    Revocations,
    T,
    module_target,
    read_target,
    revoked_target,
    site_role,
)
from pluto_edge.repository.roles import Roles
from pluto_edge.store import MODULE_FILE

try:
    from tuf.api.metadata import TargetFile, Targets
except ImportError as cause:
    raise MissingExtraError("tuf", "repo") from cause

__all__ = ["Contents", "role_of"]


class Contents:
    """The repository in `folder`, which is what is served: plain files."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.roles = Roles(self.folder)
        if not self.roles.published.is_dir():
            raise RepositoryError(f"{folder}: not a repository; make one: pluto repo init {folder} --keys KEYS")

    # what there is, as it will be after the next publication

    def releases(self) -> list[Release]:
        """All releases."""
        return self._all(Release, "releases/")

    def channels(self, bundle: str = "") -> list[Channel]:
        """All channels, or those of one bundle."""
        return self._all(Channel, f"channels/{bundle}/" if bundle else "channels/")

    def modules(self, site: str = "") -> list[ModuleRelease]:
        """All modules that are published by themselves, the repository's own or a site's."""
        targets = self.roles.next_targets(role_of(site))
        return [self.describe(ModuleRelease, targets, t) for t in live_modules(targets, site)]

    def sites(self) -> list[str]:
        """The sites that sign their own modules."""
        delegations = self.roles.next_targets().delegations
        roles = (delegations.roles if delegations else None) or {}
        return sorted(site_of(role) for role in roles)

    def revocations(self, site: str = "") -> Revocations:
        """All that was taken back, by the repository or by a site."""
        targets = self.roles.next_targets(role_of(site))
        target = revoked_target(site)
        return self.describe(Revocations, targets, target) if target in targets.targets else Revocations()

    @contextmanager
    def index_entries(self, site: str = "") -> Iterator[list[IndexEntry]]:
        """Every module that is published or staged, with a folder that holds its files within the block."""
        targets = self.roles.next_targets(role_of(site))
        with tempfile.TemporaryDirectory(prefix="pluto-edge-") as parent:
            entries = []
            for target in live_modules(targets, site):
                module = self.describe(ModuleRelease, targets, target)
                folder = Path(parent) / module.name
                folder.mkdir()
                for name, entry in module.files.items():
                    _link(self.folder / BLOBS / entry.sha256, folder / name)
                size = module.files[MODULE_FILE].size
                entries.append(IndexEntry(target, module.content, size, module.name, folder))
            yield entries

    def describe(self, cls: type[T], targets: Targets, target: str) -> T:
        """The description of this kind that `targets` have."""
        info = targets.targets.get(target)
        if info is None:
            raise RepositoryError(f"{target}: is not published here; `pluto repo list {self.folder}` shows what is")
        return read_target(cls, self._target_file(info).read_bytes(), target)

    def _all(self, cls: type[T], start: str) -> list[T]:
        targets = self.roles.next_targets()
        return [self.describe(cls, targets, t) for t in sorted(targets.targets) if t.startswith(start)]

    # changing it

    @contextmanager
    def alone(self) -> Iterator[None]:
        """One process at a time changes what is here."""
        with alone_in(self.folder, patience=60.0):
            yield

    def keep(self, file: Path) -> FileEntry:
        """The content of a file is a blob afterwards, once."""
        entry = FileEntry(sha256(file), file.stat().st_size)
        blob = self.folder / BLOBS / entry.sha256
        if blob.is_file() and blob.stat().st_size == entry.size:
            return entry
        with tempfile.TemporaryDirectory(dir=self.roles.staged) as folder:
            copy = Path(folder) / "blob"
            shutil.copyfile(file, copy)
            if sha256(copy) != entry.sha256:
                raise RepositoryError(f"{file}: was changed while it was read; try again")
            finish(copy, blob, mode=0o444)
        return entry

    def put(self, targets: Targets, target: str, data: bytes) -> None:
        """A target and its bytes, in a file that has their hash before its name."""
        info = TargetFile.from_data(target, data, ["sha256"])
        file = self._target_file(info)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(file, data)
        targets.targets[target] = info

    def _target_file(self, info: TargetFile) -> Path:
        (path,) = info.get_prefixed_paths()
        return self.folder / TARGETS / path


def role_of(site: str) -> str:
    """Who signs what a site publishes; without one, what the repository publishes."""
    return site_role(site) if site else Targets.type


def site_of(role: str) -> str:
    """The site that a role signs for; none for the repository's own."""
    return "" if role == Targets.type else role.removeprefix(site_role("x").removesuffix("x"))


def live_modules(targets: Targets, site: str) -> list[str]:
    """The targets that describe modules."""
    start = module_target("x", site).removesuffix("x.json")
    return sorted(t for t in targets.targets if t.startswith(start))


def _link(file: Path, other: Path) -> None:
    try:
        other.symlink_to(file.resolve())
    except OSError:  # not everybody may make links on Windows
        shutil.copyfile(file, other)
