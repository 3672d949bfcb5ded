"""`Service`: cameras over one runtime, supervised, saved now and then, and changed while they run.

    with Service(Path("serve.toml")) as service:
        while not stopped:
            service.watch()

Who may see it is in `web.py`, what is counted in `instruments.py`; signals and systemd are in `run.py`.
"""

import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from time import monotonic

from pluto_edge._text import printable
from pluto_edge.errors import ConfigError, ImageError, PlutoError, StreamError
from pluto_edge.observe.sources import Frame, open_source
from pluto_edge.runtime.runtime import Runtime
from pluto_edge.service import bundles, notify, states
from pluto_edge.service.camera import Camera, Setting
from pluto_edge.service.config import MIN_SHARE, CameraConfig, ServiceConfig, read

__all__ = ["OpenCamera", "Service"]

FIXED = ("state", "page", "token", "metrics", "otlp")  # keys that a reload cannot change
OpenCamera = Callable[[CameraConfig, tuple[str, ...]], Iterator[Frame]]
Predicted = Callable[[str, float], None]

log = logging.getLogger("pluto_edge.service")


class Service:
    """Runs from `start` (or `with`) to `close`.

    Args:
        file: the configuration, which `reload` reads anew.
        open: gives a camera's frames.
    """

    def __init__(self, file: Path, open: OpenCamera | None = None) -> None:
        self.file = file
        self.config = read(file)
        self.cameras: dict[str, Camera] = {}  # replaced, never changed: whoever reads it needs no lock
        self.beat = monotonic()  # when `watch` was last called
        self.reloads: Counter[str] = Counter()
        self.takeovers: Counter[str] = Counter()
        self.last_reload_worked = True
        self.csrf: Callable[[], str] = str  # the page's, once there is one
        self.on_cameras: Callable[[], None] = lambda: None  # called when others are there, or have other pages
        self._predicted: list[Predicted] = []
        self._runtime: Runtime | None = None
        self._changing = threading.Lock()  # one reload at a time
        self._stopping = threading.Event()
        self._saver = threading.Thread(target=self._save_now_and_then, name="pluto-saves", daemon=True)
        self._stack = ExitStack()
        self._setting = Setting(
            open=open or open_camera,
            predicted=self._tell_predicted,
            csrf=lambda: self.csrf(),
            folder=Path(self.config.state),
        )

    @property
    def runtime(self) -> Runtime:
        """What all cameras run on."""
        if self._runtime is None:
            raise ConfigError("the service has not been started")
        return self._runtime

    @property
    def open(self) -> bool:
        """Whether there is a bundle that cameras run on."""
        return self._runtime is not None and not self._stopping.is_set()

    def on_prediction(self, call: Predicted) -> None:
        """Have `call` told of every prediction: the camera's name, and how many seconds it took."""
        self._predicted.append(call)

    def start(self) -> None:
        """Open the bundle and the cameras; a camera that is not there is tried again and again."""
        folder = Path(self.config.state)
        self._stack.enter_context(states.occupied(folder))
        try:
            self._runtime = bundles.open_runtime(self.config)
            states.Running(os.getpid(), str(self.file.resolve())).write(folder)
            self._apply(self.config)
        except BaseException:
            self.close()
            raise
        self._saver.start()
        log.info("%s, %d cameras", printable(self.runtime), len(self.cameras))

    def watch(self) -> None:
        """Look after the cameras; whoever runs the service calls this about once a second."""
        self.beat = monotonic()
        for camera in self.cameras.values():
            camera.watch()

    def close(self) -> None:
        """End all cameras and save what they learned."""
        self._stopping.set()
        with self._changing:
            cameras, self.cameras = self.cameras, {}
            for camera in cameras.values():
                camera.stop()
            for camera in cameras.values():
                camera.close()
            if self._saver.is_alive():
                self._saver.join()
            if self._runtime is not None:
                self._runtime.close()
            self._stack.close()

    def __enter__(self) -> "Service":
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # Changes while it runs

    def reload(self) -> str:
        """Read the configuration and the bundle anew; says what was changed.

        What is wrong with them raises, and everything stays as it was.
        """
        with self._changing:
            if self._stopping.is_set():
                raise ConfigError("the service is ending")
            notify.reloading()
            try:
                done = self._reload()
            except (PlutoError, OSError) as error:
                self._reloaded("refused", str(error))
                raise
            self._reloaded("done", "")
            return done

    def _reload(self) -> str:
        config = read(self.file)
        for key in FIXED:
            if getattr(config, key) != getattr(self.config, key):
                raise ConfigError(f"{self.file}.{key}: cannot be changed while the service runs; restart it")
        runtime = self._other_runtime(config)
        if runtime is not None:
            self.take_over(runtime, config)
        return self._apply(config) + (f", bundle {runtime.bundle.hash[:12]}" if runtime else "")

    def take_over(self, runtime: Runtime, config: ServiceConfig) -> None:
        """The one place where a new runtime takes the cameras over, one after another, between two frames each."""
        old = self.runtime
        shares = config.shares
        self._runtime = runtime
        for name, camera in self.cameras.items():
            camera.take_over(runtime, shares.get(name, MIN_SHARE))  # one that the new configuration lacks goes next
        self.on_cameras()
        try:
            old.close()
        except StreamError as error:
            log.warning("the bundle before: %s", error)
        self.takeovers["taken"] += 1

    def _other_runtime(self, config: ServiceConfig) -> Runtime | None:
        """The runtime that the configuration asks for, checked; None where that is the one that runs."""
        same = (config.providers, config.threads) == (self.config.providers, self.config.threads)
        if same and bundles.is_current(config, self.runtime):
            return None
        shown = [camera.page.shown for camera in self.cameras.values()]
        try:
            runtime = bundles.open_runtime(config)
            if same and runtime.bundle.hash == self.runtime.bundle.hash:
                runtime.close()
                return None
            bundles.check(runtime, [s.frame for s in shown if s is not None])
        except (PlutoError, OSError):
            self.takeovers["refused"] += 1
            raise
        return runtime

    def _apply(self, config: ServiceConfig) -> str:
        """Have the cameras that the configuration has; those whose settings stay go on without a gap."""
        wanted = {c.name: c for c in config.camera}
        shares = config.shares
        kept = {n: c for n, c in self.cameras.items() if n in wanted and _same(c.config, wanted[n])}
        gone = [c for n, c in self.cameras.items() if n not in kept]
        self.cameras = kept
        self.on_cameras()
        for camera in gone:
            camera.stop()
        for camera in gone:
            camera.close()
        for name, camera in kept.items():
            camera.config = wanted[name]
            camera.stream.budget = shares[name]
        new = {n: Camera(c, self.runtime, shares[n], self._setting) for n, c in wanted.items() if n not in kept}
        self.config = config
        self.cameras = {name: kept.get(name) or new[name] for name in wanted}
        self.on_cameras()
        for camera in new.values():
            camera.start()
        both = len(new.keys() & {camera.config.name for camera in gone})
        return f"{len(kept)} cameras as before, {both} changed, {len(new) - both} new, {len(gone) - both} gone"

    def _reloaded(self, outcome: str, why: str) -> None:
        self.reloads[outcome] += 1
        self.last_reload_worked = outcome == "done"
        states.Running(os.getpid(), str(self.file.resolve()), self.reloads.total(), why).write(
            Path(self.config.state)
        )
        if why:
            log.error("reload refused, everything stays as it was: %s", printable(why))
        notify.ready(f"reload refused: {printable(why)}" if why else self.status)

    # What goes on by itself

    @property
    def status(self) -> str:
        """A line for whoever supervises the process."""
        up = sum(camera.source.delivering for camera in self.cameras.values())
        return f"{up} of {len(self.cameras)} cameras deliver frames"

    def save(self) -> None:
        """Write what every camera has learned."""
        for camera in self.cameras.values():
            camera.save()

    def _save_now_and_then(self) -> None:
        """In a thread of its own: a disk that hangs holds up nothing else."""
        while not self._stopping.wait(self.config.save_every):
            self.save()

    def _tell_predicted(self, camera: str, seconds: float) -> None:
        for call in self._predicted:
            call(camera, seconds)


def open_camera(config: CameraConfig, classes: tuple[str, ...]) -> Iterator[Frame]:
    """A camera's frames; images of a folder that cannot be read are logged and passed over."""

    def passed_over(error: ImageError) -> None:
        log.warning("%s: passed over: %s", config.name, printable(error))

    return open_source(config.source, classes, on_unreadable=passed_over)


def _same(old: CameraConfig, new: CameraConfig) -> bool:
    """But for the budget and whether it must be there, which change without a new stream."""
    return replace(old, budget=new.budget, optional=new.optional) == new
