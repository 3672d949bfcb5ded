"""What is measured of a service: one table, which Prometheus (`prometheus.py`) and OpenTelemetry (`otel.py`) read.

Labels are bounded: cameras by the configuration, modules of a camera by `MAX_MODULES`, all others by this file.
"""

import platform
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from math import log
from time import monotonic, time
from typing import Literal

from pluto_edge.runtime.types import Point, StreamMetrics
from pluto_edge.service.camera import Camera
from pluto_edge.service.health import WORST_FIRST, Trouble, health
from pluto_edge.service.service import Service
from pluto_edge.version import VERSION

__all__ = ["BUCKETS", "INSTRUMENTS", "PREDICTION", "Instrument", "Reading"]

RECENT = 100  # frames that entropy and weights are the mean of
MAX_MODULES = 32  # of a camera that have a series each; the weights of more are summed as `others`
# seconds: from a small ViT on a desktop to a large one on a single-board computer
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)

Sample = tuple[tuple[str, ...], float]  # the labels' values, and the number


@dataclass(frozen=True)
class CameraReading:
    """One camera at one moment."""

    name: str
    trouble: Trouble
    metrics: StreamMetrics
    totals: dict[str, int]
    recent: tuple[Point, ...]
    classes: int
    camera: Camera


@dataclass(frozen=True)
class Reading:
    """A service at one moment."""

    service: Service
    cameras: tuple[CameraReading, ...]

    @classmethod
    def of(cls, service: Service) -> "Reading":
        """As it is now."""
        return cls(service, tuple(map(_camera, service.cameras.values())))


def _camera(camera: Camera) -> CameraReading:
    points = camera.stream.timeline[-RECENT:]
    return CameraReading(
        camera.config.name,
        health(camera).trouble,
        camera.metrics,
        dict(camera.totals),
        points,
        len(camera.stream.classes),
        camera,
    )


@dataclass(frozen=True)
class Instrument:
    """Something that is measured. Prometheus knows it as `pluto_NAME_UNIT`, a counter with `_total` behind it."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    labels: tuple[str, ...]
    read: Callable[[Reading], Iterable[Sample]]
    unit: str = ""


PREDICTION = "prediction", "seconds", "Time that one frame takes to be predicted, preprocessing included."


def _each(value: Callable[[CameraReading], float | None], reading: Reading) -> Iterator[Sample]:
    """One number a camera, where it is known."""
    for camera in reading.cameras:
        found = value(camera)
        if found is not None:
            yield (camera.name,), float(found)


def _of_camera(
    kind: Literal["counter", "gauge"],
    name: str,
    help: str,
    value: Callable[[CameraReading], float | None],
    unit: str = "",
) -> Instrument:
    return Instrument(name, kind, help, ("camera",), partial(_each, value), unit)


OUTCOMES = {
    "committed": "steps",
    "gathered": "gathered",
    "rolled_back": "rolled_back",
    "failed": "failed",
    "skipped_busy": "skipped_busy",
    "skipped_budget": "skipped_budget",
}


def _steps(reading: Reading) -> Iterator[Sample]:
    for camera in reading.cameras:
        for outcome, name in OUTCOMES.items():
            yield (camera.name, outcome), camera.totals.get(name, 0)


def _weights(reading: Reading) -> Iterator[Sample]:
    for camera in reading.cameras:
        total: dict[str, float] = {}
        for point in camera.recent:
            for name, weight in zip(point.modules, point.weights, strict=True):
                total[name] = total.get(name, 0.0) + weight / len(camera.recent)
        ranked = sorted(total.items(), key=lambda item: -item[1])
        for name, weight in islice(ranked, MAX_MODULES):
            yield (camera.name, name), weight
        if len(ranked) > MAX_MODULES:
            yield (camera.name, "others"), sum(weight for _, weight in ranked[MAX_MODULES:])


def _entropy(camera: CameraReading) -> float | None:
    if not camera.recent or camera.classes < 2:
        return None
    return sum(p.entropy for p in camera.recent) / len(camera.recent) / log(camera.classes)


def _troubles(reading: Reading) -> Iterator[Sample]:
    for camera in reading.cameras:
        for trouble in WORST_FIRST:
            yield (camera.name, trouble), camera.trouble == trouble


def _saves(reading: Reading) -> Iterator[Sample]:
    for camera in reading.cameras:
        for outcome in ("saved", "failed"):
            yield (camera.name, outcome), camera.camera.saves[outcome]


def _last_frame(camera: CameraReading) -> float | None:
    source = camera.camera.source
    return time() - (monotonic() - source.last_frame) if source.taken else None


def _bundle(reading: Reading) -> Iterator[Sample]:
    if reading.service.open:
        runtime = reading.service.runtime
        manifest = runtime.manifest
        yield (runtime.bundle.hash, manifest.architecture, manifest.precision, runtime.provider), 1.0


def _build(reading: Reading) -> Iterator[Sample]:
    import onnxruntime

    yield (VERSION, platform.python_version(), onnxruntime.__version__), 1.0


def _reloads(reading: Reading) -> Iterator[Sample]:
    for outcome in ("done", "refused"):
        yield (outcome,), reading.service.reloads[outcome]


def _takeovers(reading: Reading) -> Iterator[Sample]:
    for outcome in ("taken", "refused"):
        yield (outcome,), reading.service.takeovers[outcome]


def _trial(reading: Reading) -> Iterator[Sample]:
    trial = reading.service.rollouts.trial
    if trial is not None:
        yield (trial.bundle,), trial.frames


def _found(reading: Reading) -> Iterator[Sample]:
    finder = reading.service.finder
    if finder is not None:
        for standing in ("trial", "joined", "dropped"):
            yield (standing,), sum(found.standing == standing for found in finder.found)


INSTRUMENTS = (
    Instrument(
        "build_info", "gauge", "Versions of what runs; always 1.", ("version", "python", "onnxruntime"), _build
    ),
    Instrument(
        "bundle_info",
        "gauge",
        "The bundle that runs; always 1.",
        ("bundle", "architecture", "precision", "provider"),
        _bundle,
    ),
    _of_camera("counter", "frames", "Frames that were predicted.", lambda c: c.totals.get("frames", 0)),
    _of_camera("counter", "frames_failed", "Frames whose prediction failed.", lambda c: c.camera.failures),
    _of_camera("counter", "frames_dropped", "Frames that newer ones took over.", lambda c: c.camera.source.dropped),
    _of_camera("gauge", "source_up", "1 while the camera delivers frames.", lambda c: c.camera.source.delivering),
    _of_camera(
        "counter",
        "source_reconnects",
        "Times that the camera was opened again.",
        lambda c: c.camera.source.reconnects,
    ),
    _of_camera(
        "counter", "source_stalls", "Times that frames stopped without an error.", lambda c: c.camera.source.stalls
    ),
    _of_camera("gauge", "last_frame_timestamp", "When the last frame came, since 1970.", _last_frame, "seconds"),
    Instrument("steps", "counter", "Steps of learning, by how they ended.", ("camera", "outcome"), _steps),
    _of_camera(
        "counter", "learning", "Time spent in steps of learning.", lambda c: c.camera.learning_seconds, "seconds"
    ),
    _of_camera("counter", "changes", "Changes of domain that were noticed.", lambda c: c.totals.get("changes", 0)),
    Instrument(
        "module_weight", "gauge", "Mean weight of a module over the last frames.", ("camera", "module"), _weights
    ),
    _of_camera("gauge", "entropy", "Mean entropy of the last frames, 1 is a guess.", _entropy, "ratio"),
    _of_camera(
        "gauge",
        "disagreement",
        "Share of the checked answers that differ from those of the exported bundle.",
        lambda c: c.metrics.differing,
        "ratio",
    ),
    _of_camera(
        "gauge",
        "misfit",
        "Distance of what the camera sees from what the leading module was trained on, 1 is none.",
        lambda c: c.metrics.misfit,
        "ratio",
    ),
    Instrument("camera_trouble", "gauge", "1 for the trouble that a camera has.", ("camera", "trouble"), _troubles),
    Instrument("state_saves", "counter", "Savings of what was learned.", ("camera", "outcome"), _saves),
    _of_camera(
        "counter", "states_set_aside", "Saved states that could not be restored.", lambda c: c.camera.set_aside
    ),
    Instrument("reloads", "counter", "Times that the configuration was read anew.", ("outcome",), _reloads),
    Instrument(
        "reload_worked",
        "gauge",
        "1 unless the last reload was refused.",
        (),
        lambda reading: [((), reading.service.last_reload_worked)],
    ),
    Instrument("bundle_takeovers", "counter", "Other bundles that were to take over.", ("outcome",), _takeovers),
    Instrument(
        "bundle_trial_frames", "gauge", "Frames that the bundle on trial has predicted.", ("bundle",), _trial
    ),
    _of_camera("gauge", "modules_on_trial", "Modules on trial.", lambda c: len(c.camera.stream.trials.names)),
    Instrument("modules_found", "gauge", "Modules that cameras found, by how they stand.", ("standing",), _found),
)
