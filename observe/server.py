"""A small HTTP server for one page: the standard library, and every rule of who may ask in one place.

What a request must pass, in this order: the Host header on loopback (a page elsewhere that gave its own name this
address), the token or the cookie that stands for it (unless it is a probe from this machine), the method, and for
what changes something the page's own CSRF token and origin.
"""

import hmac
import ipaddress
import json
import re
import secrets
import socket
import socketserver
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import monotonic, sleep
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from pluto_edge.errors import ConfigError

__all__ = ["Pace", "Refused", "Reply", "Server"]

MIN_TOKEN = 16  # characters
MAX_BODY = 1024  # bytes; no request here needs one
MAX_CONNECTIONS = 32  # at a time; of more the oldest is ended
REQUEST_SECONDS = 5.0  # from being accepted to the last byte of the request
REPLY_SECONDS = 15.0  # from there to the last byte of the answer
MAX_RATE, BURST = 64, 64  # connections a second, and how many may come at once: a page asks five times a second
CSRF_HEADER = "X-Pluto-CSRF"

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

Query = Mapping[str, str]


@dataclass(frozen=True)
class Reply:
    """What is sent back; `headers` come over those that every reply has."""

    body: bytes
    kind: str = "text/plain; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of_json(value: object, status: HTTPStatus = HTTPStatus.OK) -> "Reply":
        """A reply that holds `value` as JSON."""
        return Reply(json.dumps(value, separators=(",", ":")).encode(), "application/json", status)


class Refused(Exception):
    """A request that is answered with an error: its status, and a line that says why."""

    def __init__(self, status: HTTPStatus, why: str, **headers: str) -> None:
        super().__init__(why)
        self.status = status
        self.headers = headers


class Pace:
    """How long to wait so that no more than `rate` come in a second, once `burst` of them came together."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = monotonic) -> None:
        self._step = 1 / rate
        self._ahead = burst / rate
        self._clock = clock
        self._next = clock()  # when the one after next would be due, if none came early

    def wait(self) -> float:
        """How many seconds the next request has to wait to keep the pace; it counts as taken."""
        now = self._clock()
        self._next = max(self._next, now) + self._step
        return max(self._next - self._ahead - now, 0.0)


class Server(ThreadingHTTPServer):
    """Answers from a thread of its own until `stop`.

    What it costs is bounded, whoever asks: connections are taken at a pace, and wait in the system's queue
    meanwhile; there are so many at a time; each has so long. A browser that asks is never behind connections that
    only wait: where there is no room, the oldest goes.

    Args:
        address: to listen on. Any but a loopback address needs a token.
        port: 0 picks a free one.
        token: that a browser must bring once, as `?token=…`; it then has a cookie.
        pages: what GET answers, by path. They must change nothing.
        actions: what POST does, by path.
        probes: pages for programs on this machine, which bring no token; from elsewhere they want it as others do.
            A server that has nothing else answers them to everyone, and needs no token on any address.
    """

    daemon_threads = False  # so that closing waits for them
    request_queue_size = 2 * MAX_CONNECTIONS

    def __init__(
        self,
        address: str,
        port: int,
        token: str | None,
        pages: Mapping[str, Callable[[Query], Reply]],
        actions: Mapping[str, Callable[[], Reply]],
        probes: Mapping[str, Callable[[Query], Reply]] | None = None,
    ) -> None:
        address = "127.0.0.1" if address == "localhost" else address
        self.loopback = _is_loopback(address)
        self.public = not pages and not actions
        if token is None and not self.loopback and not self.public:
            raise ConfigError(
                f"address {address!r} can be reached from other machines and needs a token; "
                "give one, or use 127.0.0.1 and an SSH tunnel"
            )
        if token is not None and len(token) < MIN_TOKEN:
            raise ConfigError(f"token: want at least {MIN_TOKEN} characters, got {len(token)}")
        self.token = token
        self.pages = pages
        self.actions = actions
        self.probes = probes or {}
        self.csrf = secrets.token_urlsafe(32)
        self.session = secrets.token_urlsafe(32)
        self.pace = Pace(MAX_RATE, BURST)
        self._connections: dict[socket.socket, float] = {}  # until when each may take, oldest first; 0: ended
        self._lock = threading.Lock()
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            super().__init__((address, port), _Handler)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"cannot listen on {address!r}, port {port}: {error}; port=0 picks a free one"
            ) from error
        self.port = int(self.server_address[1])
        self.cookie = f"pluto_view_{self.port}"  # cookies know no ports
        names = {"localhost", "127.0.0.1", "[::1]", _in_url(address)}
        self.hosts = {f"{name}:{self.port}" for name in names} | (names if self.port == 80 else set())
        host = _in_url(_reachable(address))
        self.url = f"http://{host}:{self.port}/" + (f"?token={quote(token, safe='')}" if token else "")
        self._thread = threading.Thread(target=self.serve_forever, args=(0.1,), name="pluto-view", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """No more requests, no open connection, no thread left."""
        self.shutdown()
        self._thread.join()
        self.server_close()

    def server_bind(self) -> None:
        """Binds without asking a name server for the machine's own name, which may take seconds."""
        socketserver.TCPServer.server_bind(self)  # HTTPServer's would ask the network for this machine's name

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answers in a thread, at the pace; where too many connections are open, the oldest ends."""
        wait = self.pace.wait()
        if wait:
            sleep(wait)
        with self._lock:
            open_ = [c for c, until in self._connections.items() if until]
            if len(open_) >= MAX_CONNECTIONS:
                self._end(open_[:1])
            room = len(self._connections) < 2 * MAX_CONNECTIONS  # threads of those that ended may be there yet
            if room:
                self._connections[request] = monotonic() + REQUEST_SECONDS
        if room:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def asked(self, connection: socket.socket) -> None:
        """The request is whole: what is left of its time is for the answer."""
        with self._lock:
            if self._connections.get(connection):
                self._connections[connection] = monotonic() + REPLY_SECONDS

    def shutdown_request(self, request: Any) -> None:
        """Closes a connection and counts it as gone."""
        with self._lock:
            self._connections.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Ends connections that take too long; the serving thread calls this again and again."""
        now = monotonic()
        with self._lock:
            self._end([c for c, until in self._connections.items() if until and until < now])

    def server_close(self) -> None:
        """Stops listening and ends open connections."""
        with self._lock:
            self._end(list(self._connections))
        super().server_close()

    def _end(self, connections: Sequence[socket.socket]) -> None:
        """Nothing more is read or written; their threads notice. The lock is held."""
        for connection in connections:
            self._connections[connection] = 0.0
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A visitor's broken connection is no news; anything else is logged."""
        if not isinstance(sys.exception(), OSError):  # a browser that goes away is no error
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: Server
    default_request_version = "HTTP/1.0"  # a malformed request is answered with headers too

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def _answer(self, method: Callable[[str, Query], Reply]) -> None:
        try:
            self._check_host()
            url = urlsplit(self.path)
            query = {k: v[-1] for k, v in parse_qs(url.query, keep_blank_values=True, max_num_fields=10).items()}
            reply = self._admit(url.path, query) or method(url.path, query)
        except Refused as refused:
            reply = Reply(f"{refused}\n".encode(), status=refused.status, headers=refused.headers)
        except ValueError:
            reply = Reply(b"not a valid address\n", status=HTTPStatus.BAD_REQUEST)
        self._send(reply)

    def _check_host(self) -> None:
        """Another site's name that leads to this machine is in the Host header; its pages get nothing."""
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or (self.server.loopback and hosts[0].lower() not in self.server.hosts):
            own = f"http://127.0.0.1:{self.server.port}/"
            raise Refused(HTTPStatus.FORBIDDEN, f"this page is at {own} only; a tunnel must keep the port")

    def _admit(self, path: str, query: Query) -> Reply | None:
        """With a token: let in who has the cookie, and give one to who brings the token."""
        server = self.server
        if server.token is None or (path in server.probes and self._is_local()):
            return None
        if self.command == "GET" and path == "/" and "token" in query:
            if not _same(query["token"], server.token):
                raise Refused(HTTPStatus.FORBIDDEN, "wrong token")
            # not a 303: a browser that follows one from a link on another site leaves a strict cookie out
            cookie = f"{server.cookie}={server.session}; Path=/; HttpOnly; SameSite=Strict"
            return Reply(b"", headers={"Set-Cookie": cookie, "Refresh": "0; url=/"})
        if not _same(self._cookie(), server.session):
            raise Refused(HTTPStatus.FORBIDDEN, "open this page at the address with its token")
        return None

    def _is_local(self) -> bool:
        """A program on this machine asks for itself, not a proxy for somebody else, as far as that can be told."""
        forwarded = any(name in self.headers for name in ("Forwarded", "X-Forwarded-For", "Via"))
        return _is_loopback(str(self.client_address[0])) and not forwarded

    def _cookie(self) -> str:
        try:
            morsel = SimpleCookie(self.headers.get("Cookie", "")).get(self.server.cookie)
        except CookieError:
            return ""
        return morsel.value if morsel else ""

    def _get(self, path: str, query: Query) -> Reply:
        self.server.asked(self.connection)
        if path in self.server.actions:
            raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, "POST only", Allow="POST")
        page = self.server.pages.get(path) or self.server.probes.get(path)
        if page is None:
            raise Refused(HTTPStatus.NOT_FOUND, "no such page")
        return page(query)

    def _post(self, path: str, query: Query) -> Reply:
        self._drop_body()
        self.server.asked(self.connection)
        if path in self.server.pages or path in self.server.probes:
            raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, "GET only", Allow="GET")
        action = self.server.actions.get(path)
        if action is None:
            raise Refused(HTTPStatus.NOT_FOUND, "no such action")
        origin = urlsplit(self.headers.get("Origin", ""))
        site = self.headers.get("Sec-Fetch-Site", "same-origin")
        if not origin.netloc or origin.netloc.lower() != self.headers["Host"].lower() or site != "same-origin":
            raise Refused(HTTPStatus.FORBIDDEN, "only the page itself may ask for this")
        if not _same(self.headers.get(CSRF_HEADER, ""), self.server.csrf):
            raise Refused(HTTPStatus.FORBIDDEN, f"{CSRF_HEADER} is missing or wrong; load the page again")
        return action()

    def _drop_body(self) -> None:
        length = self.headers.get("Content-Length", "0")
        if "Transfer-Encoding" in self.headers or not re.fullmatch("[0-9]{1,18}", length):
            raise Refused(HTTPStatus.LENGTH_REQUIRED, "want a Content-Length")
        if int(length) > MAX_BODY:
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"want at most {MAX_BODY} bytes")
        self.rfile.read(int(length))

    def _send(self, reply: Reply) -> None:
        self.send_response(reply.status)
        headers = {**HEADERS, "Content-Type": reply.kind, "Content-Length": str(len(reply.body)), **reply.headers}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(reply.body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the standard library refuses: malformed requests, unknown methods."""
        self._send(Reply(b"not a request for this server\n", status=HTTPStatus(code)))

    def version_string(self) -> str:
        return "pluto-edge"

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the terminal is the program's."""


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode())


def _is_loopback(address: str) -> bool:
    """Names other than localhost lead wherever the network says: they count as other machines'."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _in_url(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _reachable(address: str) -> str:
    """The address itself; of one that stands for all, the one that packets to other machines leave from."""
    if address not in ("", "0.0.0.0", "::"):
        return address
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect(("192.0.2.1", 9))  # sends nothing
        return str(probe.getsockname()[0])
    return "127.0.0.1"
