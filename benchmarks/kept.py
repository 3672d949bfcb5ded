"""Rows of a comparison that are kept as soon as they are measured, so that it goes on where it was interrupted."""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from contest import ContestRow

from pluto_edge._files import write_text
from pluto_edge._schema import decode, encode, read_json, to_text
from pluto_edge.errors import ConfigError


@dataclass(frozen=True)
class KeptRows:
    rows: tuple[ContestRow, ...]


class Kept:
    """Groups of rows in a folder, by name and by all that they depend on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def rows(self, name: str, key: object, measure: Callable[[], Sequence[ContestRow]]) -> tuple[ContestRow, ...]:
        """What was measured under this key, or else is now."""
        digest = hashlib.sha256(json.dumps(encode(key), sort_keys=True).encode()).hexdigest()[:16]
        file = self._folder / f"{name}-{digest}.json"
        if not file.exists():
            write_text(file, to_text(KeptRows(tuple(measure()))))
        return decode(KeptRows, read_json(file, ConfigError), file.name, ConfigError).rows


@contextmanager
def keeper(folder: Path | None) -> Iterator[Kept]:
    """Keeps in `folder`, or until the end in a temporary one; plans of this process and its children, too."""
    before = os.environ.get("PLUTO_EDGE_CACHE")
    with tempfile.TemporaryDirectory() as temporary:
        used = Path(temporary) if folder is None else folder
        used.mkdir(parents=True, exist_ok=True)
        os.environ["PLUTO_EDGE_CACHE"] = str(used)
        try:
            yield Kept(used)
        finally:
            if before is None:
                del os.environ["PLUTO_EDGE_CACHE"]
            else:
                os.environ["PLUTO_EDGE_CACHE"] = before
