"""What the frozen backbone says of an image, computed once: the tokens that enter its first block, and x̂."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pluto_edge.export.torch_vit import Params, TorchViT
from pluto_edge.preprocess import Preprocessing
from pluto_edge.train.data import Domain, Sample, labels

EMBED_BATCH = 64


@dataclass(frozen=True)
class Embedded:
    """Tokens [n,T,d], x̂ [n,d] and labels [n] of some samples of one domain."""

    tokens: Tensor
    x_hat: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


@torch.no_grad()
def embed(vit: TorchViT, domain: Domain, samples: Sequence[Sample], preprocessing: Preprocessing) -> Embedded:
    tokens, x_hat = [], []
    for start in range(0, len(samples), EMBED_BATCH):
        part = samples[start : start + EMBED_BATCH]
        pixels = np.stack([preprocessing(domain.read(s)) for s in part])
        t, x = vit.embed(torch.from_numpy(pixels))
        tokens.append(t)
        x_hat.append(x)
    return Embedded(torch.cat(tokens), torch.cat(x_hat), torch.from_numpy(labels(samples)))


@torch.no_grad()
def logits(vit: TorchViT, data: Embedded, module: Params) -> Tensor:
    """[n,K] of one module."""
    return torch.cat([vit.logits(tokens, module) for tokens in torch.split(data.tokens, EMBED_BATCH)])


def accuracy(prediction: Tensor, truth: Tensor) -> float:
    return float((prediction.argmax(dim=-1) == truth).float().mean())
