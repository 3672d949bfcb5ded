"""`Publisher`: a repository on a workstation. What is added is staged; `publish` signs it and makes it visible."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from pluto_edge._files import sha256
from pluto_edge.errors import MissingExtraError, RepositoryError
from pluto_edge.manifest import MANIFEST
from pluto_edge.repository.checks import check_bundle, check_module_folder
from pluto_edge.repository.contents import Contents, role_of
from pluto_edge.repository.layout import (
    BLOBS,
    DEFAULT_CHANNEL,
    MODULE_CONFIG,
    TARGETS,
    Channel,
    ModuleRelease,
    Release,
    Revocation,
    channel_target,
    module_target,
    release_target,
    revoked_target,
    site_patterns,
    site_role,
    target_bytes,
)
from pluto_edge.repository.publication import Published, publish
from pluto_edge.repository.roles import TOP, Roles
from pluto_edge.store import MODULE_FILE

try:
    from securesystemslib.signer import Signer, SSlibKey
    from tuf.api.metadata import DelegatedRole, Delegations, Root, Targets
except ImportError as cause:
    raise MissingExtraError("tuf", "repo") from cause

__all__ = ["Published", "Publisher"]


class Publisher(Contents):
    """Changes a repository. Every change is staged until `publish`, which needs the keys."""

    @classmethod
    def create(
        cls,
        folder: str | Path,
        keys: Mapping[str, Sequence[SSlibKey]],
        *,
        thresholds: Mapping[str, int] | None = None,
        days: Mapping[str, int] | None = None,
    ) -> "Publisher":
        """A new repository.

        Args:
            folder: which is empty, or not there yet.
            keys: the public keys of the roles root, targets, snapshot and timestamp.
            thresholds: how many of a role's keys must sign; one where nothing is said.
            days: how long a role's metadata holds; 365, 365, 30 and 7 where nothing is said.
        """
        folder = Path(folder)
        if folder.exists() and any(folder.iterdir()):
            raise RepositoryError(f"{folder}: the folder exists and is not empty")
        Roles(folder).create(keys, thresholds or {}, days or {})
        (folder / TARGETS).mkdir()
        (folder / BLOBS).mkdir()
        return cls(folder)

    def publish(self, signers: Sequence[Signer]) -> Published:
        """Sign what is staged with these keys; what has signatures enough becomes visible, the timestamp last.

        With nothing staged the timestamp is renewed, and snapshot and targets where half of their time is over.
        """
        with self.alone():
            return publish(self, signers)

    # what is published

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
        """Stage a release of the bundle in `path`, which `channels` point at from then on.

        `signature` is an OpenSSF model signature, which travels with it.
        """
        bundle = check_bundle(Path(path))
        with self.alone(), self.roles.edit_targets() as targets:
            target = release_target(name, version)
            self._check_not_revoked(target, bundle.hash)
            if target in targets.targets:
                raise RepositoryError(f"{name}@{version}: is there already; a version is published once")
            files = {n: self.keep(bundle.file(n)) for n in sorted({MANIFEST, *bundle.manifest.files})}
            release = Release(name, version, files, None if signature is None else self.keep(signature), notes)
            self.put(targets, target, target_bytes(release))
            for channel in channels:
                self._point(targets, name, channel, version)
        return release

    def add_module(self, path: str | Path, *, site: str = "") -> ModuleRelease:
        """Stage a module by itself, a module's folder of a store; it takes the place of one with the same name."""
        path = Path(path)
        config = check_module_folder(path)
        with self.alone(), self._edit(site) as targets:
            target = module_target(config.name, site)
            self._check_not_revoked(target, sha256(path / MODULE_FILE), site)
            names = [n for n in (MODULE_CONFIG, MODULE_FILE, "README.md") if (path / n).is_file()]
            files = {n: self.keep(path / n) for n in names}
            module = ModuleRelease(config.name, config.role, config.architecture, files)
            self.put(targets, target, target_bytes(module))
        return module

    def point(self, name: str, channel: str, version: str) -> None:
        """Stage that a channel points at a release that is there, as when `beta` becomes `stable`."""
        with self.alone(), self.roles.edit_targets() as targets:
            if release_target(name, version) not in targets.targets:
                raise RepositoryError(f"{name}@{version}: there is no such release; `pluto repo list` shows them")
            self._point(targets, name, channel, version)

    def revoke_release(self, name: str, version: str, reason: str = "") -> None:
        """Stage that a release is taken back: channels go to the one before it; its version is never used again."""
        target = release_target(name, version)
        with self.alone(), self.roles.edit_targets() as targets:
            release = self.describe(Release, targets, target)
            self._revoke(targets, Revocation(target, release.content, reason))
            for channel in self.channels(name):
                self._point_back(targets, channel, version)

    def revoke_module(self, name: str, reason: str = "", *, site: str = "") -> None:
        """Stage that a module is taken back: it leaves the index, and its content is never published again."""
        target = module_target(name, site)
        with self.alone(), self._edit(site) as targets:
            module = self.describe(ModuleRelease, targets, target)
            self._revoke(targets, Revocation(target, module.content, reason), site)

    # who may sign

    def delegate(self, site: str, keys: Sequence[SSlibKey], threshold: int = 1) -> None:
        """Stage that a site signs its own modules with these keys, below `sites/<site>/` and nowhere else."""
        if not 1 <= threshold <= len(keys):
            raise RepositoryError(f"{site}: {threshold} signatures of {len(keys)} keys; want 1 to all of them")
        role = site_role(site)
        with self.alone():
            with self.roles.edit_targets() as targets:
                delegations = targets.delegations or Delegations({}, {})
                assert delegations.roles is not None  # ours have names, and are not chosen by a hash
                delegations.roles[role] = DelegatedRole(role, [], threshold, True, paths=site_patterns(site))
                targets.delegations = delegations
                for key in keys:
                    targets.add_key(key, role)
                used = {keyid for found in delegations.roles.values() for keyid in found.keyids}
                delegations.keys = {keyid: key for keyid, key in delegations.keys.items() if keyid in used}
            if self.roles.targets(role) is None:
                self.roles.renew_targets(role)

    def rotate(
        self, role: str, *, add: Sequence[SSlibKey] = (), remove: Sequence[str] = (), threshold: int | None = None
    ) -> None:
        """Stage a new root: other keys, or another threshold, for a role. Keys of the old root and the new sign it.

        Keys to remove are given by the start of their ids. With nothing to change the root is renewed.
        """
        if role not in TOP:
            raise RepositoryError(f"{role}: want one of {', '.join(TOP)}; a site's keys are given with `delegate`")
        with self.alone(), self.roles.edit_root() as root:
            for key in add:
                root.add_key(key, role)
            for start in remove:
                root.revoke_key(_whole_keyid(root, role, start), role)
            if threshold is not None:
                root.roles[role].threshold = threshold

    # pieces

    @contextmanager
    def _edit(self, site: str) -> Iterator[Targets]:
        if site and site not in self.sites():
            known = ", ".join(self.sites()) or "none"
            raise RepositoryError(f"{site}: no such site (there are: {known}); `pluto repo delegate` makes one")
        with self.roles.edit_targets(role_of(site)) as targets:
            yield targets

    def _check_not_revoked(self, target: str, content: str, site: str = "") -> None:
        """No content that was taken back comes again, and no version of a bundle with other content."""
        versioned = target if target.startswith("releases/") else ""
        revoked = self.revocations(site).of(versioned, content)
        if revoked is not None:
            why = f" ({revoked.reason})" if revoked.reason else ""
            raise RepositoryError(f"{revoked.target}: was revoked{why}; it is not published again")

    def _revoke(self, targets: Targets, revocation: Revocation, site: str = "") -> None:
        before = self.revocations(site)
        after = replace(before, entries=(*before.entries, revocation))
        self.put(targets, revoked_target(site), target_bytes(after))
        del targets.targets[revocation.target]

    def _point(self, targets: Targets, name: str, channel: str, version: str) -> None:
        target = channel_target(name, channel)
        known = self.describe(Channel, targets, target).versions if target in targets.targets else ()
        versions = (*(v for v in known if v != version), version)
        self.put(targets, target, target_bytes(Channel(name, channel, versions)))

    def _point_back(self, targets: Targets, channel: Channel, version: str) -> None:
        target = channel_target(channel.bundle, channel.channel)
        left = tuple(v for v in channel.versions if v != version)
        if left:
            self.put(targets, target, target_bytes(replace(channel, versions=left)))
        else:
            del targets.targets[target]


def _whole_keyid(root: Root, role: str, start: str) -> str:
    found = [keyid for keyid in root.roles[role].keyids if keyid.startswith(start)]
    if len(found) != 1:
        keys = ", ".join(keyid[:12] for keyid in root.roles[role].keyids)
        raise RepositoryError(f"{role}: {len(found)} keys start with {start!r}; there are: {keys}")
    return found[0]
