"""A repository as a device's source of modules: what `Runtime.suggest` and `Finder` take."""

from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from pluto_edge._text import is_address
from pluto_edge.errors import RepositoryError
from pluto_edge.repository.folder import FolderSource
from pluto_edge.repository.index import ModuleSource
from pluto_edge.repository.layout import module_target

if TYPE_CHECKING:
    from pluto_edge.repository.client import Client

__all__ = ["RepositorySource", "module_source"]


class RepositorySource:
    """The modules that a repository, or one of its sites, has published by themselves; all of it is verified."""

    def __init__(self, client: "Client", site: str = "") -> None:
        self.client = client
        self.site = site

    def index(self) -> bytes:
        """The newest index."""
        return self.client.index(self.site).read_bytes()

    def fetch(self, target: str) -> Path:
        """The folder of the module that a target of the index describes."""
        name = PurePosixPath(target).stem
        if target != module_target(name, self.site):
            raise RepositoryError(
                f"{self.client.url}: its index lists {target[:120]!r}, which is not a module's target"
            )
        return self.client.module(name, self.site)


def module_source(where: str, site: str = "") -> ModuleSource:
    """The modules of a folder, or of a repository by its address; there, those of a site if one is given."""
    if not is_address(where):
        return FolderSource(where)
    from pluto_edge.repository.client import Client  # a folder needs no tuf

    return RepositorySource(Client(where), site)
