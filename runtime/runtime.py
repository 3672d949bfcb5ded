"""`Runtime`: a bundle that predicts and adapts."""

import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import ref

from pluto_edge.config import AdaptConfig
from pluto_edge.errors import ConfigError, StreamError
from pluto_edge.manifest import Bundle, Manifest
from pluto_edge.preprocess import ImageBatch, Images
from pluto_edge.runtime.engine.forks import renew_after_fork
from pluto_edge.runtime.opening import open_network
from pluto_edge.runtime.types import Event, Prediction, Suggestions

if TYPE_CHECKING:  # what needs ONNX Runtime is imported while a bundle's weights are hashed: see `opening.py`
    from pluto_edge.repository.index import ModuleSource
    from pluto_edge.runtime.algorithm.selection import Blend
    from pluto_edge.runtime.engine.modules import Loaded
    from pluto_edge.runtime.engine.plan import MachinePlan
    from pluto_edge.runtime.engine.providers import Providers
    from pluto_edge.runtime.learner import Learner
    from pluto_edge.runtime.stream.domain_watch import OnChange
    from pluto_edge.runtime.stream.stream import Stream

__all__ = ["Runtime"]


class Runtime:
    """A bundle, loaded.

    `predict(images)` never learns. `step(images)`, or calling the runtime, predicts and learns from the batch
    (Algorithm 1). `adapt(images)` learns only: few-shot is `adapt` once, then `predict`; zero-shot is `predict`.

    `stream(name)` is a line of single frames with a state of its own, for a camera. `learner` is what learns in the
    runtime's own calls.

    Several threads may share a runtime: results are as if their calls came one after another. A runtime with
    streams is closed with `close()`, or by `with Runtime(...) as runtime:`.

    Args:
        bundle: folder that `pluto-export` wrote, or the address of one in a repository, whose newest release is
            fetched: `https://store.example/meter@stable`.
        providers: None or "auto": CUDA if it really loads, else what the plan found to be fastest, which is the
            CPU where there is none (`runtime.provider` says which); or a
            name ("cpu", "cuda", "openvino", ...) or list of ONNX Runtime providers, which is honoured or raises; or
            such for each graph: {"embed": "openvino", "forward": "openvino", "adapt": "cpu"}.
        threads: for ONNX Runtime; None is one per core that this process may use.
        top_m: how many modules are blended; None leaves it to `config`.
        config: how it adapts; None takes the bundle's own.
        on_event: called with every `Event`, one after another, by a thread that causes events. It may call the
            runtime. What it raises is logged and counted (`callback_errors`), and is no part of learning.
        verify: check the sha256 of every file of the bundle.
        plan: "auto": as `pluto tune` found it to be fastest on this machine, if it was run here; a file that
            `pluto tune --out` wrote; None: as where nothing was measured. A plan for another machine, version or
            bundle, or a damaged one, is ignored with a log line. `runtime.plan` says what is followed.
    """

    def __init__(
        self,
        bundle: str | Path,
        providers: "Providers" = None,
        threads: int | None = None,
        top_m: int | None = None,
        *,
        config: AdaptConfig | None = None,
        on_event: Callable[[Event], None] | None = None,
        verify: bool = True,
        plan: str | Path | None = "auto",
    ) -> None:
        self._network = open_network(bundle, providers, threads, verify, plan)
        from pluto_edge.runtime.learner import Learner
        from pluto_edge.runtime.stream.background import LearningThread

        config = config or self.manifest.adaptation
        if top_m is not None:
            config = replace(config, top_m=top_m)
        self.learner = Learner(self._network, config, on_event)
        self._streams: list[ref[Stream]] = []
        self._worker = LearningThread()
        self._closed = False
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Called in a forked process: no lock is held there."""
        self._lock = threading.Lock()

    @property
    def bundle(self) -> Bundle:
        """What was opened."""
        return self._network.bundle

    @property
    def manifest(self) -> Manifest:
        """What the bundle says of itself."""
        return self.bundle.manifest

    @property
    def config(self) -> AdaptConfig:
        """How it adapts."""
        return self.learner.config

    @property
    def provider(self) -> str:
        """The ONNX Runtime provider that the graphs run on."""
        return self._network.engine.provider

    @property
    def plan(self) -> "MachinePlan":
        """How the graphs run on this machine; by itself, as where nothing was measured."""
        return self._network.engine.plan

    @property
    def modules(self) -> tuple[str, ...]:
        """Names of all modules that are loaded, in the order of `Prediction.weights`."""
        return tuple(self._network.modules)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes that predictions are of."""
        return self.manifest.classes

    @property
    def events(self) -> tuple[Event, ...]:
        """The last thousand events, oldest first."""
        return self.learner.events

    @property
    def callback_errors(self) -> int:
        """How often `on_event` has raised, here and in the open streams."""
        return sum(learner.callback_errors for learner in self._learners)

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ""
        return (
            f"Runtime({str(self.bundle.path)!r}: {self.manifest.architecture}, "
            f"{self.manifest.precision}, {len(self.modules)} modules, {len(self.classes)} classes, "
            f"{self.provider}{state})"
        )

    def predict(self, images: Images) -> Prediction:
        """Blend the modules' predictions with what was learned so far; nothing changes."""
        return self._said(self.learner.predict(self._batch(images))[0])

    def step(self, images: Images) -> Prediction:
        """Predict a batch and learn from it. A step that goes wrong changes nothing and says so in `events`."""
        return self._said(self.learner.step(self._batch(images))[0])

    __call__ = step

    def adapt(self, images: Images) -> Event:
        """Learn from a batch; the event says what happened."""
        return self.learner.step(self._batch(images))[1]

    def reset(self, module: str | None = None) -> None:
        """Forget: back to the exported weights bit for bit, all of them or one module's."""
        self.learner.reset(module)

    def save(self, path: str | Path) -> None:
        """Write what was learned: atomic, and the state that was there before is kept as `path.previous`."""
        self.learner.save(path)

    def restore(self, path: str | Path) -> None:
        """Take up a saved state; where the newest file is damaged, the one before it."""
        self.learner.restore(path)

    def add_module(self, path: str | Path) -> str:
        """Load a module folder of a store; it takes part from the next call on. Gives its name."""
        name = self._network.add(path)
        self._note(f"{name} was added")
        return name

    def remove_module(self, name: str) -> None:
        """Take a module out; what the others learned stays."""
        self._network.remove(name)
        self._note(f"{name} was removed")

    def suggest(
        self, source: "ModuleSource", stream: "Stream | None" = None, count: int = 5, *, auto: bool = False
    ) -> Suggestions:
        """The modules of a repository that were made for what the stream, or the runtime's own steps, saw last.

        The index comes to the device; no image, and no statistic of one, leaves it. With `auto` the best are
        fetched, within limits, and put on trial in the stream. A `Finder` does that again and again, and remembers.
        """
        from pluto_edge.runtime.finder import Finder

        finder = Finder(self, source)
        return finder.look(stream, count) if auto else finder.suggest(stream, count)

    def stream(
        self,
        name: str = "camera",
        batch: int = 64,
        every: int | None = None,
        budget: float | None = None,
        *,
        background: bool = True,
        on_change: "OnChange" = "reopen",
        config: AdaptConfig | None = None,
        on_event: Callable[[Event], None] | None = None,
    ) -> "Stream":
        """A line of frames with a state of its own over this runtime's graphs and modules: one for each camera.

        Args:
            name: of the stream; no two that are open share one.
            batch: frames that a step learns from. Below 16, gradients gather until 16 reliable frames were seen.
            every: frames from one step to the next; None is `batch`.
            budget: up to 1, the share of time that may go into learning; above 1, milliseconds a step. None
                is no limit.
            background: learn in a thread of its own, behind predictions; else inside the call that fills a batch.
            on_change: what a change of domain does: `reopen` forgets the frames before it, re-centres anew and
                chooses the modules anew, from the exported selector; `mark` is an event and no more.
            config: how it adapts; None is the runtime's.
            on_event: called with every `Event`, as the runtime's is.
        """
        from pluto_edge.runtime.learner import Learner
        from pluto_edge.runtime.stream.stream import Stream, for_batches

        with self._lock:
            self._check_open()
            if any(s.name == name for s in self.streams):
                raise ConfigError(f"stream {name!r} is open already; close it, or give another name")
            learner = Learner(self._network, for_batches(config or self.config, batch), on_event)
            stream = Stream(
                name,
                learner,
                self._worker if background else None,
                batch=batch,
                every=every,
                budget=budget,
                on_change=on_change,
                join=self._join,
            )
            self._streams.append(ref(stream))
            return stream

    @property
    def streams(self) -> "tuple[Stream, ...]":
        """The open ones that somebody still has."""
        alive = [(r, stream) for r in self._streams if (stream := r()) is not None and not stream.closed]
        self._streams = [r for r, _ in alive]
        return tuple(stream for _, stream in alive)

    def close(self) -> None:
        """Close all streams; a step that is under way is finished first. Then raises the first stream's error.

        What was learned can still be saved; predictions and steps raise from here on.
        """
        with self._lock:
            self._closed = True
            streams = self.streams
        errors = []
        for stream in streams:  # under no lock: a step that ends now may call back
            try:
                stream.close()
            except StreamError as error:
                errors.append(error)
        self._worker.close()
        if errors:
            raise errors[0]

    def __enter__(self) -> "Runtime":
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        with suppress(StreamError) if kind is not None else nullcontext():  # the block's own error goes first
            self.close()

    def _join(self, name: str, module: "Loaded", reason: str) -> None:
        """A module that has won its trial in one stream takes part in all."""
        self._network.join(name, module)
        self._note(f"{name} was added: {reason}")

    def _note(self, reason: str) -> None:
        for learner in self._learners:
            learner.note("module", reason)

    @property
    def _learners(self) -> "tuple[Learner, ...]":
        return self.learner, *(s.learner for s in self.streams)

    def _check_open(self) -> None:
        if self._closed:
            raise ConfigError("the runtime is closed; open the bundle again with Runtime(...)")

    def _said(self, blend: "Blend") -> Prediction:
        from pluto_edge.runtime.prediction import to_prediction

        return to_prediction(blend, self.classes)

    def _batch(self, images: Images) -> ImageBatch:
        self._check_open()
        return ImageBatch(images, self.manifest.preprocessing)
