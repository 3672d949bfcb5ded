"""Bytes from elsewhere: bounded, and from where they broke off."""

from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tuf.api.exceptions import (
    DownloadError,
    DownloadHTTPError,
    DownloadLengthMismatchError,
    SlowRetrievalError,
)

from pluto_edge.errors import ConfigError
from pluto_edge.repository import fetcher as fetching
from pluto_edge.repository.fetcher import Fetcher, Fsspec, Http, Limits, Opened, transport_of
from tests.repository.conftest import Web

DATA = bytes(range(256)) * 5000


@pytest.mark.parametrize("start", [0, 1, 700_000, len(DATA)])
@pytest.mark.parametrize("scheme", ["file", "http"])
def test_from_any_byte(scheme: str, start: int, tmp_path: Path, serve: Callable[[Path], Web]) -> None:
    (tmp_path / "a").write_bytes(DATA)
    url = f"{serve(tmp_path).url if scheme == 'http' else tmp_path.as_uri()}/a"
    opened = transport_of(url).open(url, start, 5.0)
    whole = scheme == "http" and start == len(DATA)  # a server has nothing there: then it is all of it
    assert opened.start == (0 if whole else start)
    assert b"".join(opened.chunks) == DATA[opened.start :]


@pytest.mark.parametrize("scheme", ["file", "http"])
def test_what_is_not_there(scheme: str, tmp_path: Path, serve: Callable[[Path], Web]) -> None:
    url = f"{serve(tmp_path).url if scheme == 'http' else tmp_path.as_uri()}/a"
    with pytest.raises(DownloadHTTPError) as error:
        transport_of(url).open(url, 0, 5.0)
    assert error.value.status_code == 404


def test_a_scheme_that_nobody_knows() -> None:
    with pytest.raises(DownloadError, match="fsspec cannot read this address"):
        Fsspec().open("nosuch://a/b", 0, 5.0)


def test_a_store_that_stops_answering(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread is left behind; the device goes on."""
    silence = Event()

    class Stuck:
        def __enter__(self) -> "Stuck":
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def seek(self, _: int) -> None:
            pass

        def read(self, _: int) -> bytes:
            silence.wait(60)
            return b""

    monkeypatch.setattr(fetching, "open_url", lambda _: Stuck())
    with pytest.raises(SlowRetrievalError, match=r"nothing came for 0\.05 s"):
        Fsspec().open("s3://bucket/a", 0, 0.05)
    silence.set()


def test_another_part_than_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Answer:
        status = 206
        headers = {"Content-Range": "bytes 5-9/10"}  # noqa: RUF012  a stand-in
        closed = False

        def close(self) -> None:
            self.closed = True

    answer = Answer()
    http = Http()
    monkeypatch.setattr(http, "_pool", type("Pool", (), {"headers": {}, "request": lambda *_, **__: answer})())
    with pytest.raises(DownloadError, match="another part than was asked for"):
        http.open("https://store.example/a", 3, 5.0)
    assert answer.closed


def test_proxies_are_those_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("no_proxy", "store.inside")
    assert fetching.proxy_of("https://store.example/a") == "http://proxy.example:3128"
    assert fetching.proxy_of("https://store.inside/a") is None
    assert fetching.proxy_of("https://127.0.0.1/a") is None


class Told:
    """A transport that gives these chunks."""

    def __init__(self, chunks: list[bytes]) -> None:
        self.chunks = chunks

    def open(self, url: str, start: int, idle: float) -> Opened:
        return Opened(0, iter(self.chunks))


@given(st.lists(st.binary(max_size=50), max_size=8), st.integers(0, 100))
def test_never_more_than_may_be(chunks: list[bytes], length: int) -> None:
    total = sum(map(len, chunks))
    fetcher = Fetcher(Told(chunks))
    if total > length:
        with pytest.raises(DownloadLengthMismatchError):
            fetcher.download_bytes("memory://a", length)
    else:
        assert fetcher.download_bytes("memory://a", length) == b"".join(chunks)


def test_never_longer_than_may_be() -> None:
    now = [0.0]

    def tick() -> float:
        now[0] += 1.0
        return now[0]

    fetcher = Fetcher(Told([b"x"] * 50), Limits(grace=10.0, rate=10.0), clock=tick)
    with pytest.raises(SlowRetrievalError, match="of 50 bytes in 15 s, which is too slow"):
        fetcher.download_bytes("memory://a", 50)
    assert fetcher.download_bytes("memory://a", 1000) == b"x" * 50


@pytest.mark.parametrize("wrong", [{"idle": 0}, {"rate": -1.0}, {"total": 0}])
def test_limits_limit(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="want more than 0"):
        Limits(**wrong)
