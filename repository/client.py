"""`Client`: a repository as a device sees it. Nothing is used that the given root of trust does not vouch for."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from pluto_edge._files import found, whole_folder, write_bytes
from pluto_edge.errors import BundleError, MissingExtraError, PlutoError, RepositoryError, StoreError
from pluto_edge.manifest import Bundle
from pluto_edge.repository.address import Address
from pluto_edge.repository.cache import Cache, Kept
from pluto_edge.repository.download import Downloads, Progress, reason
from pluto_edge.repository.fetcher import Fetcher, Limits, transport_of
from pluto_edge.repository.layout import METADATA, ModuleRelease, Release, blob_path, index_target
from pluto_edge.repository.session import Found, RevokedError, Session
from pluto_edge.store import read_module, read_module_config

try:
    from tuf.api.exceptions import DownloadError
    from tuf.api.exceptions import RepositoryError as TufError
    from tuf.ngclient import Updater, UpdaterConfig
except ImportError as cause:
    raise MissingExtraError("tuf", "fleet") from cause

__all__ = ["Client", "Damage", "resolve"]

ROOT = "PLUTO_ROOT"
MAX_METADATA = 64 * 1024 * 1024  # bytes of one role's metadata: some hundred thousand modules

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
        self._root = root or os.environ.get(ROOT) or None

    # asking

    @contextmanager
    def session(self) -> Iterator[Session]:
        """The repository as it is now; what was seen of its metadata is kept, so that it cannot go back."""
        anchor = self._anchor()
        self.cache.make()
        failure: Exception | None = None
        with TemporaryDirectory(prefix="pluto-edge-") as scratch:
            _copy_metadata(found(self.cache.metadata), Path(scratch))
            try:
                yield self._session(Path(scratch), anchor)
            except (TufError, DownloadError, PlutoError) as error:
                failure = error
            if _metadata(Path(scratch)) != _metadata(self.cache.metadata):
                with whole_folder(self.cache.metadata) as new:
                    _copy_metadata(Path(scratch), new)
        if isinstance(failure, TufError | DownloadError):
            raise RepositoryError(f"{self.url}: {reason(failure)}") from failure
        if failure is not None:
            raise failure
        if not self.cache.root.is_file() or self.cache.root.read_bytes() != anchor:
            self.cache.set_root(anchor)

    def _session(self, folder: Path, anchor: bytes) -> Session:
        config = UpdaterConfig(targets_max_length=MAX_METADATA, snapshot_max_length=MAX_METADATA)
        url = f"{self.url}/{METADATA}/"
        updater = Updater(str(folder), url, fetcher=self.fetcher, config=config, bootstrap=anchor)
        updater.refresh()
        return Session(updater, self.fetcher, self.url)

    def _anchor(self) -> bytes:
        """The root of trust, which somebody has given: no device believes the first one that it is told."""
        file = self.cache.root if self._root is None else Path(self._root)
        if self._root is None and not file.is_file():
            raise RepositoryError(
                f"{self.url}: there is no root of trust for this repository yet; get its root.json from whoever "
                f"publishes it, by a way that you trust, and give it once: pluto pull ADDRESS --root root.json, "
                f"or {ROOT}=root.json"
            )
        try:
            return file.read_bytes()
        except OSError as cause:
            raise RepositoryError(f"{file}: the root of trust cannot be read ({cause.strerror})") from cause

    # fetching

    def pull(self, address: Address, progress: Progress | None = None) -> Path:
        """The folder of the newest bundle that an address stands for; what is missing of it is fetched."""
        name = f"{address.bundle}@{address.selector}"
        self.cache.make()
        with self.cache.alone():
            known = self.cache.kept("bundles", name)
            try:
                with self.session() as session:
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
                with self.session() as session:
                    module = session.module(name, site, known.content if known else None)
            except RevokedError:
                if known is not None:
                    self.cache.forget(known)
                raise
            kept = Kept("modules", label, "", module.content, module.files)
            return self._bring(kept, module, _check_module, progress)

    def index(self, site: str = "") -> Path:
        """The file with the signatures of all modules, the repository's own or a site's."""
        target = index_target(site)
        self.cache.make()
        with self.cache.alone():
            with self.session() as session:
                there = session.find(target)
            if there is None:
                raise RepositoryError(f"{self.url}: has no index, because no module was published by itself")
            self._downloads.fetch([there])
            files = {Path(target).name: there.entry}
            self.cache.keep(Kept("indexes", site or "own", "", there.entry.sha256, files))
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

    def sync(self, progress: Progress | None = None) -> dict[str, str]:
        """Bring everything up to date that was ever pulled; gives what each name stands for now, or why none."""
        outcome = {}
        for kept in self.cache.names():
            try:
                folder = self._again(kept, progress)
                now = self.cache.kept(kept.kind, kept.name)
                changed = now is None or now.content != kept.content
                outcome[kept.name] = (
                    f"{now.version or folder.name[:12] if now else ''}{' (new)' if changed else ''}"
                )
            except RevokedError as error:
                log.warning("%s", error)
                outcome[kept.name] = f"revoked: {error}"
        return outcome

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
        folder = self.cache.blobs if kept.kind == "indexes" else self.cache.place(kept.kind, kept.content)
        files = {e.sha256: e for e in kept.files.values()} if kept.kind == "indexes" else kept.files
        wrong = list(self.cache.damaged(folder, files))
        repaired = False
        if wrong and repair:
            entries = [files[name] for name in wrong]
            try:
                self._downloads.fetch([Found(e, blob_path(e.sha256)) for e in entries], progress)
                if kept.kind != "indexes":
                    self.cache.assemble(folder, files, lambda _: None)
                repaired = True
            except RepositoryError as error:
                log.error("%s", error)
        return [Damage(folder / name, repaired) for name in wrong]

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


def _metadata(folder: Path) -> dict[str, bytes]:
    """The metadata in a folder by name; the link to the newest root is left out, for the root is always given."""
    files = [*folder.glob("*.json"), *folder.glob("root_history/*.json")]
    return {f.relative_to(folder).as_posix(): f.read_bytes() for f in sorted(files) if not f.is_symlink()}


def _copy_metadata(here: Path, there: Path) -> None:
    for name, data in _metadata(here).items():
        (there / name).parent.mkdir(exist_ok=True)
        write_bytes(there / name, data)
