"""How modules and the selector are trained, as plain values: reading them needs no torch."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from pluto_edge.errors import ConfigError
from pluto_edge.modules import Kind

__all__ = ["LR", "Precision", "Recipe", "SelectorRecipe"]

Precision = Literal["fp32", "bf16"]
LR: dict[Kind, float] = {"vpt": 0.08, "adapter": 0.004}


@dataclass(frozen=True)
class Recipe:
    """AdamW; cosine with warm-up; early stopping.

    `lr` is for 256 samples a batch, as in VPT; None is that of `LR`. The head starts from a linear probe of the
    frozen features, with the weight decay that validates best. Tokens are computed once, so images are not
    augmented; leaving out `patch_drop` of the patches at random takes that place, and is faster. Label smoothing
    keeps the predictions' entropy meaningful, which is what adaptation goes by.
    """

    epochs: int = 20
    batch: int = 32
    lr: float | None = None
    head_lr: float = 0.004
    weight_decay: float = 0.01
    warmup: float = 0.1
    smoothing: float = 0.1
    patch_drop: float = 0.4
    patience: int = 4
    seed: int = 0
    precision: Precision = "fp32"  # of training passes; bf16 is twice as fast on CPUs that multiply it

    def __post_init__(self) -> None:
        if self.precision not in get_args(Precision):
            raise ConfigError(f"precision: want {' or '.join(get_args(Precision))}, got {self.precision!r}")
        for name in ("epochs", "batch", "patience"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: want at least 1, got {getattr(self, name)}")
        for name in ("lr", "head_lr"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"{name}: want more than 0, got {value}")
        for name in ("weight_decay", "seed"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name}: want 0 or more, got {getattr(self, name)}")
        for name in ("warmup", "smoothing", "patch_drop"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name}: want 0 up to, but not, 1, got {getattr(self, name)}")


@dataclass(frozen=True)
class SelectorRecipe:
    """AdamW on cached logits; the epoch that validates best is kept. Sizes by number of classes, as the paper's.

    `withhold` is the share of lessons without the image's own module; `temperature` divides the dot product when
    training starts, None for sqrt(d') (it is in the scale of h_x's LayerNorm, and trained with it).
    """

    epochs: int = 60
    batch: int = 64
    lr: float = 1e-3
    weight_decay: float = 0.01
    patience: int = 12
    dropout: float | None = None
    withhold: float = 0.8
    temperature: float | None = None
    images: int | None = None  # of each domain and split; every module looks at every one of them
    seed: int = 0

    def __post_init__(self) -> None:
        if self.images is not None and self.images < 1:
            raise ConfigError(f"images: want at least 1, got {self.images}")
        for name in ("dropout", "withhold"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1:
                raise ConfigError(f"{name}: want 0 up to, but not, 1, got {value}")
        if self.temperature is not None and not 0 < self.temperature < math.inf:
            raise ConfigError(f"temperature: want more than 0, got {self.temperature}")
