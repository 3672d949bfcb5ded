"""Bundles whose checksums are right and whose graphs are not: refused when they are opened, before they run."""

import ast
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from pluto_edge import Runtime
from pluto_edge.errors import BundleError
from pluto_edge.manifest import ADAPT, EMBED, FORWARD, Bundle
from pluto_edge.runtime.engine.contract import OPERATORS, contracts
from pluto_edge.runtime.engine.untrusted_graph import MAX_BYTES, read_graph
from tests.bundles import edit, seal

ROOT = Path(__file__).parents[3]


def rename(model: onnx.ModelProto, old: str, new: str) -> None:
    for port in (*model.graph.input, *model.graph.output):
        port.name = new if port.name == old else port.name
    for node in model.graph.node:
        node.input[:] = [new if n == old else n for n in node.input]
        node.output[:] = [new if n == old else n for n in node.output]


def port(model: onnx.ModelProto, name: str) -> onnx.ValueInfoProto:
    return next(p for p in (*model.graph.input, *model.graph.output) if p.name == name)


def another_shape(model: onnx.ModelProto, name: str, shape: list[int | str] | None) -> None:
    port(model, name).CopyFrom(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))


def through(model: onnx.ModelProto, name: str, *nodes: onnx.NodeProto) -> None:
    """The output goes through these nodes, from `whole` to its own name."""
    rename(model, name, "whole")
    del model.graph.value_info[:]
    model.graph.node.extend(nodes)
    port(model, "whole").name = name


def through_double(model: onnx.ModelProto, name: str) -> None:
    through(model, name, helper.make_node("Cast", ["whole"], [name], to=TensorProto.DOUBLE))
    port(model, name).type.tensor_type.elem_type = TensorProto.DOUBLE


def endless(model: onnx.ModelProto, name: str) -> None:
    """A Loop that never ends, after the output."""
    true = helper.make_tensor("true", TensorProto.BOOL, [], [True])
    model.graph.initializer.append(true)
    ports = [
        helper.make_tensor_value_info(n, kind, shape)
        for n, kind, shape in (
            ("turn", TensorProto.INT64, []),
            ("go", TensorProto.BOOL, []),
            ("x", TensorProto.FLOAT, None),
            ("go_on", TensorProto.BOOL, []),
            ("y", TensorProto.FLOAT, None),
        )
    ]
    nodes = [helper.make_node("Identity", ["go"], ["go_on"]), helper.make_node("Neg", ["x"], ["y"])]
    body = helper.make_graph(nodes, "body", ports[:3], ports[3:])
    through(model, name, helper.make_node("Loop", ["", "true", "whole"], [name], body=body))


def own_function(model: onnx.ModelProto, name: str) -> None:
    """An operator that the model brings itself."""
    model.opset_import.append(helper.make_opsetid("evil", 1))
    neg = helper.make_node("Neg", ["a"], ["b"])
    model.functions.append(helper.make_function("evil", "Turn", ["a"], ["b"], [neg], model.opset_import[:1]))
    through(model, name, helper.make_node("Turn", ["whole"], [name], domain="evil"))


def microsoft(model: onnx.ModelProto, name: str) -> None:
    """A standard operator's name, in another domain."""
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    through(model, name, helper.make_node("Gelu", ["whole"], [name], domain="com.microsoft"))


def hidden_graph(model: onnx.ModelProto) -> None:
    """A graph inside of a node that has none."""
    model.graph.node[0].attribute.append(helper.make_attribute("body", helper.make_graph([], "body", [], [])))


WRONG: dict[str, tuple[str, Callable[[onnx.ModelProto], object], str]] = {
    "input's name": (EMBED, lambda m: rename(m, "pixels", "image"), "input 'image' is not one"),
    "output's name": (EMBED, lambda m: rename(m, "x_hat", "y_hat"), "output 'x_hat' is missing"),
    "module input's name": (FORWARD, lambda m: rename(m, "prompt", "p"), "input 'p' is not one"),
    "gradient's name": (ADAPT, lambda m: rename(m, "ln_scale_grad", "x"), "output 'ln_scale_grad' is missing"),
    "output's type": (FORWARD, lambda m: through_double(m, "logits"), "'logits': want float32"),
    "input's type": (
        ADAPT,
        lambda m: setattr(port(m, "target").type.tensor_type, "elem_type", TensorProto.DOUBLE),
        "'target': want float32",
    ),
    "no tensor": (
        EMBED,
        lambda m: port(m, "pixels").type.CopyFrom(helper.make_sequence_type_proto(port(m, "x_hat").type)),
        "'pixels': want float32",
    ),
    "fixed batch": (EMBED, lambda m: another_shape(m, "pixels", [2, 3, 40, 32]), "the manifest says"),
    "open size": (ADAPT, lambda m: another_shape(m, "align_slope", ["rows", 48]), "the manifest says"),
    "no shape": (FORWARD, lambda m: another_shape(m, "logits", None), "the manifest says"),
    "negative size": (FORWARD, lambda m: another_shape(m, "logits", ["batch", -7]), "the manifest says"),
    "endless loop": (FORWARD, lambda m: endless(m, "logits"), "operator Loop"),
    "endless loop when learning": (ADAPT, lambda m: endless(m, "logits"), "operator Loop"),
    "own function": (EMBED, lambda m: own_function(m, "x_hat"), "evil.Turn|functions"),
    "other domain": (FORWARD, lambda m: microsoft(m, "logits"), "operator com.microsoft.Gelu"),
    "hidden graph": (ADAPT, hidden_graph, "a graph inside"),
    "unknown operator": (
        FORWARD,
        lambda m: through(m, "logits", helper.make_node("Sin", ["whole"], ["logits"])),
        "operator Sin",
    ),
}


def change(bundle: Path, name: str, how: Callable[[onnx.ModelProto], object]) -> None:
    model = onnx.load(bundle / name, load_external_data=False)
    how(model)
    onnx.save(model, bundle / name)
    seal(bundle, name)


@pytest.mark.parametrize("case", WRONG)
def test_graphs_that_are_not_what_the_exporter_writes(broken: Path, case: str) -> None:
    name, how, message = WRONG[case]
    change(broken, name, how)
    with pytest.raises(BundleError, match=message):
        Runtime(broken)


LOOP = b"\x3a\x08\x0a\x06\x22\x04Loop"  # the model's graph, of one node, of one field


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (LOOP, "twice"),  # protobuf adds a second graph to the first
        (b"\xba\x80\x80\x80\x10" + LOOP[1:], "field number"),  # the same, with a number that overflows to 7
        (b"\xca\x01\x02\x0a\x00", "functions"),
        (b"\xa2\x01\x00", "training"),
        (b"\x3b\x3c", "wire type 3"),
        (b"\x3a\x7f", "cut short"),
    ],
)
def test_what_another_reader_might_take_for_a_graph(broken: Path, more: bytes, message: str) -> None:
    """Whatever ONNX Runtime makes of these bytes: what was checked must be all that there is."""
    file = broken / EMBED
    file.write_bytes(file.read_bytes() + more)
    seal(broken, EMBED)
    with pytest.raises(BundleError, match=message):
        Runtime(broken)


@pytest.mark.parametrize("data", [b"", b"\x3a", b"\x3a\x05abc", b"\xff" * 9, b"\x38\x01", b"\x3b"])
def test_bytes_that_are_no_graph(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "adapt.onnx"
    file.write_bytes(data)
    with pytest.raises(BundleError, match=r"adapt\.onnx: not an ONNX graph that pluto-export wrote"):
        read_graph(file)


def test_a_graph_of_impossible_size(broken: Path) -> None:
    """Weights are in a file of their own: what is left is small."""
    with (broken / ADAPT).open("ab") as file:
        file.truncate(MAX_BYTES + 1)
    seal(broken, ADAPT)
    with pytest.raises(BundleError, match=r"adapt\.onnx: 16,777,217 bytes; a graph has at most"):
        Runtime(broken)


def test_a_field_of_another_kind_does_not_hide_the_operator(broken: Path) -> None:
    """Four plain bytes in the place of a name: protobuf passes them over and keeps the name before them."""

    def field(number: int, content: bytes) -> bytes:
        return bytes([number << 3 | 2, len(content)]) + content

    node = field(1, b"pixels") + field(2, b"tokens") + field(4, b"Loop") + bytes([4 << 3 | 5]) + b"Relu"
    (broken / EMBED).write_bytes(field(7, field(1, node)))
    seal(broken, EMBED)
    with pytest.raises(BundleError, match="twice"):
        Runtime(broken)


def test_an_output_whose_shape_only_a_run_shows(broken: Path, frames: np.ndarray) -> None:
    """Of operators that the exporter uses, too; ONNX Runtime itself only logs it."""

    def shorten(model: onnx.ModelProto) -> None:
        """All but the last column, counted in a way that no shape inference follows."""
        constants = {"none": (TensorProto.FLOAT, 0), "six": (TensorProto.FLOAT, 6), "zero": (TensorProto.INT64, 0)}
        constants["one"] = (TensorProto.INT64, 1)
        model.graph.initializer.extend(helper.make_tensor(n, t, [1], [v]) for n, (t, v) in constants.items())
        through(
            model,
            "logits",
            helper.make_node("Mul", ["head_bias", "none"], ["nothing"]),
            helper.make_node("ReduceSum", ["nothing", "zero"], ["sum"], keepdims=1),
            helper.make_node("Add", ["sum", "six"], ["float_end"]),
            helper.make_node("Cast", ["float_end"], ["end"], to=TensorProto.INT64),
            helper.make_node("Slice", ["whole", "zero", "end", "one"], ["logits"]),
        )

    change(broken, FORWARD, shorten)
    runtime = Runtime(broken)
    with pytest.raises(BundleError, match=r"output 'logits' has the shape \[11, 6\]"):
        runtime.predict(frames)


def test_a_graph_that_fails_when_it_runs(broken: Path, frames: np.ndarray) -> None:
    """An index that is out of bounds, for instance."""

    def spoil(model: onnx.ModelProto) -> None:
        index = helper.make_tensor("far", TensorProto.INT64, [], [10**6])
        model.graph.initializer.append(index)
        gather = helper.make_node("Gather", ["ln_scale", "far"], ["row"])
        through(model, "logits", gather, helper.make_node("ReduceSum", ["row"], ["sum"], keepdims=0))
        model.graph.node.append(helper.make_node("Add", ["whole", "sum"], ["logits"]))

    change(broken, FORWARD, spoil)
    runtime = Runtime(broken)
    with pytest.raises(BundleError, match=r"forward\.onnx: ONNX Runtime cannot run this graph"):
        runtime.predict(frames)


FORMS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "fp16": {"precision": "fp16"},
    "int8": {"precision": "int8"},
    "portable": {"profile": "portable"},
    "portable, 4 images": {"profile": "portable", "batch": 4},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", [EMBED, FORWARD, ADAPT])
def test_what_is_read_is_what_onnx_reads(make_bundle: Callable[..., Path], form: str, name: str) -> None:
    bundle = Bundle(make_bundle(**FORMS[form]))
    graph, model = read_graph(bundle.file(name)), onnx.load(bundle.file(name), load_external_data=False)
    assert graph.operators == {n.op_type for n in model.graph.node} <= OPERATORS
    for got, want in ((graph.inputs, model.graph.input), (graph.outputs, model.graph.output)):
        assert {n: p.shape for n, p in got.items()} == {
            p.name: tuple(d.dim_value if d.HasField("dim_value") else None for d in p.type.tensor_type.shape.dim)
            for p in want
        }
    contracts(bundle.manifest)[name].check(bundle.file(name))


@pytest.mark.parametrize("change", [{"batch": 3}, {"batch": None}, {"profile": "default"}])
def test_a_manifest_that_says_another_form(make_bundle: Callable[..., Path], change: dict[str, Any]) -> None:
    """The graphs are held against what the manifest says they are."""
    bundle = Bundle(make_bundle(profile="portable", batch=4))
    kept = contracts(replace(bundle.manifest, **change))
    name = ADAPT if "profile" in change else FORWARD
    with pytest.raises(BundleError, match="the manifest says"):
        kept[name].check(bundle.file(name))


def test_a_manifest_from_before_there_were_profiles(broken: Path, frames: np.ndarray) -> None:
    def forget(manifest: dict[str, Any]) -> None:
        del manifest["profile"], manifest["batch"]

    edit(broken, forget)
    with Runtime(broken) as runtime:
        assert runtime.bundle.manifest.profile == "default" and runtime.bundle.manifest.batch is None
        runtime.predict(frames)


@pytest.mark.parametrize("batch", [0, -1, 10_000])
def test_a_batch_that_makes_no_sense(broken: Path, batch: int) -> None:
    edit(broken, lambda manifest: manifest.update(batch=batch))
    with pytest.raises(BundleError, match="batch: want 1 to 1,024 images"):
        Runtime(broken)


def test_the_exporter_uses_these_operators_and_no_others() -> None:
    """All that its source names, whatever backbone it is for, and what ONNX Runtime's quantizer adds."""
    named = {"Identity", "Cast"}  # `GraphBuilder.output` has them in a variable
    for file in (ROOT / "export").glob("*.py"):
        calls = (n for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.Call))
        for call in calls:
            if isinstance(call.func, ast.Attribute) and call.func.attr in ("op", "ops"):
                operator = call.args[0]
                assert isinstance(operator, ast.Constant) or file.name == "graph.py", ast.unparse(call)
                named |= {operator.value} if isinstance(operator, ast.Constant) else set()
    assert named | {"DynamicQuantizeLinear", "MatMulInteger"} == OPERATORS
