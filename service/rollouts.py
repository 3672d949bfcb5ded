"""`Rollouts`: which bundle of a service was committed, which is on trial, and why the last one was not taken."""

import logging
import queue
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pluto_edge.errors import BundleError, ConfigError
from pluto_edge.fleet.ledger import Ledger
from pluto_edge.fleet.rollout import Bounds, Rollout
from pluto_edge.runtime.runtime import Runtime
from pluto_edge.service import bundles
from pluto_edge.service.config import ServiceConfig

__all__ = ["BundleTrial", "Rollouts"]

LEDGER = "bundles.json"
TURN = 0.2  # seconds after which a thread that waits looks whether it is still wanted
PATIENCE = 10.0  # seconds that the prediction under way may take when a trial is to end

log = logging.getLogger("pluto_edge.service")


class BundleTrial:
    """A new bundle that predicts frames of all cameras in a thread of its own, until there is a verdict.

    The old one predicts them there, too, as it was exported: what cameras say has been adapted, and is no measure
    of a bundle that has learned nothing yet.

    `ended` is called in that thread when there is one; it must close, or take over, `rollout.new`.
    """

    def __init__(self, rollout: Rollout, ended: Callable[["BundleTrial"], None]) -> None:
        self.rollout = rollout
        self.frames = 0  # that both have predicted
        self.stopped = threading.Event()
        self._ended = ended
        self._frames: queue.Queue[NDArray[np.uint8]] = queue.Queue(maxsize=1)
        self._thread = threading.Thread(target=self._run, name="pluto-trial", daemon=True)
        self._thread.start()

    @property
    def bundle(self) -> str:
        """The hash of the bundle that is on trial."""
        assert self.rollout.new is not None
        return self.rollout.new.bundle.hash

    def __str__(self) -> str:
        return f"bundle {self.bundle[:12]} is on trial, {self.frames} of {self.rollout.bounds.frames} frames"

    def offer(self, image: NDArray[np.uint8]) -> None:
        """A frame that a camera has predicted; while the trial is busy with another one, it is let go."""
        with suppress(queue.Full):
            self._frames.put_nowait(image)

    @property
    def alive(self) -> bool:
        """Whether its thread is there."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """End it without a verdict, unless there is one; the new bundle is closed when this returns.

        One that hangs in a prediction is left to its thread, and counts as a trial that never ended.
        """
        self.stopped.set()
        self._thread.join(PATIENCE)
        if self.alive:
            self.rollout.leave()
            log.warning("the trial of bundle %s hangs in a prediction; going on without it", self.bundle[:12])

    def _run(self) -> None:
        while not self.stopped.is_set():
            try:
                frame = self._frames.get(timeout=TURN)
            except queue.Empty:
                continue
            self.rollout(frame)
            if self.rollout.verdict is not None:
                self._ended(self)
                return
            self.frames += 1
        self.rollout.close()
        log.info("the trial of bundle %s has ended without a verdict", self.bundle[:12])


class Rollouts:
    """Called under the service's lock, but for `offer`.

    Args:
        lock: of the service's changes.
        take: a bundle that was committed takes over; called under the lock.
        takeovers: counts what is `refused`.
    """

    def __init__(self, lock: threading.Lock, take: Callable[[Runtime], None], takeovers: Counter[str]) -> None:
        self.trial: BundleTrial | None = None
        self.said = ""  # why the last bundle that was tried was not taken
        self._hanging: list[BundleTrial] = []  # that were ended, and have a prediction under way
        self._lock = lock
        self._take = take
        self._takeovers = takeovers
        self._ledger: Ledger | None = None

    @property
    def ledger(self) -> Ledger:
        """In the service's state folder, once that is its own."""
        if self._ledger is None:
            raise ConfigError("the service has not been started")
        return self._ledger

    @property
    def status(self) -> str:
        """The bundle that is on trial, or what became of the last one, in words."""
        trial = self.trial
        return self.said if trial is None else str(trial)

    def first(self, config: ServiceConfig, wanted: Path) -> Path:
        """The bundle to start with: the one that was committed last; without trials, the one that is wanted."""
        self._ledger = Ledger(Path(config.state) / LEDGER)
        return self._ledger.standing(wanted) if config.trial else wanted

    def begin(self, config: ServiceConfig, old: Runtime, folder: Path, digest: str) -> None:
        """Put a bundle on trial beside the one that runs; refuses what does not open, or was refused before."""
        if self.trial is not None and self.trial.bundle == digest:
            return
        if any(trial.alive and trial.bundle == digest for trial in self._hanging):
            raise ConfigError(
                f"{folder}: its last trial hangs in a prediction; restart the service to try it again"
            )
        self.put_off()
        rollout = Rollout.open(
            old, folder, self.ledger, Bounds(frames=config.trial), lambda path: bundles.open_runtime(config, path)
        )
        if rollout.verdict is not None:
            rollout.close()
            raise BundleError(f"{folder}: {'; '.join(rollout.verdict.reasons)}")
        self.said = ""
        self.trial = BundleTrial(rollout, self._settle)
        log.info("%s", self.trial)

    def offer(self, image: NDArray[np.uint8]) -> None:
        """To the bundle that is on trial, if there is one."""
        trial = self.trial
        if trial is not None:
            trial.offer(image)

    def put_off(self) -> None:
        """End a trial that has no verdict."""
        trial = self.trial
        self.trial = None
        if trial is not None:
            trial.stop()
            self._hanging = [one for one in (*self._hanging, trial) if one.alive]

    def _settle(self, trial: BundleTrial) -> None:
        """There is a verdict, which the ledger has already; called in the trial's thread."""
        verdict, new = trial.rollout.verdict, trial.rollout.new
        assert verdict is not None and new is not None
        while not self._lock.acquire(timeout=TURN):
            if trial.stopped.is_set():  # by somebody who has the lock, and waits for this thread
                break
        else:
            try:
                if not trial.stopped.is_set():
                    self.trial = None
                    self.said = "" if verdict.committed else str(verdict)
                    if verdict.committed:
                        self._take(new)
                        return
                    self._takeovers["refused"] += 1
            finally:
                self._lock.release()
        new.close()
