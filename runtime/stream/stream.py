"""`Stream`: frames one at a time, predicted at once, learned from in batches.

A frame is predicted with the state as it is and put into a buffer. When a step is due, it learns from the buffered
frames: in the thread that all streams of a runtime share, or inside the call. What the predictions computed already
is not computed again.
"""

import warnings
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter

from pluto_edge.config import AdaptConfig
from pluto_edge.errors import ConfigError, ImageError, StreamError
from pluto_edge.preprocess import ImageBatch, Images
from pluto_edge.runtime.algorithm.affine_step import ALIGN_FROM
from pluto_edge.runtime.engine.modules import Loaded
from pluto_edge.runtime.engine.passes import Pass
from pluto_edge.runtime.learner import Learner
from pluto_edge.runtime.prediction import to_prediction
from pluto_edge.runtime.stream.background import LearningThread
from pluto_edge.runtime.stream.budget import Budget
from pluto_edge.runtime.stream.buffer import Frame, FrameBuffer
from pluto_edge.runtime.stream.canary import EVERY, Canary
from pluto_edge.runtime.stream.domain_watch import DomainWatch, OnChange
from pluto_edge.runtime.stream.scheduler import Scheduler
from pluto_edge.runtime.stream.timeline import Timeline
from pluto_edge.runtime.stream.trial import Ended, Trials
from pluto_edge.runtime.types import Event, Point, Prediction, StreamMetrics

__all__ = ["Stream"]

GATHER = 16  # reliable frames that a stream of smaller batches waits for


class Stream:
    """A camera's line of frames over a runtime's graphs: `stream(frame)` predicts at once and learns by itself.

    Made by `Runtime.stream`, which explains the arguments. One thread at a time feeds a stream; different streams
    may be fed from different threads. With inline learning, a stream that is fed in order learns what
    `Runtime.step` on the same batches learns (until a change of domain re-opens the choice).

    Its parts can be looked at: `learner`, `buffer`, `scheduler`, `canary` and `trials`.
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
        join: Callable[[str, Loaded, str], None] | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.name = name
        self.learner = learner
        self.buffer = FrameBuffer(batch, every)
        self.canary = Canary(learner)
        self.trials = Trials(learner, join or partial(_join, learner))
        learn = partial(_learn, learner, self.canary, self.trials)
        self.scheduler = Scheduler(name, learn, worker, Budget(budget, clock), clock)
        self._domain = DomainWatch(learner, self.buffer, self.canary, on_change)
        self._timeline = Timeline(clock)
        self._frozen = False
        self.closed = False

    def __repr__(self) -> str:
        state = "closed" if self.closed else "frozen" if self.frozen else "learning"
        return f"Stream({self.name!r}: {state}, {self.learner.frames} frames, a step every {self.buffer.every})"

    def __call__(self, frame: Images) -> Prediction:
        """Predict one frame with what was learned so far, and learn from it when its batch is full."""
        if self.closed:
            raise StreamError(f"stream {self.name!r} is closed")
        asked = self._timeline.seconds
        manifest = self.learner.network.bundle.manifest
        image = ImageBatch(frame, manifest.preprocessing).cropped()
        if len(image) != 1:
            raise ImageError(f"a stream takes one frame at a time, got {len(image)}; Runtime.step takes batches")
        aligns = self.buffer.batch >= ALIGN_FROM and self.learner.config.objective != "entropy"
        blend, seen = self.learner.watch(image, activations=aligns and not self.frozen)
        prediction = to_prediction(self.learner.follow(blend), manifest.classes)
        self._timeline.add(self.learner.frames, prediction, asked)
        self._domain.update(blend, seen, learning=not self.frozen)
        if self.learner.frames % EVERY == 0 and not self.frozen:
            self._compare(image, seen, label=int(blend.probabilities[0].argmax()))
        due = [] if self.frozen else self.buffer.add(Frame(image, seen))
        if due:
            self.scheduler.offer(due)
        return prediction

    def wait(self) -> None:
        """Until no step is under way; an error that learning ended with is raised here, once."""
        self.scheduler.settle()
        self.scheduler.tell()

    def close(self) -> None:
        """No more frames; a step that is under way is finished. What was learned can still be saved.

        An error that learning ended with, and that `wait` has not raised, is raised when all that is done.
        """
        self.closed = True
        self.scheduler.cancel()
        self.scheduler.settle()
        self.buffer.clear()
        self.scheduler.tell()

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        with suppress(StreamError) if kind is not None else nullcontext():  # the block's own error goes first
            self.close()

    def __del__(self) -> None:
        if not getattr(self, "closed", True):
            self.closed = True
            warnings.warn(f"stream {self.name!r} was not closed", ResourceWarning, stacklevel=1, source=self)

    def try_module(self, path: str | Path, ended: Ended | None = None) -> str:
        """Put a module folder of a store on trial beside this stream: it has no say until it has won one. Gives its
        name.

        It is judged in the stream's steps and events (`trial`) tell of it; `ended` is called with its name, whether
        it joined the runtime, and why.
        """
        return self.trials.begin(path, ended)

    def reset(self, module: str | None = None) -> None:
        """Forget what this stream has learned, all of it or one module's; a step under way is dropped."""
        self.buffer.clear()
        self.learner.reset(module)
        self.canary.restart()

    def save(self, path: str | Path) -> None:
        """Write what this stream has learned, as `Runtime.save` does."""
        self.learner.save(path)

    def restore(self, path: str | Path) -> None:
        """Take up a saved state; a step under way is dropped."""
        self.buffer.clear()
        self.learner.restore(path)
        self.canary.restart()

    @property
    def frozen(self) -> bool:
        """Settable: True predicts and does not learn; a step under way is dropped."""
        return self._frozen

    @frozen.setter
    def frozen(self, value: bool) -> None:
        self._frozen = value
        if value:
            self.buffer.clear()
            self.learner.drop_step()

    @property
    def budget(self) -> float | None:
        """Settable: how much it may learn, as in `Runtime.stream`; a step under way is not touched."""
        return self.scheduler.budget.limit

    @budget.setter
    def budget(self, limit: float | None) -> None:
        self.scheduler.budget.limit = limit

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes that predictions are of."""
        return self.learner.network.bundle.manifest.classes

    @property
    def error(self) -> StreamError | None:
        """What learning last failed with, until `wait` or `close` has raised it."""
        return self.scheduler.error

    @property
    def events(self) -> tuple[Event, ...]:
        """The last thousand events, oldest first."""
        return self.learner.events

    @property
    def timeline(self) -> tuple[Point, ...]:
        """The last two thousand frames, oldest first; `Event.frame` says where the events belong."""
        return tuple(self._timeline.points)

    @property
    def metrics(self) -> StreamMetrics:
        """What the stream has done so far, in numbers."""
        kinds = self.learner.counts
        return StreamMetrics(
            frames=self.learner.frames,
            steps=kinds["step"],
            gathered=kinds["gather"],
            rolled_back=kinds["rollback"],
            skipped_busy=self.scheduler.skipped_busy,
            skipped_budget=self.scheduler.skipped_budget,
            changes=kinds["change"],
            failed=self.scheduler.failures,
            learning_seconds=self.scheduler.seconds,
            learning_share=self.scheduler.seconds / max(self._timeline.seconds, 1e-9),
            latency_median=self._timeline.latency(50),
            latency_p99=self._timeline.latency(99),
            **vars(self.canary.signs),
        )

    def _compare(self, image: ImageBatch, seen: Pass, label: int) -> None:
        """With the bundle as exported; what fails there costs no prediction."""
        try:
            self.canary.compare(image, seen, label)
        except Exception as error:
            self.learner.note("rollback", f"no comparison: {type(error).__name__}: {error}")
            self.scheduler.failed(error)


def _join(learner: Learner, name: str, module: Loaded, reason: str) -> None:
    """A module takes part in the network that the stream runs on."""
    learner.network.join(name, module)
    learner.note("module", f"{name} was added: {reason}")


def _learn(learner: Learner, canary: Canary, trials: Trials, frames: list[Frame]) -> None:
    """One step on a stream's frames. It knows no stream: one that is let go does not wait for its last step."""
    trials.watch(frames)
    learner.step(ImageBatch.join([f.image for f in frames]), [f.seen for f in frames])
    canary.stepped()


def for_batches(config: AdaptConfig, batch: int) -> AdaptConfig:
    """Small batches have few reliable frames, if any: their gradients gather."""
    if batch < 1:
        raise ConfigError(f"batch: want at least 1 frame, got {batch}")
    return config if batch >= GATHER else replace(config, min_reliable=max(config.min_reliable, GATHER))
