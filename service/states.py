"""What cameras have learned, on disk: a file for each, and one service at a time that has the folder.

What cannot be restored is set aside and logged: a service that ends because of it would be started again, and end
again.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pluto_edge._files import hold, is_held, write_text
from pluto_edge._schema import decode, read_json, to_text
from pluto_edge.errors import ConfigError, PlutoError
from pluto_edge.runtime import persistence
from pluto_edge.runtime.stream.stream import Stream

__all__ = ["Running", "occupied", "restore", "running", "state_file"]

LOCK, RUNNING = "service.lock", "service.json"

log = logging.getLogger("pluto_edge.service")


@dataclass(frozen=True)
class Running:
    """What a service says of itself in its state folder: its process, and how its last reload ended.

    Attributes:
        pid: of the process, to which SIGHUP is sent.
        config: the file that it reads.
        reloads: how often it was asked to read it anew.
        refused: why the last of these was refused; "" if it was not.
    """

    pid: int
    config: str
    reloads: int = 0
    refused: str = ""

    def write(self, folder: Path) -> None:
        """Into the service's state folder."""
        write_text(folder / RUNNING, to_text(self))


def running(folder: Path) -> Running:
    """The service that has this state folder now."""
    if not is_held(folder / LOCK):
        raise ConfigError(f"{folder}: no service is running with this state folder; start it: pluto serve CONFIG")
    return decode(Running, read_json(folder / RUNNING, ConfigError), str(folder / RUNNING), ConfigError)


@contextmanager
def occupied(folder: Path) -> Iterator[None]:
    """Nobody else has this state folder as long as the block runs, or the process lives."""
    folder.mkdir(parents=True, exist_ok=True)
    if is_held(folder / LOCK):
        raise ConfigError(
            f"{folder}: another service is running with this state folder; stop it, or give `state` another folder"
        )
    with (folder / LOCK).open("w") as lock:
        hold(lock)
        yield


def state_file(folder: Path, camera: str) -> Path:
    """Where a camera's state is saved."""
    return folder / f"{camera}.safetensors"


def restore(stream: Stream, file: Path) -> str:
    """Go on from a saved state, if there is one; what cannot be restored is set aside, and why is returned."""
    if not persistence.saved(file):
        return ""
    try:
        stream.restore(file)
    except (PlutoError, OSError) as error:
        aside = set_aside(file)
        return f"{error}; it starts fresh, and the file is kept as {aside.name}"
    return ""


def set_aside(file: Path) -> Path:
    """Move both generations of a state out of the way; of earlier ones that were, nothing is kept."""
    aside = file.with_name(f"{file.stem}.aside{file.suffix}")
    for old, new in zip(persistence.generations(file), persistence.generations(aside), strict=True):
        if os.path.lexists(old):
            old.replace(new)
        else:
            new.unlink(missing_ok=True)
    return aside
