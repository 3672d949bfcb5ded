"""Files of several moments, each signed by those who may, put together to a repository that never was.

Must happen: the device notices that they do not belong together, says so, and goes on with what it has.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from attacks.catalogue.device import ADDRESS, Device, Tries
from attacks.harness import Case
from attacks.story import Story
from pluto_edge.repository.layout import release_target, target_bytes


@contextmanager
def attack(place: Path) -> Iterator[Case]:
    """Cases with true files in wrong places."""
    yield TRIES.cases(place)


def _metadata(device: Device, role: str) -> Story:
    repository = device.repository
    old = repository.files[f"metadata/{repository.targets.version}.{role}.json"]
    device.next_release()
    repository.publish()
    honest = dict(repository.files)
    repository.files[f"metadata/{repository.targets.version}.{role}.json"] = old
    return device.refuses_until_honest("length|hash|version", honest)


def _targets(device: Device, rng: Random) -> Story:
    return _metadata(device, "targets")


def _snapshot(device: Device, rng: Random) -> Story:
    return _metadata(device, "snapshot")


def _descriptions(device: Device, rng: Random) -> Story:
    """The description of the release before, where that of the new one is."""
    repository = device.repository
    old = repository.files[_path(device, "1.0")]
    device.next_release()
    repository.publish()
    honest = dict(repository.files)
    repository.files[_path(device, "1.1")] = old
    return device.refuses_until_honest("length|hash|more than", honest)


def _another_name(device: Device, rng: Random) -> Story:
    """Signed, even: one bundle's description in the place of another's."""
    repository = device.repository
    release = repository.add_files({"manifest.json": b"{}"}, "9", name="other")
    repository.put(release_target(ADDRESS.bundle, "1.0"), target_bytes(release))
    repository.publish()
    return device.refuses("the repository describes other@9 there")


def _path(device: Device, version: str) -> str:
    info = device.repository.targets.targets[release_target(ADDRESS.bundle, version)]
    return f"targets/{info.get_prefixed_paths()[0]}"


TRIES = Tries(
    {
        "targets of another moment": _targets,
        "a snapshot of another moment": _snapshot,
        "the description of the release before": _descriptions,
        "another bundle's description, with the targets' keys": _another_name,
    }
)
