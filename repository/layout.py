"""What a repository holds, and under which names."""

from dataclasses import dataclass
from pathlib import Path

__all__ = ["IndexEntry"]


@dataclass(frozen=True)
class IndexEntry:
    """A module that is published: its target and what that is known by, its name, and the folder it came from."""

    target: str
    sha256: str
    size: int
    name: str
    folder: Path
