"""PLUTO as the runtime does it, step by step; its parts are switched off by its own configuration."""

import numpy as np

from pluto_edge.config import AdaptConfig
from pluto_edge.evaluate.adapters import Adapter, Bench, Logits
from pluto_edge.evaluate.targets import TargetBatch
from pluto_edge.runtime.learner import Learner


class Pluto(Adapter):
    """Algorithm 1: the prediction has the selector's update of this batch, the LayerNorm step acts on the next."""

    def __init__(self, bench: Bench, module: str, config: AdaptConfig) -> None:
        self.learner = Learner(bench.network, config)

    @property
    def notes(self) -> dict[str, float]:
        """How many steps the learner took back."""
        return {"taken back": self.learner.state.rollbacks}

    def step(self, batch: TargetBatch) -> Logits:
        """A step of the runtime's own learner."""
        return self.learner.step(batch)[0].logits

    def predict(self, batch: TargetBatch) -> Logits:
        """What the runtime's learner predicts; nothing changes."""
        return self.learner.predict(batch)[0].logits

    def alone(self, batch: TargetBatch, module: str) -> Logits:
        """One module by itself, with what the learner taught it."""
        return self.learner.network.run(batch, self.learner.state.affines, [module]).logits[:, 0]


class ZeroShot(Pluto):
    """The selector's blend as it was exported."""

    def step(self, batch: TargetBatch) -> Logits:
        """The same as `predict`: nothing is learned."""
        return np.asarray(self.predict(batch))
