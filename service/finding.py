"""Modules that cameras find by themselves: one finder for all, with a record in the state folder."""

from collections.abc import Iterable
from pathlib import Path

from pluto_edge.repository.source import module_source
from pluto_edge.runtime.finder import Finder
from pluto_edge.runtime.runtime import Runtime
from pluto_edge.runtime.stream.stream import Stream
from pluto_edge.service.config import ServiceConfig

__all__ = ["find", "open_finder"]

FOUND = "modules.json"


def open_finder(config: ServiceConfig, runtime: Runtime) -> Finder | None:
    """None where the configuration names no modules. Those that have joined before join again."""
    if config.modules is None:
        return None
    finder = Finder(runtime, module_source(config.modules), Path(config.state) / FOUND)
    finder.resume()
    return finder


def find(finder: Finder, streams: Iterable[Stream]) -> None:
    """Look once for each stream that learns: trials are part of its steps."""
    for stream in streams:
        if not (stream.frozen or stream.closed):
            finder.resume(stream)
            finder.turn(stream)
