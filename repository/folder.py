"""Modules in a folder, as a device's source: a memory stick, a shared disk, the `modules` of a store."""

from pathlib import Path

from pluto_edge._files import inside, sha256
from pluto_edge.errors import RepositoryError
from pluto_edge.repository.index import build
from pluto_edge.repository.layout import IndexEntry
from pluto_edge.store import MODULE_FILE, read_module_config

__all__ = ["FolderSource"]


class FolderSource:
    """Every folder below this one that has a module in it; the index is made when it is asked for.

    Nothing is signed here: whoever can write to the folder decides what a device may find.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise RepositoryError(f"{self.folder}: there is no such folder")

    def entries(self) -> list[IndexEntry]:
        """Its modules, by the names of their folders."""
        found = []
        for file in sorted(self.folder.glob(f"*/{MODULE_FILE}")):
            name = read_module_config(file.parent).name
            found.append(IndexEntry(file.parent.name, sha256(file), file.stat().st_size, name, file.parent))
        return found

    def index(self) -> bytes:
        """Of all modules as they are now."""
        return build(self.entries())

    def fetch(self, target: str) -> Path:
        """The folder of this name."""
        return inside(self.folder, target, RepositoryError)
