"""What the frozen backbone says of an image: the tokens that enter its first block, x̂, and a module's logits."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import UnidentifiedImageError
from torch import Tensor

from pluto_edge.preprocess import Preprocessing
from pluto_edge.train.data import Domain, Sample
from pluto_edge.vit.torch_vit import Params, TorchViT

EMBED_BATCH = 64


@dataclass(frozen=True)
class Embedded:
    """Tokens [n,T,d], x̂ [n,d] and labels [n] of one split of a domain; `digest` says of which images."""

    tokens: Tensor
    x_hat: Tensor
    labels: Tensor
    digest: str = ""

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Batch:
    """Some images as the backbone embeds them, and those on the way that could not be read, with the reason."""

    tokens: Tensor
    x_hat: Tensor
    labels: Tensor
    unreadable: dict[str, str]


@torch.no_grad()
def embed(
    vit: TorchViT, domain: Domain, samples: Sequence[Sample], preprocessing: Preprocessing
) -> Iterator[Batch]:
    """Every image is decoded once; what cannot be read is left out and named."""
    rest = iter(samples)
    while True:
        pixels: list[NDArray[np.float32]] = []
        labels: list[int] = []
        unreadable: dict[str, str] = {}
        while len(pixels) < EMBED_BATCH and (sample := next(rest, None)) is not None:
            try:
                pixels.append(preprocessing(domain.read(sample)))
                labels.append(sample.label)
            except (OSError, UnidentifiedImageError, ValueError, SyntaxError) as cause:
                unreadable[str(sample.path)] = " ".join(str(cause).split())
        if not pixels and not unreadable:
            return
        stacked = np.stack(pixels) if pixels else np.zeros((0, 3, *preprocessing.size), np.float32)
        tokens, x_hat = vit.embed(torch.from_numpy(stacked))
        yield Batch(tokens, x_hat, torch.tensor(labels, dtype=torch.int64), unreadable)


@torch.no_grad()
def logits(vit: TorchViT, data: Embedded, module: Params) -> Iterator[Tensor]:
    """[n,K] of one module, batch after batch."""
    for tokens in torch.split(data.tokens, EMBED_BATCH):
        yield vit.logits(tokens, module)


@torch.no_grad()
def activations(vit: TorchViT, data: Embedded, module: Params) -> Tensor:
    """[n,L+1,d] with one module."""
    return torch.cat([vit.activations(tokens, module) for tokens in torch.split(data.tokens, EMBED_BATCH)])


def accuracy(prediction: Tensor, truth: Tensor) -> float:
    """The share of logits whose largest is the label's."""
    return float((prediction.argmax(dim=-1) == truth).float().mean())
