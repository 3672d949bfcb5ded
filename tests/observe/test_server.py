"""Every rule of who may ask for the page and press its buttons, and that nothing is left of it."""

import http.client
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from pluto_edge import ConfigError, Stream
from pluto_edge.observe import server
from pluto_edge.observe.server import Query, Reply, Server
from pluto_edge.observe.view import View
from tests.observe.conftest import ask, connected, own, port, press, raw

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
    answer = ask(view, "/state", host=host.format(port=port(view)))
    assert answer.status == 403
    assert "server" not in answer.text


@pytest.mark.parametrize("host", ["localhost:{port}", "127.0.0.1:{port}", "[::1]:{port}", "LOCALHOST:{port}"])
def test_own_hosts_are_served(view: View, host: str) -> None:
    assert ask(view, host=host.format(port=port(view))).status == 200


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


@pytest.mark.parametrize("text", BEGUN)
def test_requests_that_are_never_whole_are_ended(view: View, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.0)
    with connected(view, text) as connection:
        assert connection.recv(1) == b""


@contextmanager
def serving(page: Callable[[Query], Reply]) -> Iterator[Server]:
    """A server with this page and nothing else."""
    served = Server("127.0.0.1", 0, None, pages={"/": page}, actions={})
    try:
        yield served
    finally:
        served.stop()


def test_a_whole_request_has_time_for_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow disk is no slow browser: it has longer than a request may take to come."""
    now = [0.0]
    monkeypatch.setattr(server, "monotonic", lambda: now[0])
    assert server.REPLY_SECONDS > 2 * server.REQUEST_SECONDS

    def page(query: Query) -> Reply:
        now[0] += server.REPLY_SECONDS - 0.1
        served.service_actions()  # which ends what takes too long
        return Reply(b"late")

    with serving(page) as served:
        assert ask(served).text == "late"


@contextmanager
def never() -> Iterator[Server]:
    """A page that takes for ever, until the block ends."""
    release = threading.Event()

    def page(query: Query) -> Reply:
        release.wait(10)
        return Reply(b"late")

    with serving(page) as served:
        yield served
        release.set()


def test_an_answer_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REPLY_SECONDS", 0.0)
    with never() as served, connected(served, WHOLE) as connection:
        assert connection.recv(1) == b""


def is_open(connection: socket.socket) -> bool:
    """The server has neither ended it nor answered."""
    connection.setblocking(False)
    try:
        return bool(connection.recv(1))
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False


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
        assert sum(map(is_open, slow)) <= server.MAX_CONNECTIONS
    finally:
        for connection in slow:
            connection.close()


def test_connections_are_counted(view: View, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 0)
    with connected(view) as connection:
        assert connection.recv(1) == b""


def test_threads_that_cannot_be_ended_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that hangs holds the threads of those who want to save; there are never more than so many."""
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 2)
    with never() as served:
        before = threading.active_count()
        stuck = [connected(served, WHOLE) for _ in range(6)]
        with suppress(ConnectionResetError):
            assert stuck[-1].recv(1) == b""
        assert threading.active_count() - before <= 4
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


def test_connections_come_at_the_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(server, "sleep", waited.append)
    with serving(lambda query: Reply(b"here")) as served:
        served.pace = server.Pace(rate=10, burst=2, clock=lambda: 0.0)
        for _ in range(5):
            ask(served)
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
        View(stream, port=port(view))


@pytest.fixture(params=["127.0.0.1", "0.0.0.0"])
def closed(stream: Stream, request: pytest.FixtureRequest) -> Iterator[View]:
    with View(stream, request.param, port=0, token=TOKEN) as view:
        yield view


def test_nothing_without_the_token(stream: Stream, closed: View) -> None:
    cookie = ask(closed, closed.url[closed.url.index("/?") :]).headers["Set-Cookie"]
    name = cookie.partition("=")[0]
    for path in ("/", "/state", "/nothing", "/?token=", "/?token=wrong", f"/state?token={TOKEN}"):
        assert ask(closed, path).status == 403
    for cookie in (f"{name}={TOKEN}", f"{name}=", "a=b", ";;=", f"{name}=gu\xe9ss"):
        assert ask(closed, Cookie=cookie).status == 403
    assert ask(closed, "/freeze", "POST", Origin=f"http://{own(closed)}").status == 403
    assert not stream.frozen


def test_the_token_once_then_a_cookie(stream: Stream, closed: View) -> None:
    first = ask(closed, closed.url[closed.url.index("/?") :])
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
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", view.url)


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")
def test_ipv6_loopback(stream: Stream) -> None:
    with View(stream, "::1", port=0) as view:
        assert re.fullmatch(r"http://\[::1\]:\d+/", view.url)
        connection = http.client.HTTPConnection("::1", port(view), timeout=10)
        connection.request("GET", "/state")
        assert connection.getresponse().status == 200
        connection.close()


def test_no_thread_and_no_port_is_left(stream: Stream, capfd: pytest.CaptureFixture[str]) -> None:
    before = set(threading.enumerate())
    with View(stream, port=0) as view:
        address = ("127.0.0.1", port(view))
        idle = socket.create_connection(address)
        ask(view)
        ask(view, "/nothing")
    with idle:  # that it never asked for anything is no reason to stay
        assert set(threading.enumerate()) == before
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=5)
    assert capfd.readouterr().err == ""
