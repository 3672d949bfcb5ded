"""The graphs and the modules, on the engine's device: everything that streams share and nothing that learns."""

import hashlib
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Self, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from pluto_edge.errors import BundleError, ConfigError, NotFiniteError, StoreError
from pluto_edge.manifest import ADAPT, EMBED, FORWARD, Bundle, Manifest
from pluto_edge.modules import LN_BIAS, LN_SCALE, Module, Role
from pluto_edge.preprocess import ImageBatch
from pluto_edge.runtime.engine.affines import Affines
from pluto_edge.runtime.engine.contract import contracts
from pluto_edge.runtime.engine.forks import renew_after_fork
from pluto_edge.runtime.engine.gate import Gate
from pluto_edge.runtime.engine.objective import Objective
from pluto_edge.runtime.engine.session import Engine, Graph, Tensor
from pluto_edge.signature import Reference
from pluto_edge.store import read_module, read_module_config

Array = NDArray[np.float32]
T = TypeVar("T")

# Images go through the graphs in pieces of about so many values (tokens times width): enough for a matrix product
# to be fast, few enough to stay in cache, and peak memory does not grow with the batch (docs/performance.md).
FORWARD_VALUES = 640_000
ADAPT_VALUES = 320_000  # the gradient keeps every block's activations
MOST_IMAGES = 64

MEAN_ENTROPY = Objective()  # of all samples


@dataclass(frozen=True)
class Loaded:
    """A module on the device, the affines that it was exported with, and its source's statistics if known.

    `homes` is a generalist's: how much say each specialist keeps on its own domain. `digest` is of all its tensors:
    what was learned with a module is of use to that very module only.
    """

    tensors: Mapping[str, Tensor]
    exported: Affines
    role: Role
    homes: Mapping[str, float]
    reference: Reference | None
    digest: str


class Modules(dict[str, Loaded]):
    """All modules by name, and what follows from who is among them. Never changed: a new set takes its place."""

    @cached_property
    def generalist(self) -> str | None:
        return next((n for n, m in self.items() if m.role == "generalist"), None)

    @cached_property
    def specialists(self) -> tuple[str, ...]:
        """All others; where there are none, the generalist is one."""
        return tuple(n for n in self if n != self.generalist) or tuple(self)

    @cached_property
    def homes(self) -> Mapping[str, float]:
        """The say that a specialist has on its own domain, where it is not all of it."""
        return self[self.generalist].homes if self.generalist is not None else {}

    @cached_property
    def references(self) -> dict[str, Reference]:
        """Of the modules that have a signature."""
        return {n: m.reference for n, m in self.items() if m.reference is not None}

    @cached_property
    def exported(self) -> dict[str, Affines]:
        return {n: m.exported for n, m in self.items()}

    @cached_property
    def digests(self) -> dict[str, str]:
        return {n: m.digest for n, m in self.items()}

    @cached_property
    def _derived(self) -> dict[object, object]:
        return {}

    def once(self, derive: Callable[["Modules"], T]) -> T:
        """What somebody else makes of these modules, made once."""
        if derive not in self._derived:
            self._derived[derive] = derive(self)
        return cast(T, self._derived[derive])


class Look(NamedTuple):
    """Images as they were embedded: x̂ [B,d], and the tokens of those that are few enough to be kept."""

    x_hat: Array
    tokens: Tensor | None


@dataclass(frozen=True)
class Gradient:
    """Of an objective, with every sample's logits [B,K], entropy [B] and activations [B,L+1,d].

    `loss` is the mean entropy of the `reliable` samples, whatever else the objective holds.
    """

    logits: Array
    entropy: Array
    activations: Array
    reliable: NDArray[np.intp]
    loss: float
    affines: Affines


class Said(NamedTuple):
    """What one module said of some images: logits [B,K], features [B,d], activations [B,L+1,d] if kept."""

    logits: Array
    features: Array
    activations: Array | None

    @classmethod
    def join(cls, parts: Sequence["Said"]) -> "Said":
        kept = [p.activations for p in parts if p.activations is not None]
        return cls(
            np.concatenate([p.logits for p in parts]),
            np.concatenate([p.features for p in parts]),
            np.concatenate(kept) if len(kept) == len(parts) else None,
        )


@dataclass(frozen=True)
class Pass:
    """Modules on one batch: logits [B,n,K], features [B,n,d], x̂ [B,d], and if asked for the activations
    [B,n,L+1,d], whose last row the features are, and the gradient of one module.

    `names` are those that ran, in the order of `loaded`, which are all N. `affines` are the λ that the logits were
    computed with: where a module still has them, its logits still hold.
    """

    loaded: tuple[str, ...]
    names: tuple[str, ...]
    logits: Array
    features: Array
    x_hat: Array
    affines: tuple[Affines, ...]
    activations: Array | None = None
    gradient: Gradient | None = None
    left_out: tuple[str, ...] = ()  # modules that ran, and said NaN or infinity

    def of(self, name: str) -> Array:
        """One module's logits [B,K]."""
        return self.logits[:, self.names.index(name)]

    def said(self, name: str) -> "Said":
        """All that one module said of the images."""
        column = self.names.index(name)
        activations = None if self.activations is None else self.activations[:, column]
        return Said(self.logits[:, column], self.features[:, column], activations)

    def rows(self, samples: NDArray[np.intp]) -> "Pass":
        """The pass of some of the images."""
        return replace(
            self,
            logits=self.logits[samples],
            features=self.features[samples],
            x_hat=self.x_hat[samples],
            activations=None if self.activations is None else self.activations[samples],
            gradient=None,
        )

    def only(self, names: Collection[str]) -> "Pass":
        """The pass as if these modules alone had run."""
        columns = [c for c, n in enumerate(self.names) if n in names]
        return replace(
            self,
            names=tuple(self.names[c] for c in columns),
            logits=self.logits[:, columns],
            features=self.features[:, columns],
            affines=tuple(self.affines[c] for c in columns),
            activations=None if self.activations is None else self.activations[:, columns],
        )

    @property
    def not_finite(self) -> tuple[str, ...]:
        """The modules that say NaN or infinity of any image."""
        return tuple(n for n in self.names if not all(np.isfinite(v).all() for v in self.said(n)[:2]))

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
    """`modules` is replaced when one comes or goes; whoever needs them more than once works with a `snapshot`."""

    def __init__(self, bundle: Bundle, engine: Engine) -> None:
        self.bundle, self.engine = bundle, engine
        self._contracts = contracts(bundle.manifest)
        self._contracts[ADAPT].check(bundle.file(ADAPT))  # opened later, but refused now
        self._embed = self._open(EMBED)
        self._forward = self._open(FORWARD)
        self._late: dict[str, Graph] = {}  # shared with snapshots
        self.renew()
        renew_after_fork(self)
        self.gate = Gate()
        self.micro_batch = micro_batch(bundle.manifest, FORWARD_VALUES)
        self.micro_batch_adapt = micro_batch(bundle.manifest, ADAPT_VALUES)
        self.selector = bundle.load_selector()  # as exported
        entries = bundle.manifest.modules
        self.modules = Modules({e.name: self._place(bundle.load_module(e.name), e.role, e.homes) for e in entries})

    def renew(self) -> None:
        self._lock = threading.Lock()

    @property
    def adapt(self) -> Graph:
        """The gradient graph, opened when it is first needed: a runtime that only predicts never pays for it."""
        with self._lock:
            if ADAPT not in self._late:
                self._late[ADAPT] = self._open(ADAPT)
            return self._late[ADAPT]

    def snapshot(self) -> Self:
        """The same graphs with the modules as they are now, whoever comes or goes meanwhile."""
        return copy(self)

    def _open(self, name: str) -> Graph:
        return self.engine.open(self.bundle.file(name), self._contracts[name])

    def add(self, path: str | Path) -> str:
        """Load one module from a store's folder; it takes part in the next call."""
        config = read_module_config(Path(path))
        manifest = self.bundle.manifest
        if config.classes != manifest.classes or config.dims != manifest.dims:
            raise StoreError(f"{path}: it is {config.dims}, the bundle holds {manifest.dims}, or classes differ")
        if config.architecture != manifest.architecture:
            raise StoreError(f"{path}: made for {config.architecture}, the bundle's is {manifest.architecture}")
        module = read_module(Path(path), config)
        tensors = {**self.bundle.load_backbone_affines(), **module.tensors}
        module = Module(module.name, module.dims, tensors)
        with self._lock:
            if module.name in self.modules:
                raise StoreError(f"{path}: there is a module {module.name!r} already")
            self.modules = Modules({**self.modules, module.name: self._place(module, config.role, config.homes)})
        return module.name

    def remove(self, name: str) -> None:
        with self._lock:
            if name not in self.modules:
                raise ConfigError(f"no module {name!r}; there are: {', '.join(self.modules)}")
            if len(self.modules) == 1:
                raise ConfigError(f"{name!r} is the last module; a runtime needs one")
            self.modules = Modules({k: v for k, v in self.modules.items() if k != name})

    def run(
        self,
        batch: ImageBatch,
        affines: Mapping[str, Affines],
        names: Sequence[str] | None = None,
        *,
        differentiate: str | None = None,
        objective: Objective = MEAN_ENTROPY,
        seen: Sequence[Pass] = (),
        look: Look | None = None,
        activations: bool = False,
    ) -> Pass:
        """Every module (or those in `names`) on every image; each image is embedded once.

        `affines` holds the modules that differ from their export. With `differentiate` that module's logits
        come from the gradient graph, with the gradient of `objective`. `seen` are passes of the same images,
        one after the other: the modules whose affines have not changed since are not run again, unless
        `activations` are wanted and those passes have none. `look` is what `look(batch)` gave.
        """
        objective.check(len(batch))
        seen = self._known(batch, seen, activations)
        loaded = self.modules
        modules = {n: m for n, m in loaded.items() if names is None or n in names}
        used = {n: affines.get(n, m.exported) for n, m in modules.items()}
        enough = not activations or all(p.activations is not None for p in seen)
        said = {n: [p.said(n) for p in seen] for n in modules if enough and hold(seen, n, used[n])}
        missing = [n for n in modules if n not in said or n == differentiate]
        said |= {n: [] for n in missing}
        x_hat = [p.x_hat for p in seen]
        gradients = []
        step = self.micro_batch_adapt if differentiate else self.micro_batch
        for rows, tokens, x in self._looked(batch, look, step) if missing else ():
            for name in missing:
                inputs = self._inputs(tokens, modules[name], used[name])
                if name == differentiate:
                    gradients.append(self._gradient(inputs, objective.part(rows)))
                    logits, found = gradients[-1].logits, gradients[-1].activations
                else:
                    out = self._run(self._forward, inputs)
                    logits, found = out["logits"].numpy(), out["activations"].numpy()
                # copied, so that the other rows go when they are not kept
                said[name].append(Said(logits, found[:, -1].copy(), found if activations else None))
            if not seen:
                x_hat.append(x)
        every = [Said.join(said[n]) for n in modules]
        kept = [s.activations for s in every if s.activations is not None]
        return Pass(
            loaded=tuple(loaded),
            names=tuple(modules),
            logits=np.stack([s.logits for s in every], axis=1),
            features=np.stack([s.features for s in every], axis=1),
            x_hat=np.concatenate(x_hat),
            affines=tuple(used.values()),
            activations=np.stack(kept, axis=1) if activations else None,
            gradient=_combine(gradients, objective) if gradients else None,
        )

    def _known(self, batch: ImageBatch, seen: Sequence[Pass], activations: bool) -> Sequence[Pass]:
        """Passes of these images that need not be computed: what the caller has."""
        return seen

    def run_finite(
        self,
        batch: ImageBatch,
        affines: Mapping[str, Affines],
        names: Sequence[str],
        *,
        differentiate: str | None = None,
        objective: Objective = MEAN_ENTROPY,
        seen: Sequence[Pass] = (),
        look: Look | None = None,
        activations: bool = False,
    ) -> Pass:
        """`run` without the modules that say NaN or infinity; where that is all of them, the others are asked."""
        passed = self.run(
            batch,
            affines,
            names,
            differentiate=differentiate,
            objective=objective,
            seen=seen,
            look=look,
            activations=activations,
        )
        left_out = passed.not_finite
        if left_out and len(left_out) == len(passed.names):
            others = [n for n in self.modules if n not in left_out]
            if others:
                passed = self.run(batch, affines, others, look=look, activations=activations)
                left_out = (*left_out, *passed.not_finite)
        if not left_out:
            return passed
        finite = [n for n in passed.names if n not in left_out]
        if not finite:
            raise NotFiniteError(
                f"no module says anything finite of these images ({', '.join(left_out)}); look at the images, "
                "at mean and std of the preprocessing and at the modules' weights"
            )
        return replace(passed.only(finite), left_out=left_out)

    def look(self, batch: ImageBatch) -> Look:
        """How the images look to the selector, before any module runs."""
        if len(batch) <= self.micro_batch:
            ((_, tokens, x_hat),) = self._embedded(batch, None, self.micro_batch)
            return Look(x_hat, tokens)
        return Look(np.concatenate([x for _, _, x in self._embedded(batch, None, self.micro_batch)]), None)

    def gradient(
        self,
        batch: ImageBatch,
        samples: NDArray[np.intp],
        name: str,
        affines: Affines,
        objective: Objective = MEAN_ENTROPY,
    ) -> Gradient:
        """One module on some samples of the batch; row i of the objective's target is that of `samples[i]`."""
        objective.check(len(samples))
        module = self.modules[name]
        parts = [
            self._gradient(self._inputs(tokens, module, affines), objective.part(rows))
            for rows, tokens, _ in self._embedded(batch, samples, self.micro_batch_adapt)
        ]
        return _combine(parts, objective)

    def objective_inputs(self, objective: Objective, count: int) -> dict[str, Tensor]:
        """What the gradient graph takes beside tokens and module, for `count` samples."""
        dims, weight = self.bundle.manifest.dims, objective.entropy_weight
        rows, target = np.zeros((dims.depth + 1, dims.width)), np.zeros((count, dims.classes))
        inputs = {
            "threshold": objective.threshold,
            "entropy_weight": 1.0 if weight is None else weight,
            "align_offset": rows if objective.offset is None else objective.offset,
            "align_slope": rows if objective.slope is None else objective.slope,
            "target": target if objective.target is None else objective.target,
        }
        return {name: self.engine.tensor(np.asarray(value, np.float32)) for name, value in inputs.items()}

    def _embedded(
        self, batch: ImageBatch, samples: NDArray[np.intp] | None, step: int
    ) -> Iterator[tuple[slice, Tensor, Array]]:
        """Which rows, their tokens on the device and x̂, micro-batch after micro-batch."""
        for start in range(0, len(batch) if samples is None else len(samples), step):
            rows = slice(start, start + step)
            pixels = batch[rows] if samples is None else batch.take(samples[rows])
            out = self._run(self._embed, {"pixels": self.engine.tensor(pixels)})
            yield rows, out["tokens"], out["x_hat"].numpy()

    def _looked(self, batch: ImageBatch, look: Look | None, step: int) -> Iterator[tuple[slice, Tensor, Array]]:
        """The same, from what is known where that is enough."""
        if look is None or look.tokens is None or len(batch) > step:
            yield from self._embedded(batch, None, step)
        else:
            yield slice(0, len(batch)), look.tokens, look.x_hat

    def _gradient(self, inputs: dict[str, Tensor], objective: Objective) -> "_Summed":
        count = inputs["tokens"].shape()[0]
        out = self._run(self.adapt, {**inputs, **self.objective_inputs(objective, count)})
        logits, entropy, activations, scale, bias = (
            out[n].numpy() for n in ("logits", "entropy", "activations", "ln_scale_grad", "ln_bias_grad")
        )
        return _Summed(logits, entropy, activations, Affines(scale, bias))

    def _run(self, graph: Graph, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        with self.gate.turn():
            return graph(inputs)

    def _inputs(self, tokens: Tensor, module: Loaded, affines: Affines) -> dict[str, Tensor]:
        scale, bias = self.engine.tensor(affines.scale), self.engine.tensor(affines.bias)
        return {"tokens": tokens, **module.tensors, LN_SCALE: scale, LN_BIAS: bias}

    def _place(self, module: Module, role: Role, homes: Mapping[str, float]) -> Loaded:
        fixed = {n: self.engine.tensor(module.tensors[n]) for n in module.dims.shapes}
        exported = Affines(module.tensors[LN_SCALE], module.tensors[LN_BIAS])
        signature = module.signature(BundleError)
        reference = Reference.of(signature, module.tensors["head_weight"]) if signature is not None else None
        return Loaded(fixed, exported, role, homes, reference, _digest(module.tensors))


def _digest(tensors: Mapping[str, NDArray[np.floating]]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        value = np.ascontiguousarray(tensors[name])
        digest.update(f"{name} {value.dtype} {value.shape} ".encode() + value.tobytes())
    return digest.hexdigest()


def micro_batch(manifest: Manifest, values: int) -> int:
    """Images that go through a graph at a time."""
    return min(max(values // (manifest.block_tokens * manifest.dims.width), 1), MOST_IMAGES)


def hold(seen: Sequence[Pass], name: str, affines: Affines) -> bool:
    """Whether all of `seen` had this module with these very affines."""
    return bool(seen) and all(name in p.names and p.affines[p.names.index(name)] is affines for p in seen)


class _Summed(NamedTuple):
    """What the gradient graph gives for a micro-batch; the gradient is a sum over its samples."""

    logits: Array
    entropy: Array
    activations: Array
    affines: Affines


def _combine(parts: Sequence[_Summed], objective: Objective) -> Gradient:
    """Micro-batches to a batch: a sum of sums, divided once where a mean is wanted."""
    entropy = np.concatenate([p.entropy for p in parts])
    reliable = np.flatnonzero(entropy < np.float32(objective.threshold))
    divisor = max(len(reliable), 1) if objective.entropy_weight is None else 1
    return Gradient(
        logits=np.concatenate([p.logits for p in parts]),
        entropy=entropy,
        activations=np.concatenate([p.activations for p in parts]),
        reliable=reliable,
        loss=float(entropy[reliable].mean()) if len(reliable) else 0.0,
        affines=Affines(
            _total([p.affines.scale for p in parts], divisor), _total([p.affines.bias for p in parts], divisor)
        ),
    )


def _total(values: Sequence[Array], divisor: int) -> Array:
    return np.asarray(np.sum(values, axis=0, dtype=np.float64) / divisor, np.float32)
