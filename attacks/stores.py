"""Descriptions of stores that are not what training writes: `store.json`, byte by byte and value by value.

Must happen: a `StoreError`, when the store is opened or when its parts are read; or a store that can be described,
whose modules have safe names, and whose backbone options hold nothing that names a file.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attacks.harness import Case, Escape, Parser, mutating
from attacks.mutate import mutate_json
from attacks.world import copy_store
from pluto_edge._files import check_name
from pluto_edge.errors import StoreError
from pluto_edge.info import describe_store
from pluto_edge.store import OPTIONS, Store


@contextmanager
def parser(place: Path) -> Iterator[Parser]:
    """Reads the description of a store."""
    folder = copy_store(place)
    file = folder / "store.json"
    sample = file.read_bytes()

    def parse(data: bytes) -> None:
        file.write_bytes(data)
        store = Store(folder)
        for name in store.names:
            check_name(name, "module", StoreError)
        if not store.config.backbone.options.keys() <= OPTIONS:
            raise Escape("options that timm must not see")
        text = describe_store(store)
        text.encode()
        if not text.replace("\n", "").isprintable():
            raise Escape("pluto info prints control characters")
        _ = store.specialists, store.generalist

    yield Parser(parse, [sample])


@contextmanager
def attack(place: Path) -> Iterator[Case]:
    """Cases that open a store whose description was changed."""
    with parser(place) as opened:
        yield mutating(opened, mutate_json)
