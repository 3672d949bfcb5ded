"""`Rollout`: a new bundle on trial beside the old one.

    ledger = Ledger("rollout.json")
    with Runtime(ledger.standing("bundle/")) as old:
        rollout = Rollout.open(old, "bundle-2/", ledger)
        for frame in frames:
            prediction = rollout(frame)     # the old one's, until the new one is committed

For a number of frames the new bundle predicts beside the old one, without a say. It must be finite, fast enough, of
as many classes, and agree with the old one more often than not; else the device stays with the old one by itself.
Nobody can tell without labels that a new bundle is better. This tells that it is not broken here.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from time import perf_counter

import numpy as np

from pluto_edge._files import found, sha256
from pluto_edge.errors import ConfigError, PlutoError
from pluto_edge.fleet.ledger import Ledger, Verdict
from pluto_edge.manifest import MANIFEST
from pluto_edge.preprocess import Images
from pluto_edge.runtime.guard import effective_classes
from pluto_edge.runtime.runtime import Runtime
from pluto_edge.runtime.types import Prediction

__all__ = ["Bounds", "Rollout"]

log = logging.getLogger("pluto_edge")


@dataclass(frozen=True)
class Bounds:
    """What a new bundle must keep to.

    Attributes:
        frames: that it is tried for.
        agreement: share of the frames that both must call the same.
        ratio: of its latency to the old one's, the medians, at most.
        milliseconds: of its latency, the median, at most; None is no limit.
        spread: effective number of classes that it predicts, at least, as a share of the old one's.
    """

    frames: int = 256
    agreement: float = 0.6
    ratio: float = 1.5
    milliseconds: float | None = None
    spread: float = 0.5

    def __post_init__(self) -> None:
        if self.frames < 1:
            raise ConfigError(f"frames: want at least 1, got {self.frames}")
        for name in ("agreement", "spread"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name}: want a share from 0 to 1, got {getattr(self, name)}")
        for name in ("ratio", "milliseconds"):
            value = getattr(self, name)
            if value is not None and not (isfinite(value) and value > 0):
                raise ConfigError(f"{name}: want a number above 0, got {value}")


class Rollout:
    """Called with frames, it gives the prediction that counts: the old bundle's, until the new one is committed.

    `verdict` is None while the trial lasts. A stream that has predicted a frame already hands it to `watch`.
    `new` is None where the bundle did not even open.
    """

    def __init__(
        self,
        old: Runtime,
        new: Runtime | None,
        bounds: Bounds | None = None,
        *,
        ledger: Ledger | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.old = old
        self.new = new
        self.bounds = bounds or Bounds()
        self.verdict: Verdict | None = None
        self._ledger = ledger
        self._telling = threading.Lock()  # held while the ledger is told, or taken away
        self._clock = clock
        self._same: list[bool] = []
        self._labels: tuple[list[int], list[int]] = ([], [])
        self._milliseconds: tuple[list[float], list[float]] = ([], [])
        self._hash = "" if new is None else new.bundle.hash

    @classmethod
    def open(
        cls,
        old: Runtime,
        bundle: str | Path,
        ledger: Ledger,
        bounds: Bounds | None = None,
        opened: Callable[[Path], Runtime] = Runtime,
    ) -> "Rollout":
        """Put the bundle in a folder on trial; the ledger knows of it before it is opened, by `opened`.

        Raises where the ledger refuses it. One that does not open, or has other classes, has its verdict at once.
        """
        path = found(Path(bundle))
        if not (path / MANIFEST).is_file():
            raise ConfigError(f"{path}: not a bundle (there is no {MANIFEST} in it)")
        digest = sha256(path / MANIFEST)
        if digest == old.bundle.hash:
            raise ConfigError(f"{path}: it is the bundle that runs already")
        ledger.begin(digest, path.resolve())
        new = None
        problem = ""
        try:
            new = opened(path)
        except (PlutoError, OSError) as error:
            problem = f"it does not open: {error}"
        rollout = cls(old, new, bounds, ledger=ledger)
        rollout._hash = digest
        if new is not None and new.classes != old.classes:
            problem = "its classes are others than the old bundle's"
        if problem:
            rollout._end([problem])
        return rollout

    @property
    def runtime(self) -> Runtime:
        """The one whose predictions count."""
        won = self.verdict is not None and self.verdict.committed
        return self.new if won and self.new is not None else self.old

    def __call__(self, frame: Images) -> Prediction:
        """Predict one frame with the bundle that counts; while the trial lasts, with the other one, too."""
        if self.verdict is not None:
            return self.runtime.predict(frame)
        start = self._clock()
        said = self.old.predict(frame)
        self.watch(frame, said, 1e3 * (self._clock() - start))
        return said

    def watch(self, frame: Images, said: Prediction, milliseconds: float) -> Verdict | None:
        """A frame that the old bundle has predicted, and how long that took; gives the verdict if there is one."""
        if self.verdict is not None or self.new is None:
            return self.verdict
        start = self._clock()
        try:
            other = self.new.predict(frame)
        except Exception as error:  # whatever a bundle that nobody trusts yet does, the old one goes on
            self._end([f"frame {len(self._same) + 1}: {type(error).__name__}: {error}"])
            return self.verdict
        took = 1e3 * (self._clock() - start)
        for kept, value in zip(self._milliseconds, (milliseconds, took), strict=True):
            kept.append(value)
        for labels, prediction in zip(self._labels, (said, other), strict=True):
            labels.extend(map(int, prediction.labels))
        self._same.append(said.classes == other.classes)
        if not np.isfinite(other.probabilities).all():
            self._end([f"frame {len(self._same)}: what it says is not finite"])
        elif len(self._same) >= self.bounds.frames:
            self._end(self._reasons())
        return self.verdict

    def close(self) -> None:
        """End a trial that has no verdict yet: it does not count. The runtime that lost is closed."""
        with self._telling:
            if self.verdict is None and self._ledger is not None:
                self._ledger.put_off(self._hash)
        for runtime in (self.old, self.new):
            if runtime is not None and runtime is not self.runtime:
                runtime.close()

    def leave(self) -> None:
        """Go on without a trial that hangs in another thread: it counts, and the ledger is told no more of it.

        Another bundle may be on trial by the time that it comes back.
        """
        with self._telling:
            self._ledger = None

    def _reasons(self) -> list[str]:
        bounds = self.bounds
        measured = self._measured()
        reasons = []
        if measured.agreement < bounds.agreement:
            reasons.append(f"both agree on {measured.agreement:.0%} of the frames, want {bounds.agreement:.0%}")
        old, new = measured.old_milliseconds, measured.new_milliseconds
        if new > bounds.ratio * old:
            reasons.append(f"{new:.1f} ms a frame, want at most {bounds.ratio:g} times the old bundle's {old:.1f}")
        if bounds.milliseconds is not None and new > bounds.milliseconds:
            reasons.append(f"{new:.1f} ms a frame, want at most {bounds.milliseconds:g}")
        if measured.new_classes < bounds.spread * measured.old_classes:
            reasons.append(f"it says {measured.new_classes:.1f} classes, the old one {measured.old_classes:.1f}")
        return reasons

    def _measured(self) -> Verdict:
        """Without a verdict yet."""
        if not self._same:
            return Verdict(self._hash, False)
        classes = len(self.old.classes)
        return Verdict(
            bundle=self._hash,
            committed=False,
            frames=len(self._same),
            agreement=float(np.mean(self._same)),
            old_milliseconds=float(np.median(self._milliseconds[0])),
            new_milliseconds=float(np.median(self._milliseconds[1])),
            old_classes=effective_classes(self._labels[0], classes),
            new_classes=effective_classes(self._labels[1], classes),
        )

    def _end(self, reasons: list[str]) -> None:
        verdict = replace(self._measured(), committed=not reasons, reasons=tuple(reasons))
        with self._telling:
            if self._ledger is not None:
                self._ledger.end(verdict)  # on the disk before anything is done with it
        self.verdict = verdict
        log.log(logging.WARNING if reasons else logging.INFO, "%s", verdict)
        self.old.learner.note("trial", str(verdict))
