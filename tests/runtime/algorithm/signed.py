"""A tiny bundle whose modules know their sources: two specialists, and a generalist of both."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from pluto_edge.export.exporter import run_export
from pluto_edge.modules import Module
from pluto_edge.store import Store
from pluto_edge.train.signature import make_signature
from pluto_edge.vit.backbone import load_backbone
from pluto_edge.vit.torch_vit import TorchViT

# how bright and how loud the images of a domain are; `other` belongs to no module
DOMAINS = {"domain-0": (-0.8, 0.3), "domain-1": (0.8, 0.9), "other": (0.0, 3.0)}
GENERALIST = "domain-2"


def images(domain: str, count: int, size: tuple[int, int], seed: int = 0) -> NDArray[np.float32]:
    """Normalised pixels [n,3,H,W]: noise around a level, both the domain's own."""
    level, loud = DOMAINS[domain]
    rng = np.random.default_rng(seed)
    return (level + loud * rng.standard_normal((count, 3, *size))).astype(np.float32)


def sign(store: Store, count: int = 60) -> None:
    """Signatures from images of each specialist's domain; the last module becomes the generalist."""
    vit = TorchViT(load_backbone(store))
    size = store.config.preprocessing.size
    for name in store.names:
        module = store.load_module(name)
        sources = [name] if name != GENERALIST else ["domain-0", "domain-1"]
        pixels = torch.from_numpy(np.concatenate([images(s, count, size, 100) for s in sources]))
        params = {**vit.backbone_ln(), **{k: torch.from_numpy(v) for k, v in module.tensors.items()}}
        with torch.no_grad():
            tokens, looks = vit.embed(pixels)
            activations = vit.activations(tokens, params).numpy()
            labels = vit.logits(tokens, params).argmax(dim=1).numpy()
        labels[: module.dims.classes] = np.arange(module.dims.classes)  # every class has an image
        head, bias = module.tensors["head_weight"], module.tensors["head_bias"]
        signature = make_signature(activations, labels, head, bias, looks.numpy())
        config = store.module_config(name)
        role = "generalist" if name == GENERALIST else "specialist"
        signed = Module(name, module.dims, {**module.tensors, **signature.tensors})
        store.save_module(signed, replace(config, role=role))


def signed_bundle(store: Store, out: Path) -> Path:
    sign(store)
    run_export(store.path, out)
    return out
