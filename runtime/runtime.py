"""`Runtime`: a bundle that predicts."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pluto_edge.errors import ConfigError
from pluto_edge.manifest import EMBED, FORWARD, Bundle, Manifest
from pluto_edge.modules import Module
from pluto_edge.preprocess import ImageBatch, Images
from pluto_edge.runtime import selector
from pluto_edge.runtime.session import Engine, Provider, Tensor

__all__ = ["Prediction", "Runtime"]

Array = NDArray[np.float32]

MICRO_BATCH = 8  # images in flight: peak memory does not grow with the batch


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
    """A bundle, loaded: `runtime.predict(images)`.

    Args:
        bundle: folder that `pluto-export` wrote.
        providers: None or "auto": CUDA if it really loads, else CPU (`runtime.provider` says which); or a
            name ("cpu", "cuda") or list of ONNX Runtime providers, which is honoured or raises.
        threads: for ONNX Runtime; None is one per core that this process may use.
        top_m: how many modules are blended; None blends all.
        verify: check the sha256 of every file of the bundle.
    """

    def __init__(
        self,
        bundle: str | Path,
        providers: str | Sequence[Provider] | None = None,
        threads: int | None = None,
        top_m: int | None = None,
        *,
        verify: bool = True,
    ) -> None:
        if top_m is not None and top_m < 1:
            raise ConfigError(f"top_m: want at least 1, or None for all modules, got {top_m}")
        self._bundle = Bundle(bundle, verify)
        self.top_m = top_m
        int8 = self.manifest.precision == "int8"
        self._engine = Engine(providers, threads, cpu_only="an int8 bundle runs on the CPU" if int8 else "")
        self._embed = self._engine.open(self._bundle.file(EMBED))
        self._forward = self._engine.open(self._bundle.file(FORWARD), prepack=int8)
        self._selector = self._bundle.load_selector()
        self._modules = {n: self._on_device(self._bundle.load_module(n)) for n in self.manifest.names}

    @property
    def manifest(self) -> Manifest:
        return self._bundle.manifest

    @property
    def provider(self) -> str:
        """The ONNX Runtime provider that the graphs run on."""
        return self._engine.provider

    @property
    def modules(self) -> tuple[str, ...]:
        return tuple(self._modules)

    @property
    def classes(self) -> tuple[str, ...]:
        return self.manifest.classes

    def __repr__(self) -> str:
        return (
            f"Runtime({str(self._bundle.path)!r}: {self.manifest.architecture}, {self.manifest.precision}, "
            f"{len(self._modules)} modules, {len(self.classes)} classes, {self.provider})"
        )

    def predict(self, images: Images) -> Prediction:
        """Blend the modules' predictions, zero-shot: no state changes."""
        batch = ImageBatch(images, self.manifest.preprocessing)
        logits, x_hat = self._all_logits(batch)
        weight = selector.weights(self._selector, x_hat, logits)
        return self._blend(logits, weight)

    def _all_logits(self, batch: ImageBatch) -> tuple[Array, Array]:
        """Logits [B,N,K] of every module and x̂ [B,d]; each image is embedded once."""
        parts = [self._micro(batch[i : i + MICRO_BATCH]) for i in range(0, len(batch), MICRO_BATCH)]
        logits, x_hat = zip(*parts, strict=True)
        return np.concatenate(logits), np.concatenate(x_hat)

    def _micro(self, pixels: Array) -> tuple[Array, Array]:
        embedded = self._embed({"pixels": self._engine.tensor(pixels)})
        tokens = {"tokens": embedded["tokens"]}
        logits = [self._forward({**tokens, **m})["logits"].numpy() for m in self._modules.values()]
        return np.stack(logits, axis=1), embedded["x_hat"].numpy()

    def _blend(self, logits: Array, weight: Array) -> Prediction:
        kept, order = selector.select(weight, self.top_m)
        mixed = np.einsum("bn,bnk->bk", kept, logits)
        probabilities = selector.softmax(mixed)
        labels = mixed.argmax(axis=1)
        names = self.modules
        return Prediction(
            labels=labels,
            classes=tuple(self.classes[i] for i in labels),
            probabilities=probabilities.astype(np.float32),
            logits=mixed,
            weights=kept,
            modules=names,
            selected=tuple(names[i] for i in order),
            entropy=selector.entropy(probabilities).astype(np.float32),
        )

    def _on_device(self, module: Module) -> dict[str, Tensor]:
        return {name: self._engine.tensor(value) for name, value in module.tensors.items()}
