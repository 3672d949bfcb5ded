"""The runtime's network, which remembers what exported modules say, and whose gradient graph serves any loss."""

from collections.abc import Callable
from dataclasses import fields, replace
from math import exp, log
from pathlib import Path

import numpy as np

from pluto_edge._arrays import Array, Wide
from pluto_edge._files import read_tensors, write_tensors
from pluto_edge.errors import BundleError
from pluto_edge.evaluate.targets import ModuleOutputs, TargetBatch, TargetStream
from pluto_edge.preprocess import ImageBatch
from pluto_edge.runtime.engine.affines import Affines
from pluto_edge.runtime.engine.network import Network
from pluto_edge.runtime.engine.objective import MEAN_ENTROPY
from pluto_edge.runtime.engine.passes import Pass

PART = 64  # images between two reports of progress
RECORDED = tuple(f.name for f in fields(ModuleOutputs))


class RecordedNetwork(Network):
    """Modules that never learned are not run again: their logits and features are the recording's, whoever asks.

    So every method that does not touch LayerNorms costs one pass over the images, all of them together, and
    PLUTO runs the modules that it has adapted. Results are those of `Network`.
    """

    def recall(self, batch: ImageBatch) -> Pass | None:
        """What all modules said as they were exported, where the batch is of a stream that was recorded."""
        if not isinstance(batch, TargetBatch) or batch.stream.outputs is None:
            return None
        recording = batch.stream.outputs
        return Pass(
            loaded=tuple(self.modules),
            names=tuple(self.modules),
            logits=recording.logits[batch.indices],
            features=recording.features[batch.indices],
            x_hat=recording.x_hat[batch.indices],
            digests=tuple(m.digest_with(m.exported) for m in self.modules.values()),
        )

    def record(
        self, stream: TargetStream, cache: Path, advance: Callable[[int], None] = lambda count: None
    ) -> None:
        """All exported modules on all images, once; a second run reads the file of the first."""
        name = f"recording-{self.bundle.hash[:16]}-{stream.target.digest[:16]}.safetensors"
        file = cache / name
        if not file.exists():
            parts = []
            for batch in stream.batches(np.arange(len(stream.target)), PART):
                parts.append(self.run(batch, {}))
                advance(len(batch))
            write_tensors(file, {n: np.concatenate([getattr(p, n) for p in parts]) for n in RECORDED})
        stream.outputs = ModuleOutputs(**read_tensors(file, BundleError))

    def logits(self, batch: TargetBatch, name: str, affines: Affines | None) -> Array:
        """One module [B,K], as exported or with affines of its own."""
        return self.run(batch, {} if affines is None else {name: affines}, [name]).logits[:, 0]

    def pull_back(
        self, batch: TargetBatch, sample: int, name: str, affines: Affines, logits: Wide, d_logits: Wide
    ) -> Affines:
        """The gradient of the affines for any gradient of one sample's logits [K], given these logits.

        The exported graph's losses are of probabilities: their gradients sum to zero over the classes, and a
        target can give no other. Its head is an input, though, so a head is made for this sample whose entropy has
        the gradient that is wanted where the head looks: row 0 is a multiple of v = Σ_k d_k W_k, the others are
        zero, and the bias puts the first logit to t. Then the entropy's gradient is -t p (1-p) times row 0, with p
        = e^t / (e^t + K - 1).
        """
        module = self.modules[name]
        classes = len(d_logits)
        head, bias = (module.tensors[n].numpy().astype(np.float64) for n in ("head_weight", "head_bias"))
        t = log(classes - 1) + 1
        p = exp(t) / (exp(t) + classes - 1)
        factor = -1 / (t * p * (1 - p))
        weight, offset = np.zeros_like(head), np.zeros_like(bias)
        weight[0] = factor * (d_logits @ head)
        offset[0] = t - factor * (d_logits @ (logits - bias))
        made = {
            n: self.engine.tensor(v.astype(np.float32)) for n, v in (("head_weight", weight), ("head_bias", offset))
        }
        module = replace(module, tensors={**module.tensors, **made})
        return self.graphs.gradient(batch, module, affines, MEAN_ENTROPY, np.array([sample])).d_affines
