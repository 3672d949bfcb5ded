"""Tent, EATA, SAR, CoTTA, NEO, T3A and LAME in torch, with its autograd and optimizers: what checks `evaluate`."""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from pluto_edge.store import Store
from pluto_edge.vit.backbone import load_backbone
from pluto_edge.vit.torch_vit import TorchViT


def entropy_of(logits: Tensor) -> Tensor:
    return -(logits.softmax(1) * logits.log_softmax(1)).sum(1)


class Base:
    """A store's module whose LayerNorm affines are leaves, row by row, as in a real network."""

    def __init__(self, store: Store, name: str, rows: int | None = None) -> None:
        self.vit = TorchViT(load_backbone(store))
        tensors = {k: torch.from_numpy(v) for k, v in store.load_module(name).tensors.items()}
        self.module: dict[str, Any] = {**self.vit.backbone_ln(), **tensors}
        count = len(self.module["ln_scale"])
        self.scale = [self.module["ln_scale"][i].clone().requires_grad_() for i in range(count)]
        self.bias = [self.module["ln_bias"][i].clone().requires_grad_() for i in range(count)]
        self.params = [*self.scale[:rows], *self.bias[:rows]]
        self.start = [p.detach().clone() for p in self.params]

    def __call__(self, pixels: Tensor) -> Tensor:
        module = {**self.module, "ln_scale": torch.stack(self.scale), "ln_bias": torch.stack(self.bias)}
        return self.vit.logits(self.vit.embed(pixels)[0], module)

    @property
    def affines(self) -> tuple[Any, Any]:
        return torch.stack(self.scale).detach().numpy(), torch.stack(self.bias).detach().numpy()


class TorchTent(Base):
    def __init__(self, store: Store, name: str, lr: float) -> None:
        super().__init__(store, name)
        self.optimizer = torch.optim.SGD(self.params, lr, momentum=0.9)

    def step(self, pixels: Tensor) -> Tensor:
        logits = self(pixels)
        self.optimizer.zero_grad()
        entropy_of(logits).mean().backward()
        self.optimizer.step()
        return logits.detach()


class TorchEata(Base):
    def __init__(self, store: Store, name: str, lr: float, margin: float, distance: float) -> None:
        super().__init__(store, name)
        self.optimizer = torch.optim.SGD(self.params, lr, momentum=0.9)
        self.margin, self.distance = margin, distance
        self.average: Tensor | None = None
        self.fisher: list[Tensor] | None = None
        self.counts: list[tuple[int, int]] = []

    def learn_fisher(self, batches: list[Tensor]) -> None:
        total = [torch.zeros_like(p) for p in self.params]
        for pixels in batches:
            logits = self(pixels)
            loss = torch.nn.functional.cross_entropy(logits, logits.argmax(1))
            for sum_, d in zip(total, torch.autograd.grad(loss, self.params), strict=True):
                sum_ += d**2 / len(batches)
        self.fisher = total

    def step(self, pixels: Tensor) -> Tensor:
        logits = self(pixels)
        h, p = entropy_of(logits), logits.softmax(1).detach()
        keep = h.detach() < self.margin
        first = int(keep.sum())
        if self.average is not None:
            keep &= torch.nn.functional.cosine_similarity(self.average[None], p, dim=1).abs() < self.distance
        self.counts.append((first, int(keep.sum())))
        if not keep.any():
            return logits.detach()
        mean = p[keep].mean(0)
        self.average = mean if self.average is None else 0.9 * self.average + 0.1 * mean
        loss = (h[keep] * torch.exp(self.margin - h[keep].detach())).mean()
        if self.fisher is not None:
            terms = zip(self.fisher, self.params, self.start, strict=True)
            loss = loss + 2000.0 * sum((f * (q - s) ** 2).sum() for f, q, s in terms)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return logits.detach()


class TorchSar(Base):
    def __init__(self, store: Store, name: str, lr: float, margin: float, recovery: float, rows: int) -> None:
        super().__init__(store, name, rows)
        self.optimizer = torch.optim.SGD(self.params, lr, momentum=0.9)
        self.margin, self.recovery = margin, recovery
        self.average: float | None = None
        self.resets, self.lost = 0, 0

    def step(self, pixels: Tensor) -> Tensor:
        logits = self(pixels)
        keep = torch.nonzero(entropy_of(logits) < self.margin)[:, 0]
        self.optimizer.zero_grad()
        entropy_of(logits)[keep].mean().backward()  # of nothing, it is nan, and its gradients are zero
        gradients = [q.grad.clone() for q in self.params]
        norm = torch.sqrt(sum((g**2).sum() for g in gradients))
        before = [q.detach().clone() for q in self.params]
        with torch.no_grad():
            for q, g in zip(self.params, gradients, strict=True):
                q += 0.05 / (norm + 1e-12) * g
        second = entropy_of(self(pixels))[keep]
        again = second[second < self.margin]
        self.lost += len(second) - len(again)
        if len(again):
            value = float(again.detach().mean())
            self.average = value if self.average is None else 0.9 * self.average + 0.1 * value
        self.optimizer.zero_grad()
        again.mean().backward()
        with torch.no_grad():
            for q, b in zip(self.params, before, strict=True):
                q.copy_(b)
        self.optimizer.step()
        if self.average is not None and self.average < self.recovery:
            self.resets += 1
            with torch.no_grad():
                for q, s in zip(self.params, self.start, strict=True):
                    q.copy_(s)
        return logits.detach()


class TorchNeo(Base):
    """On features, with the head applied to what is centred."""

    def __init__(self, store: Store, name: str) -> None:
        super().__init__(store, name)
        self.seen: list[Tensor] = []

    @torch.no_grad()
    def step(self, pixels: Tensor) -> Tensor:
        z = self.vit.features(self.vit.embed(pixels)[0], self.module)
        self.seen.append(z)
        centred = z - torch.cat(self.seen).mean(0)
        return centred @ self.module["head_weight"].T + self.module["head_bias"]


class TorchCotta:
    """Student, teacher and start as whole networks; the caller gives the views, and masks of what goes back."""

    def __init__(self, store: Store, name: str, lr: float, alpha: float) -> None:
        start = Base(store, name)
        module = {k: v.clone() for k, v in start.module.items()}
        self.nets = [(deepcopy(start.vit), {k: v.clone() for k, v in module.items()}) for _ in range(3)]
        self.optimizer = torch.optim.SGD(list(self.tensors(0).values()), lr, momentum=0.9)
        for t in self.tensors(0).values():
            t.requires_grad_()
        self.alpha = alpha

    def tensors(self, which: int) -> dict[str, Tensor]:
        vit, module = self.nets[which]
        named = {k: v for k, v in module.items() if k != "prompt"}
        for path, part in vit.vit.named_modules():
            for own, tensor in part.named_parameters(recurse=False):
                if own in ("weight", "bias"):
                    named[f"backbone.{path}.{own}"] = tensor
        return named

    def says(self, which: int, pixels: Tensor) -> Tensor:
        vit, module = self.nets[which]
        return vit.logits(vit.embed(pixels)[0], module)

    def step(self, pixels: Tensor, views: list[Tensor], masks: dict[str, Tensor]) -> Tensor:
        with torch.no_grad():
            taught = torch.stack([self.says(1, v) for v in views]).mean(0)
        self.optimizer.zero_grad()
        torch.nn.functional.cross_entropy(self.says(0, pixels), taught.softmax(1)).backward()
        self.optimizer.step()
        with torch.no_grad():
            student, teacher, start = (self.tensors(i) for i in range(3))
            for key, tensor in student.items():
                teacher[key].copy_(self.alpha * teacher[key] + (1 - self.alpha) * tensor)
                mask = masks[key].float()
                tensor.copy_(start[key] * mask + tensor * (1 - mask))
        return taught


class TorchT3a:
    """Supports as a list, one class after the other looked at anew for every batch."""

    def __init__(self, weight: Tensor, bias: Tensor, keep: int) -> None:
        self.weight, self.bias, self.keep = weight, bias, keep
        self.supports: list[tuple[int, float, Tensor]] = []
        self.note(weight)

    def note(self, features: Tensor) -> None:
        logits = features @ self.weight.T + self.bias
        noted = zip(logits.argmax(1).tolist(), entropy_of(logits).tolist(), features, strict=True)
        self.supports += list(noted)

    def predict(self, features: Tensor) -> Tensor:
        centres = torch.zeros_like(self.weight)
        for k in range(len(centres)):
            surest = sorted((s for s in self.supports if s[0] == k), key=lambda s: s[1])[: self.keep]
            for _, _, z in surest:
                centres[k] += torch.nn.functional.normalize(z, dim=0)
        return features @ torch.nn.functional.normalize(centres, dim=1).T

    def step(self, features: Tensor) -> Tensor:
        self.note(features)
        return self.predict(features)


def torch_lame(logits: Tensor, features: Tensor, count: int, affinity: str) -> Tensor:
    """The assignments, iterated as long as it takes."""
    p, z = logits.softmax(1) + 1e-10, torch.nn.functional.normalize(features, dim=1)
    distance = torch.stack([torch.stack([(a - b).norm() for b in z]) for a in z])
    if affinity == "rbf":
        sigma = distance.sort(dim=1).values[:, min(count, len(z)) - 1].mean()
        kernel = torch.exp(-(distance**2) / (2 * sigma**2))
    else:
        kernel = torch.zeros_like(distance)
        for i, row in enumerate(distance):
            others = sorted((j for j in range(len(z)) if j != i), key=row.__getitem__)
            kernel[i, others[:count]] = 1.0
    y = logits.softmax(1)
    for _ in range(100):
        y = (p.log() + kernel @ y).softmax(1)
    return y
