"""The names of the kinds of arrays that almost everything here computes with."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "Indices", "Wide"]

Array = NDArray[np.float32]  # what graphs take and give, and what is kept
Wide = NDArray[np.float64]  # what is computed with where float32 would lose digits
Indices = NDArray[np.intp]
