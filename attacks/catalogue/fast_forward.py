"""Stolen online keys let versions jump far ahead, so that everything honest looks old from then on.

Must happen: the device refuses what looks old, and goes on with what it has; once the root has given the stolen
roles new keys, honest metadata is taken again.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

from attacks.catalogue.device import ADDRESS, Device, Tries
from attacks.harness import Case
from attacks.story import Story


@contextmanager
def attack(place: Path) -> Iterator[Case]:
    """Cases with versions from the future."""
    yield TRIES.cases(place)


def _jump(device: Device, rng: Random) -> Story:
    repository = device.repository
    versions = (repository.timestamp.version, repository.snapshot.version)
    repository.timestamp.version = repository.snapshot.version = rng.randint(10**6, 2**31)
    repository.serve_snapshot()
    repository.serve_timestamp()
    device.client.pull(ADDRESS)  # the same release: there is nothing to notice yet
    repository.timestamp.version, repository.snapshot.version = versions
    release = device.next_release()
    repository.publish()
    story = device.refuses(r"must be >= \d{7}")
    for role in ("timestamp", "snapshot"):
        repository.replace_keys(role)
    repository.root.version += 1
    repository.serve_root()
    repository.publish()
    device.takes(release)
    return replace(story, said=f"{story.said}; takes 1.1 once the root has given both roles new keys")


TRIES = Tries({"versions that jump, with both online keys": _jump})
