"""What the tests of the hosts share: npm's packages, installed once, and a server of plain files."""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pluto_edge._files import alone_in

ROOT = Path(__file__).parent.parent.parent
HOSTS = ROOT / "hosts"
DIGITS = ROOT / "examples/digits"
OLDEST_NODE = 20
MOST_SECONDS = 600.0  # that another process may take to install and build


def node_missing() -> str:
    """What keeps the hosts from being built here, or nothing."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            return f"{program} is not installed (Debian: apt-get install nodejs npm)"
    version = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout
    if int(version.strip("v\n").partition(".")[0]) < OLDEST_NODE:
        return f"node {version.strip()} is older than {OLDEST_NODE}"
    return ""


@pytest.fixture(scope="session")
def hosts() -> Path:
    """The folder of the hosts with npm's packages installed, and everything built, by one process of the suite."""
    why = node_missing()
    if why:
        pytest.skip(why)
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))  # one for all processes of a run of the suite
    built = HOSTS / "build/.run"
    with alone_in(HOSTS, MOST_SECONDS):
        if not (HOSTS / "node_modules/.package-lock.json").is_file():
            command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
            installed = subprocess.run(command, cwd=HOSTS, capture_output=True, text=True)
            if installed.returncode:
                pytest.skip(f"npm could not install the packages of hosts/package.json: {installed.stderr[-300:]}")
        if not built.is_file() or built.read_text() != run:
            node(HOSTS, "build.mjs", "--node")
            built.write_text(run)
    return HOSTS


def node(folder: Path, *arguments: str, **options: object) -> "subprocess.CompletedProcess[str]":
    """Run node there; what it says on failure is in the error."""
    done = subprocess.run(["node", *arguments], cwd=folder, capture_output=True, text=True, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-3000:]}"
    return done


@pytest.fixture(scope="session")
def golden() -> Iterator[object]:
    """`hosts/golden/make.py` as a module."""
    sys.path.insert(0, str(HOSTS / "golden"))
    try:
        import make

        yield make
    finally:
        sys.path.remove(str(HOSTS / "golden"))


class Quiet(SimpleHTTPRequestHandler):
    """Any web server: no headers of its own; it remembers what it was asked for."""

    def log_message(self, *args: object) -> None:
        self.server.asked.append(self.path)  # type: ignore[attr-defined]


@contextmanager
def served(folder: Path, asked: list[str] | None = None) -> Iterator[str]:
    """The folder's address while the block runs; `asked` is given the paths."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    server.asked = [] if asked is None else asked  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
