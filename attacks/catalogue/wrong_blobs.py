"""Blobs that are not what was signed, on the way to a new device, and files that nobody has signed beside them.

Must happen: what has another hash is thrown away and never used, what nobody has signed is never asked for, and
once the true bytes come, the device has the release, whole.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random

from attacks.catalogue.device import ADDRESS, Device, Tries
from attacks.harness import Case, Escape
from attacks.mutate import mutate_bytes
from attacks.story import Story
from pluto_edge.manifest import Bundle

Change = Callable[[Random, bytes], bytes]


@contextmanager
def attack(place: Path) -> Iterator[Case]:
    """Cases with other bytes in the place of a bundle's files."""
    yield TRIES.cases(place)


def _changed(change: Change, reason: str, device: Device, rng: Random) -> Story:
    device.forget()
    files = device.repository.files
    honest = dict(files)
    path = rng.choice([p for p in files if p.startswith("blobs/")])
    while files[path] == honest[path]:
        files[path] = change(rng, honest[path])
    story = device.refuses(reason)
    device.repository.files = honest
    Bundle(device.client.pull(ADDRESS))
    return Story(True, f"{story.said}; takes 1.0 once the true bytes come")


def _flipped(rng: Random, data: bytes) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]


def _shorter(rng: Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data))]


def _longer(rng: Random, data: bytes) -> bytes:
    return data + rng.randbytes(rng.randint(1, 4096))


def _swapped(device: Device, rng: Random) -> Story:
    """Two files of the bundle in each other's place."""
    device.forget()
    files = device.repository.files
    one, other = rng.sample(sorted(p for p in files if p.startswith("blobs/")), 2)
    files[one], files[other] = files[other], files[one]
    return device.refuses("is not what was signed|more than the .* bytes that it may have|ended after")


def _extraneous(device: Device, rng: Random) -> Story:
    device.forget()
    more = {f"{top}/{rng.randbytes(32).hex()}" for top in ("blobs", "targets", "metadata")}
    device.repository.files |= {path: rng.randbytes(100) for path in more}
    Bundle(device.client.pull(ADDRESS))
    asked = more & set(device.repository.asked)
    if asked:
        raise Escape(f"{asked.pop()} was asked for")
    return Story(False, "never asked for; takes 1.0")


TRIES = Tries(
    {
        "one bit of a blob": partial(_changed, _flipped, "is not what was signed; it is thrown away"),
        "some bytes of a blob": partial(_changed, mutate_bytes, "not what was signed|more than|ended after"),
        "a blob that ends early": partial(_changed, _shorter, "ended after|not what was signed"),
        "a blob with more behind it": partial(_changed, _longer, "more than the .* bytes that it may have"),
        "two blobs in each other's place": _swapped,
        "files that nobody has signed": _extraneous,
    }
)
