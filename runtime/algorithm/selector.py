"""The module selector G, in numpy.

h_x = LN(W_ux^T silu(W_dx^T x̂)), h_lj = LN(W_ul^T silu(W_dl^T l_j)), w_j = softmax_j(h_lj · h_x)

It computes in float64: the dot product of two normalised vectors goes straight into a softmax, float32 would
lose a digit there, and the matrices are small.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pluto_edge._arrays import Array, Wide, sigmoid
from pluto_edge.modules import SelectorWeights

EPSILON = 1e-5


def weights(g: SelectorWeights, x_hat: Array, logits: Array) -> Wide:
    """x̂ [B,d] and logits [B,N,K] to the weight of every module for every sample, [B,N]."""
    return _forward(g, x_hat, logits).weights


def entropy_gradient(g: SelectorWeights, x_hat: Array, logits: Array) -> tuple[float, dict[str, Wide]]:
    """The mean entropy of the mixed pseudo-label ŷ = Σ_j w_j softmax(l_j), and its gradient for every tensor."""
    f = _forward(g, x_hat, logits)
    p = softmax(logits)
    mixed = np.einsum("bn,bnk->bk", f.weights, p)
    logs = np.log(np.maximum(mixed, np.finfo(np.float64).tiny))
    d_mixed = -(logs + 1) / len(mixed)
    d_weights = np.einsum("bk,bnk->bn", d_mixed, p)
    d_scores = f.weights * (d_weights - (f.weights * d_weights).sum(axis=1, keepdims=True))
    d_x = np.einsum("bn,bnd->bd", d_scores, f.l.out)
    d_l = np.einsum("bn,bd->bnd", d_scores, f.x.out)
    gradient = {f"{k}_x": v for k, v in _tower_gradient(f.x, d_x).items()}
    gradient |= {f"{k}_l": v for k, v in _tower_gradient(f.l, d_l).items()}
    return float(-(mixed * logs).sum(axis=1).mean()), gradient


@dataclass(frozen=True)
class _Tower:
    """One side of the selector: LN(silu(value @ down) @ up), with what its gradient needs."""

    value: Wide
    down: Array
    up: Array
    scale: Array
    bias: Array

    def __post_init__(self) -> None:
        _ = self.out

    @cached_property
    def inside(self) -> Wide:
        return np.asarray(self.value @ self.down)

    @cached_property
    def hidden(self) -> Wide:
        return silu(self.inside)

    @cached_property
    def normalised(self) -> tuple[Wide, Wide]:
        """The projected value with mean 0 and variance 1, and one over its deviation."""
        x = self.hidden @ self.up
        centred = x - x.mean(axis=-1, keepdims=True)
        inverse = 1 / np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + EPSILON)
        return centred * inverse, inverse

    @cached_property
    def out(self) -> Wide:
        return np.asarray(self.normalised[0] * self.scale + self.bias)


@dataclass(frozen=True)
class _Forward:
    x: _Tower
    l: _Tower  # noqa: E741  the paper's name
    weights: Wide


def _forward(g: SelectorWeights, x_hat: Array, logits: Array) -> _Forward:
    x = _Tower(x_hat.astype(np.float64), g.down_x, g.up_x, g.scale_x, g.bias_x)
    l = _Tower(logits.astype(np.float64), g.down_l, g.up_l, g.scale_l, g.bias_l)  # noqa: E741
    return _Forward(x, l, softmax(np.einsum("bd,bnd->bn", x.out, l.out)))


def _tower_gradient(t: _Tower, d_out: Wide) -> dict[str, Wide]:
    normalised, inverse = t.normalised
    axes = tuple(range(d_out.ndim - 1))
    d = d_out * t.scale
    along = (d * normalised).mean(axis=-1, keepdims=True)
    d_projected = (d - d.mean(axis=-1, keepdims=True) - normalised * along) * inverse
    gate = sigmoid(t.inside)
    d_inside = (d_projected @ t.up.T) * gate * (1 + t.inside * (1 - gate))
    return {
        "down": _outer(t.value, d_inside),
        "up": _outer(t.hidden, d_projected),
        "scale": (d_out * normalised).sum(axis=axes),
        "bias": d_out.sum(axis=axes),
    }


def _outer(a: Wide, b: Wide) -> Wide:
    """Σ over samples (and modules) of a_i b_j."""
    return np.asarray(a.reshape(-1, a.shape[-1]).T @ b.reshape(-1, b.shape[-1]))


def select(weight: Wide, top_m: int | None) -> tuple[Wide, NDArray[np.intp]]:
    """Keep the `top_m` modules with the largest mean weight over the batch, rescaled to 1 per sample.

    Returns weights [B,N] that are zero outside the selection, and the selected indices, largest mean first.
    """
    count = weight.shape[1]
    order = np.argsort(-weight.mean(axis=0), kind="stable")[: min(top_m or count, count)]
    kept = np.zeros_like(weight)
    kept[:, order] = weight[:, order]
    total = kept.sum(axis=1, keepdims=True)
    # a sample whose weight lies wholly outside the selection gets the selection's plain average
    kept[:, order] = np.where(total > 0, kept[:, order], 1.0)
    return kept / kept.sum(axis=1, keepdims=True), order


def silu(x: Wide) -> Wide:
    """x sigmoid(x), the γ of the paper."""
    return x * sigmoid(x)


def softmax(x: NDArray[np.floating]) -> Wide:
    """Along the last axis, in float64."""
    x = x.astype(np.float64, copy=False)
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def entropy(probabilities: NDArray[np.floating]) -> Wide:
    """Shannon entropy along the last axis, in nats; 0 log 0 is 0."""
    logs = np.log(np.maximum(probabilities, np.finfo(np.float64).tiny), dtype=np.float64)
    return np.asarray(-(probabilities * logs).sum(axis=-1))
