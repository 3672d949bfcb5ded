"""A store of random weights: to measure, to test, and to try the tools before there is anything trained."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from pluto_edge.modules import Dims, Kind, Module, SelectorWeights
from pluto_edge.store import Backbone, ModuleConfig, Store, StoreConfig
from pluto_edge.vit.backbone import create, preprocessing, read_layout


def make_random_store(
    path: str | Path,
    *,
    architecture: str = "vit_small_patch16_224",
    options: dict[str, Any] | None = None,
    image_size: tuple[int, int] = (224, 224),
    kind: Kind = "vpt",
    size: int = 10,
    classes: int = 10,
    modules: int = 4,
    seed: int = 0,
) -> Store:
    """Write a store with `modules` random modules of a randomly initialised timm ViT."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    vit: Any = create(architecture, image_size, options or {})
    for parameter in vit.parameters():  # timm starts biases at 0 and scales at 1: nothing would test them
        parameter.data += 0.02 * torch.randn_like(parameter)
    layout = read_layout(vit)
    names = tuple(f"class-{i}" for i in range(classes))
    config = StoreConfig(
        backbone=Backbone(architecture, layout.width, layout.depth, options or {}),
        preprocessing=preprocessing(vit, image_size),
        classes=names,
        kind=kind,
        size=size,
    )
    store = Store.create(path, config)
    save_file(vit.state_dict(), store.backbone_file)
    for index in range(modules):
        _add_random_module(store, f"domain-{index}", config.dims, rng)
    store.save_selector(
        SelectorWeights.random(width=layout.width, classes=classes, hidden_x=32, hidden_l=32, out=32, seed=seed)
    )
    return store


def _add_random_module(store: Store, name: str, dims: Dims, rng: np.random.Generator) -> None:
    scale = {"prompt": 0.5, "head_weight": 0.3, "head_bias": 0.1}
    tensors = {
        key: (rng.standard_normal(shape) * scale.get(key, 0.05)).astype(np.float32)
        for key, shape in dims.shapes.items()
    }
    config = ModuleConfig(
        name=name,
        kind=dims.kind,
        size=dims.size,
        width=dims.width,
        depth=dims.depth,
        classes=store.config.classes,
        architecture=store.config.backbone.architecture,
        source="random weights",
    )
    store.save_module(Module(name, dims, tensors), config, f"# {name}\n\nRandom weights, for measurements.\n")
