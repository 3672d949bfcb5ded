"""What the page of a stream is told: a moment, rendered once however many pages ask for it."""

import io
import json
from base64 import b64encode
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import groupby
from time import monotonic
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pluto_edge.observe.words import explain
from pluto_edge.runtime.stream.stream import Stream
from pluto_edge.runtime.stream.timeline import MAX_POINTS
from pluto_edge.runtime.types import Event, Point, Prediction

__all__ = ["Caption", "Chart", "Moment", "Shown"]

BUCKET = 4  # frames that one point of the charts is the mean of: a full timeline is 500 points
RATE_FRAMES = 100  # that the frame rate is the mean of
SMALL = 128  # pixels: up to here a frame is sent exact (PNG), above as JPEG
LARGE = 960  # pixels: larger frames are scaled down
THUMBNAIL = 320  # pixels: the same on a page of many cameras

Caption = tuple[int, str]  # frame, and what is true from there on


@dataclass(frozen=True)
class Shown:
    """The newest frame and what was said of it; encoded when a browser first asks."""

    number: int
    frame: NDArray[np.uint8]
    prediction: Prediction
    caption: str
    when: float

    @cached_property
    def picture(self) -> str:
        """The frame as an address that a page can show."""
        return _address(self.frame, LARGE)

    @cached_property
    def thumbnail(self) -> str:
        """The same, small: one of many on a page."""
        return _address(self.frame, THUMBNAIL)


def _address(frame: NDArray[np.uint8], most: int) -> str:
    """Of a PNG where the frame is small, else of a JPEG of at most `most` pixels a side."""
    image = Image.fromarray(frame)
    image.thumbnail((most, most))
    out = io.BytesIO()
    kind = "png" if max(image.size) <= SMALL else "jpeg"
    image.save(out, kind)
    return f"data:image/{kind};base64,{b64encode(out.getvalue()).decode()}"


class Bucket(NamedTuple):
    """A few frames in a row, up to `frame`: mean entropy, and mean weights in thousandths."""

    frame: int
    entropy: float
    weights: dict[str, int]


class Chart:
    """The timeline as means over every few frames: few points, and what they leave out is not lost.

    Buckets that are whole are kept, so that only new frames are averaged.
    """

    def __init__(self) -> None:
        self._whole: deque[Bucket] = deque()

    def update(self, points: Sequence[Point]) -> tuple[Bucket, ...]:
        """The timeline's buckets; the last one may be of fewer frames, and the page asks for it again."""
        while self._whole and self._whole[0].frame < points[0].frame:
            self._whole.popleft()
        last = self._whole[-1].frame if self._whole else 0
        partial: list[Bucket] = []
        new = [p for p in points if p.frame > last]
        for _, members in groupby(new, key=lambda p: (p.frame - 1) // BUCKET):
            bucket = _bucket(list(members))
            (self._whole if bucket.frame % BUCKET == 0 else partial).append(bucket)
        return *self._whole, *partial


@dataclass(frozen=True)
class Moment:
    """A stream as it was when someone asked; every page that asks soon after is told the same."""

    when: float
    state: dict[str, object]
    chart: tuple[Bucket, ...]
    events: tuple[Event, ...]
    shown: Shown | None
    _replies: dict[tuple[int, int], bytes] = field(default_factory=dict)

    @classmethod
    def of(
        cls, stream: Stream, page: str, chart: Chart, shown: Shown | None, captions: Sequence[Caption]
    ) -> "Moment":
        """`page` is the server's mark: a page that finds another one loads itself again."""
        points = stream.timeline
        state = {
            "server": page,
            "frame": points[-1].frame if points else 0,
            "rate": _rate(points),
            "window": MAX_POINTS,
            "bucket": BUCKET,
            "most": len(stream.classes),
            "frozen": stream.frozen,
            "closed": stream.closed,
            "metrics": asdict(stream.metrics),
            "captions": [{"frame": f, "text": t} for f, t in captions],
        }
        return cls(monotonic(), state, chart.update(points), stream.events, shown)

    def reply(self, since: int, have: int) -> bytes:
        """As JSON, without points up to the frame `since`, events before it and the picture number `have`."""
        if (since, have) not in self._replies:
            told = {
                **self.state,
                "points": _points([b for b in self.chart if b.frame > since]),
                "events": [_brief(e) for e in self.events if e.frame >= since],
                "now": None if self.shown is None else _now(self.shown, have, self.when),
            }
            self._replies[since, have] = json.dumps(told, separators=(",", ":")).encode()
        return self._replies[since, have]


def _rate(points: Sequence[Point]) -> float:
    """Frames a second, lately."""
    recent = points[-RATE_FRAMES:]
    span = recent[-1].seconds - recent[0].seconds if recent else 0.0
    return (len(recent) - 1) / span if span > 0 else 0.0


def _bucket(members: Sequence[Point]) -> Bucket:
    count = len(members)
    total = dict[str, float]()
    for point in members:
        for name, weight in zip(point.modules, point.weights, strict=True):
            total[name] = total.get(name, 0.0) + weight
    entropy = round(sum(p.entropy for p in members) / count, 4)
    return Bucket(members[-1].frame, entropy, {n: round(1000 * w / count) for n, w in total.items()})


def _points(buckets: Sequence[Bucket]) -> dict[str, object]:
    """Weights are in the order of `modules`: all that any of the points has."""
    modules = list(dict.fromkeys(name for b in buckets for name in b.weights))
    return {
        "modules": modules,
        "frames": [b.frame for b in buckets],
        "entropy": [b.entropy for b in buckets],
        "weights": [[b.weights.get(name, 0) for name in modules] for b in buckets],
    }


def _brief(event: Event) -> dict[str, object]:
    return {
        "kind": event.kind,
        "frame": event.frame,
        "why": explain(event),
    }


def _now(shown: Shown, have: int, when: float) -> dict[str, object]:
    said = shown.prediction
    return {
        "number": shown.number,
        "age": when - shown.when,
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
