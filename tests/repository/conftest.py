"""Repositories as their publishers see them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from securesystemslib.signer import CryptoSigner

from pluto_edge.repository.publisher import Publisher
from pluto_edge.repository.roles import TOP

DIGITS = Path(__file__).parents[2] / "examples" / "digits"


@dataclass
class Store:
    """A repository on disk, with all keys."""

    publisher: Publisher
    signers: dict[str, list[CryptoSigner]]
    root: Path
    more: list[CryptoSigner] = field(default_factory=list)

    @property
    def all_signers(self) -> list[CryptoSigner]:
        return [s for signers in self.signers.values() for s in signers] + self.more

    def publish(self) -> None:
        assert not self.publisher.publish(self.all_signers).waiting

    @property
    def url(self) -> str:
        return self.publisher.folder.as_uri()


@pytest.fixture
def make_repository(tmp_path: Path) -> Callable[..., Store]:
    def make(name: str = "store", **settings: Any) -> Store:
        counts = settings.get("thresholds", {})
        signers = {role: [CryptoSigner.generate_ed25519() for _ in range(counts.get(role, 1))] for role in TOP}
        public = {role: [s.public_key for s in own] for role, own in signers.items()}
        publisher = Publisher.create(tmp_path / name, public, **settings)
        store = Store(publisher, signers, tmp_path / name / "metadata" / "1.root.json")
        store.publish()
        return store

    return make


@pytest.fixture
def repository(make_repository: Callable[..., Store]) -> Store:
    return make_repository()


@dataclass
class Web:
    """A web server for a folder: `ranges` says whether it knows parts of files, `breaks` where it hangs up."""

    url: str
    server: ThreadingHTTPServer
    asked: list[tuple[str, str]] = field(default_factory=list)  # path and Range
    ranges: bool = True
    breaks: dict[str, int] = field(default_factory=dict)  # a path: once, after so many bytes


@pytest.fixture
def serve() -> Iterator[Callable[[Path], Web]]:
    running: list[ThreadingHTTPServer] = []

    def start(folder: Path) -> Web:
        class Handler(SimpleHTTPRequestHandler):
            def __init__(self, *arguments: Any) -> None:
                super().__init__(*arguments, directory=str(folder))

            def do_GET(self) -> None:
                part = self.headers.get("Range", "")
                web.asked.append((self.path, part))
                file = folder / self.path.lstrip("/")
                if not file.is_file():
                    self.send_error(404)
                    return
                data = file.read_bytes()
                start = int(part.removeprefix("bytes=").rstrip("-")) if part and web.ranges else 0
                if start and start >= len(data):
                    self.send_error(416)
                    return
                self.send_response(206 if start else 200)
                if start:
                    self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
                self.send_header("Content-Length", str(len(data) - start))
                self.end_headers()
                cut = web.breaks.pop(self.path, None)
                self.wfile.write(data[start:] if cut is None else data[start : start + cut])
                if cut is not None:
                    self.close_connection = True

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        web = Web(f"http://127.0.0.1:{server.server_port}", server)
        running.append(server)
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return web

    yield start
    for server in running:
        server.shutdown()
        server.server_close()
