"""Whatever the attacker likes in the place of a release: signed by nobody, by strangers, or by those who may.

Must happen: nothing that the root of trust does not vouch for is installed, and of what it does vouch for nothing
that is no bundle or names files outside of its folder. The device says so and goes on with what it has.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random

from securesystemslib.signer import CryptoSigner

from attacks.catalogue.device import ADDRESS, Device, Tries
from attacks.catalogue.hostile_repository import TIMESTAMP
from attacks.harness import Case
from attacks.mutate import mutate_bytes
from attacks.story import Story
from pluto_edge._schema import to_text
from pluto_edge.repository.layout import release_target, target_bytes

ROLES = ("timestamp", "snapshot", "targets")
PATHS = ("../../../evil", "/evil", "modules/../../x", "a\\b", "..", "a/", "CON\0", "~/x", "")
HASHES = ("../" * 21 + "x", "A" * 64, "0" * 63, "")


@contextmanager
def attack(place: Path) -> Iterator[Case]:
    """Cases that would have a device run something else."""
    yield TRIES.cases(place)


def _stranger(role: str, device: Device, rng: Random) -> Story:
    device.repository.signers[role] = [CryptoSigner.generate_ed25519()]
    device.next_release()
    device.repository.publish()
    return device.refuses(f"{role} was signed by 0/1 keys")


def _unsigned(device: Device, rng: Random) -> Story:
    honest = dict(device.repository.files)
    device.repository.serve_timestamp([])
    return device.refuses_until_honest("timestamp was signed by 0/1 keys", honest)


def _description(device: Device, rng: Random) -> Story:
    files = device.repository.files
    honest = dict(files)
    path = rng.choice([p for p in files if p.endswith((".1.0.json", ".stable.json"))])
    while files[path] == honest[path]:
        files[path] = mutate_bytes(rng, honest[path])
    return device.refuses_until_honest("hash|length|more than", honest)


def _metadata(device: Device, rng: Random) -> Story:
    """A timestamp that no JSON reader, or no reader of metadata, makes sense of."""
    honest = dict(device.repository.files)
    device.repository.files[TIMESTAMP] = rng.choice((b"", b"{}", b"\xff", b"[" * 9999, b'{"signed": 1}'))
    return device.refuses_until_honest("[Dd]eserialize|metadata|JSON|timestamp", honest)


def _no_bundle(device: Device, rng: Random) -> Story:
    device.repository.add_files({"manifest.json": rng.choice((b"{}", b"", b"[]"))}, "1.1")
    device.repository.publish()
    return device.refuses("was published and is not usable")


def misnamed(device: Device, name: str) -> Story:
    """A file of the release has this name, which leads out of the folder."""
    release = device.repository.add_files({"manifest.json": b"{}"}, "1.1")
    more = f"{to_text(name).strip()}: {to_text(release.files['manifest.json']).strip()}, "
    text = target_bytes(release).replace(b'"manifest.json"', more.encode() + b'"manifest.json"')
    device.repository.put(release_target(ADDRESS.bundle, "1.1"), text)
    device.repository.publish()
    return device.refuses("not a path inside of a folder|not a safe name")


def mishashed(device: Device, digest: str) -> Story:
    """A file of the release has this for a hash, from which its place on the disk is made."""
    release = device.repository.add_files({"manifest.json": b"{}"}, "1.1")
    text = target_bytes(release).replace(release.content.encode(), digest.encode())
    device.repository.put(release_target(ADDRESS.bundle, "1.1"), text)
    device.repository.publish()
    return device.refuses("not a sha256 and a size")


def _path(device: Device, rng: Random) -> Story:
    return misnamed(device, rng.choice(PATHS))


def _hash(device: Device, rng: Random) -> Story:
    return mishashed(device, rng.choice(HASHES))


TRIES = Tries(
    {
        **{f"{role} signed by a stranger": partial(_stranger, role) for role in ROLES},
        "a timestamp without a signature": _unsigned,
        "a timestamp that is none": _metadata,
        "a description with other bytes": _description,
        "no bundle, with the targets' keys": _no_bundle,
        "a file's name that leads elsewhere, with the targets' keys": _path,
        "a path for a hash, with the targets' keys": _hash,
    }
)
