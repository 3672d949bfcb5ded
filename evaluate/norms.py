"""Tent, EATA and SAR: methods that learn LayerNorm affines, on the exported gradient graph.

All predict with the affines as they were before the batch, as their published code does, and all use SGD with
momentum at the rate that SAR's code gives ViTs: 0.001 for 64 images, in proportion for others. Names of files and
lines, and what is peculiar in them, are in docs/evaluation.md.
"""

from dataclasses import dataclass
from math import log

import numpy as np

from pluto_edge._arrays import Indices, Wide
from pluto_edge.evaluate.adapters import Adapter, Bench, Logits
from pluto_edge.evaluate.targets import TargetBatch, TargetStream
from pluto_edge.runtime.algorithm.alignment import align
from pluto_edge.runtime.algorithm.selector import entropy, softmax
from pluto_edge.runtime.engine.affines import Affines
from pluto_edge.runtime.engine.objective import Objective

AVERAGE = 0.9  # of EATA's and SAR's moving averages
FEW_CLASSES = 100


@dataclass(frozen=True)
class TentConfig:
    """Tent's settings."""

    lr: float = 0.001  # at 64 images a batch
    momentum: float = 0.9


@dataclass(frozen=True)
class EataConfig:
    """EATA's settings: its optimizer, which images it learns from, and what the Fisher term weighs."""

    lr: float = 0.001
    momentum: float = 0.9
    e_margin: float = 0.4  # of ln K
    d_margin: float | None = None  # None: 0.05, and 0.4 up to a hundred classes
    fisher_alpha: float = 2000.0
    fisher_size: int = 2000


@dataclass(frozen=True)
class SarConfig:
    """SAR's settings: its optimizer, which images it learns from, and when it goes back."""

    lr: float = 0.001
    momentum: float = 0.9
    e_margin: float = 0.4  # of ln K
    rho: float = 0.05
    recovery: float = 0.2  # nats, whatever K is
    frozen: float = 0.25  # share of the blocks, from the top, that stay as they are


@dataclass(frozen=True)
class FoaConfig:
    """Settings of FOA's loss with SGD: its optimizer, and what the activations weigh beside the entropy."""

    lr: float = 0.005
    momentum: float = 0.9
    weight: float = 30.0  # of the activations' distance, beside the mean entropy


class NormAdapter(Adapter):
    """One module's affines, and SGD with momentum on them."""

    def __init__(self, bench: Bench, module: str, lr: float, momentum: float) -> None:
        self.network = bench.network
        self.module = module
        self.exported = bench.network.modules[module].exported
        self.affines: Affines = self.exported
        self.lr = lr * bench.batch / 64
        self.beta = momentum
        self.momentum: Affines | None = None

    def predict(self, batch: TargetBatch) -> Logits:
        """What the module says with the LayerNorm affines that were learned."""
        changed = self.affines is not self.exported
        return self.network.logits(batch, self.module, self.affines if changed else None)

    def descend(self, gradient: Affines) -> None:
        """One step of SGD with momentum along `gradient`."""
        if self.momentum is not None:
            gradient = gradient.plus(self.momentum, self.beta)
        self.momentum = gradient
        self.affines = self.affines.plus(gradient, -self.lr)


class Tent(NormAdapter):
    """The mean entropy of every batch, down."""

    def __init__(self, bench: Bench, module: str, config: TentConfig) -> None:
        super().__init__(bench, module, config.lr, config.momentum)

    def step(self, batch: TargetBatch) -> Logits:
        """Predicts, then lowers the entropy of the whole batch."""
        found = self.network.gradient(batch, np.arange(len(batch)), self.module, self.affines)
        self.descend(found.d_affines)
        return found.logits


class Eata(NormAdapter):
    """Tent on samples that are sure and unlike the average, surer ones heavier, held to the source by Fisher.

    Without images of the module's own source there is no Fisher term: what the published code calls ETA.
    """

    def __init__(self, bench: Bench, module: str, config: EataConfig) -> None:
        super().__init__(bench, module, config.lr, config.momentum)
        few = bench.classes <= FEW_CLASSES
        self.e_margin = config.e_margin * log(bench.classes)
        self.d_margin = config.d_margin if config.d_margin is not None else (0.4 if few else 0.05)
        self.average: Wide | None = None
        self.learned = 0
        self.held = 0
        self.alpha = config.fisher_alpha
        self.fisher: Affines | None = None
        if module in bench.sources:
            key = ("fisher", module, config.fisher_size)
            if key not in bench.memory:
                bench.memory[key] = self._fisher(bench.sources[module], config.fisher_size, bench.batch)
            self.fisher = bench.memory[key]

    @property
    def notes(self) -> dict[str, float]:
        """How many images were learned from, and how many steps were held back by the Fisher term."""
        return {"learned from": self.learned, "steps held by Fisher": self.held}

    def step(self, batch: TargetBatch) -> Logits:
        """Predicts, then lowers the entropy of images that are reliable and not like those before."""
        logits = self.predict(batch)
        chosen, weights = self._choose(softmax(logits))
        self.learned += len(chosen)
        if len(chosen):
            gradient = self.exported.times(0)
            for index, weight in zip(chosen, weights / len(chosen), strict=True):
                one = self.network.gradient(batch, np.array([index]), self.module, self.affines)
                gradient = gradient.plus(one.d_affines, float(weight))
            if self.fisher is not None:
                gradient = gradient.plus(self._pull(), 1.0)
                self.held += 1
            self.descend(gradient)
        return logits

    def _choose(self, probabilities: Wide) -> tuple[Indices, Wide]:
        """Reliable and not redundant samples, and their weights; moves the average that redundancy is told by."""
        h = entropy(probabilities)
        chosen = np.flatnonzero(h < self.e_margin)
        if self.average is None:
            if len(chosen):
                self.average = probabilities[chosen].mean(axis=0)
        else:
            p = probabilities[chosen]
            cosine = p @ self.average / (np.linalg.norm(p, axis=1) * np.linalg.norm(self.average))
            chosen = chosen[np.abs(cosine) < self.d_margin]
            if len(chosen):
                self.average = AVERAGE * self.average + (1 - AVERAGE) * probabilities[chosen].mean(axis=0)
        return chosen, np.exp(self.e_margin - h[chosen])

    def _pull(self) -> Affines:
        """The gradient of α Σ F (λ - λ0)²."""
        assert self.fisher is not None
        away = self.affines.plus(self.exported, -1.0)
        return Affines(
            np.float32(2 * self.alpha) * self.fisher.scale * away.scale,
            np.float32(2 * self.alpha) * self.fisher.bias * away.bias,
        )

    def _fisher(self, source: TargetStream, size: int, step: int) -> Affines:
        """The mean over batches of the squared gradient of the cross-entropy with the module's own labels."""
        order = np.random.default_rng(0).permutation(len(source.target))[:size]
        total = self.exported.times(0)
        count = 0
        for batch in source.batches(order, step):
            logits = self.network.logits(batch, self.module, None).astype(np.float64)
            d_logits = softmax(logits) - np.eye(logits.shape[1])[logits.argmax(axis=1)]
            mean = self.exported.times(0)
            for i in range(len(batch)):
                one = self.network.pull_back(batch, i, self.module, self.exported, logits[i], d_logits[i])
                mean = mean.plus(one, 1 / len(batch))
            total = total.plus(Affines(mean.scale**2, mean.bias**2), 1.0)
            count += 1
        return total.times(1 / count)


class Sar(NormAdapter):
    """Tent on sure samples, at the worst point near by, and back to the start when all is too sure.

    As in the published code, the recovery leaves the moving average and the momentum as they are, so it comes
    again with every batch until the average is above the threshold; and a batch without a sure sample still
    moves by its momentum.
    """

    def __init__(self, bench: Bench, module: str, config: SarConfig) -> None:
        single = 2 if bench.batch == 1 else 1  # the published code doubles the rate for batches of one
        super().__init__(bench, module, single * config.lr, config.momentum)
        depth = bench.network.bundle.manifest.dims.depth
        self.rows = tuple(range(2 * max(1, round((1 - config.frozen) * depth))))
        self.margin = config.e_margin * log(bench.classes)
        self.rho = config.rho
        self.recovery = config.recovery
        self.average: float | None = None
        self.resets = 0

    @property
    def notes(self) -> dict[str, float]:
        """How often it went back to the exported module."""
        return {"resets": self.resets}

    def step(self, batch: TargetBatch) -> Logits:
        """Predicts, then lowers the entropy of reliable images where it stays low nearby; may recover."""
        below = Objective(self.margin)
        first = self.network.gradient(batch, np.arange(len(batch)), self.module, self.affines, below)
        gradient = self.exported.times(0)
        if len(first.reliable):
            v = first.d_affines.only(self.rows)
            moved = self.affines.plus(v, self.rho / (v.norm + 1e-12))
            second = self.network.gradient(batch, first.reliable, self.module, moved, below)
            gradient = second.d_affines.only(self.rows)
            if len(second.reliable):
                old = second.loss if self.average is None else self.average
                self.average = AVERAGE * old + (1 - AVERAGE) * second.loss
        self.descend(gradient)
        if self.average is not None and self.average < self.recovery:
            self.affines = self.exported
            self.resets += 1
        return first.logits


class Foa(NormAdapter):
    """FOA's loss by gradient (its paper's Table 9): the entropy, and how far activations are from the source's.

    The distance is between mean and deviation of what the head would pool after every block, batch against source;
    the source's come from the module's signature. A module without one is left as it is.
    """

    def __init__(self, bench: Bench, module: str, config: FoaConfig) -> None:
        super().__init__(bench, module, config.lr, config.momentum)
        self.weight = config.weight
        self.reference = bench.network.modules[module].reference

    def step(self, batch: TargetBatch) -> Logits:
        """Predicts, then lowers entropy and the distance of activations from the source's."""
        if self.reference is None:
            return self.predict(batch)
        source = self.reference.signature
        passed = self.network.run(batch, {self.module: self.affines}, [self.module], activations=True)
        assert passed.activations is not None
        found = align(passed.activations[:, 0], source.activation_mean, source.activation_std)
        scale = np.float32(self.weight)
        objective = Objective(np.inf, 1 / len(batch), scale * found.offset, scale * found.slope)
        every = np.arange(len(batch))
        self.descend(self.network.gradient(batch, every, self.module, self.affines, objective).d_affines)
        return passed.logits[:, 0]
