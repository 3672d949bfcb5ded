"""Requests to the page that no browser sends: to 127.0.0.1, one connection at a time, each ended by the attack.

Must happen: an answer, but never that it has failed (500), or a closed connection; no traceback. No request
without the page's own token changes anything, and the page answers as before.
"""

import re
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from attacks.harness import Case, Escape
from attacks.mutate import mutate_bytes
from attacks.world import frames, runtime
from pluto_edge.observe.server import Server
from pluto_edge.observe.view import View

PATHS = ("/", "/state", "/state?have=3", "/reset", "/freeze", "/save", "/../etc/passwd", "/?token=x", "//", "*", "")
METHODS = ("GET", "POST", "HEAD", "PUT", "OPTIONS", "get", "", "CONNECT")
HOSTS = (
    "127.0.0.1:{port}",
    "localhost:{port}",
    "evil.example",
    "127.0.0.1",
    "",
    "[::1]:{port}",
    "127.0.0.1:{port}\r\nHost: x",
)
HEADERS = (
    "Content-Length: 5",
    "Content-Length: -1",
    "Content-Length: 99999999999999999999",
    "Transfer-Encoding: chunked",
    "Origin: http://127.0.0.1:{port}",
    "Origin: null",
    "Origin: http://[",
    "Sec-Fetch-Site: cross-site",
    "X-Pluto-CSRF: wrong",
    "X-Pluto-CSRF: \xff",
    "Cookie: pluto_view_{port}=x; =;;",
    "Cookie: \x00\xff",
    "Expect: 100-continue",
    "Connection: keep-alive",
    "Range: bytes=0-",
    "X: " + "a" * 70_000,
    "\r\n",
)
TIMEOUT = 10.0
PROBED = 0.05  # of the cases: whether the page still answers


@contextmanager
def attack(place: Path) -> Iterator[Case]:
    """Cases that talk to the page's server as no browser would."""
    problems: list[str] = []
    with (
        runtime() as opened,
        opened.stream("door", background=False) as stream,
        View(stream, port=0, save_to=place / "state") as view,
    ):
        server = view._server
        view.show(frames()[0], stream(frames()[0]))
        server.handle_error = lambda *_: _note(problems)  # type: ignore[method-assign]

        def case(rng: Random) -> None:
            request = _request(rng, server)
            answer = _send(server.port, request)
            _check(answer, problems)
            if stream.frozen or (place / "state").exists() or any(e.kind == "reset" for e in stream.events):
                raise Escape("a request without the token has changed something")
            if rng.random() < PROBED:
                _probe(server.port)

        yield case


def _note(problems: list[str]) -> None:
    error = sys.exception()
    if not isinstance(error, OSError):
        problems.append(f"{type(error).__name__}: {error}")


def _request(rng: Random, server: Server) -> bytes:
    method = rng.choice(METHODS[:2] if rng.random() < 0.8 else METHODS)
    lines = [f"{method} {rng.choice(PATHS)} HTTP/1.{rng.randrange(2)}"]
    lines.append(f"Host: {rng.choice(HOSTS[:2] if rng.random() < 0.6 else HOSTS)}")
    lines += [rng.choice(HEADERS) for _ in range(rng.randrange(4))]
    data = "\r\n".join(lines).replace("{port}", str(server.port)).encode("latin-1") + b"\r\n\r\nhello"
    return mutate_bytes(rng, data) if rng.random() < 0.6 else data


def _send(port: int, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT) as connection:
        # closing resets the connection: no thousands of them wait in the kernel
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: connection.recv(65536), b""))
        except TimeoutError:
            raise Escape(f"no answer within {TIMEOUT:g} s") from None
        except OSError:
            return b""  # it has hung up on us, as it may


def _check(answer: bytes, problems: list[str]) -> None:
    if problems:
        raise Escape(problems.pop())
    status = re.match(rb"HTTP/1\.[01] (\d{3}) ", answer)
    if answer and (status is None or int(status[1]) == 500):
        raise Escape(f"it answers {answer[:40]!r}")


def _probe(port: int) -> None:
    answer = _send(port, f"GET /state HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
    if b" 200 " not in answer[:20]:
        raise Escape(f"the page is gone: {answer[:40]!r}")
