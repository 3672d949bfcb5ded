"""Layers of a ViT as ONNX operators, and the backward pass through them.

ONNX Runtime's inference wheels have no gradient kernels, so the backward pass is written out in ordinary
operators. Each layer emits its forward nodes and records how a gradient of its output becomes gradients of
its inputs; `backward` walks the record in reverse. Only LayerNorm affines are parameters here: weights get no
gradient, and nothing flows into values that do not depend on an affine (the tokens of the image).

Values are [tokens, batch, width]: with the tokens first, what attention needs of queries, keys and values is a
Transpose that ONNX Runtime folds into its matrix product, and the head's tokens are one piece of memory.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import nn

from pluto_edge.export.formulas import (
    ACTIVATIONS,
    array,
    expand,
    inner,
    like,
    norm_gradient,
    plain_norm,
    rows,
    statistics,
)
from pluto_edge.export.graph import GraphBuilder, Value
from pluto_edge.vit.backbone import Activation

Backward = Callable[[Value, Value | None], Value]  # of the output, and what the input has of one already: the sum

_TINY = 1e-20  # a token of zeros stays one


class Layers:
    """Emits layers into `g`; with `differentiate` it also keeps the record for `backward`.

    With `int8` the frozen matrices are factors of MatMuls, turned round in a copy of their own for the gradient,
    as ONNX Runtime's quantizer wants them. The first `frozen_rows` LayerNorms take no gradient, so nothing flows
    back beyond the next one.

    Values are [tokens, batch, width]; every output has its `shape`, so that a gradient can be cut and folded.
    """

    def __init__(
        self, g: GraphBuilder, batch: Value, differentiate: bool, int8: bool, frozen_rows: int = 0
    ) -> None:
        self.g = g
        self.batch = batch
        self._int8 = int8
        self._frozen_rows = frozen_rows
        self._even: dict[Value, tuple[Value, Value]] = {}  # brought to -1 ... 1, and what by
        self._record: list[tuple[Value, dict[Value, Backward]]] | None = [] if differentiate else None
        self._active: set[Value] = set()
        self._norms: list[tuple[int, Value, Value]] = []  # row, output, normalised input

    # layers

    def linear(
        self,
        x: Value,
        weight: torch.Tensor,
        bias: Any,
        name: str,
        factor: torch.Tensor | float = 1.0,
        *,
        exact: bool = False,
    ) -> Value:
        """x W^T + b, every output scaled by `factor`: a number, or one for each output (LayerScale).

        `exact` ones stay as they are in an int8 graph.
        """
        g = self.g
        scale = torch.as_tensor(factor)
        outputs, inputs = weight.shape
        turned = array(weight * scale[..., None])
        matrix = g.weight(f"{name}.weight", turned.T)
        quantized = self._int8 and not exact
        # in int8 of three sides: ONNX Runtime makes one operator of a flat bias and the Gelu behind it, and that
        # takes longer than the two
        sides = (1, 1, -1) if quantized else (-1,)
        offset = None if bias is None else g.weight(f"{name}.bias", array(bias * scale).reshape(sides))

        def back() -> Value:  # asked for by the backward pass only: `forward` has no such copy
            return g.weight(f"{name}.turned", turned)

        if not quantized:
            # OpenVINO's CPU plugin takes a square constant for the same turned round: wrong numbers, and no word
            own = back if self._int8 or (g.portable and inputs == outputs) else None
            return self.project(x, matrix, offset, inputs=inputs, outputs=outputs, turned=own)
        y = self._by_token(x, matrix)
        if offset is not None:
            y = g.op("Add", y, offset)

        def gradient(dy: Value) -> Value:
            return self._by_token(dy, back())

        return self._done(y, (rows(x), outputs), {x: self._plus(gradient)})

    def _by_token(self, x: Value, matrix: Value) -> Value:
        """x W with every token of x brought to -1 ... 1 on the way: int8 then rounds each in proportion to itself.
        A few tokens (registers, and the class token's gradient) are many times larger than the others.
        """
        g = self.g
        if x not in self._even:
            size = g.op("Clip", g.op("ReduceMax", g.op("Abs", x), g.ints(-1), keepdims=1), g.scalar(_TINY))
            self._even[x] = g.op("Mul", x, g.op("Reciprocal", size)), size
        even, size = self._even[x]
        return g.op("Mul", g.op("MatMul", even, matrix), size)

    def project(
        self,
        x: Value,
        matrix: Value,
        bias: Value | None,
        *,
        inputs: int,
        outputs: int,
        turned: Callable[[], Value] | None = None,
    ) -> Value:
        """x W + b with W [inputs, outputs]. `turned` gives W turned round, where W cannot serve both directions:
        ONNX Runtime's quantizer drops transB and turns a constant in place, whoever else uses it.
        """
        g = self.g
        if g.portable:
            return self._multiply(x, matrix, bias, inputs=inputs, outputs=outputs, turned=turned)
        flat = g.op("Gemm", g.op("Reshape", x, g.ints(-1, inputs)), matrix, *([bias] if bias else []))
        y = g.op("Reshape", flat, g.ints(rows(x), -1, outputs))

        def gradient(dy: Value, total: Value | None) -> Value:
            there = [g.op("Reshape", total, g.ints(-1, inputs))] if total else []
            flat = g.op("Reshape", dy, g.ints(-1, outputs))
            if turned is not None:
                d = g.op("Gemm", flat, turned(), *there)
            else:  # W as it lies in the file: a Transpose would be folded into a second copy of it
                d = g.op("Gemm", flat, matrix, *there, transB=1)
            return g.op("Reshape", d, g.ints(rows(x), -1, inputs))

        return self._done(y, (rows(x), outputs), {x: gradient})

    def _multiply(
        self,
        x: Value,
        matrix: Value,
        bias: Value | None,
        *,
        inputs: int,
        outputs: int,
        turned: Callable[[], Value] | None,
    ) -> Value:
        """The same as MatMul and Add: CoreML's Gemm takes constants alone, and no sum to add to."""
        g = self.g
        y = g.op("MatMul", x, matrix)
        if bias is not None:
            y = g.op("Add", y, bias)

        def gradient(dy: Value) -> Value:
            if turned is not None:
                return g.op("MatMul", dy, turned())
            if matrix.const_value is None:
                return g.op("MatMul", dy, g.op("Transpose", matrix, perm=[1, 0]))
            # W as it lies in the file: a Transpose would be folded into a second copy of it
            flat = g.op("Gemm", g.op("Reshape", dy, g.ints(-1, outputs)), matrix, transB=1)
            return g.op("Reshape", flat, g.ints(rows(x), -1, inputs))

        return self._done(y, (rows(x), outputs), {x: self._plus(gradient)})

    def norm(self, x: Value, index: int, scale: Value, bias: Value, epsilon: float) -> Value:
        """LayerNorm with affines that take a gradient; `index` is their row in the stack."""
        g = self.g
        options = {"axis": -1, "epsilon": epsilon}
        frozen = self._record is None or index < self._frozen_rows
        if frozen and not g.portable:
            return like(g.op("LayerNormalization", x, scale, bias, **options), x)
        if frozen:
            return like(g.op("Add", g.op("Mul", plain_norm(g, x, epsilon), scale), bias), x)
        if g.portable:
            normalised, inverse = statistics(g, x, epsilon)
            y = g.op("Add", g.op("Mul", normalised, scale), bias)
        else:
            y, mean, inverse = g.ops("LayerNormalization", 3, x, scale, bias, **options)
            normalised = g.op("Mul", g.op("Sub", x, mean), inverse)

        def gradient(dy: Value) -> Value:
            return norm_gradient(g, g.op("Mul", dy, scale), normalised, inverse)

        self._active.add(y)
        self._norms.append((index, y, normalised))
        return self._done(y, None, {x: self._plus(gradient)}, like_=x)

    def head_norm(self, x: Value, norm: nn.LayerNorm, name: str, factor: float = 1.0) -> Value:
        """The frozen LayerNorm of queries or keys, [tokens, batch, heads, width]; scaled by `factor`."""
        g = self.g
        scale = g.weight(f"{name}.weight", array(norm.weight) * np.float32(factor))
        bias = g.weight(f"{name}.bias", array(norm.bias) * np.float32(factor))
        options = {"axis": -1, "epsilon": norm.eps}
        if self._record is None:
            return g.op("LayerNormalization", x, scale, bias, **options)
        if g.portable:
            normalised, inverse = statistics(g, x, norm.eps)
            y = g.op("Add", g.op("Mul", normalised, scale), bias)
        else:
            y, mean, inverse = g.ops("LayerNormalization", 3, x, scale, bias, **options)

        def gradient(dy: Value) -> Value:
            own = normalised if g.portable else g.op("Mul", g.op("Sub", x, mean), inverse)
            return norm_gradient(g, g.op("Mul", dy, scale), own, inverse)

        return self._done(y, None, {x: self._plus(gradient)})

    def add(self, x: Value, y: Value) -> Value:
        """x + y; the gradient goes to both as it is."""
        same = self._plus(lambda d: d)
        return self._done(self.g.op("Add", x, y), None, {x: same, y: same}, like_=x)

    def multiply(self, x: Value, y: Value) -> Value:
        """x times y, element by element, as in a gated MLP."""
        g = self.g
        plus = self._plus
        gradients = {x: plus(lambda d: g.op("Mul", d, y)), y: plus(lambda d: g.op("Mul", d, x))}
        return self._done(g.op("Mul", x, y), None, gradients, like_=x)

    def activate(self, x: Value, kind: Activation) -> Value:
        """An activation function of the backbone."""
        y, slope = ACTIVATIONS[kind]
        gradients = {x: self._plus(lambda d: self.g.op("Mul", d, slope(self.g, x)))}
        return self._done(y(self.g, x), None, gradients, like_=x)

    def take(self, x: Value, start: int, end: int) -> Value:
        """Tokens `start` to `end`."""
        g = self.g
        count, width = inner(x)

        def cut(value: Value, start: int, end: int) -> Value:
            return g.op("Slice", value, g.ints(start), g.ints(end), g.ints(0))

        def gradient(dy: Value, total: Value | None) -> Value:
            def rest(start: int, end: int) -> list[Value]:
                if start == end:
                    return []
                return [
                    cut(total, start, end) if total else expand(g, g.scalar(0.0), self.batch, end - start, width)
                ]

            taken = g.op("Add", cut(total, start, end), dy) if total else dy
            return g.op("Concat", *rest(0, start), taken, *rest(end, count), axis=0)

        return self._done(cut(x, start, end), (end - start, width), {x: gradient})

    def split_heads(self, x: Value, heads: int) -> Value:
        """[tokens, batch, width] to [tokens, batch, heads, width of a head]."""
        g = self.g
        width = inner(x)[1]
        y = g.op("Reshape", x, g.ints(0, 0, heads, width // heads))
        return self._done(y, None, {x: self._plus(lambda d: g.op("Reshape", d, g.ints(0, 0, width)))})

    def attention(self, q: Value, k: Value, v: Value, tokens: int, width: int) -> Value:
        """softmax(q k^T) v for [tokens, batch, heads, width of a head]; q is already scaled."""
        g = self.g

        def by_head(x: Value) -> Value:  # [batch, heads, tokens, width]
            return g.op("Transpose", x, perm=[1, 2, 0, 3])

        def turned(x: Value) -> Value:  # [batch, heads, width, tokens]
            return g.op("Transpose", x, perm=[1, 2, 3, 0])

        def back(x: Value) -> Value:
            return g.op("Transpose", x, perm=[2, 0, 1, 3])

        def swapped(x: Value) -> Value:
            return g.op("Transpose", x, perm=[0, 1, 3, 2])

        weights = g.op("Softmax", g.op("MatMul", by_head(q), turned(k)), axis=-1)
        mixed = back(g.op("MatMul", weights, by_head(v)))
        y = g.op("Reshape", mixed, g.ints(0, 0, width))
        memo: dict[Value, tuple[Value, Value]] = {}

        def incoming(dy: Value) -> tuple[Value, Value]:
            """The gradients of `mixed` and of the scores, shared by q, k and v."""
            if dy not in memo:
                heads, size = (g.op("Shape", q, start=i, end=i + 1) for i in (2, 3))
                d_mixed = g.op("Reshape", dy, g.op("Concat", g.ints(0, 0), heads, size, axis=0))
                d_weights = g.op("MatMul", by_head(d_mixed), turned(v))
                total = by_head(g.op("ReduceSum", g.op("Mul", d_mixed, mixed), g.ints(-1), keepdims=1))
                memo[dy] = d_mixed, g.op("Mul", weights, g.op("Sub", d_weights, total))
            return memo[dy]

        gradients = {
            q: self._plus(lambda dy: back(g.op("MatMul", incoming(dy)[1], by_head(k)))),
            k: self._plus(lambda dy: back(g.op("MatMul", swapped(incoming(dy)[1]), by_head(q)))),
            v: self._plus(lambda dy: back(g.op("MatMul", swapped(weights), by_head(incoming(dy)[0])))),
        }
        return self._done(y, (tokens, width), gradients)

    def mean(self, x: Value) -> Value:
        """The mean of the tokens, as one token."""
        g = self.g
        count, width = inner(x)
        if count == 1:
            return x
        y = g.op("ReduceMean", x, g.ints(0), keepdims=1)
        share = g.scalar(1.0 / count)
        gradients = {x: self._plus(lambda d: expand(g, g.op("Mul", d, share), self.batch, count))}
        return self._done(y, (1, width), gradients)

    # the backward pass

    def backward(self, seeds: Mapping[Value, Value], depth: int) -> tuple[Value, Value]:
        """Gradients of all `depth` LayerNorm scales and biases, stacked; zeros for those that take none.

        `seeds` are values with the gradient that the loss gives each of them itself; what comes to a value through
        later ones is added on the way.
        """
        assert self._record is not None
        gradients = dict(seeds)
        for output, ways in reversed(self._record):
            if output not in gradients:
                continue
            for source, way in ways.items():
                gradients[source] = way(gradients[output], gradients.get(source))
        scales: list[Value | None] = [None] * depth
        biases: list[Value | None] = [None] * depth
        for index, output, normalised in self._norms:
            d = gradients[output]
            scales[index] = self._total(self.g.op("Mul", d, normalised))
            biases[index] = self._total(d)
        return self._stack(scales), self._stack(biases)

    def _plus(self, gradient: Callable[[Value], Value]) -> Backward:
        """`gradient`, added to what is there already."""

        def way(dy: Value, total: Value | None) -> Value:
            d = gradient(dy)
            return d if total is None else self.g.op("Add", total, d)

        return way

    def _total(self, d: Value) -> Value:
        return self.g.op("ReduceSum", d, self.g.ints(0, 1), keepdims=1)

    def _stack(self, rows: list[Value | None]) -> Value:
        """Rows without a gradient are the first ones."""
        g = self.g
        learned = [row for row in rows if row is not None]
        frozen = len(rows) - len(learned)
        if frozen:
            width = g.op("Shape", learned[0], start=2, end=3)
            shape = g.op("Concat", g.ints(frozen, 1), width, axis=0)
            learned = [g.op("Expand", g.scalar(0.0), shape), *learned]
        return g.op("Squeeze", g.op("Concat", *learned, axis=0), g.ints(1))

    def _done(
        self,
        y: Value,
        shape: tuple[int, int] | None,
        gradients: dict[Value, Backward],
        like_: Value | None = None,
    ) -> Value:
        if shape is not None:
            y.shape = self.g.sizes([shape[0], "batch", shape[1]])
            y.type = ir.TensorType(self.g.dtype)
        elif like_ is not None:
            like(y, like_)
        if self._record is not None:
            ways = {x: way for x, way in gradients.items() if x in self._active}
            if ways:
                self._active.add(y)
            self._record.append((y, ways))
        return y
