"""`Runtime`: a bundle that predicts and adapts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pluto_edge.config import AdaptConfig
from pluto_edge.manifest import Bundle, Manifest
from pluto_edge.preprocess import ImageBatch, Images
from pluto_edge.runtime import selector
from pluto_edge.runtime.events import Event
from pluto_edge.runtime.learner import Blend, Learner
from pluto_edge.runtime.network import Network
from pluto_edge.runtime.session import Engine, Provider

__all__ = ["Prediction", "Runtime"]

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Prediction:
    """What the blended modules say of a batch of B images.

    Attributes:
        labels: [B] class indices.
        classes: [B] class names.
        probabilities: [B,K] softmax of `logits`.
        logits: [B,K] weighted sum of the selected modules' logits.
        weights: [B,N] weight of every module for every image; rows sum to 1, unselected modules have 0.
        modules: names of all N modules, in the order of `weights`.
        selected: names of the modules that took part, heaviest first.
        entropy: [B] of `probabilities`, in nats: 0 is certain, ln K is a guess.
    """

    labels: NDArray[np.intp]
    classes: tuple[str, ...]
    probabilities: Array = field(repr=False)
    logits: Array = field(repr=False)
    weights: Array = field(repr=False)
    modules: tuple[str, ...] = field(repr=False)
    selected: tuple[str, ...]
    entropy: Array = field(repr=False)

    def __len__(self) -> int:
        return len(self.labels)


class Runtime:
    """A bundle, loaded.

    `predict(images)` never learns. `step(images)`, or calling the runtime, predicts and learns from the batch
    (Algorithm 1). `adapt(images)` learns only: few-shot is `adapt` once, then `predict`; zero-shot is `predict`.

    Several threads may share a runtime: results are as if their calls came one after another.

    Args:
        bundle: folder that `pluto-export` wrote.
        providers: None or "auto": CUDA if it really loads, else CPU (`runtime.provider` says which); or a
            name ("cpu", "cuda") or list of ONNX Runtime providers, which is honoured or raises.
        threads: for ONNX Runtime; None is one per core that this process may use.
        top_m: how many modules are blended; None leaves it to `config`.
        config: how it adapts; None takes the bundle's own.
        on_event: called with every `Event`, in the thread that caused it.
        verify: check the sha256 of every file of the bundle.
    """

    def __init__(
        self,
        bundle: str | Path,
        providers: str | Sequence[Provider] | None = None,
        threads: int | None = None,
        top_m: int | None = None,
        *,
        config: AdaptConfig | None = None,
        on_event: Callable[[Event], None] | None = None,
        verify: bool = True,
    ) -> None:
        opened = Bundle(bundle, verify)
        config = config or opened.manifest.adaptation
        if top_m is not None:
            config = replace(config, top_m=top_m)
        int8 = opened.manifest.precision == "int8"
        engine = Engine(providers, threads, cpu_only="an int8 bundle runs on the CPU" if int8 else "")
        self._network = Network(opened, engine)
        self._learner = Learner(self._network, config, on_event)

    @property
    def manifest(self) -> Manifest:
        return self._network.bundle.manifest

    @property
    def config(self) -> AdaptConfig:
        return self._learner.config

    @property
    def provider(self) -> str:
        """The ONNX Runtime provider that the graphs run on."""
        return self._network.engine.provider

    @property
    def modules(self) -> tuple[str, ...]:
        return tuple(self._network.modules)

    @property
    def classes(self) -> tuple[str, ...]:
        return self.manifest.classes

    @property
    def events(self) -> tuple[Event, ...]:
        """The last thousand events, oldest first."""
        return tuple(self._learner.events)

    def __repr__(self) -> str:
        return (
            f"Runtime({str(self._network.bundle.path)!r}: {self.manifest.architecture}, "
            f"{self.manifest.precision}, {len(self.modules)} modules, {len(self.classes)} classes, "
            f"{self.provider})"
        )

    def predict(self, images: Images) -> Prediction:
        """Blend the modules' predictions with what was learned so far; nothing changes."""
        return self._prediction(self._learner.predict(self._batch(images)))

    def step(self, images: Images) -> Prediction:
        """Predict a batch and learn from it. A step that goes wrong changes nothing and says so in `events`."""
        return self._prediction(self._learner.step(self._batch(images))[0])

    __call__ = step

    def adapt(self, images: Images) -> Event:
        """Learn from a batch; the event says what happened."""
        return self._learner.step(self._batch(images))[1]

    def reset(self, module: str | None = None) -> None:
        """Forget: back to the exported weights bit for bit, all of them or one module's."""
        self._learner.reset(module)

    def save(self, path: str | Path) -> None:
        """Write what was learned: atomic, and the state that was there before is kept as `path.previous`."""
        self._learner.save(path)

    def restore(self, path: str | Path) -> None:
        """Take up a saved state; where the newest file is damaged, the one before it."""
        self._learner.restore(path)

    def add_module(self, path: str | Path) -> str:
        """Load a module folder of a store; it takes part from the next call on. Gives its name."""
        name = self._network.add(path)
        self._learner.note(f"{name} was added")
        return name

    def remove_module(self, name: str) -> None:
        """Take a module out; what the others learned stays."""
        self._network.remove(name)
        self._learner.note(f"{name} was removed")

    def _batch(self, images: Images) -> ImageBatch:
        return ImageBatch(images, self.manifest.preprocessing)

    def _prediction(self, blend: Blend) -> Prediction:
        probabilities = blend.probabilities
        labels = probabilities.argmax(axis=1)
        return Prediction(
            labels=labels,
            classes=tuple(self.classes[i] for i in labels),
            probabilities=_float(probabilities),
            logits=_float(blend.logits),
            weights=_float(blend.weights),
            modules=blend.names,
            selected=tuple(blend.names[i] for i in blend.order),
            entropy=_float(selector.entropy(probabilities)),
        )


def _float(value: NDArray[Any]) -> Array:
    return value.astype(np.float32)
