"""The names of the kinds of arrays that almost everything here computes with, and a function that all share."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "Indices", "Wide", "sigmoid"]

Array = NDArray[np.float32]  # what graphs take and give, and what is kept
Wide = NDArray[np.float64]  # what is computed with where float32 would lose digits
Indices = NDArray[np.intp]


def sigmoid(x: Wide) -> Wide:
    """1 / (1 + exp(-x))"""
    return np.asarray(0.5 * (1 + np.tanh(0.5 * x)))  # no overflow on either side
