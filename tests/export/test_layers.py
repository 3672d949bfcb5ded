"""Every layer by itself, forwards and backwards, against torch and autograd.

A LayerNorm with affines that take a gradient comes first, since nothing flows without one; the layer follows; the
gradient of its output is random. `test_backbones.py` has whole networks.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pluto_edge._ort import onnxruntime as ort
from pluto_edge.export.formulas import ACTIVATIONS, frozen_norm
from pluto_edge.export.graph import GraphBuilder, Value, WeightsFile
from pluto_edge.export.layers import Layers
from pluto_edge.tolerances import GRADIENT, LOGITS_FP32, relative_error
from pluto_edge.vit.backbone import Activation

TOKENS, WIDTH, HEADS = 5, 12, 3
EPSILON = 1e-5

TORCH: dict[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": F.silu,
    "relu": F.relu,
}


def weight(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) / np.sqrt(shape[-1])


@dataclass(frozen=True)
class Layer:
    """What is emitted after the norm, and the same in torch; values are [tokens, batch, width]."""

    emit: Callable[[Layers, Value], Value]
    torch: Callable[[Tensor], Tensor]
    tokens: int = TOKENS
    width: int = WIDTH


def attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """q is scaled already; [tokens, batch, heads, width of a head]"""
    by_head = (x.permute(1, 2, 0, 3) for x in (q, k, v))
    mixed = F.scaled_dot_product_attention(*by_head, scale=1.0)
    return mixed.permute(2, 0, 1, 3).flatten(2)


def heads(layers: Layers, x: Value, seed: int) -> Value:
    return layers.split_heads(layers.linear(x, weight(WIDTH, WIDTH, seed=seed), None, f"w{seed}"), HEADS)


def torch_heads(x: Tensor, seed: int) -> Tensor:
    return (x @ weight(WIDTH, WIDTH, seed=seed).T).unflatten(-1, (HEADS, -1))


def emit_attention(layers: Layers, x: Value) -> Value:
    q, k, v = (heads(layers, x, seed) for seed in (1, 2, 3))
    return layers.attention(q, k, v, TOKENS, WIDTH)


def emit_last_block(layers: Layers, x: Value) -> Value:
    """Queries of two tokens alone, and a residual of them: `x` gets gradients from three sides."""
    q, k, v = heads(layers, layers.take(x, 0, 2), 1), heads(layers, x, 2), heads(layers, x, 3)
    return layers.add(layers.take(x, 0, 2), layers.attention(q, k, v, 2, WIDTH))


def query_norm() -> nn.LayerNorm:
    norm = nn.LayerNorm(WIDTH // HEADS, eps=1e-6)
    norm.weight.data, norm.bias.data = 1 + weight(WIDTH // HEADS, seed=4), weight(WIDTH // HEADS, seed=5)
    return norm


def emit_normed_queries(layers: Layers, x: Value) -> Value:
    q = layers.head_norm(heads(layers, x, 1), query_norm(), "q_norm", 0.5)
    return layers.attention(q, heads(layers, x, 2), heads(layers, x, 3), TOKENS, WIDTH)


BIAS = weight(7, seed=1)
SCALES = weight(7, seed=2)
LAYERS: dict[str, Layer] = {
    "linear": Layer(
        lambda net, x: net.linear(x, weight(7, WIDTH), BIAS, "w"),
        lambda x: F.linear(x, weight(7, WIDTH), BIAS),
        width=7,
    ),
    "linear without bias": Layer(
        lambda net, x: net.linear(x, weight(7, WIDTH), None, "w"), lambda x: F.linear(x, weight(7, WIDTH)), width=7
    ),
    "linear, scaled": Layer(
        lambda net, x: net.linear(x, weight(7, WIDTH), BIAS, "w", 0.3),
        lambda x: 0.3 * F.linear(x, weight(7, WIDTH), BIAS),
        width=7,
    ),
    "linear with LayerScale": Layer(
        lambda net, x: net.linear(x, weight(7, WIDTH), BIAS, "w", SCALES),
        lambda x: SCALES * F.linear(x, weight(7, WIDTH), BIAS),
        width=7,
    ),
    "linear, exact": Layer(
        lambda net, x: net.linear(x, weight(7, WIDTH), BIAS, "w", exact=True),
        lambda x: F.linear(x, weight(7, WIDTH), BIAS),
        width=7,
    ),
    "add": Layer(
        lambda net, x: net.add(x, net.linear(x, weight(WIDTH, WIDTH), None, "w")),
        lambda x: x + x @ weight(WIDTH, WIDTH).T,
    ),
    "multiply": Layer(
        lambda net, x: net.multiply(net.activate(x, "silu"), net.linear(x, weight(WIDTH, WIDTH), None, "w")),
        lambda x: F.silu(x) * (x @ weight(WIDTH, WIDTH).T),
    ),
    "first tokens": Layer(lambda net, x: net.take(x, 0, 2), lambda x: x[:2], tokens=2),
    "last tokens": Layer(lambda net, x: net.take(x, 1, TOKENS), lambda x: x[1:], tokens=TOKENS - 1),
    "tokens in the middle, twice": Layer(
        lambda net, x: net.add(net.take(x, 1, 3), net.take(x, 2, 4)), lambda x: x[1:3] + x[2:4], tokens=2
    ),
    "mean": Layer(lambda net, x: net.mean(x), lambda x: x.mean(dim=0, keepdim=True), tokens=1),
    "mean of one token": Layer(lambda net, x: net.mean(net.take(x, 2, 3)), lambda x: x[2:3], tokens=1),
    "attention": Layer(emit_attention, lambda x: attended(*(torch_heads(x, seed) for seed in (1, 2, 3)))),
    "attention of two tokens": Layer(
        emit_last_block,
        lambda x: x[:2] + attended(torch_heads(x[:2], 1), torch_heads(x, 2), torch_heads(x, 3)),
        tokens=2,
    ),
    "attention with a norm of queries": Layer(
        emit_normed_queries,
        lambda x: attended(0.5 * query_norm()(torch_heads(x, 1)), torch_heads(x, 2), torch_heads(x, 3)),
    ),
}
for kind, function in TORCH.items():
    LAYERS[kind] = Layer(lambda net, x, kind=kind: net.activate(x, kind), function)


FORMS = ("default", "as int8 wants it", "portable")


def session(g: GraphBuilder, folder: Path) -> "ort.InferenceSession":
    g.save(folder / "g.onnx", {})
    onnx.checker.check_model(folder / "g.onnx", full_check=True)
    return ort.InferenceSession(folder / "g.onnx", providers=["CPUExecutionProvider"])


def build(folder: Path, layer: Layer, form: str, differentiate: bool = True) -> "ort.InferenceSession":
    int8, portable = form == "as int8 wants it", form == "portable"
    with WeightsFile(folder / "weights.bin") as weights:
        g = GraphBuilder("g", weights, portable=portable)
        x = g.input("x", [TOKENS, "batch", WIDTH], "")
        scale, bias = g.input("scale", [WIDTH], ""), g.input("bias", [WIDTH], "")
        layers = Layers(g, g.op("Shape", x, start=1, end=2), differentiate, int8)
        y = layer.emit(layers, layers.norm(x, 0, scale, bias, EPSILON))
        g.output("y", y, [layer.tokens, "batch", layer.width], "")
        if differentiate:
            dy = g.input("dy", [layer.tokens, "batch", layer.width], "")
            d_scale, d_bias = layers.backward({y: dy}, 1)
            g.output("d_scale", d_scale, [1, WIDTH], "")
            g.output("d_bias", d_bias, [1, WIDTH], "")
    return session(g, folder)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_and_its_gradient(name: str, form: str, tmp_path: Path) -> None:
    """What int8 wants are other operators; quantized they are not yet, so the numbers are the same."""
    layer = LAYERS[name]
    graph = build(tmp_path, layer, form)
    for batch in (1, 2, 5):
        torch.manual_seed(batch)
        x, dy = torch.randn(TOKENS, batch, WIDTH), torch.randn(layer.tokens, batch, layer.width)
        scale, bias = (1 + 0.3 * torch.randn(WIDTH)).requires_grad_(), (0.3 * torch.randn(WIDTH)).requires_grad_()
        want = layer.torch(F.layer_norm(x, (WIDTH,), scale, bias, EPSILON))
        gradients = torch.autograd.grad(want, (scale, bias), dy)
        feed = {"x": x, "scale": scale, "bias": bias, "dy": dy}
        got = graph.run(None, {k: v.detach().numpy() for k, v in feed.items()})
        assert relative_error(got[0], want.detach()) < LOGITS_FP32
        for found, gradient in zip(got[1:], gradients, strict=True):
            assert relative_error(found[0], gradient) < GRADIENT


@pytest.mark.parametrize("form", ["default", "portable"])
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_alone(name: str, form: str, tmp_path: Path) -> None:
    """As `forward` has it, which takes no gradient."""
    layer = LAYERS[name]
    torch.manual_seed(0)
    x, scale, bias = torch.randn(TOKENS, 3, WIDTH), torch.randn(WIDTH), torch.randn(WIDTH)
    graph = build(tmp_path, layer, form, differentiate=False)
    (y,) = graph.run(None, {"x": x.numpy(), "scale": scale.numpy(), "bias": bias.numpy()})
    want = layer.torch(F.layer_norm(x, (WIDTH,), scale, bias, EPSILON))
    assert relative_error(y, want.detach()) < LOGITS_FP32


def test_every_activation_is_here() -> None:
    assert set(TORCH) == set(ACTIVATIONS) == set(get_args(Activation))


@pytest.mark.parametrize("kind", TORCH)
def test_slopes_far_out(kind: Activation, tmp_path: Path) -> None:
    """Where exponentials overflow or vanish the slope is 0 or 1, and never NaN."""
    value, slope = ACTIVATIONS[kind]
    with WeightsFile(tmp_path / "weights.bin") as weights:
        g = GraphBuilder("g", weights)
        x = g.input("x", ["batch"], "")
        g.output("y", value(g, x), ["batch"], "")
        g.output("slope", slope(g, x), ["batch"], "")
    near, far = torch.linspace(-6, 6, 201), torch.tensor([-1e4, -90.0, -30.0, 30.0, 90.0, 1e4])
    points = torch.cat([near, far])
    y, slopes = session(g, tmp_path).run(None, {"x": points.numpy()})
    points = points.double().requires_grad_()
    want = TORCH[kind](points)
    (gradient,) = torch.autograd.grad(want.sum(), points)
    for part in (slice(len(near)), slice(len(near), None)):
        assert relative_error(y[part], want[part].detach()) < LOGITS_FP32
    assert np.abs(slopes - gradient.numpy()).max() < GRADIENT


def two_norms(folder: Path, differentiate: bool) -> onnx.ModelProto:
    with WeightsFile(folder / "weights.bin") as weights:
        g = GraphBuilder("g", weights)
        x = g.input("x", [TOKENS, "batch", WIDTH], "")
        rows = [g.input(name, [WIDTH], "") for name in ("scale_0", "bias_0", "scale_1", "bias_1")]
        layers = Layers(g, g.op("Shape", x, start=1, end=2), differentiate, int8=False)
        inner = layers.norm(x, 1, *rows[2:], EPSILON)  # the first norm has the second row
        y = layers.norm(layers.activate(inner, "relu"), 0, *rows[:2], EPSILON)
        g.output("y", y, [TOKENS, "batch", WIDTH], "")
        if differentiate:
            for name, found in zip(("d_scale", "d_bias"), layers.backward({y: x, inner: x}, 2), strict=True):
                g.output(name, found, [2, WIDTH], "")
    session(g, folder)
    return onnx.load(folder / "g.onnx", load_external_data=False)


def test_rows_are_by_index_and_seeds_add_up(tmp_path: Path) -> None:
    """Two norms, the rows of their affines the other way round; the loss has gradients of its own for both."""
    two_norms(tmp_path, differentiate=True)
    torch.manual_seed(0)
    x = torch.randn(TOKENS, 3, WIDTH)
    names = ("scale_0", "bias_0", "scale_1", "bias_1")
    rows = [torch.randn(WIDTH).requires_grad_() for _ in names]
    inner = F.layer_norm(x, (WIDTH,), *rows[2:], EPSILON)
    y = F.layer_norm(F.relu(inner), (WIDTH,), *rows[:2], EPSILON)
    want = torch.autograd.grad((y * x).sum() + (inner * x).sum(), rows)
    graph = ort.InferenceSession(tmp_path / "g.onnx", providers=["CPUExecutionProvider"])
    feed = {"x": x.numpy(), **{n: r.detach().numpy() for n, r in zip(names, rows, strict=True)}}
    _, d_scale, d_bias = graph.run(None, feed)
    assert relative_error(d_scale, torch.stack([want[0], want[2]])) < GRADIENT
    assert relative_error(d_bias, torch.stack([want[1], want[3]])) < GRADIENT


def test_without_gradients_nothing_is_emitted_for_them(tmp_path: Path) -> None:
    """`forward` has the layers and no more: a norm gives no mean and deviation."""
    plain = two_norms(tmp_path, differentiate=False)
    assert sorted(n.op_type for n in plain.graph.node) == [
        "Identity",
        "LayerNormalization",
        "LayerNormalization",
        "Relu",
        "Shape",
    ]
    assert all(len(n.output) == 1 for n in plain.graph.node)


@pytest.mark.parametrize("int8", [False, True])
def test_a_matrix_is_in_the_file_once(tmp_path: Path, int8: bool) -> None:
    """Its gradient uses it as it lies; for int8 it is there turned round as well, and named so."""
    wide = weight(64, WIDTH)
    with WeightsFile(tmp_path / "weights.bin") as weights:
        g = GraphBuilder("g", weights)
        x = g.input("x", [TOKENS, "batch", WIDTH], "")
        row = g.input("row", [WIDTH], "")
        layers = Layers(g, g.op("Shape", x, start=1, end=2), differentiate=True, int8=int8)
        y = layers.linear(layers.norm(x, 0, row, row, EPSILON), wide, None, "w")
        dy = g.input("dy", [TOKENS, "batch", 64], "")
        g.output("d", layers.backward({y: dy}, 1)[0], [1, WIDTH], "")
    session(g, tmp_path)
    model = onnx.load(tmp_path / "g.onnx", load_external_data=False)
    large = {t.name for t in model.graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL}
    assert large == ({"w.weight", "w.turned"} if int8 else {"w.weight"})


def test_no_square_matrix_is_used_both_ways(tmp_path: Path) -> None:
    """OpenVINO's CPU plugin mistakes one for the other: a portable graph has both, each a constant of its own."""
    build(tmp_path, LAYERS["add"], "portable")
    graph = onnx.load(tmp_path / "g.onnx", load_external_data=False).graph
    products = [n for n in graph.node if n.op_type in ("MatMul", "Gemm")]
    assert {n.input[1] for n in products} == {"w.weight", "w.turned"}
    assert not any(a.name == "transB" for n in products for a in n.attribute)
    build(tmp_path, LAYERS["linear"], "portable")  # 12 to 7: one constant serves both
    graph = onnx.load(tmp_path / "g.onnx", load_external_data=False).graph
    assert {n.input[1] for n in graph.node if n.op_type in ("MatMul", "Gemm")} == {"w.weight"}


def test_a_token_of_zeros_stays_one(tmp_path: Path) -> None:
    """For int8 a token is divided by its largest number, which may be zero."""
    with WeightsFile(tmp_path / "weights.bin") as weights:
        g = GraphBuilder("g", weights)
        x = g.input("x", [TOKENS, "batch", WIDTH], "")
        layers = Layers(g, g.op("Shape", x, start=1, end=2), differentiate=False, int8=True)
        g.output("y", layers.linear(x, weight(7, WIDTH), BIAS, "w"), [TOKENS, "batch", 7], "")
    x = np.zeros((TOKENS, 2, WIDTH), np.float32)
    x[0] = 1.0
    (y,) = session(g, tmp_path).run(None, {"x": x})
    assert relative_error(y, F.linear(torch.from_numpy(x), weight(7, WIDTH), BIAS)) < LOGITS_FP32


def test_a_frozen_norm(tmp_path: Path) -> None:
    norm = query_norm()
    with WeightsFile(tmp_path / "weights.bin") as weights:
        g = GraphBuilder("g", weights)
        x = g.input("x", ["batch", WIDTH // HEADS], "")
        g.output("y", frozen_norm(g, x, norm, "norm_pre"), ["batch", WIDTH // HEADS], "")
    values = torch.randn(3, WIDTH // HEADS)
    (y,) = session(g, tmp_path).run(None, {"x": values.numpy()})
    assert relative_error(y, norm(values).detach()) < LOGITS_FP32
