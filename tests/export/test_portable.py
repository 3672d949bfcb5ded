"""Portable graphs against the providers' published rules; and that the rules find what breaks them."""

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from pluto_edge.export.portable import RULES, violations
from pluto_edge.manifest import ADAPT, EMBED, FORWARD
from pluto_edge.modules import Kind


@pytest.mark.parametrize("provider", RULES)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_predictions_run_whole_everywhere(
    make_bundle: Callable[..., Path], kind: Kind, provider: str, precision: str
) -> None:
    bundle = make_bundle(kind, precision=precision, profile="portable", batch=4)
    assert violations(bundle / EMBED, provider) == []
    assert violations(bundle / FORWARD, provider) == []


@pytest.mark.parametrize("provider", ["openvino", "tensorrt"])
def test_an_open_batch_and_gradients(make_bundle: Callable[..., Path], kind: Kind, provider: str) -> None:
    bundle = make_bundle(kind, profile="portable")
    for name in (EMBED, FORWARD, ADAPT):
        assert violations(bundle / name, provider) == []


def test_what_keeps_a_provider_from_a_graph(make_bundle: Callable[..., Path]) -> None:
    portable, default = make_bundle(profile="portable"), make_bundle()
    assert "the batch is open" in violations(portable / FORWARD, "qnn")
    assert "there is no LogSoftmax" in violations(portable / ADAPT, "webgpu")
    assert {"LayerNormalization has one output", "input threshold has no size"} <= set(
        violations(default / ADAPT, "openvino")
    )
    assert {
        "Gemm wants a constant as input 1",
        "LayerNormalization wants a constant as input 1",
        "there is no Gather",
    } <= set(violations(default / FORWARD, "coreml"))


def test_every_rule_is_looked_at(tmp_path: Path) -> None:
    """A graph that breaks all of CoreML's: each is said once."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])
    number = helper.make_tensor_value_info("number", TensorProto.FLOAT, [])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    nodes = [
        helper.make_node("LayerNormalization", ["x", "x", "x"], ["a", "mean", "inverse"]),
        helper.make_node("LogSoftmax", ["a"], ["b"]),
        helper.make_node("LogSoftmax", ["b"], ["c"]),
        helper.make_node("Gemm", ["c", "x"], ["y"]),
    ]
    deep = helper.make_tensor("deep", TensorProto.FLOAT, [1] * 6, [0.0])
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", [x, number], [y], [deep])), tmp_path / "g.onnx")
    assert violations(tmp_path / "g.onnx", "coreml") == [
        "Gemm wants a constant as input 1",
        "LayerNormalization has one output",
        "LayerNormalization wants a constant as input 1",
        "LayerNormalization wants a constant as input 2",
        "deep has 6 sizes",
        "input number has no size",
        "the batch is open",
        "there is no LogSoftmax",
    ]
