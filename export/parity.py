"""Every export is compared with torch before it becomes a bundle."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from pluto_edge import tolerances
from pluto_edge._ort import onnxruntime
from pluto_edge.export.torch_vit import TorchViT
from pluto_edge.manifest import EMBED, FORWARD, ParityEntry, Precision
from pluto_edge.modules import LN_BIAS, LN_SCALE, Module
from pluto_edge.tolerances import relative_error

BATCHES = (1, 2, 5)  # one, even, odd: a batch that was baked into a graph fails at two of them

_TOLERANCES: dict[Precision, tuple[float, float]] = {
    "fp32": (tolerances.EMBED_FP32, tolerances.LOGITS_FP32),
    "fp16": (tolerances.EMBED_FP16, tolerances.LOGITS_FP16),
    "int8": (tolerances.EMBED_FP32, tolerances.LOGITS_INT8),
}


@torch.inference_mode()
def compare(
    folder: Path, vit: TorchViT, modules: Sequence[Module], size: tuple[int, int], precision: Precision
) -> Iterator[ParityEntry]:
    """The graphs in `folder` against torch, output by output, at every batch of `BATCHES`.

    Each batch takes another of `modules`, with its LayerNorm affines disturbed: a graph that had baked them
    in, or mixed them up, would agree with torch only where they are the backbone's.
    """
    embed_tolerance, logits_tolerance = _TOLERANCES[precision]
    embed = _session(folder / EMBED)
    forward = _session(folder / FORWARD)
    generator = torch.Generator().manual_seed(0)
    for turn, batch in enumerate(BATCHES):
        pixels = torch.randn(batch, 3, *size, generator=generator)
        module = _disturbed(vit, modules[turn % len(modules)], generator)
        want_tokens, want_x = vit.embed(pixels)
        want_logits = vit.logits(want_tokens, module)
        tokens, x_hat = embed.run(["tokens", "x_hat"], {"pixels": pixels.numpy()})
        feed = {"tokens": tokens, **{k: v.numpy() for k, v in module.items()}}
        logits = forward.run(["logits"], feed)[0]
        yield ParityEntry("tokens", batch, relative_error(tokens, want_tokens), embed_tolerance)
        yield ParityEntry("x_hat", batch, relative_error(x_hat, want_x), embed_tolerance)
        yield ParityEntry("logits", batch, relative_error(logits, want_logits), logits_tolerance)


def _disturbed(vit: TorchViT, module: Module, generator: torch.Generator) -> dict[str, torch.Tensor]:
    tensors = {**vit.backbone_ln(), **{k: torch.from_numpy(v) for k, v in module.tensors.items()}}
    for name in (LN_SCALE, LN_BIAS):
        noise = torch.randn(tensors[name].shape, generator=generator)
        tensors[name] = tensors[name] + 0.05 * noise * np.maximum(1.0, float(tensors[name].abs().mean()))
    return tensors


def _session(path: Path) -> "onnxruntime.InferenceSession":
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
