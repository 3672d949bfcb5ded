"""`Client`: a repository as a device sees it. Nothing is used that the given root of trust does not vouch for."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pluto_edge._files import write_bytes
from pluto_edge.errors import BundleError, RepositoryError, StoreError
from pluto_edge.manifest import Bundle
from pluto_edge.repository.address import Address
from pluto_edge.repository.cache import Cache, Kept, Kind
from pluto_edge.repository.download import Downloads, Progress
from pluto_edge.repository.fetcher import Fetcher, Limits, transport_of
from pluto_edge.repository.layout import ModuleRelease, Release, blob_path, index_target
from pluto_edge.repository.session import Found, RevokedError
from pluto_edge.repository.trust import Trust
from pluto_edge.store import read_module, read_module_config

__all__ = ["Client", "Damage", "Synced", "resolve"]

log = logging.getLogger("pluto_edge.repository")


def resolve(
    address: str,
    *,
    root: str | Path | None = None,
    cache: Path | None = None,
    limits: Limits | None = None,
    progress: Progress | None = None,
) -> Path:
    """The folder of the bundle that an address stands for: the newest, or the one that is here if it cannot be had.

    Args:
        address: `<repository>/<bundle>[@channel or version]`.
        root: the root of trust, a file; None takes that of `PLUTO_ROOT`, or the one that was given before.
        cache: where repositories are kept; None is the user's cache folder.
        limits: how long, and how much.
        progress: called with the bytes that are done and those to do.
    """
    parsed = Address.parse(address)
    client = Client(parsed.repository, root=root, cache=cache, limits=limits)
    try:
        return client.pull(parsed, progress)
    except RevokedError:
        raise
    except (RepositoryError, OSError) as error:
        folder = client.cached(parsed)
        if folder is None:
            raise
        log.warning(
            "%s: not brought up to date (%s); going on with what is here: %s", parsed, error, folder.name[:12]
        )
        return folder


@dataclass(frozen=True)
class Damage:
    """A file that is missing or is not what was fetched, and whether it was fetched again."""

    file: Path
    repaired: bool


@dataclass(frozen=True)
class Synced:
    """What became of a name: the version that it stands for, and what there is to say of it."""

    kind: Kind
    name: str
    version: str
    said: str
    revoked: bool = False


class Client:
    """What a device does with one repository.

    Args:
        repository: its address.
        root: the root of trust, a file; None takes that of `PLUTO_ROOT`, or the one that was given before.
        cache: where repositories are kept; None is the user's cache folder.
        limits: how long downloads may take, and how much they may bring.
        fetcher: how bytes come; None goes by the address.
    """

    def __init__(
        self,
        repository: str,
        *,
        root: str | Path | None = None,
        cache: Path | None = None,
        limits: Limits | None = None,
        fetcher: Fetcher | None = None,
    ) -> None:
        self.cache = Cache(repository, cache)
        self.url = self.cache.url
        self.fetcher = fetcher or Fetcher(transport_of(self.url), limits)
        self._downloads = Downloads(self.cache, self.fetcher)
        self._trust = Trust(self.cache, self.fetcher, root)

    # fetching

    def pull(self, address: Address, progress: Progress | None = None) -> Path:
        """The folder of the newest bundle that an address stands for; what is missing of it is fetched."""
        name = f"{address.bundle}@{address.selector}"
        self.cache.make()
        with self.cache.alone():
            known = self.cache.kept("bundles", name)
            try:
                with self._trust.session() as session:
                    release = session.release(address, known.content if known else None)
            except RevokedError:
                if known is not None:
                    self.cache.forget(known)
                raise
            kept = Kept("bundles", name, release.version, release.content, release.files, release.signature)
            folder = self._bring(kept, release, Bundle, progress)
        if known is None or known.content != kept.content:
            log.info("%s: is now %s", address, release.version)
        return folder

    def module(self, name: str, site: str = "", progress: Progress | None = None) -> Path:
        """The folder of a module, for `Runtime.add_module`; what is missing of it is fetched."""
        label = f"{site}@{name}" if site else name
        self.cache.make()
        with self.cache.alone():
            known = self.cache.kept("modules", label)
            try:
                with self._trust.session() as session:
                    module = session.module(name, site, known.content if known else None)
            except RevokedError:
                if known is not None:
                    self.cache.forget(known)
                raise
            kept = Kept("modules", label, module.content[:12], module.content, module.files)
            return self._bring(kept, module, _check_module, progress)

    def index(self, site: str = "") -> Path:
        """The file with the signatures of all modules, the repository's own or a site's."""
        target = index_target(site)
        self.cache.make()
        with self.cache.alone():
            with self._trust.session() as session:
                there = session.find(target)
            if there is None:
                raise RepositoryError(f"{self.url}: has no index, because no module was published by itself")
            self._downloads.fetch([there])
            content = there.entry.sha256
            self.cache.keep(Kept("indexes", site or "own", content[:12], content, {there.path: there.entry}))
            return self.cache.blob(there.entry)

    def cached(self, address: Address) -> Path | None:
        """What an address stood for when it was last asked, if it is here and whole."""
        kept = self.cache.kept("bundles", f"{address.bundle}@{address.selector}")
        if kept is None:
            return None
        folder = self.cache.place("bundles", kept.content)
        for name in self.cache.damaged(folder, kept.files):
            log.error("%s: is damaged; `pluto verify` fetches it again", folder / name)
            return None
        return folder

    def sync(self, progress: Progress | None = None) -> list[Synced]:
        """Bring everything up to date that was ever pulled from here."""
        return [self._sync(kept, progress) for kept in self.cache.names()]

    def _sync(self, before: Kept, progress: Progress | None) -> Synced:
        try:
            self._again(before, progress)
        except RevokedError as error:
            log.warning("%s", error)
            return Synced(before.kind, before.name, before.version, str(error), revoked=True)
        now = self.cache.kept(before.kind, before.name) or before
        said = "is the newest" if now.content == before.content else "is new"
        return Synced(now.kind, now.name, now.version, said)

    def _again(self, kept: Kept, progress: Progress | None) -> Path:
        first, at, last = kept.name.rpartition("@")
        if kept.kind == "bundles":
            return self.pull(Address(self.url, first, last), progress)
        if kept.kind == "modules":
            return self.module(last, first if at else "", progress)
        return self.index("" if kept.name == "own" else kept.name)

    # checking

    def verify(self, *, repair: bool = True, progress: Progress | None = None) -> list[Damage]:
        """Hash everything that is here; what is damaged is fetched again, unless `repair` is False."""
        damage: list[Damage] = []
        self.cache.make()
        with self.cache.alone():
            for kept in self.cache.names():
                damage += self._verify(kept, repair, progress)
        return damage

    def _verify(self, kept: Kept, repair: bool, progress: Progress | None) -> list[Damage]:
        if kept.kind == "indexes":  # whose one file is a blob, and has a name of its own in the repository
            ((path, entry),) = kept.files.items()
            wrong = [] if self.cache.has(entry) else [Found(entry, path)]
            files = [self.cache.blob(one.entry) for one in wrong]
        else:
            folder = self.cache.place(kept.kind, kept.content)
            names = list(self.cache.damaged(folder, kept.files))
            wrong = [Found(kept.files[name], blob_path(kept.files[name].sha256)) for name in names]
            files = [folder / name for name in names]
        repaired = bool(wrong) and repair and self._repair(kept, wrong, progress)
        return [Damage(file, repaired) for file in files]

    def _repair(self, kept: Kept, wrong: Sequence[Found], progress: Progress | None) -> bool:
        try:
            self._downloads.fetch(wrong, progress)
            if kept.kind != "indexes":
                self.cache.assemble(self.cache.place(kept.kind, kept.content), kept.files, lambda _: None)
        except RepositoryError as error:
            log.error("%s", error)
            return False
        return True

    # pieces

    def _bring(
        self, kept: Kept, what: Release | ModuleRelease, check: Callable[[Path], object], progress: Progress | None
    ) -> Path:
        """The folder of what was described, whole; then its name stands for it."""
        folder = self.cache.place(kept.kind, kept.content)
        whole = self.cache.is_whole(folder, kept.files, hashes=True)
        blobs = [e for e in what.blobs if not whole or e == kept.signature]
        self._downloads.fetch([Found(e, blob_path(e.sha256)) for e in blobs], progress)
        if not whole:
            try:
                self.cache.assemble(folder, kept.files, check)
            except (BundleError, StoreError) as cause:
                raise RepositoryError(f"{kept.name}: was published and is not usable ({cause})") from cause
        if kept.signature is not None:
            write_bytes(folder.with_suffix(".sig"), self.cache.blob(kept.signature).read_bytes())
        self.cache.keep(kept)
        return folder


def _check_module(folder: Path) -> None:
    read_module(folder, read_module_config(folder))
