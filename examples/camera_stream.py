"""A camera that adapts while it looks. With no arguments: a simulated one, on the bundle that ships, no torch.

The simulated camera reads meter digits (examples/digits) and changes condition every few hundred frames: fog, wind,
night, and glare, rain drops and frost, which no module was trained for. A stream adapts. Beside it, on the same
frames and as exported, are the one module that one would ship (clear), the generalist alone, the plain average of
the specialists' logits and the bundle without adaptation. The oracle takes each condition's own module and, where
there is none, the one that turns out best. Labels are used for counting only.

    python examples/camera_stream.py                                # about a minute, then a table and a picture
    python examples/camera_stream.py --seeds 5                      # five such days: mean, spread and p-values
    python examples/camera_stream.py --view --fps 15                # the same as a page in the browser
    python examples/camera_stream.py --source 0 --bundle bundle/    # a camera; also clip.mp4, rtsp://..., frames/
    python examples/camera_stream.py --record runs/today.jsonl      # then: pluto replay runs/today.jsonl
"""

import argparse
import signal
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, closing
from itertools import islice
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "digits"))

from camera import HOLD, STORY, camera  # noqa: E402

from pluto_edge import Bundle, ConfigError, Frame, PlutoError, Recorder, Runtime, Stream, View, open_source  # noqa: E402
from pluto_edge.evaluate.significance import mcnemar  # noqa: E402
from pluto_edge.observe import plot, summary  # noqa: E402
from pluto_edge.observe.recording import Header, Recording  # noqa: E402
from pluto_edge.observe.rivals import Rivals  # noqa: E402
from pluto_edge.observe.sources import is_live, paced, public_name  # noqa: E402
from pluto_edge.observe.terminal import open_display  # noqa: E402
from pluto_edge.runtime import persistence  # noqa: E402

FRAMES = HOLD * (len(STORY) + 1)  # the whole story, and clear again
SHIPPED = "clear"  # the module that one would ship, if it had to be one
SMALLEST = 1e-15  # p below this is not told apart from 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="Learning is inline for the simulated camera, files and folders, so that a seed gives the same\n"
        "numbers every time, and in the background for cameras and addresses, so that no frame waits for it.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--source", default="sim", help="sim, a camera's index, a video, an rtsp:// or http:// address, a folder")
    add("--bundle", default=HERE / "digits/bundle", help="default: the digits that ship")
    add("--frames", type=int, help=f"stop after so many (default: {FRAMES} of the simulated camera without --view)")
    add("--fps", type=float, help="no faster than this (default: as fast as it goes)")
    add("--seed", type=int, default=0, help="of the simulated camera and a labelled folder's order (default: 0)")
    add("--seeds", type=int, default=1, help="runs, with this seed and those after it (default: 1)")
    add("--hold", type=int, default=HOLD, help=f"frames of each simulated condition (default: {HOLD})")
    add("--batch", type=int, default=64, help="frames that a step learns from (default: 64)")
    add("--every", type=int, help="frames from one step to the next (default: as --batch)")
    add("--budget", type=float, help="up to 1: share of time for learning; above: milliseconds a step")
    add("--background", action=argparse.BooleanOptionalAction, help="learn beside predictions (see below)")
    add("--state", type=Path, help="go on from this file if it is there, save to it at the end")
    add("--record", type=Path, metavar="FILE", help="write every frame and event as a line of JSON")
    add("--plot", type=Path, default=Path("runs/camera_stream.png"), help="default: runs/camera_stream.png")
    add("--no-plot", dest="plot", action="store_const", const=None, help="no picture (needs no matplotlib)")
    add("--view", nargs="?", const="127.0.0.1:8765", metavar="HOST:PORT", help="a page to watch, at 127.0.0.1:8765")
    add("--token", help="that the page asks for; needed on any other host")
    add("--providers", default="auto", help="auto, cpu or cuda (default: auto)")
    add("--threads", type=int, help="for ONNX Runtime (default: one per core)")
    options = parser.parse_args(arguments)
    for name in ("frames", "fps", "hold", "seeds"):
        value = getattr(options, name)
        if value is not None and not value > 0:
            parser.error(f"--{name}: want more than 0, got {value}")
    if options.seeds > 1 and (
        options.view or options.state or (options.source != "sim" and is_live(options.source))
    ):
        parser.error("--seeds: several runs are of the simulated camera or a folder, without --view and --state")
    if options.frames is None and options.source == "sim" and options.view is None:
        options.frames = FRAMES
    if options.background is None:
        options.background = options.source != "sim" and is_live(options.source)
    return options


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    recordings: list[Recording] = []
    problem: BaseException | None = None
    try:
        if options.plot is not None:
            plot.check()
        with Runtime(options.bundle, options.providers, options.threads) as runtime:
            print(runtime)
            for run in runs(options):
                recording, problem = play(runtime, run)
                recordings += [recording] if recording.rows else []
                if problem is not None:
                    break
    except (PlutoError, OSError) as error:
        print(f"camera_stream: error: {error}", file=sys.stderr)
        return 2
    if recordings:
        report(recordings, options.plot)
    if problem is None or isinstance(problem, KeyboardInterrupt):
        return 0
    print(f"camera_stream: error: {problem}", file=sys.stderr)
    return 2


def runs(options: argparse.Namespace) -> Iterator[argparse.Namespace]:
    """The options of every run: each has a seed and, if there are several, a recording of its own."""
    for seed in range(options.seed, options.seed + options.seeds):
        record = options.record
        if record is not None and options.seeds > 1:
            record = record.with_stem(f"{record.stem}-{seed}")
        yield argparse.Namespace(**{**vars(options), "seed": seed, "record": record})


def play(runtime: Runtime, options: argparse.Namespace) -> tuple[Recording, BaseException | None]:
    """Feed the stream until the source ends, breaks or is interrupted; what was recorded, and what ended it."""
    problem: BaseException | None = None
    with ExitStack() as stack:
        frames = stack.enter_context(closing(source(options, runtime)))
        recorder = stack.enter_context(Recorder(header(options, runtime), options.record))
        stream = runtime.stream(
            batch=options.batch,
            every=options.every,
            budget=options.budget,
            background=options.background,
            on_event=recorder.event,
        )
        if options.state is not None and persistence.saved(options.state):
            stream.restore(options.state)
        rivals = Rivals(stream.learner)
        view = stack.enter_context(open_view(stream, options)) if options.view else None
        if view is not None:
            print(f"watch it at {view.url}")
        display = stack.enter_context(closing(open_display(recorder)))
        try:
            for frame in islice(frames, options.frames):
                prediction = stream(frame.image)
                others = rivals(frame.image) if frame.truth is not None else None
                display.show(recorder.frame(stream.timeline[-1], frame, others))
                if view is not None:
                    view.show(frame.image, prediction, frame.condition)
        except KeyboardInterrupt as interrupt:
            problem = interrupt
        except (PlutoError, OSError) as error:  # the camera is lost, an image is broken: what was seen still counts
            problem = error
        stream.close()
        if options.state is not None and recorder.rows:
            stream.save(options.state)
        return recorder.end(stream.metrics), problem


def source(options: argparse.Namespace, runtime: Runtime) -> Iterator[Frame]:
    if options.source != "sim":
        frames = open_source(options.source, runtime.classes, options.seed)
    elif runtime.classes != tuple("0123456789"):
        raise ConfigError(f"the simulated camera shows digits, {options.bundle} has other classes; give --source")
    else:
        frames = camera(options.seed, options.hold)
    return frames if options.fps is None else paced(frames, options.fps)


def header(options: argparse.Namespace, runtime: Runtime) -> Header:
    return Header(
        bundle="/".join(Path(options.bundle).resolve().parts[-2:]),
        bundle_sha256=Bundle(options.bundle, verify=False).hash,
        source=f"sim, seed {options.seed}" if options.source == "sim" else public_name(options.source),
        classes=runtime.classes,
        modules=runtime.modules,
        batch=options.batch,
        every=options.every or options.batch,
        budget=options.budget,
        background=options.background,
        config=runtime.config,
        generalist=next((e.name for e in runtime.manifest.modules if e.role == "generalist"), ""),
        shipped=SHIPPED if SHIPPED in runtime.modules else "",
    )


def open_view(stream: Stream, options: argparse.Namespace) -> AbstractContextManager[Any]:
    host, _, port = options.view.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(f"--view: want HOST:PORT, got {options.view!r}")
    save_to = options.state or Path("runs/camera_state.safetensors")
    save_to.parent.mkdir(parents=True, exist_ok=True)
    return View(stream, address=host, port=int(port), token=options.token, save_to=save_to)


def report(recordings: list[Recording], picture: Path | None) -> None:
    print(f"\n{summary.table(recordings)}")
    gains = compare(recordings)
    if gains:
        print()
    for name, gain in gains:
        print(f"{name:28}  {gain}")
    if picture is not None:
        picture.parent.mkdir(parents=True, exist_ok=True)
        picture.write_bytes(plot.png(recordings))
        print(f"\n{picture}")


def compare(recordings: list[Recording]) -> list[tuple[str, str]]:
    """The stream against each of the others, frame by frame: gain, and McNemar's exact p."""
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


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C
    sys.exit(main())
