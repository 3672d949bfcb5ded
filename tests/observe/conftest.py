"""A stream of a tiny bundle, its page, and requests with exactly the headers that a test wants."""

import http.client
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from pluto_edge import Runtime, Stream
from pluto_edge.observe.server import Server
from pluto_edge.observe.view import View


@pytest.fixture
def stream(make_bundle) -> Iterator[Stream]:
    with Runtime(make_bundle(), threads=1) as runtime, runtime.stream("door", batch=4, background=False) as stream:
        yield stream


@pytest.fixture
def view(stream: Stream, tmp_path: Path) -> Iterator[View]:
    with View(stream, port=0, save_to=tmp_path / "state.safetensors") as view:
        yield view


class Answer:
    def __init__(self, status: int, headers: http.client.HTTPMessage, body: bytes) -> None:
        self.status, self.headers, self.body, self.text = status, headers, body, body.decode()


Served = View | Server  # either has an address


def port(served: Served) -> int:
    found = urlsplit(served.url).port
    assert found is not None
    return found


def ask(view: Served, path: str = "/", method: str = "GET", host: str | None = None, **headers: str) -> Answer:
    """One request with exactly these headers; underscores in their names are dashes."""
    connection = http.client.HTTPConnection("127.0.0.1", port(view), timeout=10)
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    for name, value in {"Host": host or own(view), **headers}.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    reply = connection.getresponse()
    answer = Answer(reply.status, reply.headers, reply.read())
    connection.close()
    return answer


def own(view: Served) -> str:
    return f"127.0.0.1:{port(view)}"


def press(view: View, path: str, **headers: str) -> Answer:
    """What the page sends; `headers` replace its own, empty ones leave them out."""
    csrf = re.search(r'data-csrf="([^"]+)"', ask(view).text).group(1)
    sent = {"Origin": f"http://{own(view)}", "Sec_Fetch_Site": "same-origin", "X_Pluto_CSRF": csrf, **headers}
    return ask(view, path, "POST", **{k: v for k, v in sent.items() if v})


def connected(view: Served, text: str = "") -> socket.socket:
    """A connection on which this was sent; {host} is the server's own."""
    connection = socket.create_connection(("127.0.0.1", port(view)), timeout=10)
    connection.sendall(text.format(host=own(view)).encode())
    return connection


def raw(view: View, text: str) -> bytes:
    with connected(view, text) as connection:
        return b"".join(iter(lambda: connection.recv(65536), b""))
