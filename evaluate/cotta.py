"""CoTTA, in torch: it changes every weight of the network, which no exported graph can. Needs the store.

A mean teacher predicts, averaged over augmented views where the exported module is unsure; the student follows
it; a few of the student's weights go back to their start with every batch.
"""

from copy import deepcopy
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pluto_edge.errors import ConfigError
from pluto_edge.evaluate.adapters import Adapter, Bench, CottaConfig, Logits
from pluto_edge.evaluate.targets import TargetBatch
from pluto_edge.store import Store
from pluto_edge.tolerances import LOGITS_FP32, relative_error
from pluto_edge.vit.backbone import load_backbone
from pluto_edge.vit.torch_vit import Params, TorchViT

import torchvision.transforms.v2.functional as T  # isort: skip  # after the shim that backbone.py loads

MICRO_BATCH = 8  # images whose activations are kept for the gradient


class Model:
    """A ViT with a module, all of it one's own."""

    def __init__(self, vit: Any, module: Params) -> None:
        self.net = TorchViT(vit)
        self.module = module

    def copy(self) -> "Model":
        """A model of its own with the same weights."""
        return Model(deepcopy(self.net.vit), {k: v.detach().clone() for k, v in self.module.items()})

    @property
    def weights(self) -> dict[str, Tensor]:
        """What CoTTA's published code trains: weights and biases; tokens, prompts and positions stay."""
        found = {k: v for k, v in self.module.items() if k != "prompt"}
        for name, parameter in self.net.vit.named_parameters():
            if name.rpartition(".")[2] in ("weight", "bias"):
                found[f"backbone.{name}"] = parameter
        return found

    def __call__(self, pixels: Tensor) -> Tensor:
        tokens, _ = self.net.embed(pixels)
        return self.net.logits(tokens, self.module)


class Cotta(Adapter):
    """CoTTA (Wang et al., CVPR 2022) of one module, with every weight of the network."""

    def __init__(self, bench: Bench, module: str, config: CottaConfig) -> None:
        self.bench = bench
        self.name = module
        self.config = config
        self.anchor = load(bench, module)
        self.teacher = self.anchor.copy()
        self.student = self.anchor.copy()
        trained = self.student.weights
        for weight in trained.values():
            weight.requires_grad_()
        self.optimizer = torch.optim.SGD(list(trained.values()), config.lr, config.momentum)
        self.dice = torch.Generator().manual_seed(bench.seed)
        self.checked = False
        self.averaged = 0

    @property
    def notes(self) -> dict[str, float]:
        """In how many batches the teacher's answer was averaged over augmented views."""
        return {"batches averaged over views": self.averaged}

    def predict(self, batch: TargetBatch) -> Logits:
        """What the teacher says; where the exported module is unsure, averaged over augmented views."""
        return np.asarray(self._teach(torch.from_numpy(batch[0 : len(batch)]), batch).numpy())

    def step(self, batch: TargetBatch) -> Logits:
        """The teacher predicts, the student follows it, and the teacher follows the student."""
        pixels = torch.from_numpy(batch[0 : len(batch)])
        taught = self._teach(pixels, batch)
        self.optimizer.zero_grad()
        for start in range(0, len(pixels), MICRO_BATCH):
            part = slice(start, start + MICRO_BATCH)
            says = self.student(pixels[part]).log_softmax(dim=1)
            loss = -(taught[part].softmax(dim=1) * says).sum() / len(pixels)
            loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self._follow_and_restore()
        return np.asarray(taught.numpy())

    @torch.no_grad()
    def _teach(self, pixels: Tensor, batch: TargetBatch) -> Tensor:
        exported = self.bench.network.logits(batch, self.name, None)
        if not self.checked:
            self._check(pixels, exported)
        confidence = torch.from_numpy(exported).softmax(dim=1).amax(dim=1).mean()
        if confidence >= self.config.confidence:
            return _all(self.teacher, pixels)
        self.averaged += 1
        views = [_all(self.teacher, self._view(pixels)) for _ in range(self.config.views)]
        return torch.stack(views).mean(dim=0)

    @torch.no_grad()
    def _follow_and_restore(self) -> None:
        start = self.anchor.weights
        teacher = self.teacher.weights
        alpha = self.config.teacher
        for name, weight in self.student.weights.items():
            teacher[name].mul_(alpha).add_(weight, alpha=1 - alpha)
        for name, weight in self.student.weights.items():
            back = torch.rand(weight.shape, generator=self.dice) < self.config.restore
            weight.copy_(torch.where(back, start[name], weight))

    def _view(self, pixels: Tensor) -> Tensor:
        """Colours, a small rotation, shift and scale, blur, mirror and noise: one draw for the whole batch."""
        prepared = self.bench.network.bundle.manifest.preprocessing
        mean, std = (torch.tensor(v)[:, None, None] for v in (prepared.mean, prepared.std))
        return (augment(pixels * std + mean, self.dice, self.config.mirror) - mean) / std

    def _check(self, pixels: Tensor, exported: Logits) -> None:
        error = relative_error(_all(self.anchor, pixels).numpy(), exported)
        tolerance = LOGITS_FP32 if self.bench.network.bundle.manifest.precision == "fp32" else np.inf
        if error > tolerance:
            raise ConfigError(
                f"{self.bench.store}: its backbone with the bundle's module {self.name!r} is off the bundle's "
                f"logits by {error:.1e}; give --store the store that the bundle was exported from"
            )
        self.checked = True


def load(bench: Bench, name: str) -> Model:
    """The network with one module in torch, from the store that the bundle was made from."""
    assert bench.store is not None
    store = Store(bench.store)
    manifest = bench.network.bundle.manifest
    if store.config.backbone.architecture != manifest.architecture or store.config.dims != manifest.dims:
        raise ConfigError(f"{bench.store}: not the store that the bundle was exported from")
    vit: Any = load_backbone(store)
    module = bench.network.bundle.load_module(name)
    return Model(vit.requires_grad_(False), {k: torch.from_numpy(v.copy()) for k, v in module.tensors.items()})


def _all(model: Model, pixels: Tensor) -> Tensor:
    return torch.cat([model(pixels[i : i + MICRO_BATCH]) for i in range(0, len(pixels), MICRO_BATCH)])


def augment(images: Tensor, dice: torch.Generator, mirror: bool = True) -> Tensor:
    """[B,3,H,W] in 0 to 1, changed as in the published code's `get_tta_transforms`."""

    def draw(low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand(1, generator=dice))

    height, width = images.shape[-2:]
    images = images.clamp(0, 1)
    for change in torch.randperm(5, generator=dice).tolist():
        if change == 0:
            images = T.adjust_brightness(images, draw(0.6, 1.4))
        elif change == 1:
            images = T.adjust_contrast(images, draw(0.7, 1.3))
        elif change == 2:
            images = T.adjust_saturation(images, draw(0.5, 1.5))
        elif change == 3:
            images = T.adjust_hue(images, draw(-0.06, 0.06))
        else:
            images = T.adjust_gamma(images.clamp(1e-8, 1), draw(0.7, 1.3))
    images = F.pad(images, (width // 2, width // 2, height // 2, height // 2), mode="replicate")
    # the published code shifts by up to 1/16 of the padded image
    shift = [round(draw(-side / 8, side / 8)) for side in (width, height)]
    images = T.affine(
        images,
        angle=draw(-15, 15),
        translate=shift,
        scale=draw(0.9, 1.1),
        shear=[0.0, 0.0],
        interpolation=T.InterpolationMode.BILINEAR,
    )
    sigma = draw(0.001, 0.5)
    images = T.gaussian_blur(images, kernel_size=[5, 5], sigma=[sigma, sigma])
    images = T.center_crop(images, [height, width])
    if mirror and draw(0, 1) < 0.5:
        images = images.flip(-1)
    return (images + 0.005 * torch.randn(images.shape, generator=dice)).clamp(0, 1)
