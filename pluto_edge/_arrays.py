"""Names for the arrays that are passed around."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]  # what graphs take and give
Wide = NDArray[np.float64]  # what is added up over many images
Indices = NDArray[np.intp]
