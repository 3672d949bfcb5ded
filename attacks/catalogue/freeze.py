"""The repository of yesterday, for ever: a mirror withholds what is new until the metadata has expired.

Must happen: metadata of any role that has expired brings nothing, the device says which, and goes on with what it
has. Until it expires nothing can be noticed; that is what the timestamp's seven days are for.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from random import Random

from attacks.catalogue.device import Device, Tries
from attacks.harness import Case
from attacks.story import Story

ROLES = ("root", "timestamp", "snapshot", "targets")


@contextmanager
def attack(place: Path) -> Iterator[Case]:
    """Cases in which time stands still."""
    yield TRIES.cases(place)


def _expired(role: str, device: Device, rng: Random) -> Story:
    repository = device.repository
    device.next_release()
    past = datetime.now(UTC).replace(microsecond=0) - timedelta(seconds=rng.randint(1, 10**7))
    getattr(repository, role).expires = past
    if role == "root":
        repository.root.version += 1
        repository.serve_root()
    repository.publish()
    return device.refuses(f"{role}.*expired")


TRIES = Tries({f"{role}, expired": partial(_expired, role) for role in ROLES})
