"""The selector's initialisation: cross-entropy of the weighted prediction, on mixed batches of all sources."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pluto_edge.errors import ConfigError
from pluto_edge.export.torch_vit import TorchSelector
from pluto_edge.modules import SelectorWeights
from pluto_edge.train.features import accuracy
from pluto_edge.train.progress import Step, ignore


@dataclass(frozen=True)
class SelectorRecipe:
    """AdamW on cached logits; the epoch that validates best is kept. Sizes by number of classes, as the paper's."""

    epochs: int = 60
    batch: int = 64
    lr: float = 1e-3
    weight_decay: float = 0.01
    patience: int = 12
    dropout: float | None = None
    images: int | None = None  # of each domain and split; every module looks at every one of them
    seed: int = 0

    def __post_init__(self) -> None:
        if self.images is not None and self.images < 1:
            raise ConfigError(f"images: want at least 1, got {self.images}")
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout: want 0 up to, but not, 1, got {self.dropout}")


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
    """Cached: x̂ [n,d], logits of all modules [n,N,K] and labels [n], of one split of all sources together."""

    x_hat: Tensor
    logits: Tensor
    labels: Tensor


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
    classes, width = train.logits.shape[2], train.x_hat.shape[1]
    hidden_x, hidden_l, out, dropout = sizes(classes)
    start = SelectorWeights.random(
        width=width, classes=classes, hidden_x=hidden_x, hidden_l=hidden_l, out=out, seed=recipe.seed
    )
    g = TorchSelector(
        {k: torch.from_numpy(v) for k, v in start.tensors.items()},
        dropout if recipe.dropout is None else recipe.dropout,
    )
    optimizer = torch.optim.AdamW(g.parameters(), recipe.lr, weight_decay=recipe.weight_decay)
    generator = torch.Generator().manual_seed(recipe.seed)
    torch.manual_seed(recipe.seed)  # dropout draws from the global generator
    best, best_loss, stale, epochs = _weights(g), _loss(g, val), 0, 0
    while epochs < recipe.epochs and stale < recipe.patience:
        epochs += 1
        g.train()
        order = torch.randperm(len(train.labels), generator=generator)
        for index in torch.split(order, recipe.batch):
            optimizer.zero_grad()
            logits = train.logits[index]
            blended = (g(train.x_hat[index], logits)[..., None] * logits).sum(dim=1)
            F.cross_entropy(blended, train.labels[index]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        loss = _loss(g, val)
        step(epochs, recipe.epochs, f"validation loss {loss:.3f}")
        if loss < best_loss:
            best, best_loss, stale = _weights(g), loss, 0
        else:
            stale += 1
    step(recipe.epochs, recipe.epochs, "")
    blend, uniform, single = compare(best, val)
    return SelectorReport(best, blend, uniform, single, epochs)


@torch.no_grad()
def compare(weights: SelectorWeights, data: SourceLogits) -> tuple[float, float, float]:
    """Accuracy of the selector's blend, of the uniform average, and of the best single module."""
    g = TorchSelector({k: torch.from_numpy(v) for k, v in weights.tensors.items()}).eval()
    blended = (g(data.x_hat, data.logits)[..., None] * data.logits).sum(dim=1)
    singles = [accuracy(data.logits[:, j], data.labels) for j in range(data.logits.shape[1])]
    return accuracy(blended, data.labels), accuracy(data.logits.mean(dim=1), data.labels), max(singles)


def join(parts: Sequence[SourceLogits]) -> SourceLogits:
    return SourceLogits(
        torch.cat([p.x_hat for p in parts]),
        torch.cat([p.logits for p in parts]),
        torch.cat([p.labels for p in parts]),
    )


@torch.no_grad()
def _loss(g: TorchSelector, data: SourceLogits) -> float:
    g.eval()
    blended = (g(data.x_hat, data.logits)[..., None] * data.logits).sum(dim=1)
    return float(F.cross_entropy(blended, data.labels))


def _weights(g: TorchSelector) -> SelectorWeights:
    return SelectorWeights(**{k: v.detach().numpy().copy() for k, v in g.weights.items()})
