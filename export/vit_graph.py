"""The three graphs of a ViT with pluggable modules.

`embed`: pixels to tokens and x̂, once an image. `forward`: tokens and one module's tensors to logits and
activations (what the head would pool after every block). `adapt`: the same, and the gradient of entropy, alignment
and cross-entropy with respect to the module's LayerNorm affines. All that differs between modules is a graph
input. What changes nothing in the result is done at export: LayerScale and the attention's 1/sqrt(head) are folded
into weights, prompts are appended (attention does not see order, and positions are already added), and the last
block computes only the tokens that the head looks at.
"""

from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import nn

from pluto_edge.export.formulas import array, expand, frozen_norm, inner
from pluto_edge.export.graph import GraphBuilder, Value
from pluto_edge.export.layers import Layers
from pluto_edge.modules import LN_BIAS, LN_SCALE, Dims
from pluto_edge.vit.backbone import activation, final_norm, read_layout

MODULE_DOCS = {
    "prompt": "prompt tokens of the module, appended to the image's tokens",
    "down_weight": "adapters: down-projection of every block",
    "down_bias": "adapters: its bias",
    "up_weight": "adapters: up-projection of every block",
    "up_bias": "adapters: its bias",
    "head_weight": "classifier of the module",
    "head_bias": "its bias",
    LN_SCALE: "LayerNorm scale: norm1 and norm2 of every block, then the final norm",
    LN_BIAS: "LayerNorm bias, in the same order",
}


def build_embed(g: GraphBuilder, vit: Any) -> None:
    """pixels [B,3,H,W] to tokens [B,T,d], positions added, and x̂ [B,d]."""
    layout = read_layout(vit)
    conv = vit.patch_embed.proj
    height, width = vit.patch_embed.img_size
    pixels = g.input("pixels", ["batch", 3, height, width], "normalised RGB")
    bias = [g.weight("patch_embed.bias", array(conv.bias))] if conv.bias is not None else []
    patches = g.op(
        "Conv",
        pixels,
        g.weight("patch_embed.weight", array(conv.weight)),
        *bias,
        kernel_shape=list(conv.kernel_size),
        strides=list(conv.stride),
    )
    columns = g.op("Reshape", patches, g.ints(0, layout.width, layout.patches))
    x_hat = g.op("ReduceMax", columns, g.ints(2), keepdims=0)
    tokens = g.op("Transpose", columns, perm=[0, 2, 1])
    with torch.no_grad():  # positions and prefix tokens in whatever way this ViT combines them
        zero = torch.zeros_like(vit.patch_embed(torch.zeros(1, 3, height, width)))
        origin = array(vit._pos_embed(zero))
    tokens = g.op("Add", tokens, g.weight("position", origin[:, layout.prefix :]))
    if layout.prefix and g.batch is not None:
        repeated = g.weight("prefix.repeated", np.repeat(origin[:, : layout.prefix], g.batch, axis=0))
        tokens = g.op("Concat", repeated, tokens, axis=1)
    elif layout.prefix:
        prefix = g.weight("prefix", origin[:, : layout.prefix])
        batch = g.op("Shape", tokens, start=0, end=1)
        repeated = g.op("Expand", prefix, g.op("Concat", batch, g.ints(1, 1), axis=0))
        tokens = g.op("Concat", repeated, tokens, axis=1)
    if isinstance(vit.norm_pre, nn.LayerNorm):
        tokens = frozen_norm(g, tokens, vit.norm_pre, "norm_pre")
    g.output("tokens", tokens, ["batch", layout.tokens, layout.width], "what enters the first block")
    g.output("x_hat", x_hat, ["batch", layout.width], "max-pooled patch embedding, for the selector")


def build_forward(g: GraphBuilder, vit: Any, dims: Dims, *, int8: bool = False) -> None:
    """tokens and a module's tensors to logits [B,K] and activations [B,L+1,d]."""
    net = VitGraph(g, vit, dims, differentiate=False, int8=int8)
    net.emit_outputs()


def build_adapt(g: GraphBuilder, vit: Any, dims: Dims, *, int8: bool = False, learn_from: int = 0) -> None:
    """The same with an objective: entropy, and gradients of the sum over the samples of

        entropy_weight H_i, if it is reliable  +  Σ_l (offset_l · a_il + ½ slope_l · a_il²)  -  Σ_k t_ik log p_ik

    with the entropy H = -Σ p log p, the activations a and the target t. A sample is reliable when its entropy is
    below the threshold. All are sums, so that gradients of micro-batches add up.

    dH/dl = -p (log p + H), and the cross-entropy's gradient is (Σ t) p - t. The affines of blocks before
    `learn_from` have a gradient of zero, and nothing is computed for them.
    """
    net = VitGraph(g, vit, dims, differentiate=True, int8=int8, learn_from=learn_from)
    rows = [dims.depth + 1, dims.width]
    number = [1] if g.portable else []  # OpenVINO and CoreML take no input without a size
    threshold = g.input("threshold", number, "entropy, in nats, below which a sample is reliable")
    weight = g.input("entropy_weight", number, "of the reliable samples' entropies in the sum")
    offset = g.input("align_offset", rows, "alignment: gradient at an activation of zero")
    slope = g.input("align_slope", rows, "alignment: what the gradient grows by with the activation")
    target = g.input("target", ["batch", dims.classes], "weights of the classes' -log p; zero for none")
    log_p = g.op("LogSoftmax", net.logits, axis=-1)
    p = g.op("Exp", log_p)
    entropy = g.op("Neg", g.op("ReduceSum", g.op("Mul", p, log_p), g.ints(1), keepdims=1))
    chosen = g.op("Cast", g.op("Less", entropy, threshold), to=g.dtype)
    along = g.op("Mul", g.op("Add", log_p, entropy), g.op("Mul", chosen, weight))
    mass = g.op("ReduceSum", target, g.ints(1), keepdims=1)
    d_logits = g.op("Sub", g.op("Mul", p, g.op("Sub", mass, along)), target)
    scale, bias = net.gradients(d_logits, offset, slope)
    net.emit_outputs()
    g.output("entropy", g.op("Reshape", entropy, g.ints(-1)), ["batch"], "of each sample's prediction, in nats")
    reliable = g.op("Reshape", g.op("ReduceSum", chosen, g.ints(0, 1), keepdims=1), g.ints(*number))
    g.output("reliable", reliable, number, "how many samples are reliable")
    g.output("ln_scale_grad", scale, dims.ln_shape, "of the objective, summed over the samples")
    g.output("ln_bias_grad", bias, dims.ln_shape, "of the objective, summed over the samples")


class VitGraph:
    """Emits the transformer for one module's inputs.

    Its `activations` are one token each, [1, batch, width]: what the head would pool after every block, and last
    what it sees.
    """

    def __init__(
        self, g: GraphBuilder, vit: Any, dims: Dims, differentiate: bool, int8: bool, learn_from: int = 0
    ) -> None:
        self.g = g
        self.vit = vit
        self.dims = dims
        self.layout = read_layout(vit)
        self.tokens = g.input("tokens", ["batch", self.layout.tokens, dims.width], "tokens from embed")
        batch = g.op("Shape", self.tokens, start=0, end=1) if g.batch is None else g.ints(g.batch)
        self.layers = Layers(g, batch, differentiate, int8, 2 * learn_from)
        shapes = {**dims.shapes, **dims.ln_shapes}
        self.module = {name: g.input(name, shape, MODULE_DOCS[name]) for name, shape in shapes.items()}
        self.activations = self.transform()
        self.logits = self.head(self.activations[-1])
        self._stacked = g.op("Concat", *self.activations, axis=0)

    def head(self, token: Value) -> Value:
        """The module's classifier, on one token [1, batch, width]."""
        g = self.g
        weight, bias = self.module["head_weight"], self.module["head_bias"]
        if g.portable:  # with three sizes: ONNX Runtime would make a Gemm of two matrices
            product = g.op("MatMul", token, g.op("Transpose", weight, perm=[1, 0]))
            return g.op("Squeeze", g.op("Add", product, bias), g.ints(0))
        return g.op("Gemm", g.op("Squeeze", token, g.ints(0)), weight, bias, transB=1)

    def of_block(self, name: str, index: int) -> Value:
        """What the module has for one block, or one LayerNorm."""
        g = self.g
        value = self.module[name]
        if not g.portable:
            return g.op("Gather", value, g.index(index))
        shape = {**self.dims.shapes, **self.dims.ln_shapes}[name]
        row = g.rows(value, shape[0])[index]  # [1, width] serves as [width]
        return row if len(shape) == 2 else g.op("Squeeze", row, g.ints(0))

    def emit_outputs(self) -> None:
        """What `forward` and `adapt` both give."""
        g = self.g
        dims = self.dims
        g.output("logits", self.logits, ["batch", dims.classes], "pre-softmax logits of the module")
        rows = g.op("Transpose", self._stacked, perm=[1, 0, 2])
        shape: list[int | str] = ["batch", dims.depth + 1, dims.width]
        g.output("activations", rows, shape, "what the head would pool after every block, and what it sees")

    def transform(self) -> list[Value]:
        """All blocks; gives the activations."""
        g = self.g
        count = self.layout.tokens
        x = g.op("Transpose", self.tokens, perm=[1, 0, 2])
        if "prompt" in self.module:
            prompt = g.op("Unsqueeze", self.module["prompt"], g.ints(1))
            x = g.op("Concat", x, expand(g, prompt, self.layers.batch), axis=0)
            count += self.dims.size
        x.shape = g.sizes([count, "batch", self.dims.width])
        x.type = ir.TensorType(g.dtype)
        activations = []
        for index, block in enumerate(self.vit.blocks):
            x = self.block(x, block, index)
            looked_at = x if index == self.layout.depth - 1 else self.head_tokens(x)
            activations.append(self.layers.mean(looked_at))
        return [*activations, self.pool(x, activations[-1])]

    def gradients(self, d_logits: Value, offset: Value, slope: Value) -> tuple[Value, Value]:
        """Of all LayerNorm scales and biases, for `d_logits` and, at an activation a, offset + slope a."""
        g = self.g
        count = len(self.activations)
        offset, slope = (g.op("Unsqueeze", rows, g.ints(1)) for rows in (offset, slope))
        aligned = g.op("Add", g.op("Mul", self._stacked, slope), offset)
        *d_blocks, d_last = g.ops("Split", count, aligned, axis=0, num_outputs=count)
        d_features = g.op("MatMul", d_logits, self.module["head_weight"])
        d_seen = g.op("Add", d_last, g.op("Unsqueeze", d_features, g.ints(0)))
        seeds = dict(zip(self.activations, [*d_blocks, d_seen], strict=True))
        return self.layers.backward(seeds, self.dims.ln_shape[0])

    def block(self, x: Value, block: Any, index: int) -> Value:
        """One transformer block; the last one computes only the tokens that the head looks at."""
        name = f"blocks.{index}"
        last = index == self.layout.depth - 1
        normed = self.norm(x, 2 * index, block.norm1.eps)
        query = self.head_tokens(normed) if last else normed
        mixed = self.attention(query, normed, block, name, first=index == 0)
        x = self.layers.add(self.head_tokens(x) if last else x, mixed)
        h = self.mlp(self.norm(x, 2 * index + 1, block.norm2.eps), block, name)
        if "down_weight" in self.module:
            h = self.adapter(h, index)
        return self.layers.add(x, h)

    def norm(self, x: Value, index: int, epsilon: float) -> Value:
        """LayerNorm with the module's own affines."""
        scale, bias = (self.of_block(name, index) for name in (LN_SCALE, LN_BIAS))
        return self.layers.norm(x, index, scale, bias, epsilon)

    def head_tokens(self, x: Value) -> Value:
        """The tokens that the head looks at: class token (and its distilled twin) or the patches."""
        start = self.layout.prefix if self.layout.pool == "average" else 0
        return self.layers.take(x, start, start + self.layout.pooled)

    def attention(self, query: Value, source: Value, block: Any, name: str, *, first: bool) -> Value:
        """The first block's q, k and v stay out of int8: single channels of what was just embedded are far larger
        than the rest, and most of what int8 would get wrong comes from there.
        """
        layers = self.layers
        attn = block.attn
        normed = isinstance(attn.q_norm, nn.LayerNorm)
        width = attn.num_heads * attn.head_dim
        weights = attn.qkv.weight.reshape(3, width, -1)
        biases = attn.qkv.bias.reshape(3, -1) if attn.qkv.bias is not None else [None] * 3

        def heads(part: int, x: Value, letter: str, factor: float = 1.0) -> Value:
            y = layers.linear(x, weights[part], biases[part], f"{name}.attn.{letter}", factor, exact=first)
            return layers.split_heads(y, attn.num_heads)

        q = heads(0, query, "q", 1.0 if normed else attn.scale)
        k, v = heads(1, source, "k"), heads(2, source, "v")
        if normed:
            q = layers.head_norm(q, attn.q_norm, f"{name}.attn.q_norm", attn.scale)
            k = layers.head_norm(k, attn.k_norm, f"{name}.attn.k_norm")
        mixed = layers.attention(q, k, v, inner(query)[0], width)
        scale = getattr(block.ls1, "gamma", 1.0)
        return layers.linear(mixed, attn.proj.weight, attn.proj.bias, f"{name}.attn.proj", scale)

    def mlp(self, x: Value, block: Any, name: str) -> Value:
        """The block's MLP, plain or gated."""
        layers = self.layers
        mlp = block.mlp
        act = activation(block.mlp.act)
        assert act is not None
        gate, value = gate_and_value(mlp)
        hidden = layers.activate(layers.linear(x, *gate, f"{name}.mlp.fc1"), act)
        if value is not None:
            hidden = layers.multiply(hidden, layers.linear(x, *value, f"{name}.mlp.value"))
        scale = getattr(block.ls2, "gamma", 1.0)
        return layers.linear(hidden, mlp.fc2.weight, mlp.fc2.bias, f"{name}.mlp.fc2", scale)

    def adapter(self, h: Value, index: int) -> Value:
        """The module's bottleneck, after the MLP branch: h + up(gelu(down(h)))."""
        width = self.dims.width
        size = self.dims.size
        down, down_bias, up, up_bias = (
            self.of_block(name, index) for name in ("down_weight", "down_bias", "up_weight", "up_bias")
        )
        hidden = self.layers.project(h, down, down_bias, inputs=width, outputs=size)
        out = self.layers.project(self.layers.activate(hidden, "gelu"), up, up_bias, inputs=size, outputs=width)
        return self.layers.add(h, out)

    def pool(self, x: Value, mean: Value) -> Value:
        """One token, normalised: what the head sees, of the last block's tokens and their mean."""
        last = self.dims.ln_shape[0] - 1
        epsilon = final_norm(self.vit).eps
        if self.layout.norm_after_pool:
            return self.norm(mean, last, epsilon)
        return self.layers.mean(self.norm(x, last, epsilon))


def gate_and_value(mlp: Any) -> tuple[tuple[Any, Any], tuple[Any, Any] | None]:
    """Weight and bias of what is activated and, in a gated MLP, of what it multiplies."""
    if hasattr(mlp, "fc1_g"):  # SwiGLU
        return (mlp.fc1_g.weight, mlp.fc1_g.bias), (mlp.fc1_x.weight, mlp.fc1_x.bias)
    if hasattr(mlp, "gate_last"):  # GluMlp: one matrix, two halves
        biases = mlp.fc1.bias.chunk(2) if mlp.fc1.bias is not None else (None, None)
        first, second = zip(mlp.fc1.weight.chunk(2), biases, strict=True)
        return (second, first) if mlp.gate_last else (first, second)
    return (mlp.fc1.weight, mlp.fc1.bias), None
