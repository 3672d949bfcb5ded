"""What a device keeps of a repository.

<cache>/repositories/<id>/
  repository.json            its address
  root.json                  the root of trust that was given
  metadata/                  The Update Framework's: the highest versions that were seen
  blobs/<sha256>             every content once
  partial/<sha256>           what is under way
  bundles/<sha256>/          bundles by the sha256 of their manifest; their files are links to blobs
  bundles/<sha256>.sig       the model signatures of those that have one
  modules/<sha256>/          modules by the sha256 of their tensors
  names/<kind>/<name>.json   what an address stood for when it was last asked
"""

import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from pluto_edge._files import (
    alone_in,
    cache_folder,
    check_name,
    found,
    inside,
    sha256,
    whole_folder,
    write_bytes,
    write_text,
)
from pluto_edge._schema import check_version, decode, read_json, to_text
from pluto_edge.errors import ConfigError, RepositoryError
from pluto_edge.manifest import FileEntry
from pluto_edge.repository.address import check_repository
from pluto_edge.repository.layout import BLOBS, METADATA, check_blob

__all__ = ["Cache", "Kept", "known_repositories"]

SCHEMA_VERSION = 1
PATIENCE = 600.0  # seconds that a process waits for another one's download
FOLDERS = (BLOBS, "partial", "bundles", "modules", "names/bundles", "names/modules", "names/indexes")
Kind = Literal["bundles", "modules", "indexes"]


@dataclass(frozen=True)
class RepositoryFile:
    """`repository.json`."""

    url: str
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        check_repository(self.url)


@dataclass(frozen=True)
class Kept:
    """What a name stood for: its version, content and files, and the content before it.

    The name is `<bundle>@<selector>`, `<module>` or `<site>@<module>`; of an index, the site's or `own`.
    """

    kind: Kind
    name: str
    version: str
    content: str
    files: dict[str, FileEntry]
    signature: FileEntry | None = None
    previous: str = ""
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        for name, entry in self.files.items():
            check_blob(entry, name)
        for content in filter(None, (self.content, self.previous)):
            check_blob(FileEntry(content, 0), "content")


class Cache:
    """The folder of one repository, by its address."""

    def __init__(self, url: str, parent: Path | None = None) -> None:
        self.url = check_repository(url).rstrip("/")
        self.folder = (parent or cache_folder() / "repositories") / hashlib.sha256(self.url.encode()).hexdigest()[
            :16
        ]
        self.metadata = self.folder / METADATA
        self.root = self.folder / "root.json"
        self.blobs = self.folder / BLOBS
        self.partial = self.folder / "partial"

    def make(self) -> None:
        """The folder and those in it, if they are not there yet."""
        for name in FOLDERS:
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        if not (self.folder / "repository.json").is_file():
            write_text(self.folder / "repository.json", to_text(RepositoryFile(self.url)))

    @contextmanager
    def alone(self, patience: float = PATIENCE) -> Iterator[None]:
        """One process at a time changes what is here; the others wait."""
        with alone_in(self.folder, patience) as alone:
            if not alone and sys.platform != "win32":  # which has no such locks
                raise RepositoryError(
                    f"{self.folder}: cannot be locked; another process was busy here for {patience:.0f} s, or the "
                    "folder cannot be opened"
                )
            yield

    # blobs

    def blob(self, entry: FileEntry) -> Path:
        """Where a content is, or would be."""
        return self.blobs / entry.sha256

    def has(self, entry: FileEntry) -> bool:
        """Whether a content is here, whole: it is hashed."""
        blob = self.blob(entry)
        return blob.is_file() and blob.stat().st_size == entry.size and sha256(blob) == entry.sha256

    # folders of files

    def place(self, kind: str, content: str) -> Path:
        """The folder of a bundle or a module with this content."""
        return found(self.folder / kind / content)

    def is_whole(self, folder: Path, files: Mapping[str, FileEntry], *, hashes: bool = False) -> bool:
        """Whether all files are there, of their sizes and, if `hashes`, of their hashes."""
        return not any(True for _ in self.damaged(folder, files, hashes=hashes))

    def damaged(self, folder: Path, files: Mapping[str, FileEntry], *, hashes: bool = True) -> Iterator[str]:
        """The names of files that are missing or are not what they were."""
        for name, entry in files.items():
            path = inside(folder, name, RepositoryError)
            if not path.is_file() or path.stat().st_size != entry.size or (hashes and sha256(path) != entry.sha256):
                yield name

    def assemble(self, folder: Path, files: Mapping[str, FileEntry], check: Callable[[Path], object]) -> None:
        """Make a folder of blobs that are here, whole or not at all, if `check` finds nothing wrong with it."""
        with whole_folder(folder) as partial:
            for name, entry in files.items():
                path = inside(partial, name, RepositoryError)
                path.parent.mkdir(parents=True, exist_ok=True)
                try:
                    os.link(self.blob(entry), path)
                except OSError:  # a disk without links
                    shutil.copyfile(self.blob(entry), path)
            check(partial)

    # names

    def kept(self, kind: Kind, name: str) -> Kept | None:
        """What a name stood for; None where it is new, or its file damaged."""
        file = self._name_file(kind, name)
        try:
            data = read_json(file, RepositoryError)
            check_version(data, SCHEMA_VERSION, str(file), RepositoryError)
            kept = decode(Kept, data, file.name, RepositoryError)
        except RepositoryError:
            return None
        return kept if (kept.kind, kept.name) == (kind, name) else None

    def keep(self, kept: Kept) -> None:
        """From now on a name stands for this; what it stood for is remembered as well."""
        before = self.kept(kept.kind, kept.name)
        if before is not None:
            same = before.content == kept.content
            kept = replace(kept, previous=before.previous if same else before.content)
        if kept != before:
            write_text(self._name_file(kept.kind, kept.name), to_text(kept))

    def forget(self, kept: Kept) -> None:
        """A name stands for nothing any more."""
        self._name_file(kept.kind, kept.name).unlink(missing_ok=True)

    def names(self) -> list[Kept]:
        """All names."""
        files = sorted((self.folder / "names").glob("*/*.json"))
        known = [(kind, file.stem) for file in files for kind in get_args(Kind) if file.parent.name == kind]
        return [kept for kind, name in known if (kept := self.kept(kind, name)) is not None]

    def _name_file(self, kind: Kind, name: str) -> Path:
        check_name(name.replace("@", "-"), "name", ConfigError)
        return self.folder / "names" / kind / f"{name}.json"

    # tidying up

    def prune(self) -> int:
        """Delete what no name stands for, now or before; gives the bytes."""
        with self.alone():
            return sum(map(_delete, self._unused_folders())) + sum(map(_delete, self._unused_files()))

    def _unused_folders(self) -> list[Path]:
        used = {content for kept in self.names() for content in (kept.content, kept.previous)}
        paths = [path for kind in ("bundles", "modules") for path in sorted((self.folder / kind).iterdir())]
        return [path for path in paths if path.name.partition(".")[0] not in used]

    def _unused_files(self) -> list[Path]:
        """Called when unused folders are gone: a blob that one of the others has, too, has more than one name."""
        kept = [
            entry for one in self.names() for entry in (*one.files.values(), one.signature) if entry is not None
        ]
        used = {entry.sha256 for entry in kept}
        blobs = [b for b in sorted(self.blobs.iterdir()) if b.name not in used and b.stat().st_nlink == 1]
        return [*blobs, *sorted(self.partial.iterdir())]

    def set_root(self, data: bytes) -> None:
        """The root of trust, from now on."""
        write_bytes(self.root, data)


def known_repositories(parent: Path | None = None) -> list[Cache]:
    """The repositories that this device has something of."""
    parent = parent or cache_folder() / "repositories"
    caches = []
    for file in sorted(parent.glob("*/repository.json")):
        data = read_json(file, RepositoryError)
        check_version(data, SCHEMA_VERSION, str(file), RepositoryError)
        caches.append(Cache(decode(RepositoryFile, data, file.name, RepositoryError).url, parent))
    return caches


def _delete(path: Path) -> int:
    """Gives the bytes of a file; those of a folder are its blobs'."""
    if path.is_dir():
        shutil.rmtree(path)
        return 0
    size = path.stat().st_size
    path.unlink()
    return size
