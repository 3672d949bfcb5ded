"""What the layers are made of: norms, sizes and activations as operators, and the slopes of the activations."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from pluto_edge.export.graph import GraphBuilder, Value
from pluto_edge.vit.backbone import Activation

_SQRT_HALF = float(np.sqrt(0.5))
_LOG_GAUSS = float(-0.5 * np.log(2 * np.pi))
_TANH = float(np.sqrt(2 / np.pi))
_CUBE = 0.044715


def array(tensor: torch.Tensor) -> NDArray[np.float32]:
    """A torch tensor as a float32 array."""
    return tensor.detach().float().numpy()


def expand(g: GraphBuilder, value: Value, batch: Value, rows: int = 1, width: int = 1) -> Value:
    """`value` repeated to [rows, batch, width]."""
    if g.batch is not None:  # an open size is what CoreML's and QNN's Expand do not take
        return g.op("Add", value, g.constant(np.zeros((rows, g.batch, width), g.dtype.numpy())))
    return g.op("Expand", value, g.op("Concat", g.ints(rows), batch, g.ints(width), axis=0))


def frozen_norm(g: GraphBuilder, x: Value, norm: nn.LayerNorm, name: str) -> Value:
    """A LayerNorm of the backbone that nobody adapts."""
    scale, bias = (g.weight(f"{name}.{n}", array(t)) for n, t in norm.named_parameters())
    return g.op("LayerNormalization", x, scale, bias, axis=-1, epsilon=norm.eps)


def plain_norm(g: GraphBuilder, x: Value, epsilon: float) -> Value:
    """[tokens, batch, width], normalised; the scale is 1 and the bias 0, for CoreML wants constants."""
    width = inner(x)[1]
    one, zero = (g.weight(name, np.full(width, n, np.float32)) for name, n in (("ones", 1), ("zeros", 0)))
    return g.op("LayerNormalization", x, one, zero, axis=-1, epsilon=epsilon)


def statistics(g: GraphBuilder, x: Value, epsilon: float) -> tuple[Value, Value]:
    """x, normalised along its last axis, and 1 / deviation, which few providers' LayerNormalization gives."""
    last = g.ints(-1)
    centred = g.op("Sub", x, g.op("ReduceMean", x, last, keepdims=1))
    variance = g.op("ReduceMean", g.op("Mul", centred, centred), last, keepdims=1)
    deviation = g.op("Sqrt", g.op("Add", variance, g.scalar(epsilon)))
    inverse = g.op("Div", g.scalar(1.0), deviation)  # CoreML's Reciprocal adds an epsilon of its own
    return g.op("Mul", centred, inverse), inverse


def norm_gradient(g: GraphBuilder, d: Value, normalised: Value, inverse: Value) -> Value:
    """Through (x - mean) / deviation, for the gradient `d` of the normalised value."""
    mean = g.op("ReduceMean", d, g.ints(-1), keepdims=1)
    along = g.op("ReduceMean", g.op("Mul", d, normalised), g.ints(-1), keepdims=1)
    centred = g.op("Sub", g.op("Sub", d, mean), g.op("Mul", normalised, along))
    return g.op("Mul", centred, inverse)


def inner(x: Value) -> tuple[int, int]:
    """Tokens and width of [tokens, batch, width]."""
    assert x.shape is not None
    tokens, _, width = x.shape
    assert isinstance(tokens, int) and isinstance(width, int)
    return tokens, width


def rows(x: Value) -> int:
    """How many tokens a value has."""
    return inner(x)[0]


def like(y: Value, x: Value) -> Value:
    """Gives `y` the shape and type of `x`, so that a gradient can be cut and folded later."""
    y.shape = x.shape
    y.type = x.type
    return y


def _gelu_slope(g: GraphBuilder, x: Value) -> Value:
    """Φ(x) + x φ(x), with φ(x) = exp(log φ(0) - x²/2)."""
    u = g.op("Mul", x, g.scalar(_SQRT_HALF))
    below = g.op("Add", g.op("Mul", g.op("Erf", u), g.scalar(0.5)), g.scalar(0.5))
    density = g.op("Exp", g.op("Sub", g.scalar(_LOG_GAUSS), g.op("Mul", u, u)))
    return g.op("Add", below, g.op("Mul", x, density))


def _gelu_tanh_slope(g: GraphBuilder, x: Value) -> Value:
    """(1 + t) / 2 + x (1 - t²) u' / 2 with t = tanh(u), u = sqrt(2/π) (x + 0.044715 x³)."""
    square = g.op("Mul", x, x)
    u = g.op("Mul", x, g.op("Add", g.op("Mul", square, g.scalar(_TANH * _CUBE)), g.scalar(_TANH)))
    t = g.op("Tanh", u)
    slope_u = g.op("Add", g.op("Mul", square, g.scalar(1.5 * _TANH * _CUBE)), g.scalar(0.5 * _TANH))
    rest = g.op("Sub", g.scalar(1.0), g.op("Mul", t, t))
    half = g.op("Add", g.op("Mul", t, g.scalar(0.5)), g.scalar(0.5))
    return g.op("Add", half, g.op("Mul", g.op("Mul", x, rest), slope_u))


def _gated(
    factor: float,
) -> tuple[Callable[[GraphBuilder, Value], Value], Callable[[GraphBuilder, Value], Value]]:
    """x σ(a x), and its slope s + a x s (1 - s)."""

    def gate(g: GraphBuilder, x: Value) -> tuple[Value, Value]:
        inside = x if factor == 1.0 else g.op("Mul", x, g.scalar(factor))
        return inside, g.op("Sigmoid", inside)

    def slope(g: GraphBuilder, x: Value) -> Value:
        inside, s = gate(g, x)
        rest = g.op("Mul", inside, g.op("Sub", g.scalar(1.0), s))
        return g.op("Mul", s, g.op("Add", rest, g.scalar(1.0)))

    return lambda g, x: g.op("Mul", x, gate(g, x)[1]), slope


def _relu_slope(g: GraphBuilder, x: Value) -> Value:
    return g.op("Cast", g.op("Greater", x, g.scalar(0.0)), to=g.dtype)


Emit = Callable[[GraphBuilder, Value], Value]

ACTIVATIONS: dict[Activation, tuple[Emit, Emit]] = {
    "gelu": (lambda g, x: g.op("Gelu", x), _gelu_slope),
    "gelu_tanh": (lambda g, x: g.op("Gelu", x, approximate="tanh"), _gelu_tanh_slope),
    "quick_gelu": _gated(1.702),
    "silu": _gated(1.0),
    "relu": (lambda g, x: g.op("Relu", x), _relu_slope),
}
