"""`View`: a page that shows what a stream sees, says and learns, with buttons for reset, freeze and save.

    with View(stream) as view:
        print(view.url)
        for frame in camera:
            view.show(frame, stream(frame))

The page is one file, `view.html`, and asks nobody but this server. Who may ask is in `server.py`.
"""

import secrets
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from html import escape
from http import HTTPStatus
from importlib.resources import files
from pathlib import Path
from time import monotonic

import numpy as np
from numpy.typing import NDArray

from pluto_edge._look import STYLE
from pluto_edge.errors import ImageError, PlutoError
from pluto_edge.observe.moment import BUCKET, Caption, Chart, Moment, Shown
from pluto_edge.observe.server import Query, Refused, Reply, Server
from pluto_edge.runtime.stream.stream import Stream
from pluto_edge.runtime.stream.timeline import MAX_POINTS
from pluto_edge.runtime.types import Prediction

__all__ = ["View"]

REFRESH = 0.2  # seconds that a rendered state and picture serve everyone who asks
POLICY = (
    "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class View:
    """A page for one stream, served until `close`.

    Args:
        stream: that the page shows and its buttons act on.
        address: to listen on. Any but a loopback address needs a token.
        port: 0 picks a free one; `url` has it.
        token: at least 16 characters; `url` carries it, and the browser then has a cookie instead.
        save_to: file that the page's Save writes; None is no such button.
    """

    def __init__(
        self,
        stream: Stream,
        address: str = "127.0.0.1",
        port: int = 8765,
        token: str | None = None,
        save_to: str | Path | None = None,
    ) -> None:
        self._stream = stream
        self._save_to = None if save_to is None else Path(save_to)
        self._shown: Shown | None = None
        self._captions: deque[Caption] = deque(maxlen=MAX_POINTS // BUCKET)
        self._actions = threading.Lock()  # one button at a time
        self._rendering = threading.Lock()  # one page at a time: pages together cost no more than one thread
        self._chart = Chart()
        self._moment: Moment | None = None
        self._id = secrets.token_hex(8)  # a page that finds another one here loads itself again
        self._template = files("pluto_edge.observe").joinpath("view.html").read_text("utf-8")
        actions: dict[str, Callable[[], str]] = {
            "/reset": self._reset,
            "/freeze": self._freeze,
            "/resume": self._resume,
        }
        if self._save_to is not None:
            actions["/save"] = self._save
        self._server = Server(
            address,
            port,
            token,
            pages={"/": self._page, "/state": self._state},
            actions={path: partial(self._act, act) for path, act in actions.items()},
        )

    @property
    def url(self) -> str:
        """Where the page is; with the token, if there is one."""
        return self._server.url

    def show(self, frame: NDArray[np.uint8], prediction: Prediction, caption: str = "") -> None:
        """The newest frame (HWC, uint8, RGB) and what the stream said of it; costs next to nothing.

        The frame is not copied: do not write into it afterwards. The caption is for what a simulated camera
        knows to be true.
        """
        if frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != np.uint8:
            raise ImageError(f"view: want an HWC uint8 frame with 3 channels, got {frame.dtype} {frame.shape}")
        last = self._shown
        if caption != (last.caption if last else ""):
            points = self._stream.timeline
            self._captions.append((points[-1].frame if points else 0, caption))
        self._shown = Shown(last.number + 1 if last else 1, frame, prediction, caption, monotonic())

    def close(self) -> None:
        """The page is gone when this returns, and so are its threads."""
        self._server.stop()

    def __enter__(self) -> "View":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # What GET answers

    def _page(self, query: Query) -> Reply:
        nonce = secrets.token_urlsafe(16)
        values = {
            "look": STYLE,
            "nonce": nonce,
            "csrf": self._server.csrf,
            "server": self._id,
            "name": escape(self._stream.name),
            "save": "" if self._save_to else "hidden",
        }
        page = self._template
        for key, value in values.items():
            page = page.replace("{{" + key + "}}", value)
        policy = POLICY.format(nonce=nonce)
        return Reply(page.encode(), "text/html; charset=utf-8", headers={"Content-Security-Policy": policy})

    def _state(self, query: Query) -> Reply:
        """Everything that moves, without what the page has: the past up to frame `since`, the picture `have`."""
        since, have = _number(query, "since"), _number(query, "have")
        with self._rendering:
            if self._moment is None or monotonic() - self._moment.when > REFRESH:
                self._moment = Moment.of(self._stream, self._id, self._chart, self._shown, tuple(self._captions))
            return Reply(self._moment.reply(since, have), "application/json")

    # What POST does

    def _act(self, action: Callable[[], str]) -> Reply:
        try:
            with self._actions:
                return Reply.of_json({"done": action()})
        except (PlutoError, OSError) as error:
            return Reply.of_json({"error": str(error)}, HTTPStatus.INTERNAL_SERVER_ERROR)
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


def _number(query: Query, name: str) -> int:
    text = query.get(name, "0")
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise Refused(HTTPStatus.BAD_REQUEST, f"{name}: want a number")
    return int(text)
