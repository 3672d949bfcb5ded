"""A run of a stream as lines of JSON: a header, then a line for every frame and event, at the end the metrics.

Every line is handed to the system as it comes: a run that was killed leaves a file that can be read, but for a last
line that is not whole.
"""

import json
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, TextIO, cast

from pluto_edge._files import hold, is_held
from pluto_edge._schema import check_version, decode, encode
from pluto_edge.config import AdaptConfig
from pluto_edge.errors import ConfigError, RecordingError
from pluto_edge.observe.sources import Frame
from pluto_edge.runtime.types import Event, Point, StreamMetrics
from pluto_edge.version import WRITER

__all__ = ["Header", "Recorder", "Recording", "RivalLabels", "Row", "read"]

SCHEMA_VERSION = 1
KEPT = 50_000  # frames and events in memory
MAX_LINE = 1_000_000  # characters
DIGITS = 4


@dataclass(frozen=True)
class Header:
    """What was run: the bundle, the source and how it learned.

    `generalist` is the module of that role, `shipped` the one module that would have been shipped without this
    library; "" is none.
    """

    bundle: str
    bundle_sha256: str
    source: str
    classes: tuple[str, ...]
    modules: tuple[str, ...]
    batch: int
    every: int
    budget: float | None
    background: bool
    config: AdaptConfig
    generalist: str = ""
    shipped: str = ""
    started: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    writer: str = WRITER
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        for name in ("classes", "modules"):
            if not getattr(self, name):
                raise ConfigError(f"{name}: want at least one")


@dataclass(frozen=True)
class RivalLabels:
    """What a frame would have been called without adaptation.

    Attributes:
        alone: by each module on its own, as exported.
        average: by the mean of the specialists' logits.
        plain: by the bundle as it was exported, that is `Runtime.predict` of a new runtime.
    """

    alone: dict[str, int]
    average: int
    plain: int


@dataclass(frozen=True, slots=True)
class Row:
    """One frame: what was said of it, and what is known about it.

    Attributes:
        frame, seconds: its number from 1 on, and when it came.
        label, entropy, weights: the prediction, by class index and by module.
        truth: its class, where that is known.
        condition: what it was taken in, where that is known.
        plain: the label without adaptation, where that was computed.
        alone, average: by module its label on its own, and that of the specialists' plain average, all as exported,
            where that was computed (`observe/rivals.py`).
    """

    frame: int
    seconds: float
    label: int
    entropy: float
    weights: dict[str, float]
    truth: int | None = None
    condition: str = ""
    plain: int | None = None
    alone: dict[str, int] = field(default_factory=dict)
    average: int | None = None


@dataclass(frozen=True)
class Recording:
    """A run as far as it is known; without `metrics` it was killed, or is `running`."""

    header: Header
    rows: tuple[Row, ...]
    events: tuple[Event, ...]
    metrics: StreamMetrics | None = None
    running: bool = False


class Recorder:
    """Keeps the last frames and events of a run, and writes all of them to `path` and to `copy` if there are any.

    `event` may be called from any thread: it is what a stream's `on_event` takes. A file without any frame does
    not stay.
    """

    def __init__(self, header: Header, path: Path | None = None, copy: TextIO | None = None) -> None:
        self.header = header
        self.rows: deque[Row] = deque(maxlen=KEPT)
        self.events: deque[Event] = deque(maxlen=KEPT)
        self._lock = threading.Lock()
        self._path, self._file, self._copy = path, None, copy
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                # names of files may hold what is no text
                self._file = path.open("x", encoding="utf-8", errors="replace", buffering=1)
            except FileExistsError as cause:
                raise RecordingError(f"{path}: is there already; remove it or give another name") from cause
            hold(self._file)  # until it is closed: readers see that it is still written
        self._write("header", header)

    def frame(self, point: Point, frame: Frame, rivals: RivalLabels | None = None) -> Row:
        """Writes down a frame: what was said of it, and what is known about it."""
        row = Row(
            frame=point.frame,
            seconds=round(point.seconds, DIGITS),
            label=point.label,
            entropy=round(point.entropy, DIGITS),
            weights={n: round(w, DIGITS) for n, w in zip(point.modules, point.weights, strict=True)},
            truth=frame.truth,
            condition=frame.condition,
            plain=None if rivals is None else rivals.plain,
            alone={} if rivals is None else rivals.alone,
            average=None if rivals is None else rivals.average,
        )
        self.rows.append(row)
        self._write("frame", row)
        return row

    def event(self, event: Event) -> None:
        """Writes down an event; any thread may call this."""
        with self._lock:
            self.events.append(event)
        self._write("event", event)

    def last_events(self, count: int) -> list[Event]:
        """Oldest first."""
        with self._lock:
            return [self.events[-i] for i in range(min(count, len(self.events)), 0, -1)]

    def end(self, metrics: StreamMetrics) -> Recording:
        """The last line; what is kept of the run."""
        self._write("metrics", metrics)
        return Recording(self.header, tuple(self.rows), tuple(self.events), metrics)

    def close(self) -> None:
        """Closes the file; one without any frame is deleted."""
        if self._file is not None and self._path is not None:
            self._file.close()
            if not self.rows:
                self._path.unlink(missing_ok=True)

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _write(self, kind: str, value: object) -> None:
        if self._file is None and self._copy is None:
            return
        data = cast(dict[str, object], encode(value))
        line = json.dumps({"type": kind, **data}, allow_nan=False, ensure_ascii=False)
        with self._lock:
            if self._file is not None:
                self._file.write(line + "\n")
            if self._copy is not None:
                print(json.dumps({"type": kind, **data}, allow_nan=False), file=self._copy, flush=True)


def read(path: str | Path) -> Recording:
    """A recording; what is wrong with one is a `RecordingError` with the number of the line."""
    path = Path(path)
    running = is_held(path)  # asked first: it may end while it is read
    lines = _lines(path)
    first = next(lines, None)
    if first is None:
        raise RecordingError(f"{path}: is empty")
    where, kind, data = first
    if kind != "header":
        raise RecordingError(f"{where}: want a header (is this a recording?), got {kind!r}")
    check_version(data, SCHEMA_VERSION, where, RecordingError)
    header = decode(Header, data, where, RecordingError)
    rows: list[Row] = []
    events: list[Event] = []
    metrics = None
    for where, kind, data in lines:
        if kind == "frame":
            rows.append(_row(data, where, header, rows[-1].frame if rows else 0))
        elif kind == "event":
            events.append(decode(Event, data, where, RecordingError))
        elif kind == "metrics":
            metrics = decode(StreamMetrics, data, where, RecordingError)
        else:
            raise RecordingError(f"{where}: want a frame, an event or metrics, got {kind!r}")
    if not rows:
        raise RecordingError(f"{path}: holds no frame")
    return Recording(header, tuple(rows), tuple(events), metrics, running and metrics is None)


def _row(data: dict[str, Any], where: str, header: Header, last: int) -> Row:
    row = decode(Row, data, where, RecordingError)
    if row.frame <= last:
        raise RecordingError(f"{where}: frame {row.frame} comes after frame {last}")
    labels = {name: getattr(row, name) for name in ("label", "truth", "plain", "average")}
    for name, value in (labels | {f"alone.{n}": label for n, label in row.alone.items()}).items():
        if value is not None and not 0 <= value < len(header.classes):
            raise RecordingError(f"{where}: {name}: want a class from 0 to {len(header.classes) - 1}, got {value}")
    if not row.weights:
        raise RecordingError(f"{where}: weights: want at least one module")
    return row


def _lines(path: Path) -> Iterator[tuple[str, object, dict[str, Any]]]:
    """Where it is, its type and its data, for every whole line."""
    with path.open("rb") as file:
        for number in count(1):
            raw = file.readline(MAX_LINE)
            if not raw:
                return
            where = f"{path}, line {number}"
            if len(raw) == MAX_LINE:
                raise RecordingError(f"{where}: is longer than {MAX_LINE:,} bytes; is this a recording?")
            try:
                data = json.loads(raw, parse_constant=_refuse)
            except (ValueError, RecursionError) as cause:
                if not raw.endswith(b"\n") and number > 1:
                    return  # the run is writing this, or was killed while it did
                raise RecordingError(f"{where}: not valid JSON ({cause})") from cause
            if not isinstance(data, dict):
                raise RecordingError(f"{where}: want an object, got {type(data).__name__}")
            yield where, data.pop("type", None), data


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")
