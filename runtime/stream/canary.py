"""Is adaptation doing anything, and does it fit? Two signs of it that need no labels.

Every 16th frame is also predicted as the bundle was exported: how often does the stream say something else? And the
module that leads knows what its features look like on its source: how far from that are the stream's, now and when
the condition began? Which of two answers is right, nobody can tell without labels.
"""

from collections import deque
from dataclasses import dataclass

from pluto_edge.preprocess import ImageBatch
from pluto_edge.runtime.engine.passes import Pass
from pluto_edge.runtime.learner import Learner

EVERY = 16  # frames, from one comparison to the next: a sixteenth of a prediction a frame
REACH = 256  # frames that the share looks back


@dataclass(frozen=True)
class Signs:
    """As in `StreamMetrics`."""

    compared: int
    differing: float | None
    leader: str
    misfit: float | None
    misfit_first: float | None


class Canary:
    """Fed by a stream, in the thread that feeds the stream; `stepped` by the one that learns."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self._differs: deque[bool] = deque(maxlen=REACH // EVERY)
        self._first: dict[str, float] = {}  # misfit of every module that has led, when it first did

    def compare(self, image: ImageBatch, seen: Pass, label: int) -> None:
        """`label` is what the stream said, and `seen` what it ran for that."""
        exported = self._learner.exported(image, [seen])
        self._differs.append(int(exported.probabilities[0].argmax()) != label)

    def stepped(self) -> None:
        """A step was taken or not: how far the leader's features are is known anew."""
        leader, misfit = self._misfit()
        if misfit is not None:
            self._first.setdefault(leader, misfit)

    def restart(self) -> None:
        """Another condition, or all was forgotten."""
        self._differs.clear()
        self._first.clear()

    @property
    def signs(self) -> Signs:
        """As they are now."""
        differs = tuple(self._differs)
        leader, misfit = self._misfit()
        return Signs(
            compared=len(differs),
            differing=sum(differs) / len(differs) if differs else None,
            leader=leader,
            misfit=misfit,
            misfit_first=None if misfit is None else self._first.get(leader, misfit),
        )

    def _misfit(self) -> tuple[str, float | None]:
        """The module that led the last step, and how far its features are."""
        state = self._learner.state
        return state.top or "", state.misfit(self._learner.network.modules.references)
