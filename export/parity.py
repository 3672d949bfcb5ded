"""Every export is compared with torch before it becomes a bundle."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from pluto_edge import tolerances
from pluto_edge._ort import onnxruntime
from pluto_edge.manifest import ADAPT, EMBED, FORWARD, ParityEntry, Precision
from pluto_edge.modules import LN_BIAS, LN_SCALE, Module
from pluto_edge.tolerances import relative_error
from pluto_edge.vit.torch_vit import Params, TorchViT

Arrays = dict[str, NDArray[np.float32]]

BATCHES = (1, 2, 5)  # one, even, odd: a batch that was baked into a graph fails at two of them

_TOLERANCES: dict[Precision, tuple[float, float, float]] = {  # of tokens and x̂, of logits, of activations
    "fp32": (tolerances.EMBED_FP32, tolerances.LOGITS_FP32, tolerances.ACTIVATIONS_FP32),
    "fp16": (tolerances.EMBED_FP16, tolerances.LOGITS_FP16, tolerances.ACTIVATIONS_FP16),
    "int8": (tolerances.EMBED_FP32, tolerances.LOGITS_INT8, tolerances.ACTIVATIONS_INT8),
}


def compare(
    folder: Path,
    plain: Path,
    vit: TorchViT,
    modules: Sequence[Module],
    size: tuple[int, int],
    precision: Precision,
    fixed: int | None = None,
    learn_from: int = 0,
) -> Iterator[ParityEntry]:
    """The graphs in `folder` against torch, output by output, at every batch of `BATCHES`. `fixed` is how many
    images `embed` and `forward` take: fewer are filled up, more go in one after another.

    Each batch takes another of `modules`, with its LayerNorm affines disturbed: a graph that had baked them
    in, or mixed them up, would agree with torch only where they are the backbone's. `plain` is the gradient graph
    before it was quantized: its gradients are compared, since those of an int8 graph may be of other samples. Those
    of blocks before `learn_from` must be zero.
    """
    embed_tolerance, *own = _TOLERANCES[precision]
    exactly = [tolerances.LOGITS_FP32, tolerances.ACTIVATIONS_FP32]
    embed, forward, adapt = (_session(p) for p in (folder / EMBED, folder / FORWARD, plain))
    quantized = _session(folder / ADAPT) if precision == "int8" else None
    generator = torch.Generator().manual_seed(0)
    for turn, batch in enumerate(BATCHES):
        pixels = torch.randn(batch, 3, *size, generator=generator)
        module = _disturbed(vit, modules[turn % len(modules)], generator)
        with torch.inference_mode():
            want_tokens, want_x = vit.embed(pixels)
        embedded = _in_pieces(embed, {"pixels": pixels.numpy()}, "pixels", fixed)
        tokens, x_hat = embedded["tokens"], embedded["x_hat"]
        yield ParityEntry("tokens", batch, relative_error(tokens, want_tokens), embed_tolerance)
        yield ParityEntry("x_hat", batch, relative_error(x_hat, want_x), embed_tolerance)
        want = TorchReference(vit, want_tokens.clone(), module, 2 * learn_from)
        feed = {"tokens": tokens, **_arrays(module)}
        yield from _outputs("{}", batch, _in_pieces(forward, feed, "tokens", fixed), want, own)
        # the gradient is never fp16: compare it on the very tokens that torch has
        feed["tokens"] = want_tokens.numpy()
        entropy, everything = want.entropy_alone(), want.all_terms(generator)
        got = _run(adapt, feed | _arrays(entropy))
        yield from _outputs("adapt.{}", batch, got, want, exactly)
        yield ParityEntry("adapt.entropy", batch, _entropy_error(got, want), tolerances.LOGITS_FP32)
        yield from _gradients("adapt.{}", batch, got, want.gradients(entropy))
        got = _run(adapt, feed | _arrays(everything))
        yield from _gradients("adapt.{} of all terms", batch, got, want.gradients(everything))
        if quantized is not None:
            got = _run(quantized, feed | _arrays(entropy))
            yield from _outputs("adapt.{} in int8", batch, got, want, own)


class TorchReference:
    """What torch makes of one batch, and by autograd the gradients of any objective of `adapt`.

    The terms of an objective are the graph's inputs of these names. The network runs in single precision, as the
    graph does; probabilities and all that follows from them are in double: where a module is very sure, autograd's
    gradient of the entropy in single precision is the difference of numbers that are all but equal, and was seen to
    be off by 20 % while the graph's was right.
    """

    def __init__(self, vit: TorchViT, tokens: Tensor, module: Params, frozen_rows: int = 0) -> None:
        self._frozen_rows = frozen_rows
        self._affines = [module[n].detach().clone().requires_grad_() for n in (LN_SCALE, LN_BIAS)]
        leaf = {**module, LN_SCALE: self._affines[0], LN_BIAS: self._affines[1]}
        self._activations = vit.activations(tokens, leaf)
        self._logits = F.linear(self._activations[:, -1], leaf["head_weight"], leaf["head_bias"])
        self._log_p = self._logits.double().log_softmax(dim=-1)
        self._entropy = -(self._log_p.exp() * self._log_p).sum(dim=-1)
        self.logits, self.activations, self.entropy = (
            value.detach() for value in (self._logits, self._activations, self._entropy)
        )

    @property
    def most_entropy(self) -> float:
        """What an entropy may be at most: the logarithm of the classes."""
        return math.log(max(self.logits.shape[1], 2))

    def entropy_alone(self) -> Params:
        """The entropies of the surer samples: those below the widest gap, or all where no gap is wide.

        Which samples count is a step, and is compared nowhere near to it: rounding may decide on either side there.
        """
        order = self.entropy.sort().values
        gaps = order.diff()
        threshold = order[-1] + 1
        if len(gaps) and gaps.max() > tolerances.ENTROPY_GAP * self.most_entropy:
            widest = int(gaps.argmax())
            threshold = order[widest : widest + 2].mean()
        rows = torch.zeros(self.activations.shape[1:])
        return {
            "threshold": threshold.float(),
            "entropy_weight": torch.tensor(1.0),
            "align_offset": rows,
            "align_slope": rows,
            "target": torch.zeros(self.logits.shape),
        }

    def all_terms(self, generator: torch.Generator) -> Params:
        """Random terms; those of alignment in proportion to each row, so that none drowns the others."""

        def noise(like: Tensor) -> Tensor:
            return torch.randn(like.shape, generator=generator)

        terms = self.entropy_alone()
        size = self.activations.square().mean(dim=(0, 2)).sqrt()[:, None] + 1e-6
        return terms | {
            "entropy_weight": torch.tensor(0.7),
            "align_offset": noise(terms["align_offset"]) / size,
            "align_slope": noise(terms["align_slope"]) / size**2,
            "target": noise(terms["target"]).abs(),
        }

    def gradients(self, terms: Params) -> Params:
        """Autograd's gradients of the LayerNorm affines for these terms of the objective; zero in frozen rows."""
        a = self._activations
        chosen = self.entropy < terms["threshold"]
        loss = terms["entropy_weight"] * self._entropy[chosen].sum() - (terms["target"] * self._log_p).sum()
        loss = loss + (terms["align_offset"] * a + 0.5 * terms["align_slope"] * a.square()).sum()
        scale, bias = torch.autograd.grad(loss, self._affines, retain_graph=True)
        for gradient in (scale, bias):
            gradient[: self._frozen_rows] = 0
        return {"ln_scale_grad": scale, "ln_bias_grad": bias}


def rows_error(got: ArrayLike, want: ArrayLike) -> float:
    """Of activations [B,L+1,d]: the largest error of a row, each in its own size. Rows may differ a hundredfold."""
    pairs = zip(np.moveaxis(np.asarray(got), 1, 0), np.moveaxis(np.asarray(want), 1, 0), strict=True)
    return max(relative_error(a, b) for a, b in pairs)


def _entropy_error(got: Arrays, want: TorchReference) -> float:
    """In the size that an entropy may have: those of a sure module are all near 0, and so is their rounding."""
    return float(np.abs(got["entropy"] - want.entropy.numpy()).max() / want.most_entropy)


def _outputs(
    name: str, batch: int, got: Arrays, want: TorchReference, allowed: Sequence[float]
) -> Iterator[ParityEntry]:
    logits, activations = allowed
    yield ParityEntry(name.format("logits"), batch, relative_error(got["logits"], want.logits), logits)
    error = rows_error(got["activations"], want.activations)
    yield ParityEntry(name.format("activations"), batch, error, activations)


def _gradients(name: str, batch: int, got: Arrays, want: Params) -> Iterator[ParityEntry]:
    for output, gradient in want.items():
        error = relative_error(got[output], gradient)
        yield ParityEntry(name.format(output), batch, error, tolerances.GRADIENT)


def _run(session: "onnxruntime.InferenceSession", feed: Arrays) -> Arrays:
    names = [output.name for output in session.get_outputs()]
    for given in session.get_inputs():
        if given.shape == [1]:  # a number, in a portable graph
            feed = {**feed, given.name: feed[given.name].reshape(1)}
    return dict(zip(names, session.run(names, feed), strict=True))


def _in_pieces(session: "onnxruntime.InferenceSession", feed: Arrays, batched: str, fixed: int | None) -> Arrays:
    """`fixed` rows of the input `batched` at a time, the last ones filled up with zeros; None is all at once."""
    if fixed is None:
        return _run(session, feed)
    rows = feed[batched]
    count = len(rows)
    filled = np.concatenate([rows, np.zeros((-count % fixed, *rows.shape[1:]), rows.dtype)])
    parts = [_run(session, {**feed, batched: part}) for part in np.split(filled, len(filled) // fixed)]
    return {name: np.concatenate([part[name] for part in parts])[:count] for name in parts[0]}


def _arrays(tensors: Params) -> Arrays:
    return {name: value.numpy() for name, value in tensors.items()}


def _disturbed(vit: TorchViT, module: Module, generator: torch.Generator) -> Params:
    inputs = {k: torch.from_numpy(v) for k, v in module.tensors.items() if k not in module.dims.optional_shapes}
    tensors = {**vit.backbone_ln(), **inputs}
    for name in (LN_SCALE, LN_BIAS):
        noise = torch.randn(tensors[name].shape, generator=generator)
        tensors[name] = tensors[name] + 0.05 * noise * np.maximum(1.0, float(tensors[name].abs().mean()))
    return tensors


def _session(path: Path) -> "onnxruntime.InferenceSession":
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
