"""`Publisher`: a repository on a workstation. What is added is staged; `publish` signs it and makes it visible."""

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from pluto_edge._files import alone_in, finish, sha256, write_bytes
from pluto_edge.errors import MissingExtraError, RepositoryError
from pluto_edge.manifest import MANIFEST, FileEntry
from pluto_edge.repository import index
from pluto_edge.repository.checks import check_bundle, check_module_folder
from pluto_edge.repository.layout import (
    BLOBS,
    DEFAULT_CHANNEL,
    MODULE_CONFIG,
    TARGETS,
    Channel,
    IndexEntry,
    ModuleRelease,
    Release,
    Revocation,
    Revocations,
    T,
    channel_target,
    index_target,
    module_target,
    read_target,
    release_target,
    revoked_target,
    site_patterns,
    site_role,
    target_bytes,
)
from pluto_edge.repository.roles import TOP, Missing, Roles
from pluto_edge.store import MODULE_FILE

try:
    from securesystemslib.signer import Signer, SSlibKey
    from tuf.api.metadata import DelegatedRole, Delegations, Root, Snapshot, TargetFile, Targets, Timestamp
except ImportError as cause:
    raise MissingExtraError("tuf", "repo") from cause

__all__ = ["Published", "Publisher"]


@dataclass(frozen=True)
class Published:
    """What a publication did: versions of the roles that are new, and the roles that wait for more signatures."""

    versions: dict[str, int]
    waiting: tuple[Missing, ...] = ()


class Publisher:
    """The repository in `folder`, which is what is served: plain files."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.roles = Roles(self.folder)
        if not self.roles.published.is_dir():
            raise RepositoryError(f"{folder}: not a repository; make one: pluto repo init {folder}")

    @classmethod
    def create(
        cls,
        folder: str | Path,
        keys: Mapping[str, Sequence[SSlibKey]],
        *,
        thresholds: Mapping[str, int] | None = None,
        days: Mapping[str, int] | None = None,
    ) -> "Publisher":
        """A new repository with the public keys of each role, of which `thresholds` must sign (one by itself).

        `days` says how long each role's metadata holds. Nothing is signed before `publish`.
        """
        folder = Path(folder)
        if folder.exists() and any(folder.iterdir()):
            raise RepositoryError(f"{folder}: the folder exists and is not empty")
        Roles(folder).create(keys, thresholds or {}, days or {})
        (folder / TARGETS).mkdir()
        (folder / BLOBS).mkdir()
        return cls(folder)

    # what is added

    def add_bundle(
        self,
        path: str | Path,
        name: str,
        version: str,
        *,
        channels: Sequence[str] = (DEFAULT_CHANNEL,),
        notes: str = "",
        signature: Path | None = None,
    ) -> Release:
        """Stage a release: the bundle in `path` as `name` in this version, which `channels` point at from then on."""
        bundle = check_bundle(Path(path))
        with self._alone(), self.roles.edit_targets() as targets:
            target = release_target(name, version)
            self._check_new(targets, target, bundle.hash)
            names = sorted({MANIFEST, *bundle.manifest.files})
            files = {n: self._keep(bundle.file(n)) for n in names}
            signed = None if signature is None else self._keep(signature)
            release = Release(name, version, files, signed, notes)
            self._set(targets, target, target_bytes(release))
            for channel in channels:
                self._point(targets, name, channel, version)
        return release

    def add_module(self, path: str | Path, *, site: str = "") -> ModuleRelease:
        """Stage one module by itself: a module's folder of a store. It takes the place of one with the same name."""
        path = Path(path)
        config = check_module_folder(path)
        with self._alone(), self._edit(site) as targets:
            target = module_target(config.name, site)
            self._check_allowed(targets, target, sha256(path / MODULE_FILE), site)
            names = [n for n in (MODULE_CONFIG, MODULE_FILE, "README.md") if (path / n).is_file()]
            files = {n: self._keep(path / n) for n in names}
            module = ModuleRelease(config.name, config.role, config.architecture, files)
            self._set(targets, target, target_bytes(module))
        return module

    def point(self, name: str, channel: str, version: str) -> None:
        """Stage that a channel points at a release that is there, as from `beta` to `stable`."""
        with self._alone(), self.roles.edit_targets() as targets:
            if release_target(name, version) not in targets.targets:
                raise RepositoryError(f"{name}@{version}: there is no such release; `pluto repo list` shows them")
            self._point(targets, name, channel, version)

    def revoke_release(self, name: str, version: str, reason: str = "") -> None:
        """Stage that a release is taken back: channels go to the release before it, and the version is never used again."""
        with self._alone(), self.roles.edit_targets() as targets:
            target = release_target(name, version)
            release = self._description(Release, targets, target)
            self._revoke(targets, Revocation(target, release.content, reason), "")
            for channel in self._channels(targets, name):
                if version in channel.versions:
                    self._without(targets, channel, version)

    def revoke_module(self, name: str, reason: str = "", *, site: str = "") -> None:
        """Stage that a module is taken back: it leaves the index, and its content is never published again."""
        with self._alone(), self._edit(site) as targets:
            target = module_target(name, site)
            module = self._description(ModuleRelease, targets, target)
            self._revoke(targets, Revocation(target, module.content, reason), site)

    # who may sign

    def delegate(self, site: str, keys: Sequence[SSlibKey], threshold: int = 1) -> None:
        """Stage that a site signs its own modules, below `sites/<site>/` and nowhere else."""
        if not 1 <= threshold <= len(keys):
            raise RepositoryError(f"{site}: {threshold} signatures of {len(keys)} keys; want 1 to all of them")
        role = site_role(site)
        with self._alone(), self.roles.edit_targets() as targets:
            delegations = targets.delegations or Delegations({}, {})
            assert delegations.roles is not None  # ours are by name, never by hash
            delegations.roles[role] = DelegatedRole(role, [], threshold, True, paths=site_patterns(site))
            targets.delegations = delegations
            for key in keys:
                targets.add_key(key, role)
            used = {keyid for found in delegations.roles.values() for keyid in found.keyids}
            delegations.keys = {keyid: key for keyid, key in delegations.keys.items() if keyid in used}
        if self.roles.targets(role) is None:
            with self._alone(), self.roles.edit_targets(role):
                pass

    def rotate(
        self, role: str, *, add: Sequence[SSlibKey] = (), remove: Sequence[str] = (), threshold: int | None = None
    ) -> None:
        """Stage a new root: other keys or another threshold for a role. The old root's keys sign it, and the new one's.

        With nothing to change the root is renewed.
        """
        if role not in TOP:
            raise RepositoryError(f"{role}: want one of {', '.join(TOP)}; a site's keys are given with `delegate`")
        with self._alone(), self.roles.edit_root() as root:
            for key in add:
                root.add_key(key, role)
            for keyid in remove:
                root.revoke_key(self._whole_keyid(root, role, keyid), role)
            if threshold is not None:
                root.roles[role].threshold = threshold

    # publishing

    def publish(self, signers: Sequence[Signer]) -> Published:
        """Sign what is staged with these keys; what has signatures enough becomes visible, the timestamp last.

        With nothing staged the timestamp is renewed, and the snapshot and the targets where half of their time is over.
        """
        with self._alone():
            self.roles.forget_published()
            versions: dict[str, int] = {}
            waiting: list[Missing] = []
            if Root.type in self.roles.staged_roles():
                waiting += self._publish_root(signers, versions)
            self._stage_what_is_due(signers)
            changed = []
            for role in [r for r in self.roles.staged_roles() if r != Root.type]:
                self._build_index(role)
                missing = self.roles.sign(role, signers)
                if missing is None:
                    changed.append(role)
                else:
                    waiting.append(missing)
            self._make_visible(changed, signers, versions, waiting)
        return Published(versions, tuple(waiting))

    def _publish_root(self, signers: Sequence[Signer], versions: dict[str, int]) -> list[Missing]:
        missing = self.roles.sign(Root.type, signers)
        if missing is not None:
            return [missing]
        self.roles.publish_staged(Root.type)
        self.roles.clear(Root.type)
        versions[Root.type] = self.roles.root().version
        return []

    def _stage_what_is_due(self, signers: Sequence[Signer]) -> None:
        """Targets whose keys were changed, or half of whose time is over: the same content, signed anew."""
        published = self.roles.targets()
        names = (
            [] if published is None or published.delegations is None else list(published.delegations.roles or {})
        )
        for role in [Targets.type, *names]:
            own = self.roles.targets(role)
            if own is None or role in self.roles.staged_roles():
                continue
            if self.roles.due(own, role) or not self.roles.is_signed(role):
                with self.roles.edit_targets(role):
                    pass

    def _make_visible(
        self, changed: Sequence[str], signers: Sequence[Signer], versions: dict[str, int], waiting: list[Missing]
    ) -> None:
        if not self.roles.newest_file(Root.type) or (self.roles.snapshot() is None and not changed):
            return  # nobody can trust anything yet
        lacking = [m for r in (Snapshot.type, Timestamp.type) if (m := self.roles.lacking(r, signers))]
        if lacking:
            waiting += lacking
            return
        for role in changed:
            self.roles.publish_staged(role)
            versions[role] = self.roles.newest_file(role)
        if self.roles.publish_snapshot(changed, signers):
            versions[Snapshot.type] = self.roles.newest_file(Snapshot.type)
        before = self.roles.timestamp()
        snapshot = versions.get(Snapshot.type) or (before.snapshot_meta.version if before else 0)
        self.roles.publish_timestamp(signers, snapshot)
        versions[Timestamp.type] = before.version + 1 if before else 1
        for role in changed:
            self.roles.clear(role)

    # the index

    @contextmanager
    def index_entries(self, site: str = "") -> Iterator[list[IndexEntry]]:
        """Every module that is published or staged, with a folder that holds its files within the block."""
        targets = self.roles.next_targets(site_role(site) if site else Targets.type)
        with tempfile.TemporaryDirectory(dir=self.roles.staged, prefix="modules-") as parent:
            entries = []
            for target in self._live(targets, site):
                module = self._description(ModuleRelease, targets, target)
                folder = Path(parent) / module.name
                folder.mkdir()
                for name, entry in module.files.items():
                    (folder / name).symlink_to((self.folder / BLOBS / entry.sha256).resolve())
                size = module.files[MODULE_FILE].size
                entries.append(IndexEntry(target, module.content, size, module.name, folder))
            yield entries

    def _build_index(self, role: str) -> None:
        """The index of a role's modules as they will be, unless somebody has signed it already."""
        site = role.removeprefix("site-") if role != Targets.type else ""
        targets = self.roles.next_targets(role)
        if self.roles.staged_signatures(role) or not (
            self._live(targets, site) or index_target(site) in targets.targets
        ):
            return
        with self.index_entries(site) as entries:
            data = index.build(entries)
        with self.roles.edit_targets(role) as targets:
            self._set(targets, index_target(site), data)

    def _live(self, targets: Targets, site: str) -> list[str]:
        start = module_target("x", site).removesuffix("x.json")
        return sorted(t for t in targets.targets if t.startswith(start))

    # what there is

    def releases(self) -> list[Release]:
        """All releases, those that are only staged included."""
        return self._all(Release, "releases/")

    def channels(self) -> list[Channel]:
        """All channels, as they will be after the next publication."""
        return self._all(Channel, "channels/")

    def modules(self, site: str = "") -> list[ModuleRelease]:
        """All modules that are published singly, the repository's own or a site's."""
        targets = self.roles.next_targets(site_role(site) if site else Targets.type)
        return [self._description(ModuleRelease, targets, t) for t in self._live(targets, site)]

    def sites(self) -> list[str]:
        """The sites that sign their own modules."""
        delegations = self.roles.next_targets().delegations
        return sorted(r.removeprefix("site-") for r in (delegations.roles if delegations else None) or {})

    def revocations(self, site: str = "") -> Revocations:
        """All that was taken back."""
        return self._revocations(self.roles.next_targets(site_role(site) if site else Targets.type), site)

    def _all(self, cls: type[T], start: str) -> list[T]:
        targets = self.roles.next_targets()
        return [self._description(cls, targets, t) for t in sorted(targets.targets) if t.startswith(start)]

    # pieces

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with alone_in(self.folder, patience=60.0):
            yield

    @contextmanager
    def _edit(self, site: str) -> Iterator[Targets]:
        if site and site not in self.sites():
            raise RepositoryError(
                f"{site}: no such site; first: pluto repo delegate {self.folder} {site} --key PUBLIC"
            )
        with self.roles.edit_targets(site_role(site) if site else Targets.type) as targets:
            yield targets

    def _keep(self, file: Path) -> FileEntry:
        """The file's content is a blob afterwards, once."""
        with tempfile.NamedTemporaryFile(dir=self.roles.staged, delete=False) as copy:
            try:
                with file.open("rb") as opened:
                    shutil.copyfileobj(opened, copy)
                copy.close()
                entry = FileEntry(sha256(Path(copy.name)), Path(copy.name).stat().st_size)
                blob = self.folder / BLOBS / entry.sha256
                if not blob.is_file() or blob.stat().st_size != entry.size:
                    finish(Path(copy.name), blob, mode=0o444)
            finally:
                Path(copy.name).unlink(missing_ok=True)
        return entry

    def _set(self, targets: Targets, target: str, data: bytes) -> None:
        """A target and its bytes, in a file that has their hash before its name."""
        info = TargetFile.from_data(target, data, ["sha256"])
        (path,) = (self.folder / TARGETS / p for p in info.get_prefixed_paths())
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, data)
        targets.targets[target] = info

    def _description(self, cls: type[T], targets: Targets, target: str) -> T:
        info = targets.targets.get(target)
        if info is None:
            raise RepositoryError(f"{target}: is not published here; `pluto repo list {self.folder}` shows what is")
        (path,) = (self.folder / TARGETS / p for p in info.get_prefixed_paths())
        return read_target(cls, path.read_bytes(), target)

    def _check_new(self, targets: Targets, target: str, content: str) -> None:
        if target in targets.targets:
            raise RepositoryError(f"{target}: is there already; a version is published once")
        self._check_allowed(targets, target, content, "")

    def _check_allowed(self, targets: Targets, target: str, content: str, site: str) -> None:
        for entry in self._revocations(targets, site).entries:
            if entry.content == content or (entry.target == target and target.startswith("releases/")):
                why = f" ({entry.reason})" if entry.reason else ""
                raise RepositoryError(f"{entry.target}: was revoked{why}; it is not published again")

    def _revocations(self, targets: Targets, site: str) -> Revocations:
        target = revoked_target(site)
        return self._description(Revocations, targets, target) if target in targets.targets else Revocations()

    def _revoke(self, targets: Targets, revocation: Revocation, site: str) -> None:
        before = self._revocations(targets, site)
        self._set(
            targets, revoked_target(site), target_bytes(replace(before, entries=(*before.entries, revocation)))
        )
        del targets.targets[revocation.target]

    def _channels(self, targets: Targets, name: str) -> list[Channel]:
        start = f"channels/{name}/"
        return [self._description(Channel, targets, t) for t in sorted(targets.targets) if t.startswith(start)]

    def _point(self, targets: Targets, name: str, channel: str, version: str) -> None:
        target = channel_target(name, channel)
        known = self._description(Channel, targets, target).versions if target in targets.targets else ()
        versions = (*(v for v in known if v != version), version)
        self._set(targets, target, target_bytes(Channel(name, channel, versions)))

    def _without(self, targets: Targets, channel: Channel, version: str) -> None:
        target = channel_target(channel.bundle, channel.channel)
        left = tuple(v for v in channel.versions if v != version)
        if left:
            self._set(targets, target, target_bytes(replace(channel, versions=left)))
        else:
            del targets.targets[target]

    def _whole_keyid(self, root: Root, role: str, start: str) -> str:
        found = [keyid for keyid in root.roles[role].keyids if keyid.startswith(start)]
        if len(found) != 1:
            keys = ", ".join(k[:12] for k in root.roles[role].keyids)
            raise RepositoryError(f"{role}: {len(found)} keys start with {start!r}; there are: {keys}")
        return found[0]
