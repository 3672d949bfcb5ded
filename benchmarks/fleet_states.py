"""What devices of `fleet.py` have on their disks, and what pluto-edge's own client makes of it at the next poll.

Devices with the same files share one folder, which nobody changes. A poll works on a copy (hard links; what is
under way is copied), and what it leaves is a state again, by the hash of all names and contents.
"""

import hashlib
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from fleet_networks import URL, Unplugged, Weather, Wire

from pluto_edge._files import sha256
from pluto_edge.errors import PlutoError
from pluto_edge.manifest import Bundle
from pluto_edge.repository.address import Address
from pluto_edge.repository.client import Client
from pluto_edge.repository.fetcher import Fetcher, Limits

ADDRESS = Address(URL, "meter")
CLEAR = Weather(0.0, 1e9)
OPERATIONS = frozenset(("open", "os.link", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.chmod"))
KILL_WITHIN = 150  # such calls: an update makes 144 of them, a poll without news 56

Files = Mapping[str, bytes]


@dataclass(frozen=True)
class Facts:
    """What a device with this state would start: the release, and what is wrong with it ("" is nothing)."""

    version: str
    problem: str


@dataclass(frozen=True)
class Outcome:
    """What a poll left and what it cost; `said` is the error that ended it, `problems` what was wrong meanwhile."""

    state: str
    bytes: int
    requests: int
    seconds: float
    said: str = ""
    killed: bool = False
    problems: tuple[str, ...] = ()


class States:
    """All of them, in a folder in memory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._folder.mkdir()
        self._work = folder / "work"
        self._hashes: dict[tuple[int, int, int], str] = {}
        self._facts: dict[str, Facts] = {}
        self._remembered: dict[tuple[str, int | None], Outcome] = {}
        self._pinned: set[str] = set()
        self._holders: Counter[str] = Counter()
        self.runs: Counter[str] = Counter()  # of the real client, by why
        self.verified = 0  # states that were opened as a bundle, every file hashed

    def factory(self, files: Files, root: Path) -> str:
        """A device as it is shipped: it was given the root of trust and has the release of the day."""
        self._work.mkdir()
        client = Client(URL, root=root, cache=self._work, fetcher=Fetcher(Wire(files, CLEAR, Random(0))))
        client.pull(ADDRESS)
        return self._pin(self._keep())

    def facts(self, state: str) -> Facts:
        """What a device with this state would start; every file is hashed, once for all devices that have it."""
        if state not in self._facts:
            self.verified += 1
            self._facts[state] = start(self._folder / state)
        return self._facts[state]

    def hold(self, state: str, before: str | None = None) -> None:
        """A device has this state now, and no longer the one before; what nobody has is deleted."""
        self._holders[state] += 1
        if before is not None:
            self._holders[before] -= 1
            if not self._holders[before] and before not in self._pinned:
                shutil.rmtree(self._folder / before)

    def poll(self, state: str, publication: int, files: Files) -> tuple[Outcome, bool]:
        """A poll in which nothing goes wrong: the client runs once for every pair of state and publication.

        The second value says whether this one was remembered.
        """
        return self._remember(state, publication, Wire(files, CLEAR, Random(0)))

    def poll_offline(self, state: str) -> tuple[Outcome, bool]:
        """A poll without a network."""
        return self._remember(state, None, Unplugged())

    def poll_again(self, state: str, publication: int, files: Files) -> bool:
        """Run the client although the outcome is remembered; whether it is the same."""
        self.runs["run again to compare"] += 1
        self._lend(state)
        found = self._run(Wire(files, CLEAR, Random(0)))
        return found == self._remembered[state, publication]

    def poll_in(self, state: str, files: Files, weather: Weather, rng: Random) -> Outcome:
        """A poll in which things may go wrong: always run."""
        self._lend(state)
        wire = Wire(files, weather, rng)
        if weather.killed:
            self.runs["killed"] += 1
            return self._run_killed(wire, rng.randint(1, KILL_WITHIN))
        self.runs["on a bad network"] += 1
        problems: set[str] = set()
        wire.look = lambda: problems.add(start(self._work).problem)
        return self._run(wire, problems)

    # pieces

    def _remember(self, state: str, publication: int | None, wire: Wire | Unplugged) -> tuple[Outcome, bool]:
        known = (state, publication) in self._remembered
        if not known:
            self.runs["offline" if publication is None else "nothing goes wrong"] += 1
            self._lend(state)
            found = self._run(wire)
            self._pin(state)
            self._pin(found.state)
            self._remembered[state, publication] = found
        return self._remembered[state, publication], known

    def _run(self, wire: Wire | Unplugged, problems: set[str] | None = None) -> Outcome:
        said = _sync(self._work, wire)
        seen = tuple(sorted(filter(None, problems or ())))
        if isinstance(wire, Unplugged):
            return Outcome(self._keep(), 0, 0, Limits().idle, said, False, seen)
        return Outcome(self._keep(), wire.bytes, wire.requests, wire.now, said, False, seen)

    def _run_killed(self, wire: Wire, at: int) -> Outcome:
        """In a process of its own, which ends at its n-th call of the operating system that changes files."""
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            try:
                _die_at(at, wire, writer)
                _tell(writer, wire, _sync(self._work, wire))
                os._exit(0)
            finally:  # whatever else happens, nobody goes on from here
                os._exit(1)
        os.close(writer)
        with os.fdopen(reader) as file:
            told = json.loads(file.read())
        _, status = os.waitpid(child, 0)
        return Outcome(self._keep(), **told, killed=os.waitstatus_to_exitcode(status) != 0)

    def _lend(self, state: str) -> None:
        shutil.copytree(self._folder / state, self._work, copy_function=_link)

    def _keep(self) -> str:
        """The working copy becomes a state, or vanishes where there is one like it."""
        state = self._digest()
        if (self._folder / state).exists():
            shutil.rmtree(self._work)
        else:
            self._work.rename(self._folder / state)
        return state

    def _digest(self) -> str:
        found = sorted(self._work.rglob("*"))
        lines = [(p.relative_to(self._work).as_posix(), self._hash(p) if p.is_file() else "") for p in found]
        return hashlib.sha256(json.dumps(lines).encode()).hexdigest()[:20]

    def _hash(self, file: Path) -> str:
        facts = file.stat()
        key = (facts.st_ino, facts.st_size, facts.st_mtime_ns)
        if key not in self._hashes:
            self._hashes[key] = sha256(file)
        return self._hashes[key]

    def _pin(self, state: str) -> str:
        """What is remembered stays."""
        self._pinned.add(state)
        return state


def _sync(cache: Path, wire: Wire | Unplugged) -> str:
    """What `pluto sync` does; gives what it says where it fails."""
    clock: dict[str, Any] = {"clock": wire.clock} if isinstance(wire, Wire) else {}
    try:
        Client(URL, cache=cache, fetcher=Fetcher(wire, **clock)).sync()
    except PlutoError as error:
        return str(error)
    return ""


def start(cache: Path) -> Facts:
    """As a device starts that has no network: the release that is here, every file hashed."""
    client = Client(URL, cache=cache, fetcher=Fetcher(Unplugged()))
    kept = client.cache.kept("bundles", f"{ADDRESS.bundle}@{ADDRESS.selector}")
    folder = client.cached(ADDRESS)
    if kept is None or folder is None:
        return Facts("", "there is no bundle")
    try:
        Bundle(folder)
    except PlutoError as error:
        return Facts(kept.version, str(error))
    return Facts(kept.version, "")


def _link(source: str, target: str) -> None:
    """What is under way is written on where it is, so that it must not be shared."""
    if Path(source).parent.name == "partial":
        shutil.copy2(source, target)
    else:
        os.link(source, target)


def _die_at(at: int, wire: Wire, writer: int) -> None:
    """From now on calls are counted, and the process ends at this one: nothing is tidied up."""
    calls = 0

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal calls
        if event not in OPERATIONS or (event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR)):
            return
        calls += 1
        if calls == at:
            _tell(writer, wire, "")
            os._exit(137)

    sys.addaudithook(count)


def _tell(writer: int, wire: Wire, said: str) -> None:
    told = {"bytes": wire.bytes, "requests": wire.requests, "seconds": wire.now, "said": said}
    os.write(writer, json.dumps(told).encode())
