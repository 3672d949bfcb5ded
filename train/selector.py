"""The selector's initialisation: cross-entropy of the weighted prediction, on mixed batches of all sources.

On a device the selector meets domains that have no module, and there it must know whom to trust instead. So an
image's own module is withheld from most of its lessons. And the dot product of h_x and h_l starts divided by
sqrt(d'), as attention's: of two normalised vectors it is large enough to saturate the softmax, which then hardly
learns. Both are beyond the paper, whose initialisation is `SelectorRecipe(withhold=0, temperature=1)`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pluto_edge.modules import SelectorWeights
from pluto_edge.train.features import accuracy
from pluto_edge.train.progress import Step, ignore
from pluto_edge.train.recipe import SelectorRecipe
from pluto_edge.vit.torch_vit import TorchSelector


def sizes(classes: int) -> tuple[int, int, int, float]:
    """d'_x, d'_l, d' and dropout of the paper's table, by number of classes (10, 65, 100 and 1000 there)."""
    if classes <= 10:
        return 32, 32, 32, 0.5
    if classes <= 65:
        return 32, 32, 64, 0.0
    if classes <= 100:
        return 64, 64, 64, 0.0
    return 128, 128, 128, 0.0


@dataclass(frozen=True)
class SourceLogits:
    """Cached: x̂ [n,d], logits of all modules [n,N,K] and labels [n], of one split of all sources together.

    `own` [n] is the index of the module of each image's domain; -1 where it has none.
    """

    x_hat: Tensor
    logits: Tensor
    labels: Tensor
    own: Tensor

    def __getitem__(self, index: Tensor) -> "SourceLogits":
        return SourceLogits(self.x_hat[index], self.logits[index], self.labels[index], self.own[index])

    @property
    def own_modules(self) -> Tensor:
        """[n,N]: true for the module that may be withheld; nothing where it is the only one."""
        count = self.logits.shape[1]
        return (self.own[:, None] == torch.arange(count)) & (count > 1)


@dataclass(frozen=True)
class SelectorReport:
    """Accuracy on held-out source data: the selector's blend, the uniform average, the best single module."""

    weights: SelectorWeights
    blend: float
    uniform: float
    best_single: float
    epochs: int


def train_selector(
    train: SourceLogits,
    val: SourceLogits,
    recipe: SelectorRecipe,
    step: Step = ignore,
) -> SelectorReport:
    """Trains the selector on cached logits; the epoch that validates best is kept."""
    classes, width = train.logits.shape[2], train.x_hat.shape[1]
    hidden_x, hidden_l, out, dropout = sizes(classes)
    shape = {"width": width, "classes": classes, "hidden_x": hidden_x, "hidden_l": hidden_l, "out": out}
    start = SelectorWeights.random(**shape, seed=recipe.seed)
    start = replace(start, scale_x=start.scale_x / np.float32(recipe.temperature or math.sqrt(out)))
    g = _torch(start, dropout if recipe.dropout is None else recipe.dropout)
    optimizer = torch.optim.AdamW(g.parameters(), recipe.lr, weight_decay=recipe.weight_decay)
    generator = torch.Generator().manual_seed(recipe.seed)
    torch.manual_seed(recipe.seed)  # dropout draws from the global generator
    best = SelectorWeights.uniform(**shape)  # what is left when nothing that is learned is better
    best_loss = _loss(_torch(best), val, recipe.withhold)
    stale = 0
    epochs = 0
    while epochs < recipe.epochs and stale < recipe.patience:
        epochs += 1
        g.train()
        order = torch.randperm(len(train.labels), generator=generator)
        for index in torch.split(order, recipe.batch):
            optimizer.zero_grad()
            part = train[index]
            withheld = part.own_modules & (torch.rand(len(index), 1, generator=generator) < recipe.withhold)
            F.cross_entropy(_blend(g, part, withheld), part.labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        loss = _loss(g, val, recipe.withhold)
        step(epochs, recipe.epochs, f"validation loss {loss:.3f}")
        if loss < best_loss:
            best = _weights(g)
            best_loss = loss
            stale = 0
        else:
            stale += 1
    step(recipe.epochs, recipe.epochs, "")
    blend, uniform, single = compare(best, val)
    return SelectorReport(best, blend, uniform, single, epochs)


@torch.no_grad()
def compare(weights: SelectorWeights, data: SourceLogits) -> tuple[float, float, float]:
    """Accuracy of the selector's blend, of the uniform average, and of the best single module."""
    blended = _blend(_torch(weights).eval(), data)
    singles = [accuracy(data.logits[:, j], data.labels) for j in range(data.logits.shape[1])]
    return accuracy(blended, data.labels), accuracy(data.logits.mean(dim=1), data.labels), max(singles)


def join(parts: Sequence[SourceLogits]) -> SourceLogits:
    """Several domains' images as one set; each still knows its own module."""
    return SourceLogits(
        torch.cat([p.x_hat for p in parts]),
        torch.cat([p.logits for p in parts]),
        torch.cat([p.labels for p in parts]),
        torch.cat([p.own for p in parts]),
    )


def _blend(g: TorchSelector, data: SourceLogits, withheld: Tensor | None = None) -> Tensor:
    weights: Tensor = g(data.x_hat, data.logits, withheld)
    return (weights[..., None] * data.logits).sum(dim=1)


@torch.no_grad()
def _loss(g: TorchSelector, data: SourceLogits, withhold: float) -> float:
    """With every image's own module, and without it, in the shares of the training."""
    g.eval()
    whole, without = (F.cross_entropy(_blend(g, data, mask), data.labels) for mask in (None, data.own_modules))
    return float((1 - withhold) * whole + withhold * without)


def _torch(weights: SelectorWeights, dropout: float = 0.0) -> TorchSelector:
    return TorchSelector({k: torch.from_numpy(v) for k, v in weights.tensors.items()}, dropout)


def _weights(g: TorchSelector) -> SelectorWeights:
    return SelectorWeights(**{k: v.detach().numpy().copy() for k, v in g.weights.items()})
