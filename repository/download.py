"""Files of a repository into a device's cache: resumed where they broke off, kept if they are what was signed."""

import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO

from pluto_edge._files import finish, growing_file, sha256
from pluto_edge._text import size
from pluto_edge.errors import MissingExtraError, RepositoryError
from pluto_edge.repository.cache import Cache
from pluto_edge.repository.fetcher import Fetcher
from pluto_edge.repository.session import Found

try:
    from tuf.api.exceptions import DownloadError
except ImportError as cause:
    raise MissingExtraError("tuf", "fleet") from cause

__all__ = ["Downloads", "Progress"]

ATTEMPTS = 3  # to get one file, as long as each brings bytes

Progress = Callable[[int, int], None]  # bytes that are done, of bytes to do


def no_progress(done: int, total: int) -> None:
    """Nobody watches."""


class Downloads:
    """What is fetched for a cache."""

    def __init__(self, cache: Cache, fetcher: Fetcher) -> None:
        self._cache = cache
        self._fetcher = fetcher

    def fetch(self, wanted: Sequence[Found], progress: Progress | None = None) -> None:
        """All of these that are not here yet."""
        missing = list({f.entry.sha256: f for f in wanted if not self._cache.has(f.entry)}.values())
        total = sum(f.entry.size for f in missing)
        allowed = self._fetcher.limits.total
        if total > allowed:
            raise RepositoryError(f"{self._cache.url}: {size(total)} to fetch; {size(allowed)} are allowed")
        free = shutil.disk_usage(self._cache.folder).free
        if total > free:
            raise RepositoryError(
                f"{self._cache.folder}: {size(total)} to fetch, {size(free)} of the disk are free"
            )
        before = 0
        for one in missing:
            self._fetch(one, partial(_add, progress or no_progress, before, total))
            before += one.entry.size

    def _fetch(self, wanted: Found, progress: Callable[[int], None]) -> None:
        """One file, from where it broke off, into the blobs: if it is what was signed, and not otherwise."""
        entry = wanted.entry
        file = self._cache.partial / entry.sha256
        for attempt in range(1, ATTEMPTS + 1):
            have = file.stat().st_size if file.is_file() else 0
            try:
                self._continue(wanted, file, progress)
            except DownloadError as cause:
                if attempt < ATTEMPTS and file.is_file() and file.stat().st_size > have:
                    continue
                raise RepositoryError(str(cause)) from cause
            if sha256(file) == entry.sha256:
                finish(file, self._cache.blob(entry), mode=0o444)
                return
            file.unlink()
            if not have:  # else what was here from before may be to blame: once more, from the first byte
                break
        raise RepositoryError(f"{self._cache.url}/{wanted.path}: is not what was signed; it is thrown away")

    def _continue(self, wanted: Found, path: Path, progress: Callable[[int], None]) -> None:
        url = f"{self._cache.url}/{wanted.path}"
        length = wanted.entry.size
        if path.is_file() and path.stat().st_size > length:
            path.unlink()
        with growing_file(path) as file:
            have = file.seek(0, 2)
            if have == length and length:
                return
            for chunk in self._fetcher.resume(url, have, length, partial(_empty, file)):
                file.write(chunk)
                progress(file.tell())
            if file.tell() < length:
                raise DownloadError(f"{url}: ended after {file.tell():,} of {length:,} bytes")


def _add(progress: Progress, before: int, total: int, have: int) -> None:
    progress(before + have, total)


def _empty(file: BinaryIO) -> None:
    file.seek(0)
    file.truncate()
