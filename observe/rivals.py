"""What else one could have shipped, on the same frames: every module alone, and their plain average.

It runs every module on every frame, so it is for frames whose class is known, where answers are counted.
"""

from pluto_edge.observe.recording import RivalLabels
from pluto_edge.preprocess import ImageBatch, Images
from pluto_edge.runtime.learner import Learner

__all__ = ["Rivals"]


class Rivals:
    """Over the same graphs as a stream's learner; nothing that was learned has a part in it."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner

    def __call__(self, frame: Images) -> RivalLabels:
        network = self._learner.network
        image = ImageBatch(frame, network.bundle.manifest.preprocessing)
        passed = network.run(image, {})  # every module once; all that follows is made of this
        logits = passed.logits[0]
        specialists = [passed.names.index(n) for n in network.modules.specialists]
        return RivalLabels(
            alone={n: int(v.argmax()) for n, v in zip(passed.names, logits, strict=True)},
            average=int(logits[specialists].mean(axis=0).argmax()),
            plain=int(self._learner.exported(image, [passed]).probabilities[0].argmax()),
        )
