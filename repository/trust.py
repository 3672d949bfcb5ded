"""What a device believes: the root of trust that it was given, and the highest versions that it has seen since."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from pluto_edge._files import found, whole_folder, write_bytes
from pluto_edge.errors import MissingExtraError, PlutoError, RepositoryError
from pluto_edge.repository.cache import Cache
from pluto_edge.repository.fetcher import Fetcher
from pluto_edge.repository.layout import METADATA
from pluto_edge.repository.session import Session

try:
    from tuf.api.exceptions import DownloadError
    from tuf.api.exceptions import RepositoryError as TufError
    from tuf.ngclient import Updater, UpdaterConfig
except ImportError as cause:
    raise MissingExtraError("tuf", "fleet") from cause

__all__ = ["Trust"]

ROOT = "PLUTO_ROOT"
MAX_METADATA = 64 * 1024 * 1024  # bytes of one role's metadata: some hundred thousand modules


class Trust:
    """In one repository, by way of what is kept of it. `root` is the file of the root of trust."""

    def __init__(self, cache: Cache, fetcher: Fetcher, root: str | Path | None) -> None:
        self._cache = cache
        self._fetcher = fetcher
        self._root = root or os.environ.get(ROOT) or None

    @contextmanager
    def session(self) -> Iterator[Session]:
        """The repository as it is now; what was seen of its metadata is kept, so that it cannot go back."""
        anchor = self._anchor()
        self._cache.make()
        failure: Exception | None = None
        with TemporaryDirectory(prefix="pluto-edge-") as scratch:
            _copy_metadata(found(self._cache.metadata), Path(scratch))
            try:
                yield self._session(Path(scratch), anchor)
            except (TufError, DownloadError, PlutoError) as error:
                failure = error
            if _metadata(Path(scratch)) != _metadata(self._cache.metadata):
                with whole_folder(self._cache.metadata) as new:
                    _copy_metadata(Path(scratch), new)
        if isinstance(failure, TufError | DownloadError):
            said = str(failure)
            where = "" if said.startswith(self._cache.url) else f"{self._cache.url}: "
            raise RepositoryError(where + said) from failure
        if failure is not None:
            raise failure
        if not self._cache.root.is_file() or self._cache.root.read_bytes() != anchor:
            self._cache.set_root(anchor)

    def _session(self, folder: Path, anchor: bytes) -> Session:
        config = UpdaterConfig(targets_max_length=MAX_METADATA, snapshot_max_length=MAX_METADATA)
        url = f"{self._cache.url}/{METADATA}/"
        updater = Updater(str(folder), url, fetcher=self._fetcher, config=config, bootstrap=anchor)
        updater.refresh()
        return Session(updater, self._fetcher, self._cache.url)

    def _anchor(self) -> bytes:
        """The root of trust, which somebody has given: no device believes the first one that it is told."""
        file = self._cache.root if self._root is None else Path(self._root)
        if self._root is None and not file.is_file():
            raise RepositoryError(
                f"{self._cache.url}: there is no root of trust for this repository yet; get its root.json from "
                "whoever publishes it, by a way that you trust, and give it once: "
                f"pluto pull ADDRESS --root root.json, or {ROOT}=root.json"
            )
        try:
            return file.read_bytes()
        except OSError as cause:
            raise RepositoryError(f"{file}: the root of trust cannot be read ({cause.strerror})") from cause


def _metadata(folder: Path) -> dict[str, bytes]:
    """The metadata in a folder by name; the link to the newest root is left out, for the root is always given."""
    files = [*folder.glob("*.json"), *folder.glob("root_history/*.json")]
    return {f.relative_to(folder).as_posix(): f.read_bytes() for f in sorted(files) if not f.is_symlink()}


def _copy_metadata(here: Path, there: Path) -> None:
    for name, data in _metadata(here).items():
        (there / name).parent.mkdir(exist_ok=True)
        write_bytes(there / name, data)
