"""`pluto stream`: a camera, a video or a folder, frame by frame, adapting on the way."""

import argparse
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pluto_edge import _text
from pluto_edge._files import write_bytes
from pluto_edge.cli.parsing import add_bundle, add_engine, add_force, add_json, add_modules, check_vacant
from pluto_edge.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from pluto_edge.observe.recording import Recording
    from pluto_edge.observe.session import Feed, Session
    from pluto_edge.runtime.finder import Finder
    from pluto_edge.runtime.runtime import Runtime

__all__ = ["add_options", "watch"]

VIEW = "127.0.0.1:8765"
SMALLEST = 1e-15  # p below this is not told apart from 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Watch a camera, a video, an address or a folder of images: every frame is predicted at once, and the\n"
        "stream adapts to what it sees, without labels. Ends with a table, on Ctrl-C and on SIGTERM, too."
    )
    parser.epilog = (
        "examples:\n"
        "  pluto stream bundle/ 0 --view                          # a camera, with a page to watch\n"
        "  pluto stream bundle/ rtsp://gate/live --budget 0.2 --state gate.safetensors\n"
        "  pluto stream bundle/ clip.mp4 --record run.jsonl       # then: pluto replay run.jsonl\n"
        "  pluto stream https://store.example/meter 0 --modules https://store.example --state gate.safetensors\n"
        "  pluto stream bundle/ frames/ --json | jq .             # the recording on stdout, as it is written\n"
        "\n"
        "`pluto predict` never learns; `pluto run` learns from whole folders in batches."
    )
    add_bundle(parser)
    parser.add_argument(
        "source",
        nargs="?",
        default="0",
        metavar="SOURCE",
        help="a camera's index, a video, an rtsp:// or http:// address, or a folder (default: 0, the first camera)",
    )
    add_options(parser)
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw accuracy or entropy, and module weights")
    add_force(parser)
    add_json(parser, "print the recording on stdout, line by line, and nothing else")


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of every program that watches a stream."""
    add = parser.add_argument
    add("--frames", type=int, metavar="N", help="stop after so many")
    add("--fps", type=float, help="no faster than this (default: as fast as it goes)")
    add("--seed", type=int, default=0, help="of a labelled folder's order (default: 0)")
    add("--batch", type=int, default=64, help="frames that a step learns from (default: 64)")
    add("--every", type=int, metavar="N", help="frames from one step to the next (default: as --batch)")
    add("--budget", type=float, help="up to 1: share of time for learning; above: milliseconds a step")
    add(
        "--background",
        action=argparse.BooleanOptionalAction,
        help="learn beside predictions (default: for cameras and addresses, so that no frame waits; elsewhere "
        "inline, so that a run is the same every time)",
    )
    add("--state", type=Path, metavar="FILE", help="go on from this file if it is there, save to it at the end")
    add_modules(parser)
    add("--record", type=Path, metavar="FILE", help="write every frame and event as a line of JSON, to a new file")
    add("--view", nargs="?", const=VIEW, metavar="HOST:PORT", help=f"a page to watch, at {VIEW}")
    add("--token", help="that the page asks for; needed on any other host")
    add_engine(parser)


def run(options: argparse.Namespace) -> int:
    from pluto_edge.observe import plot
    from pluto_edge.observe.session import Feed

    check_vacant(options.force, options.plot)
    if options.plot is not None:
        plot.check()
    return watch(options, [Feed.of(options.source, options.seed)])


def watch(options: argparse.Namespace, feeds: "Sequence[Feed]", shipped: str = "") -> int:
    """Play the feeds one after another, each as a run of its own, and report; what ended it early is raised."""
    from pluto_edge.manifest import Bundle
    from pluto_edge.observe.session import play
    from pluto_edge.runtime.runtime import Runtime

    session = _session(options, shipped)
    alone = session.view or session.state or options.modules or any(feed.live for feed in feeds)
    if len(feeds) > 1 and alone:
        raise ConfigError(
            "--seeds: several runs are of the simulated camera or a folder, without --view, --state and --modules"
        )
    recordings: list[Recording] = []
    problem: BaseException | None = None
    bundle = Bundle(options.bundle, verify=False)  # the runtime does
    with Runtime(options.bundle, options.providers, options.threads) as runtime, _ended_by_sigterm():
        finder = _finder(options, runtime)
        if not session.lines:
            print(_text.printable(runtime), flush=True)
        for number, feed in enumerate(feeds, options.seed):
            own = session.record
            if own is not None and len(feeds) > 1:
                own = own.with_stem(f"{own.stem}-{number}")
            recording, problem = play(runtime, bundle, feed, replace(session, record=own), finder)
            recordings += [recording] if recording.rows else []
            if problem is not None:
                break
    if recordings and not session.lines:
        report(recordings, options.plot)
        if finder is not None:
            print(f"\n{found(finder)}")
    if problem is not None and not isinstance(problem, KeyboardInterrupt):
        raise problem
    return 0


def _finder(options: argparse.Namespace, runtime: "Runtime") -> "Finder | None":
    """What looks for modules, and remembers them beside the state."""
    if options.modules is None:
        return None
    from pluto_edge.repository.source import module_source
    from pluto_edge.runtime.finder import Finder

    record = None if options.state is None else options.state.with_suffix(".modules.json")
    return Finder(runtime, module_source(options.modules, options.site), record)


def found(finder: "Finder") -> str:
    """The modules that were found, now or before, and what became of them."""
    words = {"joined": "joined", "trial": "is on trial", "dropped": "was dropped"}
    rows = [(f"module {f.name}", words[f.standing] + (f": {f.reason}" if f.reason else "")) for f in finder.found]
    return _text.pairs(rows) if rows else "no other module was found to fit"


def _session(options: argparse.Namespace, shipped: str) -> "Session":
    from pluto_edge.observe.session import Session

    for name in ("frames", "fps"):
        value = getattr(options, name)
        if value is not None and not value > 0:
            raise ConfigError(f"--{name}: want more than 0, got {value}")
    return Session(
        frames=options.frames,
        fps=options.fps,
        batch=options.batch,
        every=options.every,
        budget=options.budget,
        background=options.background,
        state=options.state,
        record=options.record,
        view=options.view,
        token=options.token,
        shipped=shipped,
        lines=getattr(options, "json", False),
    )


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """What stops a service ends a stream like Ctrl-C: with what was learned saved, and a summary."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def report(recordings: "Sequence[Recording]", picture: Path | None) -> None:
    """The table, the gains and the picture; where matplotlib is missing, what would draw it."""
    from pluto_edge.observe import plot, summary

    print(f"\n{summary.table(recordings)}")
    gains = compare(recordings)
    if gains:
        print(f"\n{_text.pairs(gains)}")
    if picture is None:
        return
    try:
        drawn = plot.png(recordings)
    except MissingExtraError as missing:
        print(f"\nno picture: {missing}")
        return
    picture.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(picture, drawn)
    print(f"\n{picture}")


def compare(recordings: "Sequence[Recording]") -> list[tuple[str, str]]:
    """The stream against each of the others, frame by frame: gain, and McNemar's exact p."""
    from pluto_edge.evaluate.significance import mcnemar
    from pluto_edge.observe import summary

    lines = []
    for rival in ("shipped", "average", "generalist", "without"):
        found = summary.paired(recordings, "adapted", rival)
        if found is None:
            continue
        p = mcnemar(found.better, found.worse)
        span = (
            f" ({100 * min(found.gains):+.1f} to {100 * max(found.gains):+.1f} a run)"
            if len(found.gains) > 1
            else ""
        )
        sure = f"p < {SMALLEST:.0e}" if p < SMALLEST else f"p = {p:.2g}"
        counts = f"{found.better:,} frames right where it is wrong, {found.worse:,} the other way round"
        name = summary.title(rival, recordings[0].header)
        lines.append((f"adapted over {name}", f"{100 * found.gain:+.1f} points{span}; {counts}, {sure}"))
    return lines
