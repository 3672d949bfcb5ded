"""Answers that never end, and lengths beyond all bounds, to fill a device's disk or memory.

Must happen: a device reads no more than was signed or, where nothing is known yet, no more than a bound; it says
so, keeps no more on its disk than was signed, and goes on with what it has.
"""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random

from attacks.catalogue.device import ADDRESS, Device, Tries
from attacks.catalogue.hostile_repository import TIMESTAMP
from attacks.harness import Case, Escape
from attacks.story import Story
from pluto_edge.repository.layout import release_target, target_bytes


@contextmanager
def attack(place: Path) -> Iterator[Case]:
    """Cases that send more than was asked for."""
    yield TRIES.cases(place)


def _endless(start: int) -> Iterator[bytes]:
    return itertools.repeat(bytes(65536))


def _metadata(name: str, device: Device, rng: Random) -> Story:
    repository = device.repository
    device.next_release()
    repository.publish()
    version = repository.root.version + 1 if name == "root" else repository.targets.version
    path = TIMESTAMP if name == "timestamp" else f"metadata/{version}.{name}.json"
    repository.streams[path] = _endless
    return device.refuses_until_honest("more than the .* bytes that it may have", repository.files)


def _description(device: Device, rng: Random) -> Story:
    path = next(p for p in device.repository.files if p.endswith("stable.json"))
    device.repository.streams[path] = _endless
    return device.refuses_until_honest("more than the .* bytes that it may have", device.repository.files)


def _blob(device: Device, rng: Random) -> Story:
    device.forget()
    path = rng.choice([p for p in device.repository.files if p.startswith("blobs/")])
    device.repository.streams[path] = _endless
    story = device.refuses("more than the .* bytes that it may have")
    kept = sum(p.stat().st_size for p in device.client.cache.partial.iterdir())
    if kept > len(device.repository.files[path]):
        raise Escape(f"{kept:,} bytes are on the disk, more than were signed")
    return story


def _large_release(device: Device, rng: Random) -> Story:
    repository = device.repository
    release = repository.add_files({"manifest.json": b"{}"}, "1.1")
    size = f'"size": {rng.randint(10**8 + 1, 2**40)}'.encode()
    target = release_target(ADDRESS.bundle, "1.1")
    repository.put(target, target_bytes(release).replace(b'"size": 2', size))
    repository.publish()
    return device.refuses("to fetch; 100.0 MB are allowed")


def _large_description(device: Device, rng: Random) -> Story:
    repository = device.repository
    release = repository.add_files({"manifest.json": b"{}"}, "1.1")
    repository.put(release_target(ADDRESS.bundle, "1.1"), target_bytes(release) + b" " * 2 * 1024 * 1024)
    repository.publish()
    return device.refuses("want 1,048,576 at most")


TRIES = Tries(
    {
        **{
            f"{role} without an end": partial(_metadata, role)
            for role in ("root", "timestamp", "snapshot", "targets")
        },
        "a description without an end": _description,
        "a blob without an end": _blob,
        "a release beyond what is allowed, with the targets' keys": _large_release,
        "a description beyond all bounds, with the targets' keys": _large_description,
    }
)
