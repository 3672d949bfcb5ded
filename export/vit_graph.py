"""The graphs of a ViT with pluggable modules, emitted operator by operator.

`embed`: pixels to tokens and x̂, once an image. `forward`: tokens and one module's tensors to logits. All that
differs between modules is a graph input. What changes nothing in the result is done at export: LayerScale and
the attention's 1/sqrt(head) are folded into weights, prompts are appended (attention does not see order, and
positions are already added), and the last block computes only the tokens that the head looks at.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from pluto_edge.export.backbone import Activation, activation, final_norm, read_layout
from pluto_edge.export.graph import GraphBuilder, Value
from pluto_edge.modules import LN_BIAS, LN_SCALE, Dims

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


def array(tensor: torch.Tensor) -> NDArray[np.float32]:
    return tensor.detach().float().numpy()


def build_embed(g: GraphBuilder, vit: Any) -> None:
    """pixels [B,3,H,W] to tokens [B,T,d], positions added, and x̂ [B,d]."""
    layout, conv = read_layout(vit), vit.patch_embed.proj
    height, width = vit.patch_embed.img_size
    pixels = g.input("pixels", ["batch", 3, height, width], "normalised RGB")
    bias = g.weight("patch_embed.bias", array(conv.bias)) if conv.bias is not None else None
    patches = g.op(
        "Conv",
        pixels,
        g.weight("patch_embed.weight", array(conv.weight)),
        *([bias] if bias is not None else []),
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
    if layout.prefix:
        prefix = g.weight("prefix", origin[:, : layout.prefix])
        tokens = g.op("Concat", expand(g, prefix, tokens), tokens, axis=1)
    if isinstance(vit.norm_pre, nn.LayerNorm):
        tokens = frozen_norm(g, tokens, vit.norm_pre, "norm_pre")
    g.output("tokens", tokens, ["batch", layout.tokens, layout.width], "what enters the first block")
    g.output("x_hat", x_hat, ["batch", layout.width], "max-pooled patch embedding, for the selector")


def build_forward(g: GraphBuilder, vit: Any, dims: Dims) -> None:
    """tokens and a module's tensors to logits [B,K]."""
    net = VitGraph(g, vit, dims)
    g.output("logits", net.logits(), ["batch", dims.classes], "pre-softmax logits of the module")


def expand(g: GraphBuilder, value: Value, like: Value) -> Value:
    """[1,n,d] or [n,d] repeated to the batch of `like`."""
    batch = g.op("Shape", like, start=0, end=1)
    return g.op("Expand", value, g.op("Concat", batch, g.ints(1, 1), axis=0))


def frozen_norm(g: GraphBuilder, x: Value, norm: nn.LayerNorm, name: str, factor: float = 1.0) -> Value:
    scale, bias = (g.weight(f"{name}.{n}", array(t) * np.float32(factor)) for n, t in norm.named_parameters())
    return g.op("LayerNormalization", x, scale, bias, axis=-1, epsilon=norm.eps)


class VitGraph:
    """Emits the transformer for one module's inputs."""

    def __init__(self, g: GraphBuilder, vit: Any, dims: Dims) -> None:
        self.g, self.vit, self.dims = g, vit, dims
        self.layout = read_layout(vit)
        self.tokens = g.input("tokens", ["batch", self.layout.tokens, dims.width], "tokens from embed")
        shapes = {**dims.shapes, **dims.ln_shapes}
        self.module = {name: g.input(name, shape, MODULE_DOCS[name]) for name, shape in shapes.items()}

    def logits(self) -> Value:
        g, x = self.g, self.tokens
        if "prompt" in self.module:
            x = g.op("Concat", x, expand(g, self.module["prompt"], x), axis=1)
        for index, block in enumerate(self.vit.blocks):
            x = self.block(x, block, index)
        features = self.pool(x)
        return g.op("Gemm", features, self.module["head_weight"], self.module["head_bias"], transB=1)

    def block(self, x: Value, block: Any, index: int) -> Value:
        name, last = f"blocks.{index}", index == self.layout.depth - 1
        normed = self.norm(x, 2 * index, block.norm1.eps)
        query = self.head_tokens(normed) if last else normed
        attended = self.attention(query, normed, block, name)
        x = self.g.op("Add", self.head_tokens(x) if last else x, attended)
        h = self.mlp(self.norm(x, 2 * index + 1, block.norm2.eps), block, name)
        if "down_weight" in self.module:
            h = self.adapter(h, index)
        return self.g.op("Add", x, h)

    def norm(self, x: Value, index: int, epsilon: float) -> Value:
        """LayerNorm with the module's own affines."""
        at = self.g.index(index)
        scale = self.g.op("Gather", self.module[LN_SCALE], at)
        bias = self.g.op("Gather", self.module[LN_BIAS], at)
        return self.g.op("LayerNormalization", x, scale, bias, axis=-1, epsilon=epsilon)

    def head_tokens(self, x: Value) -> Value:
        """The tokens that the head looks at: class token (and its distilled twin) or the patches."""
        start = self.layout.prefix if self.layout.pool == "average" else 0
        bounds = (self.g.ints(start), self.g.ints(start + self.layout.pooled), self.g.ints(1))
        return self.g.op("Slice", x, *bounds)

    def attention(self, query: Value, source: Value, block: Any, name: str) -> Value:
        g, attn = self.g, block.attn
        normed = isinstance(attn.q_norm, nn.LayerNorm)
        weights = attn.qkv.weight.reshape(3, attn.num_heads * attn.head_dim, -1)
        biases = attn.qkv.bias.reshape(3, -1) if attn.qkv.bias is not None else [None] * 3

        def heads(part: int, x: Value, letter: str, factor: float = 1.0) -> Value:
            y = self.linear(x, weights[part], biases[part], f"{name}.attn.{letter}", factor)
            return g.op("Reshape", y, g.ints(0, 0, attn.num_heads, attn.head_dim))

        q = heads(0, query, "q", 1.0 if normed else attn.scale)
        k, v = heads(1, source, "k"), heads(2, source, "v")
        if normed:
            q = frozen_norm(g, q, attn.q_norm, f"{name}.attn.q_norm", attn.scale)
            k = frozen_norm(g, k, attn.k_norm, f"{name}.attn.k_norm")
        q, v = (g.op("Transpose", t, perm=[0, 2, 1, 3]) for t in (q, v))
        k = g.op("Transpose", k, perm=[0, 2, 3, 1])
        weight = g.op("Softmax", g.op("MatMul", q, k), axis=-1)
        mixed = g.op("Transpose", g.op("MatMul", weight, v), perm=[0, 2, 1, 3])
        mixed = g.op("Reshape", mixed, g.ints(0, 0, attn.num_heads * attn.head_dim))
        return self.linear(
            mixed, attn.proj.weight, attn.proj.bias, f"{name}.attn.proj", getattr(block.ls1, "gamma", 1.0)
        )

    def mlp(self, x: Value, block: Any, name: str) -> Value:
        mlp, act = block.mlp, activation(block.mlp.act)
        assert act is not None
        if hasattr(mlp, "fc1_g"):  # SwiGLU
            gate, value = (mlp.fc1_g.weight, mlp.fc1_g.bias), (mlp.fc1_x.weight, mlp.fc1_x.bias)
        elif hasattr(mlp, "gate_last"):  # GluMlp: one matrix, two halves
            halves = mlp.fc1.weight.chunk(2)
            biases = mlp.fc1.bias.chunk(2) if mlp.fc1.bias is not None else (None, None)
            first, second = zip(halves, biases, strict=True)
            gate, value = (second, first) if mlp.gate_last else (first, second)
        else:
            gate, value = (mlp.fc1.weight, mlp.fc1.bias), None
        hidden = ACTIVATIONS[act](self.g, self.linear(x, *gate, f"{name}.mlp.fc1"))
        if value is not None:
            hidden = self.g.op("Mul", hidden, self.linear(x, *value, f"{name}.mlp.value"))
        scale = getattr(block.ls2, "gamma", 1.0)
        return self.linear(hidden, mlp.fc2.weight, mlp.fc2.bias, f"{name}.mlp.fc2", scale)

    def linear(
        self, x: Value, weight: Any, bias: Any, name: str, factor: torch.Tensor | float = 1.0
    ) -> Value:
        """x W^T + b, every output scaled by `factor`: a number, or one for each output (LayerScale)."""
        scale = torch.as_tensor(factor)
        y = self.g.op("MatMul", x, self.g.weight(f"{name}.weight", array((weight * scale[..., None]).T)))
        if bias is None:
            return y
        return self.g.op("Add", y, self.g.weight(f"{name}.bias", array(bias * scale)))

    def adapter(self, h: Value, index: int) -> Value:
        """The module's bottleneck, after the MLP branch: h + up(gelu(down(h)))."""
        g, at = self.g, self.g.index(index)
        down, down_bias, up, up_bias = (
            g.op("Gather", self.module[n], at) for n in ("down_weight", "down_bias", "up_weight", "up_bias")
        )
        hidden = g.op("Gelu", g.op("Add", g.op("MatMul", h, down), down_bias))
        return g.op("Add", h, g.op("Add", g.op("MatMul", hidden, up), up_bias))

    def pool(self, x: Value) -> Value:
        g, norm = self.g, final_norm(self.vit)
        last = self.dims.ln_shape[0] - 1
        if not self.layout.norm_after_pool:
            x = self.norm(x, last, norm.eps)
        if self.layout.pooled == 1:
            x = g.op("Squeeze", x, g.ints(1))
        else:
            x = g.op("ReduceMean", x, g.ints(1), keepdims=0)
        return self.norm(x, last, norm.eps) if self.layout.norm_after_pool else x


def _sigmoid_gate(factor: float) -> Callable[[GraphBuilder, Value], Value]:
    def emit(g: GraphBuilder, x: Value) -> Value:
        inner = x if factor == 1.0 else g.op("Mul", x, g.scalar(factor))
        return g.op("Mul", x, g.op("Sigmoid", inner))

    return emit


ACTIVATIONS: dict[Activation, Callable[[GraphBuilder, Value], Value]] = {
    "gelu": lambda g, x: g.op("Gelu", x),
    "gelu_tanh": lambda g, x: g.op("Gelu", x, approximate="tanh"),
    "quick_gelu": _sigmoid_gate(1.702),
    "silu": _sigmoid_gate(1.0),
    "relu": lambda g, x: g.op("Relu", x),
}
