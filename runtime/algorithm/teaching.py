"""The module with the most to say is taught what the blend is sure of.

Head, prototypes and neighbours together are right more often than the head alone. So what they say together of a
batch, where they are sure, is the target of the head's cross-entropy, beside the alignment of its activations
(`alignment.py`). What is learned is only λ: the features move to where the head finds the classes as well, and the
prototypes, which follow the features, teach from there on.

A pupil that is taught its own guesses may end with one class for everything. So a batch counts as far as it shows
the classes evenly: where a stream shows one class for a while, its activations are those of the class and not of
the domain, and there is nothing to be learned from them. (Classes of which a batch has few do not weigh more: where
they are rare in the stream, most of what passes for them is something else.)
(Beyond the paper. The numbers were chosen on development domains: docs/adaptation.md.)
"""

import numpy as np

from pluto_edge._arrays import Array, Wide
from pluto_edge.runtime.algorithm.prototypes import SURE
from pluto_edge.runtime.algorithm.selector import entropy

__all__ = ["evenness", "lessons"]

WEIGHT = 3.0  # of an image's cross-entropy beside the alignment of the batch


def lessons(probabilities: Wide) -> Array:
    """Targets [B,K] of a batch's cross-entropy, from what is said of it; zero where that is not sure enough."""
    sure = np.where(probabilities > SURE, probabilities, 0.0)
    return np.asarray(WEIGHT / len(sure) * sure, np.float32)


def evenness(probabilities: Wide) -> float:
    """How evenly the batch shows the classes: 1 if there are as many as chance would show, 0 if there is one only.

    It is the square of their effective number (exp of the entropy of their shares), counted from the second on.
    """
    count, classes = probabilities.shape
    by_chance = classes * (1 - (1 - 1 / classes) ** count)
    effective = float(np.exp(entropy(probabilities.mean(axis=0, keepdims=True))[0]))
    share = (effective - 1) / max(by_chance - 1, 1.0)
    return float(min(1.0, max(0.0, share)) ** 2)
