"""The three graphs of a bundle on a device, and the pieces of a batch that go through them at a time."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pluto_edge._arrays import Array
from pluto_edge.manifest import ADAPT, EMBED, FORWARD, Bundle, Manifest
from pluto_edge.modules import LN_BIAS, LN_SCALE
from pluto_edge.preprocess import ImageBatch
from pluto_edge.runtime.engine.affines import Affines
from pluto_edge.runtime.engine.contract import contracts
from pluto_edge.runtime.engine.forks import renew_after_fork
from pluto_edge.runtime.engine.gate import Gate
from pluto_edge.runtime.engine.lanes import Lanes
from pluto_edge.runtime.engine.modules import Loaded
from pluto_edge.runtime.engine.objective import Objective
from pluto_edge.runtime.engine.passes import Gradient, Look, Said
from pluto_edge.runtime.engine.providers import CPU, name_of
from pluto_edge.runtime.engine.session import Engine, Graph, Tensor

__all__ = ["ADAPT_VALUES", "FORWARD_VALUES", "Graphs", "Piece", "lanes_of", "micro_batch"]

# Images go through the graphs in pieces of about so many values (tokens times width): enough for a matrix product
# to be fast, few enough to stay in cache, and peak memory does not grow with the batch (docs/performance.md).
FORWARD_VALUES = 640_000
ADAPT_VALUES = 320_000  # the gradient keeps every block's activations
MOST_IMAGES = 64


def micro_batch(manifest: Manifest, values: int) -> int:
    """Images that go through a graph at a time."""
    return min(max(values // (manifest.block_tokens * manifest.dims.width), 1), MOST_IMAGES)


def lanes_of(engine: Engine, images: int, batch: int | None) -> Lanes:
    """How `images` go through the gradient graph at a time: side by side where it runs on the CPU and takes as many
    images as there are; `batch` is the number that it is fixed to."""
    alone = batch is not None or name_of(engine.providers[ADAPT][0]) != CPU
    return Lanes.of(engine.threads, images, 1 if alone else engine.plan.lanes)


class Piece(NamedTuple):
    """Some images of a batch, embedded: which rows they are, their tokens on the device, and x̂ [b,d]."""

    rows: slice
    tokens: Tensor
    x_hat: Array


class Summed(NamedTuple):
    """What the gradient graph gives for a piece; the gradient is a sum over its samples."""

    logits: Array
    entropy: Array
    activations: Array
    d_affines: Affines


class Graphs:
    """What runs on the device, one graph at a time, and predictions before everything else (`gate`).

    `embed` and `forward` are open from the start, `adapt` when it is first needed. `micro_batch` and
    `micro_batch_adapt` are how many images go through the first two, and through the last, at a time: those of the
    last in `lanes`.
    """

    def __init__(self, bundle: Bundle, engine: Engine) -> None:
        self.engine = engine
        self.gate = Gate()
        plan = engine.plan
        fixed = bundle.manifest.batch
        self.micro_batch = fixed or plan.images or micro_batch(bundle.manifest, FORWARD_VALUES)
        gradients = plan.images_adapt or micro_batch(bundle.manifest, ADAPT_VALUES)
        self.micro_batch_adapt = min(gradients, fixed or gradients)
        self._bundle = bundle
        self._contracts = contracts(bundle.manifest)
        with ThreadPoolExecutor(1) as aside:  # ONNX Runtime works without Python's lock
            forward = aside.submit(self._open, FORWARD)
            self._contracts[ADAPT].check(bundle.file(ADAPT))  # opened later, but refused now
            self.forward = forward.result()
        self.embed = self._open(EMBED)
        self._adapt: dict[int, Graph] = {}  # by threads
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Called in a forked process: no lock is held there."""
        self._lock = threading.Lock()

    def lanes(self, images: int) -> Lanes:
        """How a batch of so many images is differentiated. Fewer images than lanes go one after the other, with all
        threads for each."""
        lanes = lanes_of(self.engine, self.micro_batch_adapt, self._bundle.manifest.batch)
        return lanes if images >= lanes.count else Lanes.of(self.engine.threads, lanes.images, 1)

    def adapt(self, lanes: Lanes) -> Graph:
        """The gradient graph, opened when it is first needed: a runtime that only predicts never pays for it."""
        threads = lanes.threads
        with self._lock:
            if threads not in self._adapt:
                self._adapt[threads] = self._open(ADAPT, threads)
            return self._adapt[threads]

    def pieces(self, batch: ImageBatch, step: int, samples: NDArray[np.intp] | None = None) -> Iterator[Piece]:
        """The batch, or some samples of it, embedded `step` images at a time."""
        for start in range(0, len(batch) if samples is None else len(samples), step):
            rows = slice(start, start + step)
            pixels = batch[rows] if samples is None else batch.take(samples[rows])
            out = self._run(self.embed, {"pixels": self.engine.tensor(pixels)})
            yield Piece(rows, out["tokens"], out["x_hat"].numpy())

    def pieces_of(self, batch: ImageBatch, step: int, look: Look | None) -> Iterator[Piece]:
        """The same, from the batch's own look where that has all tokens and they fit into one piece."""
        if look is None or look.tokens is None or len(batch) > step:
            yield from self.pieces(batch, step)
        else:
            yield Piece(slice(0, len(batch)), look.tokens, look.x_hat)

    def look(self, batch: ImageBatch) -> Look:
        """How the images look to the selector; with their tokens where one piece holds them all."""
        if len(batch) <= self.micro_batch:
            (piece,) = self.pieces(batch, self.micro_batch)
            return Look(piece.x_hat, piece.tokens)
        return Look(np.concatenate([p.x_hat for p in self.pieces(batch, self.micro_batch)]), None)

    def inputs(self, piece: Piece, module: Loaded, affines: Affines) -> dict[str, Tensor]:
        """What `forward` takes, and `adapt` beside the objective."""
        return {
            "tokens": piece.tokens,
            **module.tensors,
            LN_SCALE: self.engine.tensor(affines.scale),
            LN_BIAS: self.engine.tensor(affines.bias),
        }

    def objective_inputs(self, objective: Objective, count: int) -> dict[str, Tensor]:
        """What `adapt` takes beside tokens and module, for `count` samples."""
        dims = self._bundle.manifest.dims
        rows = np.zeros((dims.depth + 1, dims.width))
        target = np.zeros((count, dims.classes))
        one = np.ones(
            (1,) * len(self._contracts[ADAPT].inputs["threshold"])
        )  # a number, or [1] in a portable graph
        inputs = {
            "threshold": one * objective.threshold,
            "entropy_weight": one * (1.0 if objective.entropy_weight is None else objective.entropy_weight),
            "align_offset": rows if objective.offset is None else objective.offset,
            "align_slope": rows if objective.slope is None else objective.slope,
            "target": target if objective.target is None else objective.target,
        }
        return {name: self.engine.tensor(np.asarray(value, np.float32)) for name, value in inputs.items()}

    def say(self, piece: Piece, module: Loaded, affines: Affines, *, activations: bool) -> Said:
        """What a module says of the images, by way of `forward`."""
        out = self._run(self.forward, self.inputs(piece, module, affines))
        return Said.of(out["logits"].numpy(), out["activations"].numpy(), keep=activations)

    def gradient(
        self,
        batch: ImageBatch,
        module: Loaded,
        affines: Affines,
        objective: Objective,
        samples: NDArray[np.intp] | None = None,
    ) -> Gradient:
        """What a module says of the batch, or of some samples of it, and the objective's gradient, by way of
        `adapt`."""
        lanes = self.lanes(len(batch) if samples is None else len(samples))
        graph = self.adapt(lanes)

        def differentiate(piece: Piece) -> Summed:
            count = piece.tokens.shape()[0]
            inputs = self.inputs(piece, module, affines)
            out = self._run(graph, {**inputs, **self.objective_inputs(objective.part(piece.rows), count)})
            found = {name: tensor.numpy() for name, tensor in out.items()}
            d_affines = Affines(found["ln_scale_grad"], found["ln_bias_grad"])
            return Summed(found["logits"], found["entropy"], found["activations"], d_affines)

        return _combine(tuple(lanes.map(differentiate, self.pieces(batch, lanes.images, samples))), objective)

    def _run(self, graph: Graph, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        with self.gate.turn():
            return graph(inputs)

    def _open(self, name: str, threads: int | None = None) -> Graph:
        most = self.micro_batch_adapt if name == ADAPT else self.micro_batch
        return self.engine.open(self._bundle.file(name), self._contracts[name], most, threads)


def _combine(parts: Sequence[Summed], objective: Objective) -> Gradient:
    """Pieces to a batch: a sum of sums, divided once where a mean is wanted."""
    entropy = np.concatenate([p.entropy for p in parts])
    reliable = np.flatnonzero(entropy < np.float32(objective.threshold))
    divisor = max(len(reliable), 1) if objective.entropy_weight is None else 1
    return Gradient(
        logits=np.concatenate([p.logits for p in parts]),
        entropy=entropy,
        activations=np.concatenate([p.activations for p in parts]),
        reliable=reliable,
        loss=float(entropy[reliable].mean()) if len(reliable) else 0.0,
        d_affines=Affines(
            _total([p.d_affines.scale for p in parts], divisor),
            _total([p.d_affines.bias for p in parts], divisor),
        ),
    )


def _total(values: Sequence[Array], divisor: int) -> Array:
    return np.asarray(np.sum(values, axis=0, dtype=np.float64) / divisor, np.float32)
