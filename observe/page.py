"""`StreamPage`: what the page of one stream answers, without the server that is asked for it.

`View` serves one of them at `/`; `pluto serve` has one for each camera, below `/camera/NAME/`. The page is one
file, `view.html`, and asks nobody but the server it came from. Who may ask is in `server.py`.
"""

import secrets
import threading
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from html import escape
from http import HTTPStatus
from importlib.resources import files
from pathlib import Path
from time import monotonic

import numpy as np
from numpy.typing import NDArray

from pluto_edge._look import STREAM
from pluto_edge.errors import ImageError, PlutoError
from pluto_edge.observe.moment import BUCKET, Caption, Chart, Moment, Shown
from pluto_edge.observe.server import Query, Refused, Reply
from pluto_edge.runtime.stream.stream import Stream
from pluto_edge.runtime.stream.timeline import MAX_POINTS
from pluto_edge.runtime.types import Prediction

__all__ = ["REFRESH", "StreamPage", "acted", "html"]

REFRESH = 0.2  # seconds that a rendered state and picture serve everyone who asks
POLICY = (
    "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class StreamPage:
    """The page of one stream, its state as JSON, and its buttons.

    Args:
        stream: that the page shows and its buttons act on.
        csrf: gives the server's token, which buttons must bring.
        save_to: file that the page's Save writes; None is no such button.
        home: where the page of all streams is, as seen from this one; "" is no link.
    """

    def __init__(
        self, stream: Stream, csrf: Callable[[], str], save_to: str | Path | None = None, home: str = ""
    ) -> None:
        self._stream = stream
        self._csrf = csrf
        self._save_to = None if save_to is None else Path(save_to)
        self._home = f'<a class="home" href="{escape(home)}">All cameras</a>' if home else ""
        self.shown: Shown | None = None
        self._captions: deque[Caption] = deque(maxlen=MAX_POINTS // BUCKET)
        self._acting = threading.Lock()  # one button at a time
        self._rendering = threading.Lock()  # one page at a time: pages together cost no more than one thread
        self._chart = Chart()
        self._moment: Moment | None = None
        self._id = secrets.token_hex(8)  # a page that finds another one here loads itself again
        self._template = files("pluto_edge.observe").joinpath("view.html").read_text("utf-8")

    def pages(self, prefix: str = "/") -> Mapping[str, Callable[[Query], Reply]]:
        """What GET answers, by path below `prefix`."""
        return {prefix: self._page, f"{prefix}state": self._state}

    def actions(self, prefix: str = "/") -> Mapping[str, Callable[[], Reply]]:
        """What POST does, by path below `prefix`."""
        actions = {"reset": self._reset, "freeze": self._freeze, "resume": self._resume}
        if self._save_to is not None:
            actions["save"] = self._save
        return {f"{prefix}{name}": partial(self._act, act) for name, act in actions.items()}

    def show(self, frame: NDArray[np.uint8], prediction: Prediction, caption: str = "") -> None:
        """The newest frame (HWC, uint8, RGB) and what the stream said of it; costs next to nothing.

        The frame is not copied: do not write into it afterwards. The caption is for what a simulated camera
        knows to be true.
        """
        if frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != np.uint8:
            raise ImageError(f"view: want an HWC uint8 frame with 3 channels, got {frame.dtype} {frame.shape}")
        last = self.shown
        if caption != (last.caption if last else ""):
            points = self._stream.timeline
            self._captions.append((points[-1].frame if points else 0, caption))
        self.shown = Shown(last.number + 1 if last else 1, frame, prediction, caption, monotonic())

    # What GET answers

    def _page(self, query: Query) -> Reply:
        values = {
            "server": self._id,
            "name": escape(self._stream.name),
            "save": "" if self._save_to else "hidden",
            "home": self._home,
            "look": STREAM,
        }
        return html(self._template, self._csrf(), values)

    def _state(self, query: Query) -> Reply:
        """Everything that moves, without what the page has: the past up to frame `since`, the picture `have`."""
        since, have = _number(query, "since"), _number(query, "have")
        with self._rendering:
            if self._moment is None or monotonic() - self._moment.when > REFRESH:
                self._moment = Moment.of(self._stream, self._id, self._chart, self.shown, tuple(self._captions))
            return Reply(self._moment.reply(since, have), "application/json")

    # What POST does

    def _act(self, action: Callable[[], str]) -> Reply:
        try:
            with self._acting:
                return acted(action)
        finally:
            with self._rendering:
                self._moment = None  # who pressed the button sees what it did

    def _reset(self) -> str:
        self._stream.reset()
        return "Reset to the exported weights."

    def _freeze(self) -> str:
        self._stream.frozen = True
        return "Frozen: predicting without learning."

    def _resume(self) -> str:
        self._stream.frozen = False
        return "Learning again."

    def _save(self) -> str:
        assert self._save_to is not None
        self._stream.save(self._save_to)
        return f"Saved to {self._save_to}."


def html(template: str, csrf: str, values: Mapping[str, str]) -> Reply:
    """A page of one file: `{{name}}` becomes its value, and nothing runs in it but its own script."""
    nonce = secrets.token_urlsafe(16)
    page = template
    for key, value in {"nonce": nonce, "csrf": csrf, **values}.items():
        page = page.replace("{{" + key + "}}", value)
    policy = POLICY.format(nonce=nonce)
    return Reply(page.encode(), "text/html; charset=utf-8", headers={"Content-Security-Policy": policy})


def acted(action: Callable[[], str]) -> Reply:
    """What a button did in a sentence, or why it did not."""
    try:
        return Reply.of_json({"done": action()})
    except (PlutoError, OSError) as error:
        return Reply.of_json({"error": str(error)}, HTTPStatus.INTERNAL_SERVER_ERROR)


def _number(query: Query, name: str) -> int:
    text = query.get(name, "0")
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise Refused(HTTPStatus.BAD_REQUEST, f"{name}: want a number")
    return int(text)
