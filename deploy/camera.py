"""A camera as a service: predict, adapt, show the page, keep what was learned. For systemd and containers.

Everything is an environment variable:

    PLUTO_BUNDLE    the bundle (default: /bundle)
    PLUTO_SOURCE    a camera's index, a video, an rtsp:// or http:// address, a folder (default: 0)
    PLUTO_STATE     file that holds what was learned (default: none is kept)
    PLUTO_BUDGET    share of the time for learning (default: 0.2)
    PLUTO_FPS       frames a second, at most (default: 5)
    PLUTO_VIEW      address of the page (default: 127.0.0.1:8765)
    PLUTO_TOKEN     that the page asks for; needed where it listens on more than this machine
    PLUTO_ALIVE     file that is touched with every frame (default: none)

SIGTERM and Ctrl-C save the state and end it. A source that stops is exit code 1: whoever started it does so again.
"""

import os
import signal
import socket
import sys
from pathlib import Path
from time import monotonic

from pluto_edge import PlutoError, Runtime, Stream
from pluto_edge.observe.sources import open_source, paced, public_name
from pluto_edge.observe.view import View

SAVE_EVERY = 600.0  # seconds


def main() -> int:
    setting = os.environ.get
    source, state = setting("PLUTO_SOURCE", "0"), setting("PLUTO_STATE")
    host, _, port = setting("PLUTO_VIEW", "127.0.0.1:8765").rpartition(":")
    budget, fps = float(setting("PLUTO_BUDGET", "0.2")), float(setting("PLUTO_FPS", "5"))
    try:
        with (
            Runtime(setting("PLUTO_BUNDLE", "/bundle")) as runtime,
            runtime.stream(public_name(source), budget=budget) as stream,
            View(stream, host, int(port), token=setting("PLUTO_TOKEN"), save_to=state) as view,
        ):
            go_on(stream, state)
            print(f"{runtime}\npage at {host}:{port}", flush=True)
            tell("READY=1")
            try:
                watch(stream, view, source, fps, state, runtime.classes)
            except KeyboardInterrupt:
                return 0
            finally:
                tell("STOPPING=1")
                keep(stream, state)
    except (PlutoError, OSError) as error:
        print(f"camera: error: {error}", file=sys.stderr)
        return 1
    return 0


def watch(stream: Stream, view: View, source: str, fps: float, state: str | None, classes: tuple[str, ...]) -> None:
    alive, due = os.environ.get("PLUTO_ALIVE"), monotonic() + SAVE_EVERY
    for frame in paced(open_source(source, classes), fps):
        view.show(frame.image, stream(frame.image))
        tell("WATCHDOG=1")
        if alive:
            Path(alive).touch()
        if monotonic() > due:
            keep(stream, state)
            due = monotonic() + SAVE_EVERY


def go_on(stream: Stream, state: str | None) -> None:
    """From what was learned last time; a state of another bundle, or one that is damaged, is not worth a stop."""
    if state and any(Path(name).exists() for name in (state, f"{state}.previous")):
        try:
            stream.restore(state)
        except PlutoError as error:
            print(f"camera: {error}; starting fresh", file=sys.stderr, flush=True)


def keep(stream: Stream, state: str | None) -> None:
    if state:
        stream.save(state)


def tell(text: str) -> None:
    """systemd, if it wants to know (sd_notify)."""
    address = os.environ.get("NOTIFY_SOCKET")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.sendto(text.encode(), address.replace("@", "\0", 1) if address[0] == "@" else address)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C
    sys.exit(main())
