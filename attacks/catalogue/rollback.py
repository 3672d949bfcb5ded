"""Older metadata in the place of newer: a mirror, or whoever has online keys, brings back what was replaced.

Must happen: a device never goes below a version that it has seen, in this process or an earlier one, even if the
rest of that publication failed; it says so and goes on with what it has.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from attacks.catalogue.device import Device, Tries
from attacks.catalogue.hostile_repository import TIMESTAMP
from attacks.harness import Case
from attacks.story import Story


@contextmanager
def attack(place: Path) -> Iterator[Case]:
    """Cases in which the repository goes back."""
    yield TRIES.cases(place)


def _timestamp(device: Device, rng: Random) -> Story:
    old = device.repository.files[TIMESTAMP]
    device.repository.publish()
    device.client.pull(device.repository.address)
    honest = dict(device.repository.files)
    device.repository.files[TIMESTAMP] = old
    return device.refuses_until_honest(r"New timestamp version \d+ must be >= \d+", honest)


def _snapshot(device: Device, rng: Random) -> Story:
    device.repository.publish()
    device.client.pull(device.repository.address)
    device.repository.snapshot.version = 1
    device.repository.serve_snapshot()
    device.repository.timestamp.version += 1
    device.repository.serve_timestamp()
    return device.refuses("New snapshot version must be >= ")


def _targets(device: Device, rng: Random) -> Story:
    repository = device.repository
    old = copy.deepcopy(repository.snapshot.meta)
    repository.publish()
    device.client.pull(repository.address)
    repository.snapshot.meta = old
    repository.snapshot.version += 1
    repository.serve_snapshot()
    repository.timestamp.version += 1
    repository.serve_timestamp()
    return device.refuses("targets.json version")


def _next_process(device: Device, rng: Random) -> Story:
    old = dict(device.repository.files)
    device.repository.publish()
    device.client.pull(device.repository.address)
    honest = device.repository.files
    device.repository.files = old
    device.restart()
    return device.refuses_until_honest(r"New timestamp version \d+ must be >= \d+", honest)


def _withheld(device: Device, rng: Random) -> Story:
    old = dict(device.repository.files)
    device.repository.publish()
    honest = dict(device.repository.files)
    del device.repository.files[f"metadata/{device.repository.snapshot.version}.snapshot.json"]
    device.refuses("404")
    device.repository.files = old
    return device.refuses_until_honest(r"New timestamp version \d+ must be >= \d+", honest)


def _role(device: Device, rng: Random) -> Story:
    repository = device.repository
    repository.add_site("lab")
    repository.publish()
    device.client.pull(repository.address)
    del repository.snapshot.meta["site-lab.json"]
    repository.snapshot.version += 1
    repository.serve_snapshot()
    repository.timestamp.version += 1
    repository.serve_timestamp()
    return device.refuses("missing info for 'site-lab.json'")


TRIES = Tries(
    {
        "an older timestamp, by a mirror": _timestamp,
        "an older snapshot, with the timestamp's key": _snapshot,
        "older targets, with both online keys": _targets,
        "all as it was before, to the next process": _next_process,
        "all as it was before, after a publication that was withheld": _withheld,
        "a site that vanishes from the snapshot, with both online keys": _role,
    }
)
