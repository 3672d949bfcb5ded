"""The graphs and the modules, on the engine's device: everything that streams share and nothing that learns."""

import threading
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Self, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from pluto_edge.errors import ConfigError, NotFiniteError, StoreError
from pluto_edge.manifest import Bundle
from pluto_edge.modules import Module, Role
from pluto_edge.preprocess import ImageBatch
from pluto_edge.runtime.engine.affines import Affines
from pluto_edge.runtime.engine.forks import renew_after_fork
from pluto_edge.runtime.engine.graphs import Graphs
from pluto_edge.runtime.engine.modules import Loaded, Modules
from pluto_edge.runtime.engine.objective import MEAN_ENTROPY, Objective
from pluto_edge.runtime.engine.passes import Gradient, Look, Pass, Said, hold
from pluto_edge.runtime.engine.session import Engine

__all__ = ["Network", "RunOptions"]


class RunOptions(TypedDict, total=False):
    """What `Network.run` may be told beside batch, affines and names.

    Attributes:
        differentiate: the module whose logits come from the gradient graph, with the gradient of `objective`.
        objective: by itself the mean entropy of all samples.
        seen: passes of the same images, one after the other: the modules that would run with the same weights as
            there are not run again, unless `activations` are wanted and those passes have none.
        look: what `look(batch)` gave.
        activations: whether the pass is to have them.
    """

    differentiate: str | None
    objective: Objective
    seen: Sequence[Pass]
    look: Look | None
    activations: bool


class Network:
    """`modules` is replaced when one comes or goes; whoever needs them more than once works with a `snapshot`."""

    def __init__(self, bundle: Bundle, engine: Engine) -> None:
        self.bundle = bundle
        self.engine = engine
        self.graphs = Graphs(bundle, engine)  # shared with snapshots
        self.selector = bundle.load_selector()  # as exported
        self.modules = Modules(
            {e.name: self._place(bundle.load_module(e.name), e.role, e.homes) for e in bundle.manifest.modules}
        )
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Called in a forked process: no lock is held there."""
        self._lock = threading.Lock()

    def snapshot(self) -> Self:
        """The same graphs with the modules as they are now, whoever comes or goes meanwhile."""
        return copy(self)

    def add(self, path: str | Path) -> str:
        """Load one module from a store's folder; it takes part in the next call."""
        name, loaded = self.load(path)
        self.join(name, loaded)
        return name

    def load(self, path: str | Path) -> tuple[str, Loaded]:
        """Put a module from a store's folder on the device; it takes part in nothing yet."""
        from pluto_edge.store import read_module, read_module_config  # here alone: most runtimes see no store

        config = read_module_config(Path(path))
        manifest = self.bundle.manifest
        if config.classes != manifest.classes or config.dims != manifest.dims:
            raise StoreError(f"{path}: it is {config.dims}, the bundle holds {manifest.dims}, or classes differ")
        if config.architecture != manifest.architecture:
            raise StoreError(f"{path}: made for {config.architecture}, the bundle's is {manifest.architecture}")
        if config.backbone not in ("", manifest.backbone):
            raise StoreError(f"{path}: made with another backbone than this bundle's, of the same architecture")
        module = read_module(Path(path), config)
        tensors = {**self.bundle.load_backbone_affines(), **module.tensors}
        module = Module(module.name, module.dims, tensors)
        if module.name in self.modules:
            raise StoreError(f"{path}: there is a module {module.name!r} already")
        return module.name, self._place(module, config.role, config.homes)

    def join(self, name: str, loaded: Loaded) -> None:
        """A module that was loaded takes part in the next call."""
        with self._lock:
            if name in self.modules:
                raise StoreError(f"there is a module {name!r} already")
            self.modules = Modules({**self.modules, name: loaded})

    def beside(self, name: str, loaded: Loaded) -> Self:
        """A snapshot in which this module takes part, too."""
        other = self.snapshot()
        other.modules = Modules({**self.modules, name: loaded})
        return other

    def remove(self, name: str) -> None:
        """Take a module out; the last one stays."""
        with self._lock:
            if name not in self.modules:
                raise ConfigError(f"no module {name!r}; there are: {', '.join(self.modules)}")
            if len(self.modules) == 1:
                raise ConfigError(f"{name!r} is the last module; a runtime needs one")
            self.modules = Modules({k: v for k, v in self.modules.items() if k != name})

    def recall(self, batch: ImageBatch) -> Pass | None:
        """A pass of these images that need not be computed, whoever asks: none here.

        For networks that keep what was once computed. `run` and `look` ask it first.
        """
        return None

    def look(self, batch: ImageBatch) -> Look:
        """How the images look to the selector, before any module runs."""
        known = self.recall(batch)
        return self.graphs.look(batch) if known is None else Look(known.x_hat, None)

    def run(
        self,
        batch: ImageBatch,
        affines: Mapping[str, Affines],
        names: Sequence[str] | None = None,
        **options: Unpack[RunOptions],
    ) -> Pass:
        """Every module (or those in `names`) on every image; each is embedded once, and once more for a gradient.

        `affines` holds the modules that differ from their export. `RunOptions` explains the rest.
        """
        differentiate = options.get("differentiate")
        objective = options.get("objective", MEAN_ENTROPY)
        activations = options.get("activations", False)
        objective.check(len(batch))
        seen = self._seen(batch, options.get("seen", ()), activations)
        loaded = self.modules  # read once: it may be replaced meanwhile
        modules = {n: m for n, m in loaded.items() if names is None or n in names}
        used = {n: affines.get(n, m.exported) for n, m in modules.items()}
        digests = {n: m.digest_with(used[n]) for n, m in modules.items()}
        enough = not activations or all(p.activations is not None for p in seen)
        said = {n: [p.said(n) for p in seen] for n in modules if enough and hold(seen, n, digests[n])}
        gradient = None
        if differentiate is not None and differentiate in modules:
            gradient = self.graphs.gradient(batch, modules[differentiate], used[differentiate], objective)
            said[differentiate] = [Said.of(gradient.logits, gradient.activations, keep=activations)]
        missing = [n for n in modules if n not in said]
        said |= {n: [] for n in missing}
        x_hat = [p.x_hat for p in seen]
        graphs = self.graphs
        asked = missing or not seen
        for piece in graphs.pieces_of(batch, graphs.micro_batch, options.get("look")) if asked else ():
            for name in missing:
                said[name].append(graphs.say(piece, modules[name], used[name], activations=activations))
            if not seen:
                x_hat.append(piece.x_hat)
        every = [Said.join(said[n]) for n in modules]
        kept = [s.activations for s in every if s.activations is not None]
        return Pass(
            loaded=tuple(loaded),
            names=tuple(modules),
            logits=np.stack([s.logits for s in every], axis=1),
            features=np.stack([s.features for s in every], axis=1),
            x_hat=np.concatenate(x_hat),
            digests=tuple(digests.values()),
            activations=np.stack(kept, axis=1) if activations else None,
            gradient=gradient,
        )

    def _seen(self, batch: ImageBatch, seen: Sequence[Pass], activations: bool) -> Sequence[Pass]:
        """What is recalled, or else what the caller has. A recalled pass has no activations: a caller's may."""
        recalled = None if activations and seen else self.recall(batch)
        return seen if recalled is None else (recalled,)

    def run_finite(
        self,
        batch: ImageBatch,
        affines: Mapping[str, Affines],
        names: Sequence[str],
        **options: Unpack[RunOptions],
    ) -> Pass:
        """`run` without the modules that say NaN or infinity; where that is all of them, the others are asked."""
        passed = self.run(batch, affines, names, **options)
        left_out = passed.not_finite
        if left_out and len(left_out) == len(passed.names):
            others = [n for n in self.modules if n not in left_out]
            if others:
                options.update({"differentiate": None, "objective": MEAN_ENTROPY, "seen": ()})
                passed = self.run(batch, affines, others, **options)
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
        return self.graphs.gradient(batch, self.modules[name], affines, objective, samples)

    def _place(self, module: Module, role: Role, homes: Mapping[str, float]) -> Loaded:
        return Loaded.place(module, role, homes, self.engine)
