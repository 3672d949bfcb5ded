"""`Overview`: the page of all cameras, those in trouble first, and the button that reads the configuration anew."""

import secrets
import threading
from collections.abc import Callable, Mapping
from importlib.resources import files
from time import monotonic
from typing import Any

from pluto_edge._look import PAGE
from pluto_edge.observe.page import acted, html
from pluto_edge.observe.server import Query, Reply
from pluto_edge.service.camera import Camera
from pluto_edge.service.health import health, order
from pluto_edge.service.service import Service

__all__ = ["Overview"]

REFRESH = 0.5  # seconds that what was found serves everyone who asks
MAX_CHANGES = 12  # of all cameras


class Overview:
    """What the page of all cameras answers; `Web` serves it."""

    def __init__(self, service: Service, csrf: Callable[[], str]) -> None:
        self._service = service
        self._csrf = csrf
        self._id = secrets.token_hex(8)  # a page that finds another one here loads itself again
        self._template = files("pluto_edge.service").joinpath("overview.html").read_text("utf-8")
        self._rendering = threading.Lock()
        self._told: dict[str, Any] | None = None
        self._told_at = 0.0

    def pages(self) -> Mapping[str, Callable[[Query], Reply]]:
        """What GET answers."""
        return {"/": self._page, "/cameras": self._cameras}

    def actions(self) -> Mapping[str, Callable[[], Reply]]:
        """What POST does."""
        return {"/reload": lambda: acted(self._reload)}

    def _page(self, query: Query) -> Reply:
        return html(self._template, self._csrf(), {"server": self._id, "look": PAGE})

    def _cameras(self, query: Query) -> Reply:
        """All cameras, without the pictures that the page has already (`have=NAME:NUMBER,…`)."""
        have = dict(part.rpartition(":")[::2] for part in query.get("have", "").split(",") if part)
        with self._rendering:
            if self._told is None or monotonic() - self._told_at > REFRESH:
                self._told = self._tell()
                self._told_at = monotonic()
            told = self._told
        cameras = [c | {"picture": None} if have.get(c["name"]) == str(c["number"]) else c for c in told["cameras"]]
        return Reply.of_json({**told, "cameras": cameras})

    def _tell(self) -> dict[str, Any]:
        cameras = sorted(self._service.cameras.values(), key=order)
        happened = sorted((h, c.config.name) for c in cameras for h in tuple(c.happenings))
        return {
            "server": self._id,
            "status": self._service.status,
            "cameras": [_camera(camera) for camera in cameras],
            "happened": [
                {"when": h.when, "camera": name, "kind": h.kind, "text": h.text}
                for h, name in reversed(happened[-MAX_CHANGES:])
            ],
        }

    def _reload(self) -> str:
        return f"Reloaded: {self._service.reload()}."


def _camera(camera: Camera) -> dict[str, Any]:
    shown = camera.page.shown
    found = health(camera)
    metrics = camera.metrics
    points = camera.stream.timeline
    told: dict[str, Any] = {
        "name": camera.config.name,
        "trouble": found.trouble,
        "text": found.text,
        "frames": metrics.frames,
        "changes": camera.totals["changes"],
        "frozen": camera.stream.frozen,
        "number": 0,
        "picture": None,
    }
    if shown is None or not points:
        return told
    said = shown.prediction
    leader = int(said.weights[0].argmax())
    return told | {
        "number": shown.number,
        "picture": shown.thumbnail,
        "small": max(shown.frame.shape[:2]) <= 128,
        "label": said.classes[0],
        "confidence": float(said.confidence[0]),
        "module": said.modules[leader],
        "weight": float(said.weights[0][leader]),
    }
