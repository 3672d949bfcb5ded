"""A camera that adapts while it looks. With no arguments: a simulated one, on the bundle that ships, no torch.

The simulated camera reads meter digits (examples/digits) and changes condition every few hundred frames: fog, wind,
night, and glare, rain drops and frost, which no module was trained for. Every frame is predicted twice, by a stream
that adapts and by the bundle as it was exported. Labels are used for counting only.

    python examples/camera_stream.py                                # about a minute, then a table and a picture
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

from pluto_edge import Bundle, Runtime, Stream  # noqa: E402
from pluto_edge._files import write_bytes  # noqa: E402
from pluto_edge.errors import ConfigError, PlutoError  # noqa: E402
from pluto_edge.runtime import persistence, plot, summary  # noqa: E402
from pluto_edge.runtime.recording import Header, Recorder, Recording  # noqa: E402
from pluto_edge.runtime.sources import Frame, is_live, open_source, paced, public_name  # noqa: E402
from pluto_edge.runtime.terminal import open_display  # noqa: E402

FRAMES = HOLD * (len(STORY) + 1)  # the whole story, and clear again


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
    for name in ("frames", "fps", "hold"):
        value = getattr(options, name)
        if value is not None and not value > 0:
            parser.error(f"--{name}: want more than 0, got {value}")
    if options.frames is None and options.source == "sim" and options.view is None:
        options.frames = FRAMES
    if options.background is None:
        options.background = options.source != "sim" and is_live(options.source)
    return options


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    try:
        if options.plot is not None:
            plot.check()
        with Runtime(options.bundle, options.providers, options.threads) as runtime:
            print(runtime)
            recording, problem = play(runtime, options)
    except (PlutoError, OSError) as error:
        print(f"camera_stream: error: {error}", file=sys.stderr)
        return 2
    if recording.rows:
        report(recording, options.plot)
    if problem is not None:
        print(f"camera_stream: error: {problem}", file=sys.stderr)
    return 2 if problem is not None else 0


def play(runtime: Runtime, options: argparse.Namespace) -> tuple[Recording, Exception | None]:
    """Feed the stream until the source ends, breaks or is interrupted; what was recorded, and what broke."""
    problem: Exception | None = None
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
        view = stack.enter_context(open_view(stream, options)) if options.view else None
        if view is not None:
            print(f"watch it at {view.url}")
        display = stack.enter_context(closing(open_display(recorder)))
        try:
            for frame in islice(frames, options.frames):
                prediction = stream(frame.image)
                plain = int(runtime.predict(frame.image).labels[0]) if frame.truth is not None else None
                display.show(recorder.frame(stream.timeline[-1], frame, plain))
                if view is not None:
                    view.show(frame.image, prediction, frame.condition)
        except KeyboardInterrupt:
            pass
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
    )


def open_view(stream: Stream, options: argparse.Namespace) -> AbstractContextManager[Any]:
    from pluto_edge.runtime.view import View

    host, _, port = options.view.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(f"--view: want HOST:PORT, got {options.view!r}")
    save_to = options.state or Path("runs/camera_state.safetensors")
    save_to.parent.mkdir(parents=True, exist_ok=True)
    return View(stream, address=host, port=int(port), token=options.token, save_to=save_to)


def report(recording: Recording, picture: Path | None) -> None:
    print(f"\n{summary.table(recording)}")
    if picture is not None:
        picture.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(picture, plot.png(recording))
        print(f"\n{picture}")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C
    sys.exit(main())
