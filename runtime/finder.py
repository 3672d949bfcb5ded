"""`Finder`: a device that looks for modules by itself, puts them on trial, and remembers what became of them."""

import threading
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Literal

from pluto_edge._files import write_text
from pluto_edge._schema import check_version, decode, read_json, to_text
from pluto_edge.errors import ConfigError, PlutoError, StoreError
from pluto_edge.repository.index import HALF, Index, ModuleSource
from pluto_edge.runtime.engine.forks import renew_after_fork
from pluto_edge.runtime.stream.stream import Stream
from pluto_edge.runtime.suggestions import suggest
from pluto_edge.runtime.types import Suggestion, Suggestions

if TYPE_CHECKING:
    from pluto_edge.runtime.runtime import Runtime

__all__ = ["Finder", "Limits"]

SCHEMA_VERSION = 1
MAX_STARTS = 3  # of a module's trial: one that brings the device down each time is not begun again
MAX_FETCHES = 3  # that fail: then a module is not asked for again before a restart

Standing = Literal["trial", "joined", "dropped"]


@dataclass(frozen=True)
class Limits:
    """What one look around may fetch: so many modules, bytes and seconds; a fetch that is under way is finished."""

    modules: int = 3
    bytes: int = 64_000_000
    seconds: float = 60.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise ConfigError(f"{name}: want more than 0, got {value}")


@dataclass(frozen=True)
class Found:
    """A module that was found: where it is on the device, how it stands, how often its trial was begun, and in the
    stream of which name."""

    name: str
    target: str
    sha256: str
    folder: str
    standing: Standing
    starts: int = 1
    reason: str = ""
    stream: str = ""


@dataclass(frozen=True)
class _Record:
    """The file."""

    found: tuple[Found, ...] = ()
    schema_version: int = SCHEMA_VERSION


class Finder:
    """Suggests modules of a source to a runtime, and tries them in its streams.

    `look` is called now and then, in a thread that may wait for the network. With `record`, a file, it is known
    after a restart which modules have joined and which were dropped: `resume` takes that up, before a saved state
    is restored.
    """

    def __init__(
        self,
        runtime: "Runtime",
        source: ModuleSource,
        record: str | Path | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._runtime = runtime
        self._source = source
        self._limits = limits or Limits()
        self._file = None if record is None else Path(record)
        self._found = {} if self._file is None else _read(self._file)
        self._index: tuple[bytes, Index] | None = None
        self._failed: Counter[str] = Counter()  # fetches, by what was to be fetched
        self._trouble = ""  # of the last look around
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Called in a forked process: no lock is held there."""
        self._lock = threading.Lock()

    @property
    def found(self) -> tuple[Found, ...]:
        """All modules that were ever tried, as they stand."""
        return tuple(self._found.values())

    def suggest(self, stream: Stream | None = None, count: int = 5) -> Suggestions:
        """What would suit the recent images of the stream, or of the runtime's own steps; nothing is fetched."""
        if count < 1:
            raise ConfigError(f"count: want at least 1, got {count}")
        data = self._source.index()
        if self._index is None or self._index[0] != data:
            self._index = (data, Index.from_bytes(data))
        learner = self._runtime.learner if stream is None else stream.learner
        return suggest(learner, self._index[1], count)

    def look(self, stream: Stream | None, count: int = 5) -> Suggestions:
        """`suggest`, and where modules are needed: fetch the best that fit, within the limits, and try them."""
        if stream is None:
            raise ConfigError("auto: modules are tried in a stream; give the stream that is to try them")
        suggestions = self.suggest(stream, count)
        if not suggestions.needed:
            return suggestions
        fits = [m for m in suggestions.modules if m.fit >= HALF and self._is_new(m)]
        if fits:
            names = ", ".join(m.name for m in fits)
            stream.learner.note("trial", f"{suggestions.reason}; found: {names}")
        until = monotonic() + self._limits.seconds
        left = self._limits.bytes
        tried: list[str] = []
        for module in fits:
            room = self._limits.modules - len(stream.trials.names)
            if room < 1 or monotonic() > until:
                break
            if module.size <= left:
                left -= module.size
                tried += self._try(module, stream)
        return replace(suggestions, tried=tuple(tried))

    def turn(self, stream: Stream) -> None:
        """`look`, where nobody waits for the answer: what goes wrong is an event, once."""
        trouble = ""
        try:
            self.look(stream)
        except (PlutoError, OSError) as error:
            trouble = str(error)
        if trouble and trouble != self._trouble:
            stream.learner.note("trial", f"no module could be looked for: {trouble}")
        self._trouble = trouble

    def resume(self, stream: Stream | None = None) -> None:
        """After a restart: what has joined joins again; what was on trial in this stream is tried anew."""
        for found in self.found:
            running = self._runtime.modules if stream is None else (*self._runtime.modules, *stream.trials.names)
            if found.name in running or found.standing == "dropped":
                continue
            try:
                if found.standing == "joined":
                    self._runtime.add_module(found.folder)
                elif stream is not None and found.stream in ("", stream.name):
                    self._begin(replace(found, starts=found.starts + 1), stream)
            except (PlutoError, OSError) as error:
                self._drop(found, str(error), stream)

    def _is_new(self, module: Suggestion) -> bool:
        known = self._found.get(module.name)
        return (known is None or known.sha256 != module.sha256) and self._failed[module.sha256] < MAX_FETCHES

    def _try(self, module: Suggestion, stream: Stream) -> list[str]:
        try:
            folder = self._source.fetch(module.target)
        except (PlutoError, OSError) as error:  # the network may be back the next time
            self._failed[module.sha256] += 1
            stream.learner.note("trial", f"{module.name} could not be fetched: {error}")
            return []
        found = Found(module.name, module.target, module.sha256, str(folder), "trial", stream=stream.name)
        try:
            self._begin(found, stream)
        except (PlutoError, OSError) as error:
            self._drop(found, str(error), stream)
            return []
        return [module.name]

    def _begin(self, found: Found, stream: Stream) -> None:
        """The record first: a module that brings the device down is known when it is up again."""
        if found.starts > MAX_STARTS:
            raise StoreError(f"its trial was begun {MAX_STARTS} times, and never ended")
        self._note(found)

        def ended(name: str, joined: bool, reason: str) -> None:
            self._note(replace(found, standing="joined" if joined else "dropped", reason=reason))

        name = stream.try_module(found.folder, ended)
        if name != found.name:
            stream.trials.drop(name, f"the index calls it {found.name!r}")

    def _drop(self, found: Found, reason: str, stream: Stream | None) -> None:
        self._note(replace(found, standing="dropped", reason=reason))
        learner = self._runtime.learner if stream is None else stream.learner
        learner.note("trial", f"{found.name} was dropped: {reason}")

    def _note(self, found: Found) -> None:
        with self._lock:
            self._found[found.name] = found
            if self._file is not None:
                self._file.parent.mkdir(parents=True, exist_ok=True)
                write_text(self._file, to_text(_Record(self.found)))


def _read(file: Path) -> dict[str, Found]:
    """What was noted; nothing where there is no file. A damaged file raises: writes are whole or not at all."""
    if not file.exists():
        return {}
    data = read_json(file, StoreError)
    check_version(data, SCHEMA_VERSION, str(file), StoreError)
    return {f.name: f for f in decode(_Record, data, str(file), StoreError).found}
