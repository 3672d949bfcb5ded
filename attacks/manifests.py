"""Descriptions of bundles that are not what an exporter writes: `manifest.json`, byte by byte and value by value.

Must happen: a `BundleError` when the bundle is opened, or a manifest in which every file is inside the folder,
every name is safe, and `pluto info` has something printable to say. Hashes are for `bundles`.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from attacks.harness import Case, Escape, Parser, mutating
from attacks.mutate import mutate_json
from attacks.world import copy_bundle
from pluto_edge._files import check_name
from pluto_edge.errors import BundleError
from pluto_edge.info import describe_bundle
from pluto_edge.manifest import Bundle


@contextmanager
def parser(place: Path) -> Iterator[Parser]:
    """Reads a manifest."""
    folder = copy_bundle(place)
    file = folder / "manifest.json"
    sample = _small(json.loads(file.read_bytes()))

    def parse(data: bytes) -> None:
        file.write_bytes(data)
        bundle = Bundle(folder, verify=False)
        _check(bundle, folder.resolve())

    yield Parser(parse, [sample])


@contextmanager
def attack(place: Path) -> Iterator[Case]:
    """Cases that open a bundle whose manifest was changed."""
    with parser(place) as opened:
        yield mutating(opened, mutate_json)


def _small(data: dict[str, object]) -> bytes:
    """The same bundle with one module and two comparisons: most of a manifest is repetition."""
    modules = data["modules"]
    parity = data["parity"]
    files = data["files"]
    assert isinstance(modules, list) and isinstance(parity, list) and isinstance(files, dict)
    kept = f"modules/{modules[0]['name']}.safetensors"
    data["modules"] = modules[:1]
    data["parity"] = parity[:2]
    data["files"] = {n: e for n, e in files.items() if n == kept or not n.startswith("modules/")}
    return json.dumps(data).encode()


def _check(bundle: Bundle, folder: Path) -> None:
    manifest = bundle.manifest
    for name in manifest.files:
        if not bundle.file(name).resolve().is_relative_to(folder):
            raise Escape("a file outside the folder")
    for name in manifest.names:
        check_name(name, "module", BundleError)
    if not np.isfinite(manifest.preprocessing.table).all():
        raise Escape("pixels that are not finite")
    text = describe_bundle(bundle)
    text.encode()
    if not text.replace("\n", "").isprintable():
        raise Escape("pluto info prints control characters")
