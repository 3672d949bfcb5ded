"""How the runtime adapts. The bundle's manifest carries the defaults that were chosen for it."""

from dataclasses import dataclass
from math import isfinite
from typing import Literal, get_args

from pluto_edge.errors import ConfigError

__all__ = ["AdaptConfig"]

Optimizer = Literal["sgd", "adam"]
Sam = Literal["batch", "sample"]
Weighting = Literal["evidence", "selector", "generalist"]
Goal = Literal["entropy", "align", "both", "teach"]


@dataclass(frozen=True)
class AdaptConfig:
    """How a runtime chooses, predicts and learns (docs/adaptation.md says how the defaults were chosen).

    `AdaptConfig.paper()` is Algorithm 1 to the letter.

    Attributes:
        weighting: who has a say. `evidence`: the modules whose domain the stream looks like, and the generalist
            where it looks like none (or the selector's choice, where there is no generalist); modules without
            a signature leave it all to the selector. `selector`: the paper's, over the specialists. `generalist`:
            nobody else.
        prototypes: class prototypes that follow the stream, beside the head (modules with a signature).
        continuity: in `step` and in streams an image's neighbours help to predict it, if classes come in runs
            (modules with a signature).
        top_m: modules that are blended; None blends all that have a say.
        selector: update the selector on every batch that it is asked about.
        selector_lr, selector_optimizer, selector_steps: how.
        sam: `batch`, one sharpness-aware step on the top module's LayerNorm affines a batch; `sample`, one a
            sample, one after another (the paper's Algorithm 2 to the letter); None, no LayerNorm update.
        objective: what that step minimises. `entropy` is the paper's; `align`, how far the activations' mean and
            deviation are from the source's (modules with a signature, batches of 16 or more); `both`, the sum,
            with a tenth of the entropy; `teach`, alignment and the cross-entropy with what the blend is sure of.
            With `sam="sample"` it is the entropy: one image has no statistics.
        ln_lr, ln_momentum: SGD on the affines; None is 0.001 for the entropy, 0.02 for the others.
        rho: radius of the sharpness-aware step; 0 is a plain step.
        sam_every: the second gradient of a sharpness-aware step is computed in one step of so many, and what it
            found serves in the others (LookSAM, with `sam="batch"`); 1 is the paper's.
        filter: leave out samples whose entropy is not below `entropy_margin` * ln K.
        entropy_margin: E0 as a share of ln K.
        ln_layers: rows of the 2L+1 affines that may change; None is all.
        min_reliable: gradients gather over steps until there are this many reliable samples (for `sam="sample"`:
            with fewer the step changes nothing). A step without any changes nothing; 0 updates the selector even
            then.
        guard: watch for collapse and go back to the exported weights.
        recovery: SAR's moving average: reset when that of the entropy falls below this share of ln K; None
            never does.
    """

    weighting: Weighting = "evidence"
    prototypes: bool = True
    continuity: bool = True
    top_m: int | None = None
    selector: bool = True
    selector_lr: float = 1e-3
    selector_optimizer: Optimizer = "sgd"
    selector_steps: int = 1
    sam: Sam | None = "batch"
    objective: Goal = "teach"
    ln_lr: float | None = None
    ln_momentum: float = 0.9
    rho: float = 0.05
    sam_every: int = 1
    filter: bool = True
    entropy_margin: float = 0.4
    ln_layers: tuple[int, ...] | None = None
    min_reliable: int = 1
    guard: bool = True
    recovery: float | None = None

    @classmethod
    def paper(cls) -> "AdaptConfig":
        """Algorithm 1 to the letter: the selector's weights, and entropy for the affines."""
        return cls(weighting="selector", prototypes=False, continuity=False, objective="entropy", min_reliable=0)

    def __post_init__(self) -> None:
        _check_name("weighting", self.weighting, Weighting)
        _check_name("objective", self.objective, Goal)
        _check_name("selector_optimizer", self.selector_optimizer, Optimizer)
        _check("top_m", self.top_m is None or self.top_m >= 1, self.top_m, "at least 1, or None for all modules")
        _check("selector_steps", self.selector_steps >= 1, self.selector_steps, "at least 1")
        _check("sam", self.sam is None or self.sam in get_args(Sam), self.sam, "batch, sample or None")
        for name in ("selector_lr", "ln_lr", "rho"):
            value = getattr(self, name)
            _check(name, value is None or (isfinite(value) and value >= 0), value, "a finite number from 0 on")
        _check("ln_momentum", 0 <= self.ln_momentum < 1, self.ln_momentum, "0 up to, but not, 1")
        _check("entropy_margin", 0 < self.entropy_margin <= 1, self.entropy_margin, "more than 0, at most 1")
        _check("min_reliable", self.min_reliable >= 0, self.min_reliable, "0 or more")
        _check("sam_every", self.sam_every >= 1, self.sam_every, "at least 1")
        rows_right = self.ln_layers is None or (len(self.ln_layers) > 0 and min(self.ln_layers) >= 0)
        _check("ln_layers", rows_right, self.ln_layers, "rows from 0 on, or None for all")
        recovery_right = self.recovery is None or 0 < self.recovery < 1
        _check("recovery", recovery_right, self.recovery, "a share between 0 and 1, or None")


def _check_name(name: str, value: object, names: object) -> None:
    _check(name, value in get_args(names), value, " or ".join(get_args(names)))


def _check(name: str, right: bool, value: object, want: str) -> None:
    if not right:
        raise ConfigError(f"{name}: want {want}, got {value!r}")
