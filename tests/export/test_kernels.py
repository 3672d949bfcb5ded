"""What has a CUDA kernel and what has none, by ONNX Runtime's own list."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from onnx import TensorProto, helper, save

from pluto_edge.export import kernels
from pluto_edge.export.graph import OPSET, GraphBuilder, WeightsFile
from pluto_edge.modules import Kind


def graph_of(folder: Path, *nodes: tuple[str, Sequence[str], dict], kind: int = TensorProto.FLOAT) -> Path:
    """A file with a chain of operators over x and y [2,3] of one type; each node has its name as output."""
    given = [helper.make_tensor_value_info(name, kind, [2, 3]) for name in ("x", "y")]
    made = [helper.make_node(op, inputs, [f"{op}_{i}"], **options) for i, (op, inputs, options) in enumerate(nodes)]
    last = helper.make_empty_tensor_value_info(made[-1].output[0])
    model = helper.make_model(
        helper.make_graph(made, "g", given, [last]), opset_imports=[helper.make_opsetid("", OPSET)]
    )
    save(model, folder / "g.onnx")
    return folder / "g.onnx"


def test_every_operator_has_a_cuda_kernel(make_bundle: Callable[..., Path], kind: Kind) -> None:
    for precision in ("fp32", "fp16"):
        for name in ("embed.onnx", "forward.onnx", "adapt.onnx"):
            assert kernels.without_cuda_kernel(make_bundle(kind, precision=precision) / name) == []


def test_missing_cuda_kernels_are_named(make_bundle: Callable[..., Path], tmp_path: Path) -> None:
    problems = kernels.without_cuda_kernel(make_bundle(precision="int8") / "forward.onnx")
    assert any("DynamicQuantizeLinear" in p for p in problems)
    assert any("MatMulInteger has no CUDA kernel for T1=uint8" in p for p in problems)
    with WeightsFile(tmp_path / "weights.bin") as weights:
        g = GraphBuilder("g", weights)
        g.output("y", g.op("Det", g.input("x", ["batch", 2, 2], "")), ["batch"], "")
    g.save(tmp_path / "g.onnx", {})
    assert kernels.without_cuda_kernel(tmp_path / "g.onnx") == ["ai.onnx.Det (version 11) has no CUDA kernel"]


def test_the_table_names_the_commit_that_it_is_of() -> None:
    assert re.fullmatch("[0-9a-f]{40}", kernels.table()["commit"])
    assert kernels.table() is kernels.table()  # read once


@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.FLOAT16])
def test_kernels_for_the_types_that_are_used(tmp_path: Path, kind: int) -> None:
    """With any number of inputs, and with another type beside (Shape gives int64)."""
    sums, joined = ("Add", ["x", "y"], {}), ("Concat", ["x", "y", "Add_0"], {"axis": 0})
    file = graph_of(tmp_path, sums, joined, ("Shape", ["Concat_1"], {}), kind=kind)
    assert kernels.without_cuda_kernel(file) == []


def test_an_optional_input_may_be_left_out(tmp_path: Path) -> None:
    assert kernels.without_cuda_kernel(graph_of(tmp_path, ("Clip", ["x", "", ""], {}))) == []


def test_a_type_without_a_kernel_is_named(tmp_path: Path) -> None:
    file = graph_of(tmp_path, ("Gemm", ["x", "y"], {"transB": 1}), kind=TensorProto.INT32)
    assert kernels.without_cuda_kernel(file) == ["ai.onnx.Gemm has no CUDA kernel for T=int32"]


def test_a_problem_is_said_once_and_all_are_said(tmp_path: Path) -> None:
    file = graph_of(tmp_path, ("Mish", ["x"], {}), ("Mish", ["y"], {}), ("Hardmax", ["x"], {}))
    assert kernels.without_cuda_kernel(file) == [
        "ai.onnx.Hardmax (version 13) has no CUDA kernel",
        "ai.onnx.Mish (version 18) has no CUDA kernel",
    ]
