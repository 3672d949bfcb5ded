"""Every backbone feature against timm's own forward pass, on small random instances; then real names."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx.reference import ReferenceEvaluator

from pluto_edge import tolerances
from pluto_edge._ort import onnxruntime as ort
from pluto_edge.export import kernels
from pluto_edge.export.graph import GraphBuilder, WeightsFile
from pluto_edge.export.parity import TorchReference, rows_error
from pluto_edge.export.portable import RULES, violations
from pluto_edge.export.vit_graph import build_adapt, build_embed, build_forward
from pluto_edge.modules import Dims, Kind
from pluto_edge.tolerances import relative_error
from pluto_edge.vit import backbone
from pluto_edge.vit.backbone import check_supported, create
from pluto_edge.vit.torch_vit import TorchViT

from timm.layers import SwiGLU  # isort: skip  after the backbone module, which makes timm importable
from timm.models.vision_transformer import VisionTransformer  # isort: skip

TINY = {"embed_dim": 48, "depth": 3, "num_heads": 3}
VIT = "vit_tiny_patch16_224"
CLASSES = 6

# name: (architecture, options, image size)
FEATURES: dict[str, tuple[str, dict[str, Any], tuple[int, int]]] = {
    "class token": (VIT, {}, (48, 48)),
    "not square": (VIT, {}, (64, 32)),
    "patch 14": (VIT, {"patch_size": 14}, (42, 42)),
    "patch 32": (VIT, {"patch_size": 32}, (64, 96)),
    "one block": (VIT, {"depth": 1}, (32, 32)),
    "registers": ("vit_small_patch14_reg4_dinov2", {}, (42, 28)),
    "registers with positions": (VIT, {"reg_tokens": 2}, (32, 32)),
    "no_embed_class": (VIT, {"no_embed_class": True}, (32, 32)),
    "no positions": (VIT, {"pos_embed": "none"}, (32, 32)),
    "dynamic image size": (VIT, {"dynamic_img_size": True}, (32, 48)),
    "average pooling": (VIT, {"global_pool": "avg"}, (32, 48)),
    "average pooling, no class token": (VIT, {"global_pool": "avg", "class_token": False}, (32, 48)),
    "average pooling, norm first": (VIT, {"global_pool": "avg", "fc_norm": False}, (32, 48)),
    "fc_norm on the class token": (VIT, {"fc_norm": True}, (32, 48)),
    "LayerScale": (VIT, {"init_values": 0.3}, (32, 32)),
    "no qkv bias": (VIT, {"qkv_bias": False}, (32, 32)),
    "no projection bias": (VIT, {"proj_bias": False}, (32, 32)),
    "qk norm": (VIT, {"qk_norm": True}, (32, 32)),
    "norm_pre": (VIT, {"pre_norm": True}, (32, 32)),
    "GELU tanh": (VIT, {"act_layer": "gelu_tanh"}, (32, 32)),
    "QuickGELU": (VIT, {"act_layer": "quick_gelu"}, (32, 32)),
    "SiLU": (VIT, {"act_layer": "silu"}, (32, 32)),
    "ReLU": (VIT, {"act_layer": "relu"}, (32, 32)),
    "packed SwiGLU": ("vit_giant_patch14_reg4_dinov2", {"mlp_ratio": 4.0}, (28, 28)),
    "distilled": ("deit_tiny_distilled_patch16_224", {}, (32, 32)),
    "CLIP": ("vit_base_patch32_clip_224", {}, (64, 64)),
    "DeiT III": ("deit3_small_patch16_224", {}, (32, 32)),
}

PROFILES: dict[str, dict[str, Any]] = {
    "default": {},
    "portable": {"portable": True},
    "portable, 3 images": {"portable": True, "batch": 3},
}


def shake(vit: Any, seed: int = 0) -> Any:
    """No parameter keeps the value that it starts with: ones and zeros would hide mistakes."""
    torch.manual_seed(seed)
    for parameter in vit.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return vit.eval().requires_grad_(False)


def random_module(vit: TorchViT, dims: Dims) -> dict[str, torch.Tensor]:
    tensors = {name: 0.2 * torch.randn(shape) for name, shape in dims.shapes.items()}
    ln = {name: value + 0.1 * torch.randn_like(value) for name, value in vit.backbone_ln().items()}
    return {**tensors, **ln}


def with_modules(feature: str, kind: Kind) -> tuple[TorchViT, Dims, tuple[int, int]]:
    """A ViT with the feature, for modules of a kind and images of a size."""
    architecture, options, size = FEATURES[feature]
    vit = TorchViT(shake(create(architecture, size, TINY | options)))
    return vit, Dims(kind, 4, vit.layout.width, vit.layout.depth, CLASSES), size


def run_graphs(
    folder: Path,
    vit: TorchViT,
    dims: Dims,
    pixels: torch.Tensor,
    module: dict[str, torch.Tensor],
    **profile: Any,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """tokens, x_hat, logits and activations"""
    with WeightsFile(folder / "weights.bin") as weights:
        embed, forward = (GraphBuilder(name, weights, **profile) for name in ("embed", "forward"))
        build_embed(embed, vit.vit)
        build_forward(forward, vit.vit, dims)
    for graph in (embed, forward):
        graph.save(folder / f"{graph.name}.onnx", {})
        onnx.checker.check_model(folder / f"{graph.name}.onnx", full_check=True)
    first = ort.InferenceSession(folder / "embed.onnx", providers=["CPUExecutionProvider"])
    second = ort.InferenceSession(folder / "forward.onnx", providers=["CPUExecutionProvider"])
    tokens, x_hat = first.run(None, {"pixels": pixels.numpy()})
    feed = {"tokens": tokens, **{k: v.numpy() for k, v in module.items()}}
    return tokens, x_hat, *second.run(["logits", "activations"], feed)


def timm_activations(vit: Any, wrapped: TorchViT, pixels: torch.Tensor) -> torch.Tensor:
    """The head's tokens as timm's own blocks leave them, averaged; and what timm gives its head."""
    layout, left = wrapped.layout, list[torch.Tensor]()
    hooks = [block.register_forward_hook(lambda _, __, out: left.append(out)) for block in vit.blocks]
    features = vit.forward_features(pixels)
    for hook in hooks:
        hook.remove()
    seen = vit.forward_head(features, pre_logits=True)
    if isinstance(seen, tuple):  # distilled: one for each head
        seen = torch.stack(seen).mean(dim=0)
    looked_at = slice(layout.prefix, None) if layout.pool == "average" else slice(0, layout.pooled)
    return torch.stack([*(x[:, looked_at].mean(dim=1) for x in left), seen], dim=1)


def one_row_each(terms: dict[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    """The alignment of one block after another, and no other term."""
    found = []
    for row in range(len(terms["align_offset"])):
        alone = {n: torch.zeros_like(terms[n]) for n in ("align_offset", "align_slope", "target", "entropy_weight")}
        for name in ("align_offset", "align_slope"):
            alone[name][row] = terms[name][row]
        found.append({**terms, **alone})
    return found


@pytest.mark.parametrize("feature", FEATURES)
def test_feature_equals_timm(feature: str, tmp_path: Path) -> None:
    """An adapter that does nothing, and the ViT's own head: logits are timm's own."""
    architecture, options, size = FEATURES[feature]
    vit = shake(backbone.timm.create_model(architecture, num_classes=CLASSES, img_size=size, **TINY | options))
    check_supported(vit, feature)
    wrapped = TorchViT(vit)
    dims = Dims("adapter", 4, vit.embed_dim, len(vit.blocks), CLASSES)
    if hasattr(vit, "head_dist"):  # the mean of both heads is one head on the mean of both tokens
        vit.head_dist.load_state_dict(vit.head.state_dict())
    module = {name: torch.zeros(shape) for name, shape in dims.shapes.items()}
    module |= wrapped.backbone_ln() | {"head_weight": vit.head.weight, "head_bias": vit.head.bias}
    for batch in (1, 2, 5):
        pixels = torch.randn(batch, 3, *size)
        _, _, logits, activations = run_graphs(tmp_path, wrapped, dims, pixels, module)
        assert relative_error(logits, vit(pixels)) < tolerances.LOGITS_FP32
        # with adapters that do nothing, the tokens between timm's own blocks are the residual stream
        want = timm_activations(vit, wrapped, pixels)
        assert rows_error(activations, want) < tolerances.ACTIVATIONS_FP32


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("feature", FEATURES)
def test_feature_with_modules_equals_torch(feature: str, kind: Kind, profile: str, tmp_path: Path) -> None:
    vit, dims, size = with_modules(feature, kind)
    module = random_module(vit, dims)
    pixels = torch.randn(3, 3, *size)
    want_tokens, want_x = vit.embed(pixels)
    tokens, x_hat, logits, activations = run_graphs(tmp_path, vit, dims, pixels, module, **PROFILES[profile])
    assert relative_error(tokens, want_tokens) < tolerances.EMBED_FP32
    assert relative_error(x_hat, want_x) < tolerances.EMBED_FP32
    assert relative_error(logits, vit.logits(want_tokens, module)) < tolerances.LOGITS_FP32
    assert activations.shape == (3, vit.layout.depth + 1, vit.layout.width)
    assert rows_error(activations, vit.activations(want_tokens, module)) < tolerances.ACTIVATIONS_FP32
    head = activations[:, -1] @ module["head_weight"].numpy().T + module["head_bias"].numpy()
    assert relative_error(head, logits) < tolerances.LOGITS_FP32  # the last row is what the head sees
    if "batch" in PROFILES[profile]:
        for provider in RULES:
            for name in ("embed.onnx", "forward.onnx"):
                assert violations(tmp_path / name, provider) == []


@pytest.mark.parametrize("portable", [False, True], ids=["default", "portable"])
@pytest.mark.parametrize("feature", FEATURES)
def test_gradients_of_every_feature(feature: str, kind: Kind, portable: bool, tmp_path: Path) -> None:
    """adapt.onnx against autograd, and against finite differences of its own entropy along a direction.

    Of entropy alone, of all terms at random, and of the alignment of one block after another: a gradient that
    enters at the wrong block, or at the wrong tokens, would be a small part of the whole.
    """
    vit, dims, size = with_modules(feature, kind)
    module = random_module(vit, dims)
    with WeightsFile(tmp_path / "weights.bin") as weights:
        g = GraphBuilder("adapt", weights, portable=portable)
        build_adapt(g, vit.vit, dims)
    g.save(tmp_path / "adapt.onnx", {})
    onnx.checker.check_model(tmp_path / "adapt.onnx", full_check=True)
    assert kernels.without_cuda_kernel(tmp_path / "adapt.onnx") == []
    assert not portable or violations(tmp_path / "adapt.onnx", "openvino") == []
    session = ort.InferenceSession(tmp_path / "adapt.onnx", providers=["CPUExecutionProvider"])

    names = [output.name for output in session.get_outputs()]

    def run(*given: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
        feed = {k: v.numpy() for part in (module, *given) for k, v in part.items()}
        feed |= {k: v.reshape(1) for k, v in feed.items() if portable and v.ndim == 0}
        return dict(zip(names, session.run(names, feed), strict=True))

    for batch in (1, 2, 5):
        tokens = vit.embed(torch.randn(batch, 3, *size))[0]
        want = TorchReference(vit, tokens, module)
        entropy, everything = want.entropy_alone(), want.all_terms(torch.Generator().manual_seed(batch))
        got = run({"tokens": tokens}, entropy)
        assert got["reliable"] == (want.entropy < entropy["threshold"]).sum()
        assert relative_error(got["logits"], want.logits) < tolerances.LOGITS_FP32
        assert relative_error(got["entropy"], want.entropy) < tolerances.LOGITS_FP32
        assert rows_error(got["activations"], want.activations) < tolerances.ACTIVATIONS_FP32
        for terms in (entropy, everything, *one_row_each(everything)):
            got, gradients = run({"tokens": tokens}, terms), want.gradients(terms)
            for name, gradient in gradients.items():
                assert relative_error(got[name], gradient) < tolerances.GRADIENT
    step, count = 1e-2, len(tokens)
    terms = {**entropy, "threshold": torch.tensor(np.inf)}
    got = run({"tokens": tokens}, terms)
    directions = {n: got[f"{n}_grad"] / count for n in ("ln_scale", "ln_bias")}
    unit = np.sqrt(sum((v**2).sum() for v in directions.values()))
    ends = [
        run(
            {"tokens": tokens},
            terms,
            {n: module[n] + s * torch.from_numpy(d / unit) for n, d in directions.items()},
        )
        for s in (step, -step)
    ]
    ends = [end["entropy"].mean() for end in ends]
    assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(unit, rel=tolerances.FINITE_DIFFERENCE)


@pytest.mark.parametrize("learn_from", [1, 2, 3])
@pytest.mark.parametrize("int8", [False, True])
def test_gradients_end_where_learning_begins(learn_from: int, int8: bool, kind: Kind, tmp_path: Path) -> None:
    """The rows of the blocks that learn are autograd's, the others zero, and no product is there for them."""
    vit = TorchViT(shake(create(VIT, (32, 32), TINY)))
    dims = Dims(kind, 4, 48, 3, CLASSES)
    module = random_module(vit, dims)
    with WeightsFile(tmp_path / "weights.bin") as weights:
        g = GraphBuilder("adapt", weights)
        build_adapt(g, vit.vit, dims, int8=int8, learn_from=learn_from)
    g.save(tmp_path / "adapt.onnx", {})
    onnx.checker.check_model(tmp_path / "adapt.onnx", full_check=True)
    assert int8 or kernels.without_cuda_kernel(tmp_path / "adapt.onnx") == []
    tokens = vit.embed(torch.randn(3, 3, 32, 32))[0]
    want = TorchReference(vit, tokens, module)
    terms = want.all_terms(torch.Generator().manual_seed(1))
    session = ort.InferenceSession(tmp_path / "adapt.onnx", providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    feed = {k: v.numpy() for k, v in {"tokens": tokens, **module, **terms}.items()}
    got = dict(zip(names, session.run(names, feed), strict=True))
    assert relative_error(got["logits"], want.logits) < tolerances.LOGITS_FP32
    for name, gradient in want.gradients(terms).items():
        assert not got[name][: 2 * learn_from].any() and gradient[: 2 * learn_from].any()
        assert relative_error(got[name][2 * learn_from :], gradient[2 * learn_from :]) < tolerances.GRADIENT
    used = [i for n in onnx.load(tmp_path / "adapt.onnx", load_external_data=False).graph.node for i in n.input]
    for block in range(3):
        assert used.count(f"blocks.{block}.mlp.fc1.turned" if int8 else f"blocks.{block}.mlp.fc1.weight") == (
            (block >= learn_from) if int8 else 1 + (block >= learn_from)
        )


def test_no_gradient_reaches_the_weights(tmp_path: Path) -> None:
    """Every product in the backward pass is with a weight, never one that makes a weight's gradient."""
    vit = TorchViT(shake(create(VIT, (32, 32), TINY)))
    with WeightsFile(tmp_path / "weights.bin") as weights:
        g = GraphBuilder("adapt", weights)
        build_adapt(g, vit.vit, Dims("vpt", 4, 48, 3, CLASSES))
    g.save(tmp_path / "adapt.onnx", {})
    graph = onnx.load(tmp_path / "adapt.onnx", load_external_data=False).graph
    names = {t.name for t in graph.initializer}
    gemms = [n for n in graph.node if n.op_type == "Gemm"]
    assert all(n.input[1] in names or n.input[1] == "head_weight" for n in gemms)
    backward = [n for n in gemms if any(a.name == "transB" for a in n.attribute)]
    # six frozen matrices a block, forward and backward
    assert sum(n.input[1].startswith("blocks.") for n in backward) == 3 * 6
    assert sum(n.input[1].startswith("blocks.") for n in gemms) == 2 * 3 * 6


def test_split_swiglu_equals_torch(tmp_path: Path) -> None:
    """No timm name uses this layer class; a model built by hand does."""
    vit = TorchViT(shake(VisionTransformer(img_size=32, num_classes=0, mlp_layer=SwiGLU, **TINY)))
    check_supported(vit.vit, "by hand")
    dims = Dims("vpt", 4, 48, 3, CLASSES)
    module, pixels = random_module(vit, dims), torch.randn(2, 3, 32, 32)
    logits = run_graphs(tmp_path, vit, dims, pixels, module)[2]
    assert relative_error(logits, vit.logits(vit.embed(pixels)[0], module)) < tolerances.LOGITS_FP32


def test_features_are_the_last_activations(kind: Kind) -> None:
    """In torch, where what is trained and what graphs are checked against must be the same."""
    vit = TorchViT(shake(create(VIT, (32, 32), TINY)))
    module = random_module(vit, Dims(kind, 4, 48, 3, CLASSES))
    tokens = vit.embed(torch.randn(2, 3, 32, 32))[0]
    torch.testing.assert_close(vit.features(tokens, module), vit.activations(tokens, module)[:, -1], rtol=0, atol=0)


def test_graphs_are_plain_onnx(kind: Kind, tmp_path: Path) -> None:
    """No contrib operator, and ONNX's own reference evaluator gives the same numbers."""
    vit = TorchViT(shake(create(VIT, (32, 32), TINY)))
    dims = Dims(kind, 4, 48, 3, CLASSES)
    module, pixels = random_module(vit, dims), torch.randn(2, 3, 32, 32)
    tokens, _, logits, activations = run_graphs(tmp_path, vit, dims, pixels, module)
    model = onnx.load(tmp_path / "forward.onnx")
    assert {node.domain for node in model.graph.node} == {""}
    feed = {"tokens": tokens, **{k: v.numpy() for k, v in module.items()}}
    reference = ReferenceEvaluator(model).run(["logits", "activations"], feed)
    assert relative_error(logits, reference[0]) < tolerances.LOGITS_FP32
    assert rows_error(activations, reference[1]) < tolerances.ACTIVATIONS_FP32


def test_the_last_block_computes_only_the_class_token(tmp_path: Path) -> None:
    vit = TorchViT(shake(create(VIT, (32, 32), TINY)))
    dims = Dims("vpt", 4, 48, 3, CLASSES)
    run_graphs(tmp_path, vit, dims, torch.randn(2, 3, 32, 32), random_module(vit, dims))
    model = onnx.shape_inference.infer_shapes(onnx.load(tmp_path / "forward.onnx"), data_prop=True)
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.value_info}
    folded = {n.input[0]: shapes[n.output[0]][0] for n in model.graph.node if n.op_type == "Reshape"}
    rows = {
        node.input[1]: folded[node.output[0]]
        for node in model.graph.node
        if node.op_type == "Gemm" and node.input[1].startswith("blocks.")
    }
    for part in ("attn.q", "attn.proj", "mlp.fc1", "mlp.fc2"):
        assert rows[f"blocks.2.{part}.weight"] == 1
        assert rows[f"blocks.1.{part}.weight"] == 4 + 1 + 4
    assert rows["blocks.2.attn.k.weight"] == 4 + 1 + 4


REAL = {
    "vit_tiny_patch16_224": 224,
    "vit_small_patch16_224": 224,
    "vit_base_patch16_224": 224,
    "deit3_small_patch16_224": 224,
    "vit_small_patch14_reg4_dinov2": 112,
    "vit_base_patch32_clip_224": 224,
}


@pytest.mark.parametrize("name", REAL)
def test_real_architectures(name: str, tmp_path: Path) -> None:
    size = (REAL[name], REAL[name])
    vit = TorchViT(create(name, size, {}))
    dims = Dims("vpt", 4, vit.layout.width, vit.layout.depth, CLASSES)
    module, pixels = random_module(vit, dims), torch.randn(1, 3, *size)
    logits = run_graphs(tmp_path, vit, dims, pixels, module)[2]
    with torch.no_grad():
        assert relative_error(logits, vit.logits(vit.embed(pixels)[0], module)) < tolerances.LOGITS_FP32
