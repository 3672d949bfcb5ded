"""One module from one domain: the paper's recipe, at sizes that make sense for small data."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import load_file, save
from torch import Tensor

from pluto_edge._files import write_bytes
from pluto_edge.errors import ConfigError
from pluto_edge.modules import Dims, Kind
from pluto_edge.train.features import Embedded, accuracy, logits
from pluto_edge.train.progress import Step, ignore
from pluto_edge.train.recipe import LR, Recipe
from pluto_edge.vit.torch_vit import Params, TorchViT

HEAD = ("head_weight", "head_bias")
PROBE_DECAYS = (1e-4, 1e-3, 1e-2, 1e-1)
OPTIMIZER = "AdamW"
DECAY: dict[Kind, float] = {"vpt": 0.01, "adapter": 1.0}  # of the weight decay: prompts do not start at zero


@dataclass(frozen=True)
class Trained:
    """The best epoch's module and its validation accuracy; `probe` is that of the linear probe it started from."""

    module: Params
    accuracy: float
    epochs: int
    probe: float


def train_module(
    vit: TorchViT,
    dims: Dims,
    train: Embedded,
    val: Embedded,
    recipe: Recipe,
    checkpoint: Path | None = None,
    step: Step = ignore,
) -> Trained:
    """Train prompt or adapters and head with the backbone frozen; keep the epoch that validates best.

    With `checkpoint` every epoch is written there, and training goes on from the one that is found, if it is of
    the same images. `step` counts the batches of all epochs: training may stop earlier.
    """
    job = _Job(vit, dims, train, recipe)
    if checkpoint is None or not job.load(checkpoint, train.digest):
        job.probe(train, val)
    total = recipe.epochs * job.batches
    step(job.epoch * job.batches, total, "")
    while job.epoch < recipe.epochs and job.stale < recipe.patience:
        for turn, loss in enumerate(job.run_epoch(train), job.epoch * job.batches + 1):
            step(turn, total, f"loss {loss:.3f}, best {job.best_accuracy:.3f}")
        job.validate(val)
        if checkpoint is not None:
            job.save(checkpoint, train.digest)
    step(total, total, "")
    return Trained({k: v.detach() for k, v in job.best.items()}, job.best_accuracy, job.epoch, job.probe_accuracy)


class _Job:
    """Parameters, optimizer memory and the best epoch so far: what a checkpoint holds."""

    def __init__(self, vit: TorchViT, dims: Dims, train: Embedded, recipe: Recipe) -> None:
        self.vit = vit
        self.dims = dims
        self.recipe = recipe
        generator = torch.Generator().manual_seed(recipe.seed)
        patch = train.tokens[:, vit.layout.prefix :].mean(dim=(0, 1))
        self.params = {k: _start(k, s, patch, generator).requires_grad_() for k, s in dims.shapes.items()}
        body = [v for k, v in self.params.items() if k not in HEAD]
        head = [self.params[k] for k in HEAD]
        scale = recipe.batch / 256
        decay = recipe.weight_decay
        self.optimizers = [
            torch.optim.AdamW(body, (recipe.lr or LR[dims.kind]) * scale, weight_decay=decay * DECAY[dims.kind]),
            torch.optim.AdamW(head, recipe.head_lr * scale, weight_decay=decay),
        ]
        self.base = [o.param_groups[0]["lr"] for o in self.optimizers]
        self.batches = max(1, math.ceil(len(train) / recipe.batch))
        self.epoch = 0
        self.stale = 0
        self.best_accuracy = -1.0
        self.probe_accuracy = -1.0
        self.best: Params = {}

    @property
    def module(self) -> Params:
        return {**self.vit.backbone_ln(), **self.params}

    def probe(self, train: Embedded, val: Embedded) -> None:
        """The head of a linear probe: multinomial regression on the features as they are."""
        with torch.no_grad():
            here, there = (
                torch.cat([self.vit.features(p, self.module) for p in torch.split(data.tokens, 64)])
                for data in (train, val)
            )
        scores = []
        for decay in PROBE_DECAYS:
            head = _regress(here, train.labels, self.dims.classes, decay, self.recipe.smoothing)
            scores.append((accuracy(F.linear(there, *head), val.labels), decay, head))
        self.probe_accuracy, _, head = max(scores, key=lambda s: s[:2])
        self.best_accuracy = self.probe_accuracy
        with torch.no_grad():
            for name, value in zip(HEAD, head, strict=True):
                self.params[name].copy_(value)
        self.best = {k: v.detach().clone() for k, v in self.params.items()}

    def run_epoch(self, train: Embedded) -> Iterator[float]:
        """One epoch, batch after batch; yields the loss of each."""
        generator = torch.Generator().manual_seed(self.recipe.seed * 1000 + self.epoch)
        order = torch.randperm(len(train), generator=generator)
        for turn, index in enumerate(torch.split(order, self.recipe.batch)):
            self._schedule(self.epoch * self.batches + turn)
            tokens = self._thinned(train.tokens[index], generator)
            with torch.autocast("cpu", torch.bfloat16, enabled=self.recipe.precision == "bf16"):
                said = self.vit.logits(tokens, self.module)
            loss = F.cross_entropy(said.float(), train.labels[index], label_smoothing=self.recipe.smoothing)
            if not torch.isfinite(loss):
                raise ConfigError(f"training diverged in epoch {self.epoch + 1}; try a smaller learning rate")
            for optimizer in self.optimizers:
                optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(list(self.params.values()), 5.0)
            for optimizer in self.optimizers:
                optimizer.step()
            yield float(loss.detach())
        self.epoch += 1

    def _thinned(self, tokens: Tensor, generator: torch.Generator) -> Tensor:
        """Without a random share of the patches; the prefix tokens stay."""
        prefix, patches = self.vit.layout.prefix, self.vit.layout.patches
        keep = max(1, round(patches * (1 - self.recipe.patch_drop)))
        if keep == patches:
            return tokens
        chosen = torch.randperm(patches, generator=generator)[:keep].sort().values + prefix
        return tokens[:, torch.cat([torch.arange(prefix), chosen])]

    def validate(self, val: Embedded) -> None:
        score = accuracy(torch.cat(list(logits(self.vit, val, self.module))), val.labels)
        if score > self.best_accuracy:
            self.best_accuracy = score
            self.stale = 0
            self.best = {k: v.detach().clone() for k, v in self.params.items()}
        else:
            self.stale += 1

    def save(self, path: Path, digest: str) -> None:
        tensors = {f"now.{k}": v.detach() for k, v in self.params.items()}
        tensors |= {f"best.{k}": v for k, v in self.best.items()}
        for number, optimizer in enumerate(self.optimizers):
            for index, memory in optimizer.state_dict()["state"].items():
                for key, value in memory.items():
                    if isinstance(value, Tensor):
                        tensors[f"optimizer.{number}.{index}.{key}"] = value
        counters = {"epoch": str(self.epoch), "stale": str(self.stale), "best": repr(self.best_accuracy)}
        counters |= {"probe": repr(self.probe_accuracy), "digest": digest, "optimizer": OPTIMIZER}
        write_bytes(path, save({k: v.contiguous() for k, v in tensors.items()}, counters))

    def load(self, path: Path, digest: str) -> bool:
        """Go on from a checkpoint; False if there is none of these images and of this optimizer."""
        if not path.is_file():
            return False
        with safe_open(path, framework="pt") as opened:
            counters = opened.metadata()
        if (counters.get("digest"), counters.get("optimizer")) != (digest, OPTIMIZER):
            return False
        tensors = load_file(path)
        self.epoch = int(counters["epoch"])
        self.stale = int(counters["stale"])
        self.best_accuracy = float(counters["best"])
        self.probe_accuracy = float(counters["probe"])
        self.best = {k[5:]: v for k, v in tensors.items() if k.startswith("best.")}
        with torch.no_grad():
            for key, value in self.params.items():
                value.copy_(tensors[f"now.{key}"])
        for number, optimizer in enumerate(self.optimizers):
            state = optimizer.state_dict()
            for key, value in tensors.items():
                if key.startswith(f"optimizer.{number}."):
                    _, _, index, name = key.split(".", 3)
                    state["state"].setdefault(int(index), {})[name] = value
            optimizer.load_state_dict(state)
        return True

    def _schedule(self, turn: int) -> None:
        """Linear warm-up, then half a cosine to zero."""
        total = self.recipe.epochs * self.batches
        warm = max(1, round(self.recipe.warmup * total))
        factor = (
            (turn + 1) / warm
            if turn < warm
            else 0.5 * (1 + math.cos(math.pi * (turn - warm) / max(1, total - warm)))
        )
        for optimizer, base in zip(self.optimizers, self.base, strict=True):
            optimizer.param_groups[0]["lr"] = base * factor


def _regress(x: Tensor, y: Tensor, classes: int, decay: float, smoothing: float) -> tuple[Tensor, Tensor]:
    """Multinomial regression by L-BFGS, with weight decay."""
    weight, bias = torch.zeros(classes, x.shape[1], requires_grad=True), torch.zeros(classes, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=60, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(F.linear(x, weight, bias), y, label_smoothing=smoothing)
        loss = loss + decay * weight.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    return weight.detach(), bias.detach()


def _start(name: str, shape: tuple[int, ...], patch: Tensor, generator: torch.Generator) -> Tensor:
    """Prompts near the mean patch; adapters that start as the identity; a head of zeros (the probe fills it).

    VPT's uniform prompts are unlike any patch: LayerNorm makes them as loud as one, and the features suffer. Around
    the mean patch, with a tenth of VPT's spread to tell them apart, they change little until they are trained.
    """
    width = len(patch)
    if name == "prompt":
        bound = 0.1 * math.sqrt(6 / (3 * 16 * 16 + width))
        return patch + torch.empty(shape).uniform_(-bound, bound, generator=generator)
    if name == "down_weight":
        return torch.empty(shape).normal_(0, 1 / math.sqrt(width), generator=generator)
    return torch.zeros(shape)
