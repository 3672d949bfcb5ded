"""Bytes from a repository, over HTTP or through fsspec: never more than was asked for, and never for ever."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Empty, Queue
from tempfile import TemporaryFile
from threading import Event, Thread
from time import monotonic
from typing import IO, Any, Protocol
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from pluto_edge.errors import ConfigError, MissingExtraError
from pluto_edge.version import WRITER

try:
    import urllib3
    from tuf.api.exceptions import (
        DownloadError,
        DownloadHTTPError,
        DownloadLengthMismatchError,
        SlowRetrievalError,
    )
    from tuf.ngclient import FetcherInterface
except ImportError as cause:
    raise MissingExtraError("tuf", "fleet") from cause

__all__ = ["Fetcher", "Limits", "Opened", "Transport", "transport_of"]

CHUNK = 256 * 1024  # bytes that are read at once


@dataclass(frozen=True)
class Limits:
    """How long a download may take: `idle` seconds without a byte, and `grace` seconds plus its length at `rate`.

    `total` is how many bytes one release may have.
    """

    idle: float = 30.0
    grace: float = 60.0
    rate: float = 4096.0  # bytes a second, below which it is no download but a way to keep a device waiting
    total: int = 16 * 1024**3

    def __post_init__(self) -> None:
        for name in ("idle", "grace", "rate", "total"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}: want more than 0, got {getattr(self, name)}")

    def seconds(self, length: int) -> float:
        """How long so many bytes may take."""
        return self.grace + length / self.rate


@dataclass(frozen=True)
class Opened:
    """A file under way: where its bytes start (0 where the server cannot start later), and the bytes."""

    start: int
    chunks: Iterator[bytes]


class Transport(Protocol):
    """What knows how to reach one kind of address."""

    def open(self, url: str, start: int, idle: float) -> Opened:
        """The file from byte `start` on; raises `DownloadHTTPError` with 404 where there is none."""


class Http:
    """`http://` and `https://`, by urllib3, which tuf needs anyway; `url` says which proxy there is, if any."""

    def __init__(self, url: str = "") -> None:
        retries = urllib3.Retry(total=2, backoff_factor=0.2, redirect=3, status=0)
        headers = {"User-Agent": WRITER, "Accept-Encoding": "identity"}
        proxy = proxy_of(url)
        self._pool: urllib3.PoolManager
        if proxy is None:
            self._pool = urllib3.PoolManager(retries=retries, headers=headers)
        else:
            self._pool = urllib3.ProxyManager(proxy, retries=retries, headers=headers)

    def open(self, url: str, start: int, idle: float) -> Opened:
        """The file from byte `start` on, or from its first one where the server knows no ranges."""
        headers = {**self._pool.headers, **({"Range": f"bytes={start}-"} if start else {})}
        timeout = urllib3.Timeout(connect=idle, read=idle)
        try:
            response = self._pool.request("GET", url, preload_content=False, timeout=timeout, headers=headers)
        except urllib3.exceptions.HTTPError as cause:
            reason = getattr(cause, "reason", cause)
            refused = isinstance(reason, urllib3.exceptions.NewConnectionError)
            if isinstance(reason, urllib3.exceptions.TimeoutError) and not refused:
                raise SlowRetrievalError(f"{url}: no answer within {idle:g} s") from cause
            raise DownloadError(f"{url}: cannot be reached ({reason})") from cause
        if response.status == 416 and start:  # there is nothing behind what we have: from the first byte, then
            response.close()
            return self.open(url, 0, idle)
        if response.status not in (200, 206):
            response.close()
            raise DownloadHTTPError(f"{url}: the server says {response.status}", response.status)
        partly = response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {start}-")
        if response.status == 206 and not partly:
            response.close()
            raise DownloadError(f"{url}: the server sends another part than was asked for")
        return Opened(start if partly else 0, self._chunks(url, response, idle))

    def _chunks(self, url: str, response: urllib3.BaseHTTPResponse, idle: float) -> Iterator[bytes]:
        try:
            while chunk := response.read1(CHUNK, decode_content=False):
                yield chunk
        except urllib3.exceptions.TimeoutError as cause:
            raise SlowRetrievalError(f"{url}: nothing came for {idle:g} s") from cause
        except (urllib3.exceptions.HTTPError, OSError) as cause:
            raise DownloadError(f"{url}: the connection broke off ({cause})") from cause
        finally:
            response.close()


class Fsspec:
    """Every other scheme: `file://`, `s3://`, `gs://`, `memory://` and what else fsspec has a package for.

    A thread reads, so that a store that stops answering cannot keep the device waiting.
    """

    def open(self, url: str, start: int, idle: float) -> Opened:
        """The file from byte `start` on."""
        queue: Queue[bytes | BaseException] = Queue(maxsize=4)
        done = Event()
        Thread(target=self._read, args=(url, start, queue, done), daemon=True).start()
        first = self._next(url, queue, idle)
        return Opened(start, self._chunks(url, first, queue, done, idle))

    def _chunks(
        self, url: str, chunk: bytes, queue: "Queue[bytes | BaseException]", done: Event, idle: float
    ) -> Iterator[bytes]:
        try:
            while chunk:
                yield chunk
                chunk = self._next(url, queue, idle)
        finally:
            done.set()

    def _next(self, url: str, queue: "Queue[bytes | BaseException]", idle: float) -> bytes:
        try:
            found = queue.get(timeout=idle)
        except Empty:
            raise SlowRetrievalError(f"{url}: nothing came for {idle:g} s") from None
        if isinstance(found, bytes):
            return found
        if isinstance(found, FileNotFoundError | IsADirectoryError | NotADirectoryError):
            raise DownloadHTTPError(f"{url}: there is no such file", 404) from found
        if isinstance(found, PermissionError):
            raise DownloadHTTPError(f"{url}: may not be read", 403) from found
        if isinstance(found, ImportError | ValueError):
            raise DownloadError(f"{url}: fsspec cannot read this address ({found})") from found
        raise DownloadError(f"{url}: cannot be read ({found})") from found

    def _read(self, url: str, start: int, queue: "Queue[bytes | BaseException]", done: Event) -> None:
        try:
            with open_url(url) as file:
                file.seek(start)
                while not done.is_set():
                    chunk = file.read(CHUNK)
                    queue.put(chunk)
                    if not chunk:
                        return
        except Exception as error:
            queue.put(error)


def open_url(url: str) -> Any:
    """An fsspec file to read."""
    try:
        import fsspec
    except ImportError as cause:
        raise MissingExtraError("fsspec", "fleet") from cause
    return fsspec.open(url, "rb").open()


def proxy_of(url: str) -> str | None:
    """The proxy that the environment names for this address; none for this machine itself."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if host in ("localhost", "127.0.0.1", "::1") or proxy_bypass(host):
        return None
    return getproxies().get(parts.scheme)


def transport_of(url: str) -> Transport:
    """What reaches this address."""
    return Http(url) if url.startswith(("http://", "https://")) else Fsspec()


class Fetcher(FetcherInterface):
    """tuf's interface over a transport, with bounds of size and time, and files that go on where they broke off."""

    def __init__(
        self, transport: Transport, limits: Limits | None = None, *, clock: Callable[[], float] = monotonic
    ) -> None:
        self.transport = transport
        self.limits = limits or Limits()
        self._clock = clock

    def _fetch(self, url: str) -> Iterator[bytes]:
        """A file whose length nobody knows; `download_file` bounds it."""
        return self.transport.open(url, 0, self.limits.idle).chunks

    @contextmanager
    def download_file(self, url: str, max_length: int) -> Iterator[IO[bytes]]:
        """The whole file, in a temporary one; longer or slower than allowed is an error."""
        with TemporaryFile() as file:
            for chunk in self.bounded(url, self._fetch(url), max_length):
                file.write(chunk)
            file.seek(0)
            yield file

    def resume(self, url: str, have: int, length: int, restart: Callable[[], None]) -> Iterator[bytes]:
        """The rest of a file of this length, of which the first `have` bytes are there.

        Where the server starts at the first byte, `restart` is called before any comes.
        """
        opened = self.transport.open(url, have, self.limits.idle)
        if opened.start != have:
            restart()
        yield from self.bounded(url, opened.chunks, length - opened.start)

    def bounded(self, url: str, chunks: Iterator[bytes], length: int) -> Iterator[bytes]:
        """What comes, as long as it is no more and no slower than it may be."""
        seconds = self.limits.seconds(length)
        until = self._clock() + seconds
        got = 0
        for chunk in chunks:
            got += len(chunk)
            if got > length:
                raise DownloadLengthMismatchError(f"{url}: more than the {length:,} bytes that it may have")
            if self._clock() > until:
                raise SlowRetrievalError(
                    f"{url}: {got:,} of {length:,} bytes in {seconds:.0f} s, which is too slow"
                )
            yield chunk
