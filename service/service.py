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
from concurrent.futures import Future, wait
from contextlib import ExitStack
from pathlib import Path
from time import monotonic

from pluto_edge._text import printable
from pluto_edge.errors import ConfigError, PlutoError, StreamError
from pluto_edge.observe.errand import Errand
from pluto_edge.observe.sources import Frame
from pluto_edge.runtime.finder import Finder
from pluto_edge.runtime.runtime import Runtime
from pluto_edge.service import bundles, finding, notify, states
from pluto_edge.service.camera import Camera, Setting
from pluto_edge.service.config import MIN_SHARE, CameraConfig, ServiceConfig, read
from pluto_edge.service.rollouts import Rollouts
from pluto_edge.service.source import open_camera

__all__ = ["OpenCamera", "Service"]

PATIENCE = 2.0  # seconds that the end waits for somebody who waits for the network
TURN = 0.2  # seconds after which a reload that waits for the network looks whether the service is ending
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
        self.finder: Finder | None = None
        self.csrf: Callable[[], str] = str  # the page's, once there is one
        self.on_cameras: Callable[[], None] = lambda: None  # called when others are there, or have other pages
        self._predicted: list[Predicted] = []
        self._runtime: Runtime | None = None
        self._changing = threading.Lock()  # one reload at a time
        self.rollouts = Rollouts(self._changing, lambda new: self.take_over(new, self.config), self.takeovers)
        self._stopping = threading.Event()
        self._errands = (Errand("pluto-update", self.update), Errand("pluto-find", self._find))
        self._saver = threading.Thread(target=self._save_now_and_then, name="pluto-saves", daemon=True)
        self._stack = ExitStack()
        self._setting = Setting(
            open=open or open_camera,
            watched=self.rollouts.offer,
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
            wanted = bundles.find(self.config)
            first = self.rollouts.first(self.config, wanted)
            self._runtime = bundles.open_runtime(self.config, first)
            self.rollouts.ledger.adopt(first)
            self.finder = finding.open_finder(self.config, self._runtime)
            states.Running(os.getpid(), str(self.file.resolve())).write(folder)
            self._apply(self.config)
            if first.resolve() != wanted.resolve():
                self._try_at_start(wanted)
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
        updates, finds = self._errands
        if self.config.update_every:
            updates.turn(self.config.update_every)
        if self.finder is not None:
            finds.turn(self.config.find_every)

    def close(self) -> None:
        """End all cameras and save what they learned."""
        self._stopping.set()
        with self._changing:
            self.rollouts.put_off()
            cameras, self.cameras = self.cameras, {}
            for camera in cameras.values():
                camera.stop()
            for camera in cameras.values():
                camera.close()
            if self._saver.is_alive():
                self._saver.join()
            for errand in self._errands:
                errand.close(PATIENCE)
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
        engine = (config.providers, config.threads) != (self.config.providers, self.config.threads)
        if config.modules != self.config.modules:
            self.finder = finding.open_finder(config, self.runtime)
        done = self._renew(config, self._fetch(config), engine)
        return self._apply(config) + done

    def _fetch(self, config: ServiceConfig) -> Path:
        """The bundle's folder, found in a thread that may wait for the network: the end does not wait for it."""
        found: Future[Path] = Future()

        def look() -> None:
            try:
                found.set_result(bundles.find(config))
            except BaseException as error:
                found.set_exception(error)

        threading.Thread(target=look, name="pluto-fetch", daemon=True).start()
        while not wait([found], TURN).done:
            if self._stopping.is_set():
                raise ConfigError("the service is ending")
        return found.result()

    def update(self) -> None:
        """Look for a new release of the bundle; what goes wrong is logged, and everything stays as it was."""
        config = self.config
        try:
            folder = bundles.find(config)  # it may wait for the network, and holds no lock
            with self._changing:
                if self._stopping.is_set() or self.config.bundle != config.bundle:
                    return
                if not self.rollouts.ledger.refuses(bundles.digest(folder)):
                    self._renew(self.config, folder)
        except (PlutoError, OSError) as error:
            log.warning("no update of the bundle: %s", printable(error))

    def _renew(self, config: ServiceConfig, folder: Path, engine: bool = False) -> str:
        """Have the bundle in this folder on trial, or take over, if it is not the one that runs; says which."""
        try:
            digest = bundles.digest(folder)
            if digest == self.runtime.bundle.hash and not engine:
                self.rollouts.put_off()
                self.rollouts.ledger.adopt(folder)
                return ""
            if config.trial and digest != self.runtime.bundle.hash:
                self.rollouts.begin(config, self.runtime, folder, digest)
                return f", bundle {digest[:12]} on trial for {config.trial} frames"
            runtime = bundles.open_runtime(config, folder)
            shown = [camera.page.shown for camera in self.cameras.values()]
            bundles.check(runtime, [s.frame for s in shown if s is not None])
        except (PlutoError, OSError):
            self.takeovers["refused"] += 1
            raise
        self.rollouts.put_off()
        self.rollouts.said = ""
        self.rollouts.ledger.adopt(folder)
        self.take_over(runtime, config)
        return f", bundle {digest[:12]}"

    def take_over(self, runtime: Runtime, config: ServiceConfig) -> None:
        """The one place where a new runtime takes the cameras over, one after another, between two frames each."""
        old = self.runtime
        shares = config.shares
        self._runtime = runtime
        self.finder = finding.open_finder(config, runtime)
        for name, camera in self.cameras.items():
            camera.take_over(old, runtime, shares.get(name, MIN_SHARE))  # one that is not wanted any more goes next
        self.on_cameras()
        try:
            old.close()
        except StreamError as error:
            log.warning("the bundle before: %s", error)
        self.takeovers["taken"] += 1

    def _try_at_start(self, wanted: Path) -> None:
        """The configuration asks for a bundle that was not committed: it is new, or its last trial never ended."""
        try:
            with self._changing:
                self._renew(self.config, wanted)
        except (PlutoError, OSError) as error:
            self.rollouts.said = str(error)
            log.warning("going on with %s: %s", self.runtime.bundle.path, printable(error))

    def _find(self) -> None:
        if self.finder is not None:
            finding.find(self.finder, [camera.stream for camera in self.cameras.values()])

    def _apply(self, config: ServiceConfig) -> str:
        """Have the cameras that the configuration has; those whose settings stay go on without a gap."""
        wanted = {c.name: c for c in config.camera}
        shares = config.shares
        kept = {n: c for n, c in self.cameras.items() if n in wanted and c.config.same_stream(wanted[n])}
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
        parts = (f"{up} of {len(self.cameras)} cameras deliver frames", self.rollouts.status)
        return "; ".join(filter(None, parts))

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
