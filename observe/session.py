"""A stream from its first frame to its last: predicted, learned from, recorded and shown.

`pluto stream` is this with options; in a program of one's own:

    bundle = Bundle("bundle/")
    with Runtime(bundle.path) as runtime:
        feed = Feed.of("rtsp://camera/live")
        recording, problem = play(runtime, bundle, feed, Session(budget=0.2, record=Path("run.jsonl")))
"""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from pluto_edge._schema import encode
from pluto_edge.errors import ConfigError, PlutoError
from pluto_edge.manifest import Bundle
from pluto_edge.observe.errand import Errand
from pluto_edge.observe.recording import Header, Recorder, Recording
from pluto_edge.observe.rivals import Rivals
from pluto_edge.observe.sources import Frame, is_live, open_source, paced, passed_over, public_name
from pluto_edge.observe.terminal import describe, open_display
from pluto_edge.observe.view import View
from pluto_edge.runtime import persistence
from pluto_edge.runtime.finder import Finder
from pluto_edge.runtime.runtime import Runtime
from pluto_edge.runtime.stream.stream import Stream
from pluto_edge.runtime.types import Event

__all__ = ["Ended", "Feed", "Session", "play"]

PAUSE = 30.0  # seconds at least, from one look for modules in the background to the next
PATIENCE = 10.0  # seconds that the end of a run waits for one
SAVED = Path("runs/camera_state.safetensors")  # what the page's Save writes where no state was named

log = logging.getLogger("pluto_edge.stream")


@dataclass(frozen=True)
class Feed:
    """What a stream is fed.

    Attributes:
        name: of the source, as a recording has it.
        open: gives the frames; it is called with the bundle's classes.
        live: its frames come when they come; such a stream learns in the background.
    """

    name: str
    open: Callable[[tuple[str, ...]], Iterator[Frame]]
    live: bool = False

    @classmethod
    def of(cls, source: str, seed: int = 0) -> "Feed":
        """What `open_source` takes; images that cannot be read are named on stderr and passed over."""
        return cls(
            public_name(source), lambda classes: open_source(source, classes, seed, passed_over), is_live(source)
        )


@dataclass(frozen=True)
class Session:
    """How a stream is run; None leaves out what it is about.

    Attributes:
        frames, fps: stop after so many; take them no faster.
        batch, every, budget, background: of `Runtime.stream`; without `background`, live feeds learn there.
        state: go on from this file if it is there, and save to it at the end.
        record: write every frame and event down.
        view, token: HOST:PORT of a page to watch, and what it asks for.
        shipped: the module that one would ship alone, for a comparison where labels are known.
        lines: print the recording on stdout instead of showing the run.
    """

    frames: int | None = None
    fps: float | None = None
    batch: int = 64
    every: int | None = None
    budget: float | None = None
    background: bool | None = None
    state: Path | None = None
    record: Path | None = None
    view: str | None = None
    token: str | None = None
    shipped: str = ""
    lines: bool = False


class Ended(NamedTuple):
    """What was recorded, and what ended it: None is the feed's own end."""

    recording: Recording
    problem: BaseException | None


def play(runtime: Runtime, bundle: Bundle, feed: Feed, session: Session, finder: Finder | None = None) -> Ended:
    """Feed a stream until its frames end or break, or the user interrupts; what was seen until then counts.

    With a finder it looks for other modules as often as a step is due, in the background where it learns there.
    """
    problem: BaseException | None = None
    background = feed.live if session.background is None else session.background
    with ExitStack() as stack:
        if finder is not None:
            finder.resume()
        frames = _frames(feed, session, runtime)
        stack.callback(getattr(frames, "close", lambda: None))
        header = _header(runtime, bundle, feed, session, background)
        recorder = stack.enter_context(Recorder(header, session.record, sys.stdout if session.lines else None))

        def on_event(event: Event) -> None:
            recorder.event(event)
            log.info("%s", describe(event).strip(), extra={"fields": {"event": encode(event)}})

        stream = runtime.stream(
            batch=session.batch,
            every=session.every,
            budget=session.budget,
            background=background,
            on_event=on_event,
        )
        if session.state is not None and persistence.saved(session.state):
            stream.restore(session.state)
        look = stack.enter_context(_looking(finder, stream, background))
        rivals = Rivals(stream.learner)
        view = stack.enter_context(_view(stream, session.view, session)) if session.view is not None else None
        if view is not None:
            print(f"watch it at {view.url}", file=sys.stderr if session.lines else sys.stdout, flush=True)
        display = stack.enter_context(closing(open_display(recorder))) if not session.lines else None
        try:
            for frame in islice(frames, session.frames):
                prediction = stream(frame.image)
                others = rivals(frame.image) if frame.truth is not None else None
                row = recorder.frame(stream.timeline[-1], frame, others)
                if display is not None:
                    display.show(row)
                if view is not None:
                    view.show(frame.image, prediction, frame.condition)
                look()
        except KeyboardInterrupt as interrupt:
            problem = interrupt
        except (PlutoError, OSError) as error:  # the camera is lost: what was seen still counts
            problem = error
        stream.close()
        if session.state is not None and recorder.rows:
            stream.save(session.state)
        return Ended(recorder.end(stream.metrics), problem)


@contextmanager
def _looking(finder: Finder | None, stream: Stream, background: bool) -> Iterator[Callable[[], None]]:
    """What is called after every frame, and has the finder look when it is time."""
    if finder is None:
        yield lambda: None
        return
    finder.resume(stream)
    errand = Errand("pluto-find", partial(finder.turn, stream))

    def look() -> None:
        if stream.learner.frames % stream.buffer.every:
            return
        if background:
            errand.turn(PAUSE)
        else:
            finder.turn(stream)

    try:
        yield look
    finally:
        errand.close(PATIENCE)


def _frames(feed: Feed, session: Session, runtime: Runtime) -> Iterator[Frame]:
    frames = feed.open(runtime.classes)
    return frames if session.fps is None else paced(frames, session.fps)


def _header(runtime: Runtime, bundle: Bundle, feed: Feed, session: Session, background: bool) -> Header:
    return Header(
        bundle="/".join(bundle.path.resolve().parts[-2:]),
        bundle_sha256=bundle.hash,
        source=feed.name,
        classes=runtime.classes,
        modules=runtime.modules,
        batch=session.batch,
        every=session.every or session.batch,
        budget=session.budget,
        background=background,
        config=runtime.config,
        generalist=next((e.name for e in runtime.manifest.modules if e.role == "generalist"), ""),
        shipped=session.shipped if session.shipped in runtime.modules else "",
    )


def _view(stream: Stream, address: str, session: Session) -> View:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(f"--view: want HOST:PORT, got {address!r}")
    save_to = session.state or SAVED
    save_to.parent.mkdir(parents=True, exist_ok=True)
    return View(stream, address=host, port=int(port), token=session.token, save_to=save_to)
