"""Answers byte by byte, each in time: a repository that keeps a device waiting. Seconds are those of a false clock.

Must happen: a download that is slower than its bound ends, the device says so, and goes on with what it has.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random

from attacks.catalogue.device import Device, Tries
from attacks.catalogue.hostile_repository import TIMESTAMP
from attacks.harness import Case, Escape
from attacks.story import Story
from pluto_edge.repository.fetcher import Limits

LIMITS = Limits(total=10**8)  # 60 s, and a second for every 4,096 bytes
PAUSE = (1.0, 29.0)  # seconds from one byte to the next: never as long as the 30 s of silence that end it


@contextmanager
def attack(place: Path) -> Iterator[Case]:
    """Cases that drip."""
    yield TRIES.cases(place)


PARTS = {
    "a timestamp": TIMESTAMP,
    "targets": "metadata/2.targets.json",
    "a description": "targets/",
    "a blob": "blobs/",
}


def _drip(start: str, device: Device, rng: Random) -> Story:
    if start == "blobs/":
        device.forget()
    path = device.largest(start)
    device.repository.streams[path] = _drops(device, device.repository.files[path], rng)
    if start.startswith("metadata/"):
        device.forget()  # what is known is not asked for again
    begun = device.now
    story = device.refuses("which is too slow")
    if device.now - begun > 4 * LIMITS.seconds(len(device.repository.files[path])):
        raise Escape(f"it waited for {device.now - begun:.0f} s")
    return story


def _drops(device: Device, data: bytes, rng: Random) -> Callable[[int], Iterator[bytes]]:
    def chunks(start: int) -> Iterator[bytes]:
        for byte in data[start:]:
            device.now += rng.uniform(*PAUSE)
            yield bytes([byte])

    return chunks


TRIES = Tries({f"{name}, byte by byte": partial(_drip, start) for name, start in PARTS.items()}, limits=LIMITS)
