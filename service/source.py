"""`Source`: a camera's newest frame. What the camera does, opening, hanging or dying, holds up nobody else.

A thread takes frames as they come and keeps the newest; what nobody asked for in time is dropped and counted. A
camera that is lost is opened anew, later each time and not at the same moment as the others; one that says nothing
for too long is left to its thread, and another thread opens it anew.
"""

import logging
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Literal

from pluto_edge._text import printable
from pluto_edge.errors import ImageError
from pluto_edge.observe.sources import Frame, is_live, open_source, paced, public_name
from pluto_edge.service.config import CameraConfig

__all__ = ["Backoff", "Source", "SourceState", "open_camera"]

FIRST_DELAY = 1.0  # seconds before a camera is opened anew
LONGEST_DELAY = 60.0
MAX_HUNG = 3  # threads of one camera that hang at a time; more of them would help nobody

SourceState = Literal["opening", "live", "lost", "stalled", "ended"]
Open = Callable[[CameraConfig], Iterator[Frame]]

log = logging.getLogger("pluto_edge.service")


class Backoff:
    """How long to wait before the next attempt: twice as long each time, less a random part of up to a half."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng or random.Random()
        self._delay = FIRST_DELAY

    def failed(self, worked: float = 0.0) -> float:
        """Seconds to wait after an attempt that gave frames for `worked` seconds."""
        if worked > self._delay:
            self._delay = FIRST_DELAY
        delay = self._delay * self._rng.uniform(0.5, 1.0)
        self._delay = min(2 * self._delay, LONGEST_DELAY)
        return delay


@dataclass
class _Taker:
    """One thread that takes frames. `left` tells it that nobody wants them any more."""

    thread: threading.Thread
    left: threading.Event


class Source:
    """The newest frame of a camera, from `start` to `stop`.

    Args:
        config: of the camera.
        open: gives the frames; it is called in the thread that takes them.
        tell: is told what happened, as a kind and a sentence.
    """

    def __init__(self, config: CameraConfig, open: Open, tell: Callable[[str, str], None]) -> None:
        self.config = config
        self.state: SourceState = "opening"
        self.why = "it is being opened"
        self.reconnects = 0
        self.stalls = 0
        self.dropped = 0
        self.taken = 0  # frames that came
        self.last_frame = monotonic()  # when the last one came, or this was made
        self._asked = monotonic()  # since when it has been silent, though it was asked
        self._open = open
        self._tell = tell
        self._backoff = Backoff()
        self._new = threading.Condition()  # and the lock of everything here
        self._frame: Frame | None = None
        self._resting = False  # between attempts, or at the end: nobody is asked for frames
        self._hung: list[_Taker] = []
        self._taker: _Taker | None = None

    def start(self) -> None:
        """Begin to take frames."""
        with self._new:
            self._begin()

    def next(self, timeout: float) -> Frame | None:
        """The newest frame that nobody has had; None if none comes in time."""
        with self._new:
            if self._frame is None:
                self._new.wait(timeout)
            frame = self._frame
            self._frame = None
            return frame

    def watch(self) -> None:
        """Look whether the camera has stalled; called now and then by whoever supervises."""
        with self._new:
            self._hung = [t for t in self._hung if t.thread.is_alive()]
            silent = monotonic() - max(self._asked, self.last_frame)
            if self._taker is None or self._resting or silent < self.config.stall_after:
                return
            if self.state != "stalled":
                self.stalls += 1
                self._set("stalled", f"no frame for {silent:.0f} s, and no error; it is opened anew")
            if len(self._hung) < MAX_HUNG:
                self._taker.left.set()
                self._hung.append(self._taker)
                self.reconnects += 1
                self._begin()

    @property
    def delivering(self) -> bool:
        """Frames come, or have come to their end as they should."""
        return self.state in ("live", "ended")

    def stop(self, patience: float = 2.0) -> None:
        """No more frames. A thread that hangs in a driver is left behind; it ends when that lets it go."""
        with self._new:
            taker = self._taker
            self._taker = None
            self._frame = None
            self._new.notify_all()
        if taker is not None:
            taker.left.set()
            taker.thread.join(patience)

    def _begin(self) -> None:
        """The lock is held."""
        left = threading.Event()
        name = f"pluto-take-{self.config.name}"
        thread = threading.Thread(target=self._take, args=(left,), name=name, daemon=True)
        self._taker = _Taker(thread, left)
        self._asked = monotonic()
        thread.start()

    def _take(self, left: threading.Event) -> None:
        while not left.is_set():
            began = monotonic()
            before = self.taken
            frames: Iterator[Frame] | None = None
            try:
                frames = self._open(self.config)
                self._deliver(self._at_pace(frames), left)
                why = "" if self.taken > before else "it gave no frame"
                if is_live(self.config.source):
                    why = why or "it gives no more frames"
            except Exception as error:  # whatever a driver or a decoder raises: the camera is lost, not the service
                why = printable(error) or type(error).__name__
            finally:
                with suppress(Exception):
                    getattr(frames, "close", lambda: None)()
            if why:
                self._rest(why, monotonic() - began if self.taken > before else 0.0, left)
            elif not self.config.repeat:
                self._end(left)
                return

    def _at_pace(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        """A file gives frames as fast as they are read; a camera has a pace of its own."""
        return frames if is_live(self.config.source) else paced(frames, self.config.fps)

    def _deliver(self, frames: Iterator[Frame], left: threading.Event) -> None:
        for frame in frames:
            with self._new:
                if left.is_set():
                    return
                if self.state != "live":
                    self._set("live", f"frames come from {public_name(self.config.source)}")
                self.dropped += self._frame is not None
                self.taken += 1
                self.last_frame = monotonic()
                self._frame = frame
                self._new.notify_all()

    def _end(self, left: threading.Event) -> None:
        """A file came to its end."""
        with self._new:
            if not left.is_set():
                self._resting = True
                self._set("ended", f"{public_name(self.config.source)} has ended")

    def _rest(self, why: str, worked: float, left: threading.Event) -> None:
        """The camera is lost: wait, longer than the last time."""
        with self._new:
            if left.is_set():
                return
            delay = self._backoff.failed(worked)
            self._resting = True
            self._set("lost", f"{why}; trying again in {delay:.1f} s")
        left.wait(delay)
        with self._new:
            if not left.is_set():
                self._resting = False
                self.reconnects += 1
                self._asked = monotonic()

    def _set(self, state: SourceState, why: str) -> None:
        """The lock is held. The same trouble again is no news."""
        if state != self.state:
            self._tell(state, why)
        self.state = state
        self.why = why


def open_camera(config: CameraConfig, classes: tuple[str, ...]) -> Iterator[Frame]:
    """A camera's frames; images of a folder that cannot be read are logged and passed over."""

    def passed_over(error: ImageError) -> None:
        log.warning("%s: passed over: %s", config.name, printable(error))

    return open_source(config.source, classes, on_unreadable=passed_over)
