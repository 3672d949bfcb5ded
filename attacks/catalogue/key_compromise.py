"""Some keys are stolen, fewer than must sign, or those that sign no more.

Must happen: nothing counts that fewer keys have signed than the root's threshold says, a key that signs twice is
one key, and a root counts only if the one before it says so; the device says who has signed too little, and goes on
with what it has.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random

from attacks.catalogue.device import Device, Tries
from attacks.harness import Case
from attacks.story import Story

ROLES = ("timestamp", "snapshot", "targets")


@contextmanager
def attack(place: Path) -> Iterator[Case]:
    """Cases with one key of two."""
    yield TRIES.cases(place)


def _one_key(role: str, device: Device, rng: Random) -> Story:
    device.repository.signers[role] = [rng.choice(device.repository.signers[role])]
    device.next_release()
    device.repository.publish()
    return device.refuses(f"{role} was signed by 1/2 keys")


def _twice(role: str, device: Device, rng: Random) -> Story:
    device.repository.signers[role] = [rng.choice(device.repository.signers[role])] * 2
    device.next_release()
    device.repository.publish()
    return device.refuses(f"{role} was signed by 1/2 keys")


def _root(device: Device, rng: Random) -> Story:
    """One of the root's keys gives the targets to the thief."""
    stolen = [rng.choice(device.repository.signers["root"])]
    device.repository.replace_keys("targets")
    device.repository.root.version += 1
    device.repository.serve_root(stolen)
    device.repository.publish()
    return device.refuses("root was signed by 1/2 keys")


def _own_root(device: Device, rng: Random) -> Story:
    """A root that its own keys have signed, and the old ones have not."""
    device.repository.replace_keys("root")
    device.repository.root.version += 1
    device.repository.serve_root()
    return device.refuses("root was signed by 0/2 keys")


def _retired(device: Device, rng: Random) -> Story:
    """Keys that the root has replaced, by those who may, are found in a bin."""
    repository = device.repository
    old = list(repository.signers["root"])
    repository.replace_keys("root")
    repository.root.version += 1
    repository.serve_root([*old, *repository.signers["root"]])
    repository.publish()
    device.client.pull(repository.address)
    repository.root.version += 1
    repository.serve_root(old)
    return device.refuses("root was signed by 0/2 keys")


TRIES = Tries(
    {
        **{f"one of two keys of the {role}": partial(_one_key, role) for role in ROLES},
        **{f"one key of the {role} that signs twice": partial(_twice, role) for role in ROLES},
        "one of two keys of the root": _root,
        "a root that only its own new keys have signed": _own_root,
        "keys of a root that was replaced": _retired,
    },
    threshold=2,
)
