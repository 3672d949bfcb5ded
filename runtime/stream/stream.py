"""`Stream`: frames one at a time, predicted at once, learned from in batches.

A frame is predicted with the state as it is and put into a buffer. When a step is due, it learns from the buffered
frames: in the thread that all streams of a runtime share, or inside the call. What the predictions computed already
is not computed again.
"""

import logging
import threading
import warnings
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from math import log
from pathlib import Path
from time import perf_counter
from typing import Literal, get_args

import numpy as np

from pluto_edge.config import AdaptConfig
from pluto_edge.errors import ConfigError, ImageError, StreamError
from pluto_edge.preprocess import ImageBatch, Images
from pluto_edge.runtime.algorithm import beyond
from pluto_edge.runtime.algorithm.selector import entropy
from pluto_edge.runtime.engine.forks import renew_after_fork
from pluto_edge.runtime.engine.network import Pass
from pluto_edge.runtime.learner import Learner, to_prediction
from pluto_edge.runtime.stream.background import LearningThread
from pluto_edge.runtime.stream.budget import Budget
from pluto_edge.runtime.stream.canary import EVERY, Canary
from pluto_edge.runtime.stream.changes import ChangeDetector
from pluto_edge.runtime.types import Event, Point, Prediction, StreamMetrics

__all__ = ["Stream"]

OnChange = Literal["mark", "reopen"]

GATHER = 16  # reliable frames that a stream of smaller batches waits for
MAX_POINTS = 2000
MAX_LATENCIES = 2000

logger = logging.getLogger("pluto_edge")


@dataclass(frozen=True)
class _Frame:
    image: ImageBatch
    seen: Pass


class Stream:
    """A camera's line of frames over a runtime's graphs: `stream(frame)` predicts at once and learns by itself.

    Made by `Runtime.stream`, which explains the arguments. One thread at a time feeds a stream; different streams
    may be fed from different threads. With inline learning, a stream that is fed in order learns what
    `Runtime.step` on the same batches learns (until a change of domain re-opens the choice).

    `error` is what learning last failed with, until `wait` or `close` has raised it.
    """

    def __init__(
        self,
        name: str,
        learner: Learner,
        worker: LearningThread | None,
        *,
        batch: int = 64,
        every: int | None = None,
        budget: float | None = None,
        on_change: OnChange = "reopen",
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        if every is not None and every < 1:
            raise ConfigError(f"every: want at least 1 frame, or None for one step a batch; got {every}")
        if on_change not in get_args(OnChange):
            raise ConfigError(f"on_change: want mark or reopen, got {on_change!r}")
        self.name, self.learner, self.batch, self.every = name, learner, batch, every or batch
        self._frozen = False
        self._worker, self._on_change, self._clock = worker, on_change, clock
        self._budget = Budget(budget, clock)
        self._frames: deque[_Frame] = deque(maxlen=batch)
        self._since = 0  # frames since the last step that was due
        self._points: deque[Point] = deque(maxlen=MAX_POINTS)
        self._latencies: deque[float] = deque(maxlen=MAX_LATENCIES)
        self._canary = Canary(learner)
        self._detector: ChangeDetector | None = None
        self._names: tuple[str, ...] = ()
        self._ran: tuple[str, ...] = ()
        self._began, self._learning = clock(), 0.0
        self._skipped = {"busy": 0, "budget": 0}
        self._failures = 0
        self.error: StreamError | None = None
        self.closed = False
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Called in a forked process: no lock is held there, and no step under way."""
        self._lock = threading.Lock()
        self._pending: Future[None] | None = None

    def __repr__(self) -> str:
        state = "closed" if self.closed else "frozen" if self.frozen else "learning"
        return f"Stream({self.name!r}: {state}, {self.learner.frame} frames, a step every {self.every})"

    def __call__(self, frame: Images) -> Prediction:
        """Predict one frame with what was learned so far, and learn from it when its batch is full."""
        if self.closed:
            raise StreamError(f"stream {self.name!r} is closed")
        start = self._clock()
        manifest = self.learner.network.bundle.manifest
        image = ImageBatch(frame, manifest.preprocessing).cropped()
        if len(image) != 1:
            raise ImageError(f"a stream takes one frame at a time, got {len(image)}; Runtime.step takes batches")
        aligns = self.batch >= beyond.ALIGN_FROM and self.learner.config.objective != "entropy"
        blend, seen = self.learner.watch(image, activations=aligns and not self.frozen)
        alone = blend.probabilities
        prediction = to_prediction(self.learner.follow(blend), manifest.classes)
        self._latencies.append(1e3 * (self._clock() - start))
        self._note(prediction, float(entropy(alone)[0]) / log(manifest.dims.classes), seen)
        if self.learner.frame % EVERY == 0 and not self.frozen:
            try:
                self._canary.compare(image, seen, int(alone[0].argmax()))
            except Exception as error:
                self.learner.note("rollback", f"no comparison: {type(error).__name__}: {error}")
                self._failed(error)
        self._gather(_Frame(image, seen))
        return prediction

    def wait(self) -> None:
        """Until no step is under way; an error that learning ended with is raised here, once."""
        self._settle()
        self._tell()

    def close(self) -> None:
        """No more frames; a step that is under way is finished. What was learned can still be saved.

        An error that learning ended with, and that `wait` has not raised, is raised when all that is done.
        """
        self.closed = True
        if self._pending is not None and self._pending.cancel():
            self._pending = None
        self._settle()
        self._forget()
        self._tell()

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        with suppress(StreamError) if kind is not None else nullcontext():  # the block's own error goes first
            self.close()

    def __del__(self) -> None:
        if not getattr(self, "closed", True):
            self.closed = True
            warnings.warn(f"stream {self.name!r} was not closed", ResourceWarning, stacklevel=1, source=self)

    def reset(self, module: str | None = None) -> None:
        """Forget what this stream has learned, all of it or one module's; a step under way is dropped."""
        self._forget()
        self.learner.reset(module)
        self._canary.restart()

    def save(self, path: str | Path) -> None:
        """Write what this stream has learned, as `Runtime.save` does."""
        self.learner.save(path)

    def restore(self, path: str | Path) -> None:
        """Take up a saved state; a step under way is dropped."""
        self._forget()
        self.learner.restore(path)
        self._canary.restart()

    @property
    def frozen(self) -> bool:
        """Settable: True predicts and does not learn; a step under way is dropped."""
        return self._frozen

    @frozen.setter
    def frozen(self, value: bool) -> None:
        self._frozen = value
        if value:
            self._forget()
            self.learner.drop_step()

    @property
    def events(self) -> tuple[Event, ...]:
        """The last thousand events, oldest first."""
        return tuple(self.learner.events)

    @property
    def timeline(self) -> tuple[Point, ...]:
        """The last two thousand frames, oldest first; `Event.frame` says where the events belong."""
        return tuple(self._points)

    @property
    def metrics(self) -> StreamMetrics:
        latencies = np.array(self._latencies or [0.0])
        kinds = self.learner.counts
        elapsed = max(self._clock() - self._began, 1e-9)
        return StreamMetrics(
            frames=self.learner.frame,
            steps=kinds["step"],
            gathered=kinds["gather"],
            rolled_back=kinds["rollback"],
            skipped_busy=self._skipped["busy"],
            skipped_budget=self._skipped["budget"],
            changes=kinds["change"],
            failed=self._failures,
            learning_seconds=self._learning,
            learning_share=self._learning / elapsed,
            latency_median=float(np.median(latencies)),
            latency_p99=float(np.percentile(latencies, 99)),
            **vars(self._canary.signs),
        )

    def _note(self, prediction: Prediction, alone: float, seen: Pass) -> None:
        """The frame goes on the timeline, and its signals to the detector.

        The entropy is there `alone`, without the frame's neighbours, as a share of the largest: when a run of one
        class ends, that is no change of domain.
        """
        weights = prediction.weights[0]
        self.learner.frame += 1
        self._points.append(
            Point(
                frame=self.learner.frame,
                seconds=self._clock() - self._began,
                label=int(prediction.labels[0]),
                entropy=float(prediction.entropy[0]),
                modules=prediction.modules,
                weights=tuple(weights.tolist()),
            )
        )
        if self._detector is None or self._names != prediction.modules:
            self._names, self._detector = prediction.modules, ChangeDetector(prediction.modules)
        elif self._ran != seen.names:
            self._detector.other_modules()
        self._ran = seen.names
        if beyond.applies(self.learner.network.modules, self.learner.config):
            weights = np.zeros_like(weights)  # they follow from x̂, and jump where two domains are alike
        change = self._detector.update(alone, weights, seen.x_hat[0])
        if change:
            if self._on_change == "reopen" and not self.frozen:
                self._forget()
                self.learner.reopen(change)
            else:
                self.learner.note("change", change)
            self._canary.restart()

    def _gather(self, frame: _Frame) -> None:
        """Keep the frame, and learn when a step is due."""
        if self.frozen:
            return
        with self._lock:
            self._frames.append(frame)
            self._since += 1
            due = len(self._frames) == self.batch and self._since >= self.every
            frames = list(self._frames) if due else []
        if frames:
            self._since = 0
            self._step(frames)

    def _forget(self) -> None:
        """The buffered frames."""
        with self._lock:
            self._frames.clear()

    def _step(self, frames: list[_Frame]) -> None:
        """Learn from the newest of these frames, if nothing speaks against it."""
        if self._pending is not None and not self._pending.done():
            self._skipped["busy"] += 1
            return
        count = self._budget.images(len(frames))
        if count == 0:
            self._skipped["budget"] += 1
            return
        frames = frames[-count:]
        if self._worker is None:
            self._learn(frames)
        else:
            self._pending = self._worker.submit(self._learn, frames)

    def _learn(self, frames: list[_Frame]) -> None:
        start = self._clock()
        try:
            self.learner.step(ImageBatch.join([f.image for f in frames]), [f.seen for f in frames])
            self._canary.stepped()
        except Exception as error:
            self._failed(error)
        finally:
            seconds = self._clock() - start
            self._budget.spent(seconds, len(frames))
            self._learning += seconds

    def _failed(self, error: Exception) -> None:
        """Learning failed. Predictions go on with the state before it, and cost none."""
        told = StreamError(
            f"stream {self.name!r}: learning failed ({type(error).__name__}: {error}); "
            "predictions go on with the state before it"
        )
        told.__cause__ = error
        logger.error("%s", told)
        with self._lock:
            self._failures += 1
            self.error = told

    def _settle(self) -> None:
        """Until the step under way has ended, unless it is the caller."""
        if self._pending is not None and not (self._worker is not None and self._worker.here):
            wait_for([self._pending])

    def _tell(self) -> None:
        """Raise what learning has failed with, once."""
        with self._lock:
            error, self.error = self.error, None
        if error is not None:
            raise error


def for_batches(config: AdaptConfig, batch: int) -> AdaptConfig:
    """Small batches have few reliable frames, if any: their gradients gather."""
    if batch < 1:
        raise ConfigError(f"batch: want at least 1 frame, got {batch}")
    return config if batch >= GATHER else replace(config, min_reliable=max(config.min_reliable, GATHER))
