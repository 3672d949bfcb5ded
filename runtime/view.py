"""`View`: a page that shows what a stream sees, says and learns, with buttons for reset, freeze and save.

    with View(stream) as view:
        print(view.url)
        for frame in camera:
            view.show(frame, stream(frame))

The page is one file, `view.html`, and asks nobody but this server. Who may ask is in `server.py`.
"""

import io
import secrets
import threading
from base64 import b64encode
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from html import escape
from http import HTTPStatus
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from time import monotonic

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pluto_edge.errors import ImageError, PlutoError
from pluto_edge.runtime.events import Event
from pluto_edge.runtime.prediction import Prediction
from pluto_edge.runtime.server import Query, Refused, Reply, Server
from pluto_edge.runtime.stream import MAX_POINTS, Point, Stream

__all__ = ["View"]

BUCKET = 4  # frames that one point of the charts is the mean of: a full timeline is 500 points
RATE_FRAMES = 100  # that the frame rate is the mean of
SMALL = 128  # pixels: up to here a frame is sent exact (PNG), above as JPEG
LARGE = 960  # pixels: larger frames are scaled down
POLICY = (
    "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@dataclass(frozen=True)
class _Shown:
    """The newest frame and what was said of it; encoded when a browser first asks."""

    number: int
    frame: NDArray[np.uint8]
    prediction: Prediction
    caption: str
    when: float

    @cached_property
    def picture(self) -> str:
        image = Image.fromarray(self.frame)
        image.thumbnail((LARGE, LARGE))
        out = io.BytesIO()
        kind = "png" if max(image.size) <= SMALL else "jpeg"
        image.save(out, kind)
        return f"data:image/{kind};base64,{b64encode(out.getvalue()).decode()}"


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
        self._stream, self._save_to = stream, None if save_to is None else Path(save_to)
        self._shown: _Shown | None = None
        self._captions: deque[tuple[int, str]] = deque(maxlen=MAX_POINTS // BUCKET)  # frame, from there on
        self._actions = threading.Lock()  # one button at a time
        self._id = secrets.token_hex(8)  # a page that finds another one here loads itself again
        self._template = files("pluto_edge.runtime").joinpath("view.html").read_text("utf-8")
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
        self._shown = _Shown(last.number + 1 if last else 1, frame, prediction, caption, monotonic())

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
        """Everything that moves. `since` leaves out points up to that frame and events before it, `have` a
        picture that the page has already."""
        since, have = _number(query, "since"), _number(query, "have")
        stream, shown = self._stream, self._shown
        points = stream.timeline
        state = {
            "server": self._id,
            "frame": points[-1].frame if points else 0,
            "rate": _rate(points),
            "window": MAX_POINTS,
            "bucket": BUCKET,
            "most": stream.learner.network.bundle.manifest.dims.classes,
            "frozen": stream.frozen,
            "closed": stream.closed,
            "metrics": asdict(stream.metrics),
            "points": _buckets([p for p in points if p.frame > since]),
            "events": [_brief(e) for e in stream.events if e.frame >= since],
            "captions": [{"frame": f, "text": t} for f, t in tuple(self._captions)],
            "now": None if shown is None else _now(shown, have),
        }
        return Reply.of_json(state)

    # What POST does

    def _act(self, action: Callable[[], str]) -> Reply:
        try:
            with self._actions:
                return Reply.of_json({"done": action()})
        except (PlutoError, OSError) as error:
            return Reply.of_json({"error": str(error)}, HTTPStatus.INTERNAL_SERVER_ERROR)

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


def _rate(points: tuple[Point, ...]) -> float:
    """Frames a second, lately."""
    recent = points[-RATE_FRAMES:]
    span = recent[-1].seconds - recent[0].seconds if recent else 0.0
    return (len(recent) - 1) / span if span > 0 else 0.0


def _buckets(points: list[Point]) -> dict[str, object]:
    """Means over every few frames, so that a timeline is few points and what they leave out is not lost.

    The last one may be of fewer frames: the page asks for it again. Weights are in thousandths, in the order of
    `modules`: all that any of the points has.
    """
    modules = list(dict.fromkeys(name for p in points for name in p.modules))
    place = {name: i for i, name in enumerate(modules)}
    frames, entropies, weights = [], [], []
    for _, group in groupby(points, key=lambda p: (p.frame - 1) // BUCKET):
        members = list(group)
        total = np.zeros(len(modules))
        for p in members:
            total[[place[name] for name in p.modules]] += p.weights
        frames.append(members[-1].frame)
        entropies.append(round(sum(p.entropy for p in members) / len(members), 4))
        weights.append(np.rint(1000 * total / len(members)).astype(int).tolist())
    return {"modules": modules, "frames": frames, "entropy": entropies, "weights": weights}


def _brief(event: Event) -> dict[str, object]:
    return {
        "kind": event.kind,
        "frame": event.frame,
        "reason": event.reason,
        "top": event.top,
        "samples": event.samples,
        "reliable": event.reliable,
        "entropy": round(event.entropy_before, 4),
    }


def _now(shown: _Shown, have: int) -> dict[str, object]:
    said = shown.prediction
    return {
        "number": shown.number,
        "age": monotonic() - shown.when,
        "picture": None if shown.number == have else shown.picture,
        "width": shown.frame.shape[1],
        "height": shown.frame.shape[0],
        "caption": shown.caption,
        "label": said.classes[0],
        "confidence": float(said.probabilities[0].max()),
        "entropy": float(said.entropy[0]),
        "modules": said.modules,
        "weights": said.weights[0].astype(float).round(4).tolist(),
    }
