"""A `Covariance` as the matrix that it stands for."""

import numpy as np
from numpy.typing import NDArray

from pluto_edge.signature import Covariance


def dense(covariance: Covariance) -> NDArray[np.float64]:
    """[d,d]: a few directions, and the same noise in all of them."""
    wide = covariance.factor.astype(np.float64)
    return np.asarray(wide.T @ wide + covariance.noise * np.eye(wide.shape[1]))
