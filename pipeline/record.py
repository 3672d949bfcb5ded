"""What the stages of a build made, and of what: so that a stage whose input has not changed is not run again."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pluto_edge._files import sha256, write_text
from pluto_edge._schema import check_version, decode, read_json, to_text
from pluto_edge.errors import ConfigError
from pluto_edge.preprocess import image_files
from pluto_edge.store import Store
from pluto_edge.version import WRITER

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Stage:
    """A stage that was finished: digests of its input and of its result."""

    input: str
    result: str


@dataclass(frozen=True)
class Record:
    """`build.json`: the stages that were finished, by name."""

    stages: dict[str, Stage] = field(default_factory=dict)
    writer: str = WRITER
    schema_version: int = SCHEMA_VERSION

    def holds(self, name: str, stage: Stage) -> bool:
        """Whether this very result was made of this very input."""
        return self.stages.get(name) == stage

    def finished(self, name: str, stage: Stage) -> "Record":
        """The record with one more stage."""
        return replace(self, stages={**self.stages, name: stage})


def read_record(path: Path) -> Record:
    """An empty one where there is none yet."""
    if not path.exists():
        return Record()
    data = read_json(path, ConfigError)
    check_version(data, SCHEMA_VERSION, str(path), ConfigError)
    return decode(Record, data, path.name, ConfigError)


def write_record(path: Path, record: Record) -> None:
    """Whole, when a stage is finished."""
    write_text(path, to_text(record))


def digest_of(*described: object) -> str:
    """Of what JSON can write; paths and other things as their text."""
    return hashlib.sha256(json.dumps(described, sort_keys=True, default=str).encode()).hexdigest()


def images_digest(folders: Mapping[str, Path]) -> str:
    """Of all images' places, sizes and times of change: fast, where hashing them is not."""
    found = [[name, *_stamps(folder)] for name, folder in folders.items()]
    return digest_of(found)


def _stamps(folder: Path) -> Iterable[tuple[str, int, int]]:
    for file in image_files(folder):
        stat = file.stat()
        yield file.relative_to(folder).as_posix(), stat.st_size, stat.st_mtime_ns


def store_digest(path: Path) -> str:
    """Of all that an export reads of a store; nothing where there is no whole store."""
    if not (path / "store.json").is_file():
        return ""
    store = Store(path)
    files = [path / "store.json", store.backbone_file, store.selector_file, store.seen_file]
    for name in store.names:
        files += [store.module_file(name), store.module_file(name).with_name("adapter_config.json")]
    return digest_of([[f.relative_to(path).as_posix(), sha256(f)] for f in files if f.is_file()])
