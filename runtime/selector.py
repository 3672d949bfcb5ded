"""The module selector G, in numpy.

h_x = LN(W_ux^T silu(W_dx^T x̂)), h_lj = LN(W_ul^T silu(W_dl^T l_j)), w_j = softmax_j(h_lj · h_x)
"""

import numpy as np
from numpy.typing import NDArray

from pluto_edge.modules import SelectorWeights

Array = NDArray[np.float32]

EPSILON = np.float32(1e-5)


def weights(g: SelectorWeights, x_hat: Array, logits: Array) -> Array:
    """x̂ [B,d] and logits [B,N,K] to the weight of every module for every sample, [B,N]."""
    h_x = layer_norm(silu(x_hat @ g.down_x) @ g.up_x, g.scale_x, g.bias_x)
    h_l = layer_norm(silu(logits @ g.down_l) @ g.up_l, g.scale_l, g.bias_l)
    return softmax(np.einsum("bd,bnd->bn", h_x, h_l))


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


def silu(x: Array) -> Array:
    return np.asarray(x * sigmoid(x), np.float32)


def sigmoid(x: Array) -> Array:
    return np.asarray(0.5 * (1 + np.tanh(0.5 * x)), np.float32)  # no overflow on either side


def layer_norm(x: Array, scale: Array, bias: Array) -> Array:
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = np.square(centred).mean(axis=-1, keepdims=True)
    return np.asarray(centred / np.sqrt(variance + EPSILON) * scale + bias, np.float32)


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True), np.float32)


def entropy(probabilities: Array) -> Array:
    """Shannon entropy along the last axis, in nats; 0 log 0 is 0."""
    logs = np.log(np.maximum(probabilities, np.finfo(np.float32).tiny))
    return np.asarray(-(probabilities * logs).sum(axis=-1), np.float32)
