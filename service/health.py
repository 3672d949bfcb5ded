"""Whether the service is alive and ready, and how each camera is doing, in words."""

from dataclasses import dataclass
from time import monotonic
from typing import Literal

from pluto_edge.runtime.algorithm.evidence import MOVED
from pluto_edge.service.camera import Camera
from pluto_edge.service.service import Service

__all__ = ["Health", "Trouble", "dead", "health", "order", "unready"]

BEAT = 15.0  # seconds after which the one who supervises, or a camera's thread, counts as stuck
PREDICTION = 60.0  # the same while a frame is predicted: the slowest device, with learning beside it
RECENT = 60.0  # seconds that a failure is trouble for
DISAGREES = 0.25  # share of the checked answers that adapting changes, from which somebody should look

Trouble = Literal["lost", "failing", "foreign", "disagrees", "fine"]
WORST_FIRST: tuple[Trouble, ...] = ("lost", "failing", "foreign", "disagrees", "fine")


@dataclass(frozen=True)
class Health:
    """How a camera is doing: the trouble it has, and a sentence about it."""

    trouble: Trouble
    text: str


def health(camera: Camera) -> Health:
    """The worst that can be said of a camera."""
    source = camera.source
    if not source.delivering:
        silent = f", for {_duration(monotonic() - source.last_frame)}" if source.taken else ""
        return Health("lost", f"{source.state.capitalize()}{silent}: {source.why}.")
    if camera.last_failure is not None and monotonic() - camera.last_failure[0] < RECENT:
        return Health("failing", f"Failing: {camera.last_failure[1]}")
    metrics = camera.metrics
    if metrics.misfit is not None and metrics.misfit >= MOVED:
        return Health("foreign", f"What it sees is foreign to {metrics.leader}: check its answers.")
    if metrics.differing is not None and metrics.differing >= DISAGREES:
        return Health("disagrees", f"Adapting changes {metrics.differing:.0%} of its answers.")
    if source.state == "ended":
        return Health("fine", "Its recording has ended.")
    if camera.stream.frozen:
        return Health("fine", "Predicting, not learning.")
    return Health("fine", "All is well." if metrics.steps else "All is well; it has not learned yet.")


def order(camera: Camera) -> tuple[int, str]:
    """Sorts cameras by trouble, then by name."""
    return WORST_FIRST.index(health(camera).trouble), camera.config.name


def dead(service: Service) -> list[str]:
    """Why the service should be restarted: parts of it that make no progress. Empty is alive."""
    now = monotonic()
    problems = [] if now - service.beat < BEAT else [f"nobody has looked after it for {now - service.beat:.0f} s"]
    for name, camera in service.cameras.items():
        if not camera.thread_alive:
            problems.append(f"{name}: its thread has ended")
        elif now - camera.alive > PREDICTION:
            problems.append(f"{name}: one frame has taken {now - camera.alive:.0f} s")
    return problems


def unready(service: Service) -> list[str]:
    """Why the service is of no use yet. Empty is ready: a bundle, and a camera that delivers or need not."""
    if not service.open:
        return ["no bundle is open"]
    cameras = tuple(service.cameras.values())
    if any(camera.source.delivering or camera.config.optional for camera in cameras):
        return []
    return [f"{camera.config.name}: {camera.source.state}: {camera.source.why}" for camera in cameras]


def _duration(seconds: float) -> str:
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s"
