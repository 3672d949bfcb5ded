"""Every export is compared with torch before it becomes a bundle."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from pluto_edge import tolerances
from pluto_edge._ort import onnxruntime
from pluto_edge.export.torch_vit import Params, TorchViT
from pluto_edge.manifest import ADAPT, EMBED, FORWARD, ParityEntry, Precision
from pluto_edge.modules import LN_BIAS, LN_SCALE, LOGIT_MEANS, Module
from pluto_edge.tolerances import relative_error

BATCHES = (1, 2, 5)  # one, even, odd: a batch that was baked into a graph fails at two of them

_TOLERANCES: dict[Precision, tuple[float, float]] = {
    "fp32": (tolerances.EMBED_FP32, tolerances.LOGITS_FP32),
    "fp16": (tolerances.EMBED_FP16, tolerances.LOGITS_FP16),
    "int8": (tolerances.EMBED_FP32, tolerances.LOGITS_INT8),
}


def compare(
    folder: Path,
    plain: Path,
    vit: TorchViT,
    modules: Sequence[Module],
    size: tuple[int, int],
    precision: Precision,
) -> Iterator[ParityEntry]:
    """The graphs in `folder` against torch, output by output, at every batch of `BATCHES`.

    Each batch takes another of `modules`, with its LayerNorm affines disturbed: a graph that had baked them
    in, or mixed them up, would agree with torch only where they are the backbone's. `plain` is the gradient graph
    before it was quantized: its gradients are compared, since those of an int8 graph may be of other samples.
    """
    embed_tolerance, logits_tolerance = _TOLERANCES[precision]
    embed, forward, adapt = (_session(p) for p in (folder / EMBED, folder / FORWARD, plain))
    quantized = _session(folder / ADAPT) if precision == "int8" else None
    generator = torch.Generator().manual_seed(0)
    for turn, batch in enumerate(BATCHES):
        pixels = torch.randn(batch, 3, *size, generator=generator)
        module = _disturbed(vit, modules[turn % len(modules)], generator)
        with torch.inference_mode():
            want_tokens, want_x = vit.embed(pixels)
        tokens, x_hat = embed.run(["tokens", "x_hat"], {"pixels": pixels.numpy()})
        yield ParityEntry("tokens", batch, relative_error(tokens, want_tokens), embed_tolerance)
        yield ParityEntry("x_hat", batch, relative_error(x_hat, want_x), embed_tolerance)
        want = entropy_gradient(vit, want_tokens.clone(), module)
        feed = {"tokens": tokens, **{k: v.numpy() for k, v in module.items()}}
        logits = forward.run(["logits"], feed)[0]
        yield ParityEntry("logits", batch, relative_error(logits, want["logits"]), logits_tolerance)
        # the gradient is never fp16: compare it on the very tokens that torch has
        exact = {**feed, "tokens": want_tokens.numpy(), "threshold": want["threshold"].numpy()}
        names = ["logits", "entropy", "ln_scale_grad", "ln_bias_grad"]
        for name, value in zip(names, adapt.run(names, exact), strict=True):
            tolerance = tolerances.GRADIENT if name.endswith("grad") else tolerances.LOGITS_FP32
            yield ParityEntry(f"adapt.{name}", batch, relative_error(value, want[name]), tolerance)
        if quantized is not None:
            error = relative_error(quantized.run(["logits"], exact)[0], want["logits"])
            yield ParityEntry("adapt.logits in int8", batch, error, logits_tolerance)


def entropy_gradient(vit: TorchViT, tokens: torch.Tensor, module: Params) -> Params:
    """By autograd: gradients of the mean entropy of the samples below a threshold that takes about half."""
    leaf = {**module, **{n: module[n].clone().requires_grad_() for n in (LN_SCALE, LN_BIAS)}}
    logits = vit.logits(tokens, leaf)
    log_p = logits.log_softmax(dim=-1)
    entropy = -(log_p.exp() * log_p).sum(dim=-1)
    order = entropy.detach().sort().values
    middle = len(order) // 2
    threshold = order[middle - 1 : middle + 1].mean() if len(order) > 1 else order[0] + 1
    scale, bias = torch.autograd.grad(entropy[entropy < threshold].mean(), [leaf[LN_SCALE], leaf[LN_BIAS]])
    return {
        "logits": logits.detach(),
        "entropy": entropy.detach(),
        "threshold": threshold,
        "ln_scale_grad": scale,
        "ln_bias_grad": bias,
    }


def _disturbed(vit: TorchViT, module: Module, generator: torch.Generator) -> Params:
    inputs = {k: torch.from_numpy(v) for k, v in module.tensors.items() if k != LOGIT_MEANS}
    tensors = {**vit.backbone_ln(), **inputs}
    for name in (LN_SCALE, LN_BIAS):
        noise = torch.randn(tensors[name].shape, generator=generator)
        tensors[name] = tensors[name] + 0.05 * noise * np.maximum(1.0, float(tensors[name].abs().mean()))
    return tensors


def _session(path: Path) -> "onnxruntime.InferenceSession":
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
