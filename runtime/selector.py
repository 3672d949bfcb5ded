"""The module selector G, in numpy.

h_x = LN(W_ux^T silu(W_dx^T x̂)), h_lj = LN(W_ul^T silu(W_dl^T l_j)), w_j = softmax_j(h_lj · h_x)

It computes in float64: the dot product of two normalised vectors goes straight into a softmax, float32 would
lose a digit there, and the matrices are small.
"""

import numpy as np
from numpy.typing import NDArray

from pluto_edge.modules import SelectorWeights

Array = NDArray[np.float32]
Wide = NDArray[np.float64]

EPSILON = 1e-5


def weights(g: SelectorWeights, x_hat: Array, logits: Array) -> Array:
    """x̂ [B,d] and logits [B,N,K] to the weight of every module for every sample, [B,N]."""
    h_x = layer_norm(silu(x_hat.astype(np.float64) @ g.down_x) @ g.up_x, g.scale_x, g.bias_x)
    h_l = layer_norm(silu(logits.astype(np.float64) @ g.down_l) @ g.up_l, g.scale_l, g.bias_l)
    return softmax(np.einsum("bd,bnd->bn", h_x, h_l)).astype(np.float32)


def select(weight: Array, top_m: int | None) -> tuple[Array, NDArray[np.intp]]:
    """Keep the `top_m` modules with the largest mean weight over the batch, rescaled to 1 per sample.

    Returns weights [B,N] that are zero outside the selection, and the selected indices, largest mean first.
    """
    count = weight.shape[1]
    order = np.argsort(-weight.mean(axis=0), kind="stable")[: min(top_m or count, count)]
    kept = np.zeros_like(weight)
    kept[:, order] = weight[:, order]
    total = kept.sum(axis=1, keepdims=True)
    # a sample whose weight lies wholly outside the selection gets the selection's plain average
    kept[:, order] = np.where(total > 0, kept[:, order], np.float32(1))
    return kept / kept.sum(axis=1, keepdims=True), order


def silu(x: Wide) -> Wide:
    return x * sigmoid(x)


def sigmoid(x: Wide) -> Wide:
    return np.asarray(0.5 * (1 + np.tanh(0.5 * x)))  # no overflow on either side


def layer_norm(x: Wide, scale: Array, bias: Array) -> Wide:
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = np.square(centred).mean(axis=-1, keepdims=True)
    return np.asarray(centred / np.sqrt(variance + EPSILON) * scale + bias)


def softmax(x: NDArray[np.floating]) -> Wide:
    e = np.exp(x - x.max(axis=-1, keepdims=True), dtype=np.float64)
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def entropy(probabilities: NDArray[np.floating]) -> Wide:
    """Shannon entropy along the last axis, in nats; 0 log 0 is 0."""
    logs = np.log(np.maximum(probabilities, np.finfo(np.float64).tiny), dtype=np.float64)
    return np.asarray(-(probabilities * logs).sum(axis=-1))
