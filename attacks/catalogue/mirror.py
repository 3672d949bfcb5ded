"""A mirror that serves another repository, signed by its own keys; the files of nobody; or nothing at all.

Must happen: a device believes its own root of trust alone, which it was given and never took from the network; it
says what is wrong, and goes on with what it has.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random

from attacks.catalogue.device import ADDRESS, Device, Tries, digits
from attacks.catalogue.hostile_repository import TIMESTAMP, URL, Simulator
from attacks.harness import Case, Escape
from attacks.story import Story
from pluto_edge.errors import RepositoryError
from pluto_edge.repository.client import Client

ROLES = ("targets", "snapshot")


@contextmanager
def attack(place: Path) -> Iterator[Case]:
    """Cases with a repository that is not the device's."""
    yield TRIES.cases(place)


def _other() -> Simulator:
    """Another repository, honest in itself, that is ahead in all versions."""
    other = Simulator()
    other.add_files(digits())
    for _ in range(3):
        other.publish()
    return other


def _all(device: Device, rng: Random) -> Story:
    honest = dict(device.repository.files)
    device.repository.files = dict(_other().files)
    return device.refuses_until_honest("timestamp was signed by 0/1 keys", honest)


def _new_device(device: Device, rng: Random) -> Story:
    device.forget()
    device.repository.files = dict(_other().files)
    return device.refuses("timestamp was signed by 0/1 keys")


def _root(device: Device, rng: Random) -> Story:
    """The other's root as the next version of this one's."""
    honest = dict(device.repository.files)
    other = _other()
    other.root.version = device.repository.root.version + 1
    other.serve_root()
    device.repository.files = dict(other.files)
    return device.refuses_until_honest("root was signed by 0/1 keys", honest)


def _old_root(device: Device, rng: Random) -> Story:
    honest = dict(device.repository.files)
    device.repository.files["metadata/2.root.json"] = honest["metadata/1.root.json"]
    return device.refuses_until_honest("Expected root version 2 instead got version 1", honest)


def _one_role(role: str, device: Device, rng: Random) -> Story:
    repository = device.repository
    device.next_release()
    repository.publish()
    honest = dict(repository.files)
    repository.files[f"metadata/{repository.targets.version}.{role}.json"] = _other().files[
        f"metadata/4.{role}.json"
    ]
    return device.refuses_until_honest("length|hash|more than", honest)


def _first_use(device: Device, rng: Random) -> Story:
    """A device that nobody has given a root of trust."""
    place = device.place / "untold"
    client = Client(URL, cache=place, fetcher=device.client.fetcher)
    asked = len(device.repository.asked)
    try:
        client.pull(ADDRESS)
    except RepositoryError as error:
        if "there is no root of trust" not in str(error) or len(device.repository.asked) != asked:
            raise Escape("it has asked for a root of trust") from error
        return Story(True, str(error))
    raise Escape("it has believed the first root that it was told")


def _nothing(device: Device, rng: Random) -> Story:
    honest = dict(device.repository.files)
    device.repository.files = {} if rng.random() < 0.5 else {n: d for n, d in honest.items() if n != TIMESTAMP}
    return device.refuses_until_honest("404", honest)


TRIES = Tries(
    {
        "another repository, all of it": _all,
        "another repository, to a new device": _new_device,
        "another repository's root as the next one": _root,
        "a root that goes back": _old_root,
        **{f"another repository's {role}": partial(_one_role, role) for role in ROLES},
        "any repository, to a device without a root of trust": _first_use,
        "nothing": _nothing,
    }
)
