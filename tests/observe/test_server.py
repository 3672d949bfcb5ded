"""Every rule of who may ask for the page and press its buttons, and that nothing is left of it."""

import http.client
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic

import numpy as np
import pytest

from pluto_edge import ConfigError, Stream
from pluto_edge.observe import server
from pluto_edge.observe.server import Query, Reply
from pluto_edge.observe.view import View
from tests.observe.conftest import ask, own, press, raw

TOKEN = "a-token-of-some-length&%"


def test_every_answer_has_the_headers(view: View) -> None:
    for path in ("/", "/state", "/nothing", "/reset"):
        headers = ask(view, path).headers
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["X-Frame-Options"] == "DENY"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cache-Control"] == "no-store"
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "Python" not in headers["Server"]


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "localhost.:{port}"]
)
def test_other_hosts_are_refused(view: View, host: str) -> None:
    answer = ask(view, "/state", host=host.format(port=view._server.port))
    assert answer.status == 403
    assert "server" not in answer.text


@pytest.mark.parametrize("host", ["localhost:{port}", "127.0.0.1:{port}", "[::1]:{port}", "LOCALHOST:{port}"])
def test_own_hosts_are_served(view: View, host: str) -> None:
    assert ask(view, host=host.format(port=view._server.port)).status == 200


def test_no_host_or_two_are_refused(view: View) -> None:
    assert b" 403 " in raw(view, "GET / HTTP/1.1\r\n\r\n")
    assert b" 403 " in raw(view, "GET / HTTP/1.1\r\nHost: {host}\r\nHost: evil.example\r\n\r\n")


@pytest.mark.parametrize(
    "headers",
    [
        {"X_Pluto_CSRF": ""},
        {"X_Pluto_CSRF": "guess"},
        {"X_Pluto_CSRF": "gu\xe9ss"},
        {"Origin": ""},
        {"Origin": "null"},
        {"Origin": "https://evil.example"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Sec_Fetch_Site": "none"},
    ],
    ids=str,
)
@pytest.mark.parametrize("path", ["/reset", "/freeze", "/resume", "/save"])
def test_only_the_page_may_press(stream: Stream, view: View, path: str, headers: dict, tmp_path: Path) -> None:
    assert press(view, path, **headers).status == 403
    assert not stream.frozen
    assert not stream.events
    assert not list(tmp_path.iterdir())


def test_get_changes_nothing(stream: Stream, view: View) -> None:
    for path in ("/reset", "/freeze", "/resume", "/save"):
        answer = ask(view, path)
        assert answer.status == 405
        assert answer.headers["Allow"] == "POST"
    assert not stream.frozen
    assert not stream.events
    assert press(view, "/state").status == 405
    assert ask(view, "/", "PUT").status == 501


@pytest.mark.parametrize("path", ["/nothing", "/view.html", "/../view.py", "/state/", "/%2e%2e/etc/passwd"])
def test_unknown_paths(view: View, path: str) -> None:
    assert ask(view, path).status == 404
    assert press(view, path).status == 404


def test_bodies_are_limited(stream: Stream, view: View) -> None:
    assert press(view, "/freeze", Content_Length=str(server.MAX_BODY + 1)).status == 413
    assert press(view, "/freeze", Content_Length="-1").status == 411
    assert press(view, "/freeze", Transfer_Encoding="chunked").status == 411
    assert not stream.frozen


def test_malformed_requests(view: View) -> None:
    assert b" 414 " in raw(view, "GET /" + "x" * 65532)
    assert b" 400 " in raw(view, "GET / HTTP/one\r\n\r\n")
    assert b" 400 " in raw(view, "GET http://[ HTTP/1.1\r\nHost: {host}\r\n\r\n")
    many = "".join(f"&a{i}=" for i in range(50))
    assert b" 400 " in raw(view, f"GET /state?{many} HTTP/1.1\r\nHost: {{host}}\r\n\r\n")


WHOLE = "GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"
BEGUN = (
    "GET / HT",
    "GET / HTTP/1.1\r\nHost: {host}\r\nX-",
    "POST /reset HTTP/1.1\r\nHost: {host}\r\nContent-Length: 9\r\n\r\nhalf",
)


def connected(view: View, text: str = "") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", view._server.port), timeout=10)
    connection.sendall(text.format(host=own(view)).encode())
    return connection


@pytest.mark.parametrize("text", BEGUN)
def test_requests_that_are_never_whole_are_ended(view: View, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.0)
    with connected(view, text) as connection:
        assert connection.recv(1) == b""


def test_a_whole_request_has_time_for_its_answer(
    stream: Stream, view: View, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow disk is no slow browser: it has longer than a request may take to come."""
    until: list[float] = []
    monkeypatch.setattr(stream, "save", lambda path: until.extend(view._server._connections.values()))
    began = monotonic()
    assert press(view, "/save").status == 200
    assert max(until) >= began + server.REPLY_SECONDS > began + server.REQUEST_SECONDS


def never(view: View) -> threading.Event:
    """The page takes for ever, until the event is set."""
    release = threading.Event()

    def page(query: Query) -> Reply:
        release.wait(10)
        return Reply(b"late")

    view._server.pages = {"/": page}
    return release


def test_an_answer_that_takes_too_long_is_ended(view: View, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REPLY_SECONDS", 0.0)
    release = never(view)
    with connected(view, WHOLE) as connection:
        assert connection.recv(1) == b""
    release.set()


@pytest.mark.parametrize("text", ["", *BEGUN])
def test_slow_connections_do_not_stop_the_page(view: View, text: str) -> None:
    """More of them than there is room for: the oldest go, and whoever really asks is answered."""
    slow = [connected(view, text) for _ in range(server.MAX_CONNECTIONS + 3)]
    try:
        for _ in range(3):
            assert ask(view).status == 200
        for connection in slow[:3]:
            with suppress(ConnectionResetError):
                assert connection.recv(1) == b""
        assert sum(map(bool, tuple(view._server._connections.values()))) <= server.MAX_CONNECTIONS
    finally:
        for connection in slow:
            connection.close()


def test_connections_are_counted(view: View, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 0)
    with connected(view) as connection:
        assert connection.recv(1) == b""


def test_threads_that_cannot_be_ended_are_counted(
    stream: Stream, view: View, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that hangs holds the threads of those who want to save; there are never more than so many."""
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 2)
    release, before = never(view), threading.active_count()
    stuck = [connected(view, WHOLE) for _ in range(6)]
    with suppress(ConnectionResetError):
        assert stuck[-1].recv(1) == b""
    assert threading.active_count() - before <= 4
    release.set()
    for connection in stuck:
        connection.close()


def test_a_pace() -> None:
    """So many at once, then as many a second; who waits for long has a full measure again."""
    now = [0.0]
    pace = server.Pace(rate=10, burst=3, clock=lambda: now[0])
    waits = [pace.wait() for _ in range(6)]
    now[0] = 0.3
    waits.append(pace.wait())
    now[0] = 99.0
    waits += [pace.wait() for _ in range(4)]
    np.testing.assert_allclose(waits, [0, 0, 0, 0.1, 0.2, 0.3, 0.1, 0, 0, 0, 0.1], atol=1e-9)


def test_connections_come_at_the_pace(view: View, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(server, "sleep", waited.append)
    monkeypatch.setattr(view._server, "pace", server.Pace(rate=10, burst=2, clock=lambda: 0.0))
    for _ in range(5):
        ask(view, "/state")
    np.testing.assert_allclose(waited, [0.1, 0.2, 0.3])


# The token


@pytest.mark.parametrize("address", ["0.0.0.0", "", "192.0.2.7", "::", "some.name"])
def test_other_addresses_need_a_token(stream: Stream, address: str) -> None:
    with pytest.raises(ConfigError, match="needs a token"):
        View(stream, address, port=0)


def test_short_tokens_are_refused(stream: Stream) -> None:
    with pytest.raises(ConfigError, match="at least 16 characters, got 5"):
        View(stream, port=0, token="short")


def test_a_port_that_is_taken(stream: Stream, view: View) -> None:
    with pytest.raises(ConfigError, match="port=0 picks a free one"):
        View(stream, port=view._server.port)


@pytest.fixture(params=["127.0.0.1", "0.0.0.0"])
def closed(stream: Stream, request: pytest.FixtureRequest) -> Iterator[View]:
    with View(stream, request.param, port=0, token=TOKEN) as view:
        yield view


def test_nothing_without_the_token(stream: Stream, closed: View) -> None:
    name = closed._server.cookie
    for path in ("/", "/state", "/nothing", "/?token=", "/?token=wrong", f"/state?token={TOKEN}"):
        assert ask(closed, path).status == 403
    for cookie in (f"{name}={TOKEN}", f"{name}=", "a=b", ";;=", f"{name}=gu\xe9ss"):
        assert ask(closed, Cookie=cookie).status == 403
    assert ask(closed, "/freeze", "POST", Origin=f"http://{own(closed)}").status == 403
    assert not stream.frozen


def test_the_token_once_then_a_cookie(stream: Stream, closed: View) -> None:
    path = closed.url.partition(f":{closed._server.port}")[2]
    first = ask(closed, path)
    assert first.status == 200
    assert first.body == b""  # nothing but the way to the address without the token
    assert first.headers["Refresh"] == "0; url=/"
    cookie, *flags = first.headers["Set-Cookie"].split("; ")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} == set(flags)
    assert TOKEN not in cookie
    page = ask(closed, Cookie=cookie)
    assert page.status == 200
    assert TOKEN not in page.text
    csrf = re.search(r'data-csrf="([^"]+)"', page.text).group(1)
    same = {"Origin": f"http://{own(closed)}", "Cookie": cookie}
    assert ask(closed, "/freeze", "POST", **same).status == 403
    assert ask(closed, "/freeze", "POST", X_Pluto_CSRF=csrf, **same).status == 200
    assert stream.frozen


def test_a_named_host_is_fine_with_a_token_elsewhere(stream: Stream) -> None:
    with View(stream, "0.0.0.0", port=0, token=TOKEN) as view:
        assert ask(view, view.url[view.url.index("/?") :], host="box.local").status == 200
        assert "0.0.0.0" not in view.url


# Coming and going


def has_ipv6() -> bool:
    with suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


def test_localhost_is_loopback(stream: Stream) -> None:
    with View(stream, "localhost", port=0) as view:
        assert view.url == f"http://127.0.0.1:{view._server.port}/"


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")
def test_ipv6_loopback(stream: Stream) -> None:
    with View(stream, "::1", port=0) as view:
        assert view.url == f"http://[::1]:{view._server.port}/"
        connection = http.client.HTTPConnection("::1", view._server.port, timeout=10)
        connection.request("GET", "/state")
        assert connection.getresponse().status == 200
        connection.close()


def test_no_thread_and_no_port_is_left(stream: Stream, capfd: pytest.CaptureFixture[str]) -> None:
    before = set(threading.enumerate())
    with View(stream, port=0) as view:
        port = view._server.port
        idle = socket.create_connection(("127.0.0.1", port))
        ask(view)
        ask(view, "/nothing")
    with idle:  # that it never asked for anything is no reason to stay
        assert set(threading.enumerate()) == before
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)
    assert capfd.readouterr().err == ""
