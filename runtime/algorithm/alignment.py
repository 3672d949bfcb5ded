"""Activations brought back to the source's statistics: a batch's loss, and its gradient in two numbers a channel.

The loss is FOA's (Niu et al., ICML 2024), with squares: how far the batch's mean and deviation are from the
source's. Its gradient at an activation is linear in it, so what a sample needs to know of the others is an offset
and a slope: micro-batches can be differentiated one by one, and the sum is the whole batch's gradient.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pluto_edge._arrays import Array, Wide

__all__ = ["Alignment", "align", "statistics"]

# Of a channel's mean. The graph adds slope * a and offset in float32, and they cancel to within 6e-8 of the mean:
# a smaller deviation than this is rounding, and its slope, which goes with one over it, would blow that up.
FLAT = 1e-5


@dataclass(frozen=True)
class Alignment:
    """The loss, and `offset` and `slope` [L+1,d]: the gradient at a sample's activation a is offset + slope a.

    `excess` is the loss as a multiple of what as many images of the source itself would have by chance.
    """

    loss: float
    excess: float
    offset: Array
    slope: Array


def statistics(activations: Array) -> tuple[Wide, Wide]:
    """Mean and deviation (of the population) over the samples of [B,L+1,d]: [L+1,d] each."""
    wide = activations.astype(np.float64)
    return wide.mean(axis=0), wide.std(axis=0)


def align(activations: Array, mean: NDArray[np.floating], std: NDArray[np.floating]) -> Alignment:
    """Σ_l mean_d (m_l - mean_l)² + mean_d (s_l - std_l)², with m and s of the batch's activations [B,L+1,d].

    With m' = 1/B and s' = (a - m) / (B s) the gradient is 2/(B d) ((m - mean) + (s - std) (a - m) / s). A channel
    that is the same in all samples, as all are in a batch of one, has no slope: its deviation has no gradient.
    """
    m, s = statistics(activations)
    share = 2 / (len(activations) * m.shape[-1])
    flat = s <= FLAT * np.abs(m)
    slope = np.where(flat, 0.0, share * (s - std) / np.where(flat, 1.0, s))
    offset = share * (m - mean) - slope * m
    loss = float(np.square(m - mean).mean(axis=-1).sum() + np.square(s - std).mean(axis=-1).sum())
    # n Gaussian samples: their mean varies by std²/n, their deviation by about half of that
    chance = 1.5 / len(activations) * float(np.square(std).mean(axis=-1).sum())
    excess = loss / max(chance, float(np.finfo(np.float32).tiny))
    return Alignment(loss, excess, offset.astype(np.float32), slope.astype(np.float32))
