"""PLUTO in torch, written from the paper with autograd and torch's optimizers.

The runtime is checked with it (tests/runtime/algorithm/test_algorithm.py) and timed against it (rivals.py).
"""

from math import inf, log
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pluto_edge.config import AdaptConfig
from pluto_edge.preprocess import ImageBatch
from pluto_edge.store import Store
from pluto_edge.vit.backbone import load_backbone
from pluto_edge.vit.torch_vit import TorchSelector, TorchViT


def entropy_of(p: Tensor) -> Tensor:
    return -(p * p.clamp_min(1e-30).log()).sum(dim=-1)


class TorchPluto:
    """Algorithm 1 (`step`), with Algorithm 2 inside where `sam` is `sample`."""

    def __init__(self, store: Store, config: AdaptConfig) -> None:
        self.store, self.config = store, config
        self.vit = TorchViT(load_backbone(store))
        self.names = list(store.names)
        self.modules: dict[str, dict[str, Any]] = {}
        for name in self.names:
            tensors = {k: torch.from_numpy(v) for k, v in store.load_module(name).tensors.items()}
            self.modules[name] = {**{k: v.clone() for k, v in self.vit.backbone_ln().items()}, **tensors}
        self.g = TorchSelector({k: torch.from_numpy(v).double() for k, v in store.load_selector().tensors.items()})
        kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
        self.optimizer = kinds[config.selector_optimizer](self.g.parameters(), lr=config.selector_lr)
        self.momentum: dict[str, list[Tensor]] = {}
        self.across: dict[str, tuple[Tensor, int]] = {}  # LookSAM: g_v, and in how many more steps it is used
        self.reliable = 0

    @property
    def threshold(self) -> float:
        """A sample is reliable when the entropy of its prediction is below this."""
        margin = self.config.entropy_margin * log(len(self.store.config.classes))
        return margin if self.config.filter else inf

    def step(self, images: np.ndarray) -> dict[str, Any]:
        batch = ImageBatch(images, self.store.config.preprocessing)
        with torch.no_grad():
            tokens, x = self.vit.embed(torch.from_numpy(batch[0 : len(batch)]))
            logits = torch.stack([self.vit.logits(tokens, self.modules[n]) for n in self.names], dim=1).double()
        x = x.double()
        if self.config.selector:
            for _ in range(self.config.selector_steps):
                mixed = (self.g(x, logits)[..., None] * logits.softmax(-1)).sum(dim=1)
                self.optimizer.zero_grad()
                entropy_of(mixed).mean().backward()
                self.optimizer.step()
        with torch.no_grad():
            w = self.g(x, logits)
        chosen = w.mean(0).argsort(descending=True)[: self.config.top_m or len(self.names)]
        kept = torch.zeros_like(w)
        kept[:, chosen] = w[:, chosen] / w[:, chosen].sum(1, keepdim=True)
        top = self.names[int(chosen[0])]
        self.reliable = 0
        if self.config.sam == "batch":
            self._sam(top, tokens[self.considered(logits[:, chosen[0]])])
        elif self.config.sam == "sample":
            for i in range(len(tokens)):
                self._sam(top, tokens[i : i + 1])
        return {
            "logits": (kept[..., None] * logits).sum(1).numpy(),
            "weights": kept.numpy(),
            "top": top,
            "entropy": entropy_of(logits[:, chosen[0]].softmax(-1)).numpy(),
            "selector": {k: v.detach().numpy() for k, v in self.g.weights.items()},
            "affines": {n: (m["ln_scale"].numpy(), m["ln_bias"].numpy()) for n, m in self.modules.items()},
        }

    def considered(self, logits: Tensor) -> Any:
        """Which samples of the batch the gradient is computed on, by the top module's logits: all of them.

        Those that are not reliable have no part in the loss.
        """
        return slice(None)

    def _sam(self, name: str, tokens: Tensor) -> None:
        module = self.modules[name]
        start = [module["ln_scale"], module["ln_bias"]]
        mask = torch.ones(len(start[0]), 1)
        if self.config.ln_layers is not None:
            mask[:] = 0
            mask[list(self.config.ln_layers)] = 1

        def gradient(at: list[Tensor], keep: Tensor | None) -> tuple[list[Tensor], Tensor]:
            leaves = [t.clone().requires_grad_() for t in at]
            p = self.vit.logits(tokens, {**module, "ln_scale": leaves[0], "ln_bias": leaves[1]}).softmax(-1)
            entropy = entropy_of(p)
            keep = entropy.detach() < self.threshold if keep is None else keep
            if not keep.any():
                return [torch.zeros_like(t) for t in leaves], keep
            found = torch.autograd.grad(entropy[keep].mean(), leaves)
            return [d * mask for d in found], keep

        v, keep = gradient(start, None)
        self.reliable += int(keep.sum())
        if not keep.any():
            return
        direction = v
        norm = torch.sqrt(sum((d.double() ** 2).sum() for d in v)).float()
        if self.config.rho > 0 and norm > 0 and self.across.get(name, (None, 0))[1] > 0:
            direction = self._look(name, v)
        elif self.config.rho > 0 and norm > 0:
            moved = [s + self.config.rho * d / norm for s, d in zip(start, v, strict=True)]
            direction, _ = gradient(moved, keep)
            if self.config.sam_every > 1:
                g, g_s = (torch.stack(d).double().flatten() for d in (v, direction))
                self.across[name] = g_s - (g_s @ g) / (g @ g) * g, self.config.sam_every - 1
        if self.config.ln_momentum:
            if name in self.momentum:
                old = self.momentum[name]
                direction = [d + self.config.ln_momentum * m for d, m in zip(direction, old, strict=True)]
            self.momentum[name] = direction
        module["ln_scale"], module["ln_bias"] = (
            s - self.config.ln_lr * d for s, d in zip(start, direction, strict=True)
        )

    def _look(self, name: str, v: list[Tensor]) -> list[Tensor]:
        """LookSAM: g + 0.7 ‖g‖ / ‖g_v‖ g_v."""
        across, left = self.across[name]
        self.across[name] = across, left - 1
        g = torch.stack(v).double().flatten()
        found = g + 0.7 * g.norm() / across.norm() * across
        return list(found.float().reshape(torch.stack(v).shape))


class ReliableOnly(TorchPluto):
    """The same step; samples that the forward pass shows not to be reliable are not run again."""

    def considered(self, logits: Tensor) -> Any:
        return entropy_of(logits.softmax(-1)) < self.threshold
