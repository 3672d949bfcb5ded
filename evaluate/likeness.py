"""Who is like whom: how often modules say the same, and the order that puts together those that do."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pluto_edge.evaluate.cells import NOTHING

Predicted = NDArray[np.int64]  # classes by number, [modules, images] or of one module [images]
Shares = NDArray[np.float64]


def agreement(said: Predicted, one: Predicted) -> Shares:
    """How often each module says what this one says."""
    shares: Shares = ((said == one) & (one != NOTHING)).mean(axis=1)
    return shares


def likeness(said: Sequence[Predicted]) -> Shares:
    """How often modules say the same [modules, modules], every domain counting alike. Who says nothing of an image
    agrees with nobody."""
    found: Shares = np.mean([[agreement(p, one) for one in p] for p in said], axis=0)
    return found


def cluster_order(alike: Shares) -> list[int]:
    """The leaves of average-linkage clusters of what is alike, turned so that neighbours are alike, too."""
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import squareform

    if len(alike) < 3:
        return list(range(len(alike)))
    apart = 1 - alike
    np.fill_diagonal(apart, 0)
    tree = linkage(squareform(apart.clip(0), checks=False), "average", optimal_ordering=True)
    return [int(leaf) for leaf in leaves_list(tree)]
