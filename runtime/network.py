"""The graphs and the modules, on the engine's device: everything that streams share and nothing that learns."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pluto_edge.errors import ConfigError, StoreError
from pluto_edge.manifest import ADAPT, EMBED, FORWARD, Bundle, Manifest
from pluto_edge.modules import LN_BIAS, LN_SCALE, LOGIT_MEANS, Module
from pluto_edge.preprocess import ImageBatch
from pluto_edge.runtime.gate import Gate
from pluto_edge.runtime.session import Engine, Graph, Tensor
from pluto_edge.runtime.state import Affines
from pluto_edge.store import read_module, read_module_config

Array = NDArray[np.float32]

# Images go through the graphs in pieces of about so many values (tokens times width): enough for a matrix product
# to be fast, few enough to stay in cache, and peak memory does not grow with the batch (docs/performance.md).
FORWARD_VALUES = 640_000
ADAPT_VALUES = 320_000  # the gradient keeps every block's activations
MOST_IMAGES = 64


@dataclass(frozen=True)
class Loaded:
    """A module on the device, the affines that it was exported with, and its source's mean logits if known."""

    tensors: Mapping[str, Tensor]
    exported: Affines
    logit_means: Array | None


@dataclass(frozen=True)
class Gradient:
    """Of the mean entropy of the reliable samples, with every sample's logits and entropy."""

    logits: Array
    entropy: Array
    reliable: NDArray[np.intp]
    loss: float
    affines: Affines


@dataclass(frozen=True)
class Pass:
    """Modules on one batch: logits [B,n,K], x̂ [B,d], and the gradient of one of them if asked for.

    `names` are those that ran, in the order of `loaded`, which are all N. `affines` are the λ that the logits were
    computed with: where a module still has them, its logits still hold.
    """

    loaded: tuple[str, ...]
    names: tuple[str, ...]
    logits: Array
    x_hat: Array
    affines: tuple[Affines, ...]
    logit_means: tuple[Array | None, ...]
    gradient: Gradient | None = None

    def of(self, name: str) -> Array:
        """One module's logits [B,K]."""
        return self.logits[:, self.names.index(name)]

    @property
    def columns(self) -> NDArray[np.intp]:
        """Where the modules that ran stand among all."""
        return np.array([self.loaded.index(n) for n in self.names], np.intp)

    def widened(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Weights [B,n] of the modules that ran as [B,N] of all; those that did not have 0."""
        wide = np.zeros((len(weights), len(self.loaded)))
        wide[:, self.columns] = weights
        return wide


class Network:
    def __init__(self, bundle: Bundle, engine: Engine) -> None:
        self.bundle, self.engine = bundle, engine
        self._embed = engine.open(bundle.file(EMBED))
        self._forward = engine.open(bundle.file(FORWARD))
        self._adapt: Graph | None = None
        self._lock = threading.Lock()
        self.gate = Gate()
        self.micro_batch = micro_batch(bundle.manifest, FORWARD_VALUES)
        self.micro_batch_adapt = micro_batch(bundle.manifest, ADAPT_VALUES)
        self.selector = bundle.load_selector()  # as exported
        modules = [bundle.load_module(name) for name in bundle.manifest.names]
        self.modules: Mapping[str, Loaded] = {m.name: self._place(m) for m in modules}

    @property
    def adapt(self) -> Graph:
        """The gradient graph, opened when it is first needed: a runtime that only predicts never pays for it."""
        with self._lock:
            if self._adapt is None:
                self._adapt = self.engine.open(self.bundle.file(ADAPT))
            return self._adapt

    def add(self, path: str | Path) -> str:
        """Load one module from a store's folder; it takes part in the next call."""
        config = read_module_config(Path(path))
        manifest = self.bundle.manifest
        if config.name in self.modules:
            raise StoreError(f"{path}: there is a module {config.name!r} already")
        if config.classes != manifest.classes or config.dims != manifest.dims:
            raise StoreError(f"{path}: it is {config.dims}, the bundle holds {manifest.dims}, or classes differ")
        if config.architecture != manifest.architecture:
            raise StoreError(f"{path}: made for {config.architecture}, the bundle's is {manifest.architecture}")
        module = read_module(Path(path), config)
        tensors = {**self.bundle.load_backbone_affines(), **module.tensors}
        module = Module(module.name, module.dims, tensors)
        with self._lock:
            self.modules = {**self.modules, module.name: self._place(module)}
        return module.name

    def remove(self, name: str) -> None:
        with self._lock:
            if name not in self.modules:
                raise ConfigError(f"no module {name!r}; there are: {', '.join(self.modules)}")
            if len(self.modules) == 1:
                raise ConfigError(f"{name!r} is the last module; a runtime needs one")
            self.modules = {k: v for k, v in self.modules.items() if k != name}

    def run(
        self,
        batch: ImageBatch,
        affines: Mapping[str, Affines],
        names: Sequence[str] | None = None,
        *,
        differentiate: str | None = None,
        threshold: float = np.inf,
        seen: Sequence[Pass] = (),
    ) -> Pass:
        """Every module (or those in `names`) on every image; each image is embedded once.

        `affines` holds the modules that differ from their export. With `differentiate` that module's logits
        come from the gradient graph, with the gradient below `threshold`. `seen` are passes of the same images,
        one after the other: the modules whose affines have not changed since are not run again.
        """
        loaded = self.modules
        modules = {n: m for n, m in loaded.items() if names is None or n in names}
        used = {n: affines.get(n, m.exported) for n, m in modules.items()}
        logits = {n: np.concatenate([p.of(n) for p in seen]) for n in modules if hold(seen, n, used[n])}
        missing = [n for n in modules if n not in logits or n == differentiate]
        x_hat = [p.x_hat for p in seen]
        rows: dict[str, list[Array]] = {n: [] for n in missing}
        gradients = []
        step = self.micro_batch_adapt if differentiate else self.micro_batch
        for tokens, x in self._embedded(batch, None, step) if missing else ():
            for name in missing:
                inputs = self._inputs(tokens, modules[name], used[name])
                if name == differentiate:
                    gradients.append(self._gradient(inputs, threshold))
                    rows[name].append(gradients[-1][0])
                else:
                    rows[name].append(self._run(self._forward, inputs)["logits"].numpy())
            if not seen:
                x_hat.append(x)
        logits |= {n: np.concatenate(parts) for n, parts in rows.items()}
        return Pass(
            loaded=tuple(loaded),
            names=tuple(modules),
            logits=np.stack([logits[n] for n in modules], axis=1),
            x_hat=np.concatenate(x_hat),
            affines=tuple(used.values()),
            logit_means=tuple(m.logit_means for m in modules.values()),
            gradient=_combine(gradients, threshold) if gradients else None,
        )

    def gradient(
        self,
        batch: ImageBatch,
        samples: NDArray[np.intp],
        name: str,
        affines: Affines,
        threshold: float = np.inf,
    ) -> Gradient:
        """One module on some samples of the batch."""
        module = self.modules[name]
        parts = [
            self._gradient(self._inputs(tokens, module, affines), threshold)
            for tokens, _ in self._embedded(batch, samples, self.micro_batch_adapt)
        ]
        return _combine(parts, threshold)

    def _embedded(
        self, batch: ImageBatch, samples: NDArray[np.intp] | None, step: int
    ) -> Iterator[tuple[Tensor, Array]]:
        """Tokens on the device and x̂, micro-batch after micro-batch."""
        for start in range(0, len(batch) if samples is None else len(samples), step):
            part = slice(start, start + step)
            pixels = batch[part] if samples is None else batch.take(samples[part])
            out = self._run(self._embed, {"pixels": self.engine.tensor(pixels)})
            yield out["tokens"], out["x_hat"].numpy()

    def _gradient(self, inputs: dict[str, Tensor], threshold: float) -> tuple[Array, Array, Array, Array, Array]:
        inputs["threshold"] = self.engine.tensor(np.array(threshold, np.float32))
        out = self._run(self.adapt, inputs)
        logits, entropy, reliable, scale, bias = (
            out[n].numpy() for n in ("logits", "entropy", "reliable", "ln_scale_grad", "ln_bias_grad")
        )
        return logits, entropy, reliable, scale, bias

    def _run(self, graph: Graph, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        self.gate.wait()
        return graph(inputs)

    def _inputs(self, tokens: Tensor, module: Loaded, affines: Affines) -> dict[str, Tensor]:
        scale, bias = self.engine.tensor(affines.scale), self.engine.tensor(affines.bias)
        return {"tokens": tokens, **module.tensors, LN_SCALE: scale, LN_BIAS: bias}

    def _place(self, module: Module) -> Loaded:
        fixed = {n: self.engine.tensor(module.tensors[n]) for n in module.dims.shapes}
        exported = Affines(module.tensors[LN_SCALE], module.tensors[LN_BIAS])
        return Loaded(fixed, exported, module.tensors.get(LOGIT_MEANS))


def micro_batch(manifest: Manifest, values: int) -> int:
    """Images that go through a graph at a time."""
    return min(max(values // (manifest.block_tokens * manifest.dims.width), 1), MOST_IMAGES)


def hold(seen: Sequence[Pass], name: str, affines: Affines) -> bool:
    """Whether all of `seen` had this module with these very affines."""
    return bool(seen) and all(name in p.names and p.affines[p.names.index(name)] is affines for p in seen)


def _combine(parts: Sequence[tuple[Array, Array, Array, Array, Array]], threshold: float) -> Gradient:
    """Micro-batches to a batch: sums and counts, never means of means."""
    logits, entropy, reliable, scale, bias = zip(*parts, strict=True)
    counts = np.array(reliable, np.float64)
    share = counts / max(counts.sum(), 1.0)
    entropies = np.concatenate(entropy)
    below = np.flatnonzero(entropies < threshold)
    return Gradient(
        logits=np.concatenate(logits),
        entropy=entropies,
        reliable=below,
        loss=float(entropies[below].mean()) if len(below) else 0.0,
        affines=Affines(_weighted(scale, share), _weighted(bias, share)),
    )


def _weighted(values: Sequence[Array], share: NDArray[np.float64]) -> Array:
    return np.asarray(np.einsum("m,mld->ld", share, np.stack(values)), np.float32)
