"""`Camera`: a source, a stream and the thread between them, with what is known of how they are doing."""

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, perf_counter, time
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pluto_edge._schema import encode
from pluto_edge._text import printable
from pluto_edge.errors import PlutoError, StreamError
from pluto_edge.fleet.state import carry
from pluto_edge.observe.page import StreamPage
from pluto_edge.observe.sources import Frame
from pluto_edge.observe.words import explain
from pluto_edge.runtime.runtime import Runtime
from pluto_edge.runtime.stream.stream import Stream
from pluto_edge.runtime.types import Event, StreamMetrics
from pluto_edge.service import states
from pluto_edge.service.config import CameraConfig
from pluto_edge.service.source import Source

__all__ = ["Camera", "Happening", "Setting"]

TURN = 0.5  # seconds that the thread waits for a frame at most, so that it is seen to be alive
MAX_HAPPENINGS = 100
COUNTED = ("frames", "steps", "gathered", "rolled_back", "skipped_busy", "skipped_budget", "changes", "failed")

log = logging.getLogger("pluto_edge.service")


class Happening(NamedTuple):
    """Something to tell of a camera: when (seconds since 1970), what kind, and a sentence."""

    when: float
    kind: str
    text: str


@dataclass(frozen=True)
class Setting:
    """What cameras are given by their service.

    Attributes:
        open: gives a camera's frames, for a bundle of these classes.
        watched: is given every frame that was predicted; it must not wait.
        predicted: is told of every prediction: the camera's name, and how many seconds it took.
        csrf: the token that the buttons of pages bring.
        folder: for states.
    """

    open: Callable[[CameraConfig, tuple[str, ...]], Iterator[Frame]]
    watched: Callable[[NDArray[np.uint8]], None]
    predicted: Callable[[str, float], None]
    csrf: Callable[[], str]
    folder: Path


class Camera:
    """Predicts the newest frame of a source again and again, until `close`.

    What goes wrong with one frame, or with learning, is counted and told; the next frame is predicted all the same.
    """

    def __init__(self, config: CameraConfig, runtime: Runtime, budget: float, setting: Setting) -> None:
        self.config = config
        self.happenings: deque[Happening] = deque(maxlen=MAX_HAPPENINGS)
        self.failures = 0  # frames whose prediction failed
        self.last_failure: tuple[float, str] | None = None  # when (monotonic), and what
        self.saves: Counter[str] = Counter()
        self.set_aside = 0
        self.alive = monotonic()  # when the thread was last seen
        self._file = states.state_file(setting.folder, config.name)
        self._setting = setting
        self._learning_failures = 0
        self._past: Counter[str] = Counter()  # what streams before this one have counted
        self._past_learning = 0.0
        self._swap = threading.Lock()  # held while a frame is predicted, and to put another stream in
        self._saving = threading.Lock()
        self._closed = False
        self._stopping = threading.Event()
        self.source = Source(config, self._frames, self.tell)
        self.stream, self.page = self._open(runtime, budget)
        self._thread = threading.Thread(target=self._run, name=f"pluto-camera-{config.name}", daemon=True)

    def start(self) -> None:
        """Begin to take frames and to predict them."""
        self.source.start()
        self._thread.start()

    def tell(self, kind: str, text: str) -> None:
        """Keep and log what happened."""
        self.happenings.append(Happening(time(), kind, text))
        level = logging.WARNING if kind in ("lost", "stalled", "failing", "state") else logging.INFO
        fields = {"camera": self.config.name, "kind": kind}
        log.log(level, "%s: %s: %s", self.config.name, kind, printable(text), extra={"fields": fields})

    # What is known of it

    @property
    def totals(self) -> Counter[str]:
        """What `StreamMetrics` counts, of all streams that this camera has had."""
        return self._past + _counts(self.stream)

    @property
    def learning_seconds(self) -> float:
        """Spent in steps, by all streams that this camera has had."""
        return self._past_learning + self.stream.metrics.learning_seconds

    @property
    def metrics(self) -> StreamMetrics:
        """Of the stream that it has now."""
        return self.stream.metrics

    @property
    def thread_alive(self) -> bool:
        """Whether the thread that predicts is there."""
        return self._thread.is_alive()

    # What is done with it

    def take_over(self, before: Runtime, runtime: Runtime, budget: float) -> None:
        """Go on with another runtime from the next frame on.

        What was learned with the one before is saved first, and carried over as far as it is of use to the other.
        """
        with self._saving:  # nobody saves what belongs to the old stream over it
            self._save()
            self._carry(before, runtime)
            stream, page = self._open(runtime, budget)
            with self._swap:
                old = self.stream
                stream.frozen = old.frozen
                page.shown = self.page.shown
                self.stream, self.page = stream, page
                self._learning_failures = 0
        self._close(old)
        self._past += _counts(old)
        self._past_learning += old.metrics.learning_seconds

    def save(self) -> None:
        """Write what was learned; a disk that is full is told, and tried again the next time."""
        with self._saving:
            if not self._closed:  # else another camera of this name may have the file by now
                self._save()

    def _save(self) -> None:
        try:
            self.stream.save(self._file)
        except (PlutoError, OSError) as error:
            self.saves["failed"] += 1
            self.tell("state", f"not saved: {error}")
        else:
            self.saves["saved"] += 1

    def _carry(self, before: Runtime, runtime: Runtime) -> None:
        try:
            carried = carry(self._file, before, runtime)
        except (PlutoError, OSError) as error:  # what cannot be restored is set aside next
            self.tell("state", f"not carried over: {error}")
            return
        if carried.modules:
            self.tell("carried", f"what was learned goes on with {', '.join(carried.modules)}: {carried.reason}")
        elif carried.kept is not None:
            self.set_aside += 1
            self.tell("state", f"what was learned is kept as {carried.kept.name}: {carried.reason}")

    def watch(self) -> None:
        """Look whether the source has stalled or learning has failed; called now and then by the service."""
        self.source.watch()
        failed = self.stream.metrics.failed
        error = self.stream.error
        if failed > self._learning_failures and error is not None:
            self.last_failure = (monotonic(), str(error))
        self._learning_failures = failed

    def stop(self) -> None:
        """Ask it to end; `close` waits for that."""
        self._stopping.set()

    def close(self) -> None:
        """No more frames; what was learned is saved."""
        self.stop()
        self.source.stop()
        if self._thread.is_alive():
            self._thread.join()
        self._close(self.stream)
        self.save()
        with self._saving:
            self._closed = True

    def _open(self, runtime: Runtime, budget: float) -> tuple[Stream, StreamPage]:
        config = self.config
        stream = runtime.stream(
            config.name,
            batch=config.batch,
            every=config.every,
            budget=budget,
            on_change=config.on_change,
            on_event=self._on_event,
        )
        stream.frozen = not config.learn
        problem = states.restore(stream, self._file)
        if problem:
            self.set_aside += 1
            self.tell("state", problem)
        return stream, StreamPage(stream, self._setting.csrf, self._file, home="../../")

    def _close(self, stream: Stream) -> None:
        try:
            stream.close()
        except StreamError as error:
            self.tell("failing", str(error))

    def _on_event(self, event: Event) -> None:
        text = f"{event.kind} at frame {event.frame}: {explain(event)}"
        fields = {"camera": self.config.name, "event": encode(event)}
        log.info("%s: %s", self.config.name, printable(text), extra={"fields": fields})
        if event.kind in ("change", "reset", "restore", "module"):
            self.happenings.append(Happening(time(), event.kind, explain(event)))

    # The thread

    def _run(self) -> None:
        due = 0.0
        while not self._stopping.is_set():
            self.alive = monotonic()
            frame = self.source.next(TURN)
            if frame is None:
                continue
            self._predict(frame)
            due = max(due + 1 / self.config.fps, monotonic())
            while (rest := due - monotonic()) > 0 and not self._stopping.wait(min(rest, TURN)):
                self.alive = monotonic()

    def _frames(self, config: CameraConfig) -> Iterator[Frame]:
        return self._setting.open(config, self.stream.classes)

    def _predict(self, frame: Frame) -> None:
        with self._swap:
            began = perf_counter()
            try:
                prediction = self.stream(frame.image)
                self._setting.watched(frame.image)
                self.page.show(frame.image, prediction, frame.condition)
            except Exception as error:  # of one frame: it costs this prediction and nothing else
                self._failed(error)
                return
        self._setting.predicted(self.config.name, perf_counter() - began)

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        said = f"{type(error).__name__}: {error}"
        if self.last_failure is None or self.last_failure[1] != said:  # the same again is no news
            self.tell("failing", said)
        self.last_failure = (monotonic(), said)


def _counts(stream: Stream) -> Counter[str]:
    metrics = stream.metrics
    return Counter({name: getattr(metrics, name) for name in COUNTED})
