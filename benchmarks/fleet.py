"""Ten thousand devices that follow a channel: a release, a bad one, and its way back, on good and bad networks.

    python benchmarks/fleet.py --out runs/fleet

Real: the repository (made and signed by `Publisher`), and whatever a device decides and writes (`Client.sync`,
which is `pluto sync`, on folders in memory; then what would be started is opened, every file hashed). Simulated:
time, networks and when devices poll. The client runs for every poll in which something may go wrong, and otherwise
once for every distinct pair of a device's files and a publication; a sample of the outcomes that are remembered is
run again and compared. A kill is the end of a process at a random call that changes files. Devices do not slow each
other down, a poll sees the repository as it was at its first request, and a device runs what its last poll brought.
"""

import argparse
import heapq
import logging
import os
import shutil
import sys
import tempfile
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import process_time

from fleet_networks import HOUR, NETWORKS, Network, outages
from fleet_releases import Served, publications
from fleet_report import Change, Kind, Run, picture, summary
from fleet_states import Outcome, States

from pluto_edge._cpu import this_cpu
from pluto_edge._files import write_bytes, write_text
from pluto_edge._schema import to_text

BUNDLE = Path(__file__).resolve().parent.parent / "examples/digits/bundle"
MEMORY_FOLDER = Path("/dev/shm")
POLL = HOUR  # from one poll to the next
RETRY = 300.0  # after the first failure; twice as much after each further one, up to POLL
REBOOT = 60.0  # after a kill
AGAIN = {True: 50, False: 1_000}  # of so many remembered outcomes, with news and without, one is run again
LOAD = 600.0  # seconds over which what the server sends is counted


@dataclass(frozen=True)
class Schedule:
    """Hours at which 1.1 and 1.2 are published, 1.2 is revoked, and the simulation ends."""

    release: float = 1.0
    bad: float = 12.0
    revoked: float = 14.0
    end: float = 36.0

    @property
    def times(self) -> list[float]:
        """Of the publications, in seconds."""
        return [-1.0, self.release * HOUR, self.bad * HOUR, self.revoked * HOUR]


@dataclass
class Device:
    """One of many: its network, its files, and what has happened to it."""

    kind: str
    network: Network
    rng: Random
    latency: float
    rate: float
    state: str
    outages: list[tuple[float, float]]
    failures: int = 0
    changes: list[Change] = field(default_factory=list)

    def is_offline(self, now: float) -> bool:
        """Whether there is no network now."""
        return any(start <= now < end for start, end in self.outages)


class Fleet:
    """All devices, and the queue of their polls."""

    def __init__(self, devices: int, served: list[Served], root: Path, folder: Path, plan: Schedule) -> None:
        self.plan = plan
        self.served = served
        self.states = States(folder / "states")
        factory = self.states.factory(served[0].files, root)
        self.devices = [_device(number, devices, factory, plan) for number in range(devices)]
        self.kinds = {kind: Kind() for kind in NETWORKS}
        self.load: Counter[int] = Counter()  # bytes by tenth minute
        self.problems: Counter[str] = Counter()
        self.compared = 0
        self.differed = 0
        self._hits: Counter[bool] = Counter()
        for device in self.devices:
            self.states.hold(factory)
            self.kinds[device.kind].devices += 1
            self._note(device, 0.0)

    def run(self) -> None:
        """Poll after poll, in the order of time."""
        queue = [(d.rng.uniform(0, POLL), number) for number, d in enumerate(self.devices)]
        heapq.heapify(queue)
        shown = 0.0
        while queue and queue[0][0] < self.plan.end * HOUR:
            now, number = heapq.heappop(queue)
            if now >= shown:
                print(f"hour {now / HOUR:.0f}", file=sys.stderr, flush=True)
                shown += 4 * HOUR
            heapq.heappush(queue, (self._poll(self.devices[number], now), number))

    def _poll(self, device: Device, now: float) -> float:
        """One poll; gives when the next one is."""
        publication = bisect_right(self.plan.times, now) - 1
        outcome, seconds = self._outcome(device, now, publication)
        end = now + seconds
        kind = self.kinds[device.kind]
        idle = outcome.state == device.state and not outcome.said and not outcome.killed
        kind.add(outcome.bytes, outcome.requests, idle=idle, failed=bool(outcome.said), killed=outcome.killed)
        self.load[int(end // LOAD)] += outcome.bytes
        before = device.state
        device.state = outcome.state
        self.problems.update(outcome.problems)
        self._note(device, end)
        self.states.hold(device.state, before)
        if outcome.killed:
            return end + REBOOT
        device.failures = device.failures + 1 if outcome.said else 0
        wait = min(RETRY * 2 ** (device.failures - 1), POLL) if device.failures else POLL
        return end + wait * device.rng.uniform(0.9, 1.1)

    def _outcome(self, device: Device, now: float, publication: int) -> tuple[Outcome, float]:
        """What a poll leads to, and how long it takes."""
        if device.is_offline(now):
            outcome, _ = self.states.poll_offline(device.state)
            return outcome, outcome.seconds
        files = self.served[publication].files
        weather = device.network.weather(device.rng, device.latency, device.rate)
        if weather is None or device.network.slow:
            outcome = self._clear(device.state, publication)
            if weather is None or outcome.state == device.state:  # slow or not, it brings nothing
                return outcome, outcome.requests * device.latency + outcome.bytes / device.rate
        outcome = self.states.poll_in(device.state, files, weather, device.rng)
        return outcome, outcome.seconds

    def _clear(self, state: str, publication: int) -> Outcome:
        """What a poll leads to in which nothing goes wrong; some that are remembered are run again."""
        files = self.served[publication].files
        outcome, known = self.states.poll(state, publication, files)
        news = outcome.state != state
        self._hits[news] += known
        if known and self._hits[news] % AGAIN[news] == 0:
            self.compared += 1
            self.differed += not self.states.poll_again(state, publication, files)
        return outcome

    def _note(self, device: Device, now: float) -> None:
        """What the device would start from now on, and whether that works."""
        facts = self.states.facts(device.state)
        if facts.problem:
            self.problems[facts.problem] += 1
        if not device.changes or device.changes[-1].version != facts.version:
            device.changes.append(Change(now / HOUR, facts.version))

    def result(self, seconds: float) -> Run:
        """All that is to be told."""
        return Run(
            hours=[self.plan.release, self.plan.bad, self.plan.revoked, self.plan.end],
            bundle_bytes=self.served[-1].bundle_bytes,
            kinds=self.kinds,
            histories=[(device.kind, device.changes) for device in self.devices],
            problems=dict(self.problems),
            client_runs=dict(self.states.runs),
            states_verified=self.states.verified,
            outcomes_compared=self.compared,
            outcomes_that_differed=self.differed,
            busiest_bytes=max(self.load.values()),
            processor_seconds=seconds,
        )


def _device(number: int, devices: int, state: str, plan: Schedule) -> Device:
    """Kinds of networks have their shares exactly; all else is chance, the same for the same number."""
    rng = Random(number)
    place = (number + 0.5) / devices
    for kind, network in NETWORKS.items():  # noqa: B007
        place -= network.share
        if place < 0:
            break
    off = outages(rng, plan.end * HOUR) if network.outages else []
    return Device(kind, network, rng, rng.uniform(*network.latency), rng.uniform(*network.rate), state, off)


def simulate(devices: int, bundle: Path, plan: Schedule) -> Run:
    """The whole of it, in a folder in memory that is gone afterwards."""
    logging.getLogger("pluto_edge").setLevel(logging.CRITICAL + 1)  # failures are counted, not told
    os.environ.pop("PLUTO_ROOT", None)
    begun = process_time()
    memory = MEMORY_FOLDER if MEMORY_FOLDER.is_dir() else None
    folder = Path(tempfile.mkdtemp(prefix="fleet-", dir=memory))
    before = tempfile.tempdir
    tempfile.tempdir = str(folder)  # the client's own temporary files, too
    try:
        served, root = publications(bundle, folder)
        fleet = Fleet(devices, served, root, folder, plan)
        fleet.run()
        return fleet.result(process_time() - begun)
    finally:
        tempfile.tempdir = before
        shutil.rmtree(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=10_000)
    parser.add_argument("--quick", action="store_true", help="a few hours instead of a day and a half")
    parser.add_argument("--bundle", type=Path, default=BUNDLE, help="(default: the digits)")
    parser.add_argument("--out", type=Path, default=Path("runs/fleet"))
    options = parser.parse_args()
    plan = Schedule(0.5, 3, 4.5, 8) if options.quick else Schedule()
    run = simulate(options.devices, options.bundle, plan)
    options.out.mkdir(parents=True, exist_ok=True)
    text, figures = summary(run)
    write_text(options.out / "fleet.json", to_text(figures))
    write_bytes(options.out / "fleet.png", picture(run))
    print(f"{this_cpu()}\n\n{text}\n\n{options.out / 'fleet.json'}, {options.out / 'fleet.png'}")
    if run.problems or run.outcomes_that_differed:
        sys.exit(1)


if __name__ == "__main__":
    main()
