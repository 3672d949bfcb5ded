"""The page of a stream: what it says, and every rule of who may ask. In a browser: test_view_browser.py."""

import http.client
import json
import re
import socket
import threading
from base64 import b64decode
from collections.abc import Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pluto_edge import ConfigError, ImageError, Runtime, Stream
from pluto_edge.runtime import server
from pluto_edge.runtime.stream import Point
from pluto_edge.runtime.view import BUCKET, View, _buckets

TOKEN = "a-token-of-some-length&%"


@pytest.fixture
def stream(make_bundle) -> Iterator[Stream]:
    with Runtime(make_bundle(), threads=1) as runtime, runtime.stream("door", batch=4, background=False) as stream:
        yield stream


@pytest.fixture
def view(stream: Stream, tmp_path: Path) -> Iterator[View]:
    with View(stream, port=0, save_to=tmp_path / "state.safetensors") as view:
        yield view


def feed(stream: Stream, view: View, frames: np.ndarray, caption: str = "") -> None:
    for frame in frames:
        view.show(frame, stream(frame), caption)


class Answer:
    def __init__(self, status: int, headers: http.client.HTTPMessage, body: bytes) -> None:
        self.status, self.headers, self.body, self.text = status, headers, body, body.decode()


def ask(view: View, path: str = "/", method: str = "GET", host: str | None = None, **headers: str) -> Answer:
    """One request with exactly these headers; underscores in their names are dashes."""
    connection = http.client.HTTPConnection("127.0.0.1", view._server.port, timeout=10)
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    for name, value in {"Host": host or own(view), **headers}.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    reply = connection.getresponse()
    answer = Answer(reply.status, reply.headers, reply.read())
    connection.close()
    return answer


def own(view: View) -> str:
    return f"127.0.0.1:{view._server.port}"


def state(view: View, query: str = "") -> dict:
    return json.loads(ask(view, f"/state{query}").body)


def press(view: View, path: str, **headers: str) -> Answer:
    """What the page sends; `headers` replace its own, empty ones leave them out."""
    csrf = re.search(r'data-csrf="([^"]+)"', ask(view).text).group(1)
    sent = {"Origin": f"http://{own(view)}", "Sec_Fetch_Site": "same-origin", "X_Pluto_CSRF": csrf, **headers}
    return ask(view, path, "POST", **{k: v for k, v in sent.items() if v})


# What the page is told


def test_page_is_self_contained_and_named(view: View) -> None:
    page = ask(view)
    assert page.status == 200
    assert "door · pluto-edge" in page.text
    assert "{{" not in page.text
    assert not re.search(r"""(src|href)=["'](?!data:)""", page.text)
    (nonce,) = set(re.findall(r'nonce="([^"]+)"', page.text))
    policy = page.headers["Content-Security-Policy"]
    assert f"script-src 'nonce-{nonce}'" in policy
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert nonce not in ask(view).text  # a new one every time


def test_names_are_escaped(make_bundle) -> None:
    with (
        Runtime(make_bundle(), threads=1) as runtime,
        runtime.stream("<script>alert(1)</script>") as stream,
        View(stream, port=0) as view,
    ):
        assert "<script>alert" not in ask(view).text


def test_before_the_first_frame(view: View) -> None:
    said = state(view)
    assert said["now"] is None
    assert said["frame"] == 0
    assert said["points"]["frames"] == []


def test_the_newest_frame_and_its_prediction(stream: Stream, view: View, frames: np.ndarray) -> None:
    feed(stream, view, frames, "fog")
    now = state(view)["now"]
    last = stream.timeline[-1]
    kind, _, data = now["picture"].partition(",")
    assert kind == "data:image/png;base64"
    np.testing.assert_array_equal(np.asarray(Image.open(BytesIO(b64decode(data)))), frames[-1])
    assert now["label"] == stream.learner.network.bundle.manifest.classes[last.label]
    assert now["modules"] == list(last.modules)
    np.testing.assert_allclose(now["weights"], last.weights, atol=1e-4)
    assert now["caption"] == "fog"
    assert state(view, f"?have={now['number']}")["now"]["picture"] is None


def test_large_frames_are_scaled_and_jpeg(stream: Stream, view: View) -> None:
    frame = np.zeros((600, 1200, 3), np.uint8)
    view.show(frame, stream(frame))
    kind, _, data = state(view)["now"]["picture"].partition(",")
    assert kind == "data:image/jpeg;base64"
    assert Image.open(BytesIO(b64decode(data))).size == (960, 480)


def test_points_are_means_and_come_once(stream: Stream, view: View, frames: np.ndarray) -> None:
    feed(stream, view, frames)
    points, timeline = state(view)["points"], stream.timeline
    assert points["frames"] == [4, 8, 11]
    assert points["modules"] == list(timeline[0].modules)
    mean = np.mean([p.weights for p in timeline[4:8]], axis=0)
    np.testing.assert_allclose(np.array(points["weights"][1]) / 1000, mean, atol=6e-4)
    assert points["entropy"][2] == pytest.approx(np.mean([p.entropy for p in timeline[8:]]), abs=1e-4)
    later = state(view, "?since=8")["points"]
    assert later["frames"] == [11]
    assert later["weights"] == points["weights"][2:]


def test_a_full_timeline_is_few_points_also_when_modules_change() -> None:
    names = tuple(f"m{i}" for i in range(75))
    points = [
        Point(i + 1, i / 30, 0, 0.5, names[: 74 + i % 2], (1 / (74 + i % 2),) * (74 + i % 2)) for i in range(2000)
    ]
    sent = _buckets(points)
    assert sent["modules"] == list(names)
    assert len(sent["frames"]) == 2000 // BUCKET <= 600
    assert {len(w) for w in sent["weights"]} == {75}
    assert len(json.dumps(sent)) < 300_000


def test_events_and_captions(stream: Stream, view: View, frames: np.ndarray) -> None:
    feed(stream, view, frames[:4], "clear")
    feed(stream, view, frames[4:], "fog")
    said = state(view)
    assert said["captions"] == [{"frame": 1, "text": "clear"}, {"frame": 5, "text": "fog"}]
    assert [(e["kind"], e["frame"]) for e in said["events"]] == [(e.kind, e.frame) for e in stream.events]
    assert {e["frame"] for e in said["events"]} == {4, 8}
    assert {e["frame"] for e in state(view, "?since=8")["events"]} == {8}  # one more may yet come at frame 8
    assert said["metrics"]["frames"] == len(frames)
    assert said["rate"] > 0


@pytest.mark.parametrize("query", ["?since=-1", "?since=x", "?have=1e3", "?since=" + "9" * 40, "?since=²"])
def test_numbers_that_are_none(view: View, query: str) -> None:
    assert ask(view, f"/state{query}".replace("²", "%C2%B2")).status == 400


def test_a_frame_must_be_one(stream: Stream, view: View, frames: np.ndarray) -> None:
    prediction = stream(frames[0])
    for wrong in (frames, frames[0, :, :, 0], frames[0].astype(np.float32)):
        with pytest.raises(ImageError, match="HWC uint8"):
            view.show(wrong, prediction)


# Buttons


def test_buttons(stream: Stream, view: View, frames: np.ndarray, tmp_path: Path) -> None:
    feed(stream, view, frames)
    assert json.loads(press(view, "/save").body)["done"].startswith("Saved to")
    learned = stream.learner.state
    assert json.loads(press(view, "/reset").body)["done"].startswith("Reset")
    assert stream.learner.state.affines == {}
    assert stream.events[-1].kind == "reset"
    stream.restore(tmp_path / "state.safetensors")
    for name, tensor in learned.selector.tensors.items():
        np.testing.assert_array_equal(stream.learner.state.selector.tensors[name], tensor)
    assert press(view, "/freeze").status == 200
    assert stream.frozen and state(view)["frozen"]
    assert press(view, "/resume").status == 200
    assert not stream.frozen


def test_a_save_that_fails_says_why(stream: Stream, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with View(stream, port=0, save_to=tmp_path / "file" / "state.safetensors") as view:
        answer = press(view, "/save")
    assert answer.status == 500
    assert "file" in json.loads(answer.body)["error"]


def test_without_a_place_there_is_no_save(stream: Stream) -> None:
    with View(stream, port=0) as view:
        assert press(view, "/save").status == 404
        assert re.search(r'id="save"[^>]* hidden', ask(view).text)


def test_buttons_while_frames_come(stream: Stream, view: View, frames: np.ndarray) -> None:
    """Nothing breaks on either side, and what follows the last reset is learned from the exported state."""
    answers: list[int] = []

    def hammer() -> None:
        for path in ("/freeze", "/resume", "/reset", "/save") * 5:
            answers.append(press(view, path).status)
            answers.append(ask(view, "/state").status)

    threads = [threading.Thread(target=hammer) for _ in range(3)]
    for thread in threads:
        thread.start()
    while any(t.is_alive() for t in threads):
        feed(stream, view, frames)
    assert set(answers) == {200}
    assert stream.metrics.frames == len(stream.timeline) or len(stream.timeline) == 2000
    assert sum(e.kind == "reset" for e in stream.events) == 15


# Who may ask


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


def raw(view: View, text: str) -> bytes:
    with socket.create_connection(("127.0.0.1", view._server.port), timeout=10) as connection:
        connection.sendall(text.format(host=own(view)).encode())
        return b"".join(iter(lambda: connection.recv(65536), b""))


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


def test_slow_connections_are_ended(view: View, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_SECONDS", 0.0)
    with socket.create_connection(("127.0.0.1", view._server.port), timeout=10) as connection:
        connection.sendall(b"GET / HT")
        assert connection.recv(1) == b""


def test_connections_are_counted(view: View, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 0)
    with socket.create_connection(("127.0.0.1", view._server.port), timeout=10) as connection:
        assert connection.recv(1) == b""


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
    with View(stream, port=0) as view, socket.create_connection(("127.0.0.1", view._server.port)):
        ask(view)
        ask(view, "/nothing")
        port = view._server.port
    assert set(threading.enumerate()) == before  # the connection that never asked is no reason to stay
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)
    assert capfd.readouterr().err == ""
