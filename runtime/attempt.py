"""`Attempt`: a step under way, with all that it started from."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pluto_edge.config import AdaptConfig
from pluto_edge.preprocess import ImageBatch
from pluto_edge.runtime.algorithm import beyond, step
from pluto_edge.runtime.algorithm.prototypes import Prototypes
from pluto_edge.runtime.algorithm.selection import Blend
from pluto_edge.runtime.algorithm.state import State
from pluto_edge.runtime.algorithm.step import Proposal
from pluto_edge.runtime.engine.network import Network
from pluto_edge.runtime.engine.passes import Look, Pass
from pluto_edge.runtime.engine.timing import Stages
from pluto_edge.runtime.prediction import look_at, predict, predict_from
from pluto_edge.runtime.recent import Recent

__all__ = ["Attempt"]


@dataclass(frozen=True)
class Attempt:
    """One step on a batch. Whatever happens to the learner meanwhile, the step works with what it started from.

    Attributes:
        batch: the images.
        seen: passes of the images, where a stream has watched them before.
        network: a snapshot, with the modules that the step sees.
        before: the state that it started from; the step is taken only if the state still has this version.
        recent: what is known of the last images; the batch counts among them.
        exported: the state in which nothing was learned.
        config: how it adapts.
    """

    batch: ImageBatch
    seen: Sequence[Pass]
    network: Network
    before: State
    recent: Recent
    exported: State
    config: AdaptConfig

    @cached_property
    def known(self) -> State:
        """What of the state is of use with the modules that the step sees."""
        return self.before.of(self.network.modules.digests)

    @property
    def classes(self) -> int:
        """How many the modules tell apart."""
        return self.network.bundle.manifest.dims.classes

    @property
    def beyond(self) -> bool:
        """Whether the step goes beyond the paper."""
        return beyond.applies(self.network.modules, self.config)

    @property
    def has_prototypes(self) -> bool:
        """Whether prototypes have a say; they learn from every image."""
        return self.beyond and self.config.prototypes

    def look(self) -> Look | None:
        """How the images look; the paper's step does not ask."""
        return look_at(self.network, self.batch, self.seen) if self.beyond else None

    def propose(self, look: Look | None, stages: Stages) -> Proposal:
        """What the step would do."""
        if look is None:
            return step.propose(self.network, self.known, self.batch, self.config, stages, self.seen)
        continuity = self.recent.continuity if self.config.continuity else None
        if continuity is not None and self.seen:  # these were followed already, one by one
            continuity = replace(continuity, beliefs=None)
        return beyond.propose(
            self.network,
            self.known,
            self.batch,
            self.config,
            stages,
            self.seen,
            look,
            self.recent.x_hat,
            continuity,
        )

    def said(self, passed: Pass, state: State) -> Blend:
        """What the modules of a pass say with the selector and the prototypes of this state."""
        return predict_from(self.network.modules, passed, state, self.recent.x_hat, self.config)

    def fall_back(self) -> Blend:
        """What the exported weights say of all images. Somebody waits for it: it goes before what learns."""
        with self.network.graphs.gate.urgent():
            return self.said_as_exported(self.batch)

    def said_as_exported(self, batch: ImageBatch) -> Blend:
        """What the exported weights say of the images."""
        return predict(self.network, batch, self.exported, self.recent.x_hat, Prototypes(), self.config).blend

    def said_without_gradients(self, samples: NDArray[np.intp], passed: Pass) -> tuple[Blend, Prototypes]:
        """What would be said of some of the images, which `passed` is of, if no gradient had ever been followed.

        That has prototypes of its own, which learn from these images; each of them stands for the batch's others.
        """
        unmoved = self.known.unmoved
        state = replace(self.exported, prototypes=unmoved)
        part = self.batch.part(samples)
        seen = (passed.rows(samples),)
        plain = predict(self.network, part, state, self.recent.x_hat, unmoved, self.config, seen)
        if not self.has_prototypes:
            return plain.blend, unmoved
        independence = self.recent.continuity.independence if self.config.continuity else 0.0
        said, times = plain.blend.probabilities, len(self.batch) / len(samples)
        return plain.blend, beyond.learned(
            self.network.modules, unmoved, plain.passed, plain.blend, said, independence, times
        )
