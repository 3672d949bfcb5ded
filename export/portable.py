"""Which graphs the providers of other vendors take, by their published rules.

Nothing is run here. `RULES` has what each provider's own documents say of the operators that the exporter writes:
which there are, which inputs must be constants, whether sizes may be open. OpenVINO was run as well
(docs/platforms.md); the others were not, for want of a device.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import onnx

# what the portable profile writes, whatever the backbone
_ALL = frozenset(
    """
    Add Cast Concat Conv Div Erf Exp Expand Gelu Gemm Greater LayerNormalization Less LogSoftmax MatMul Mul Neg
    ReduceMax ReduceMean ReduceSum Relu Reshape Shape Sigmoid Slice Softmax Split Sqrt Squeeze Sub Tanh Transpose
    Unsqueeze
    """.split()  # noqa: SIM905
)
_AXES = {"ReduceMax": (1,), "ReduceMean": (1,), "ReduceSum": (1,)}


@dataclass(frozen=True)
class Rules:
    """What a provider takes.

    Attributes:
        source: the document that says so.
        operators: those that it has.
        constants: inputs, by their place, that must be constants of the graph.
        first_output: operators of which it gives the first output only.
        fixed: every input must have a fixed size.
        sized: inputs without a size (numbers) are not taken.
        ranks: a tensor has at most so many sizes.
    """

    source: str
    operators: frozenset[str]
    constants: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    first_output: frozenset[str] = frozenset({"LayerNormalization"})
    fixed: bool = False
    sized: bool = False
    ranks: int | None = None


RULES: dict[str, Rules] = {
    "openvino": Rules(
        "openvino 2025.4, src/frontends/onnx/frontend/src/op; and what was run",
        _ALL,
        sized=True,
    ),
    "tensorrt": Rules(
        "onnx-tensorrt, docs/operators.md for TensorRT 10.15",
        _ALL,
        constants=_AXES,
    ),
    "coreml": Rules(
        "onnxruntime 04f568d869, tools/ci_build/github/apple/coreml_supported_mlprogram_ops.md (ML Program)",
        _ALL - {"Expand", "Greater", "Less", "LogSoftmax", "Neg"},
        constants={
            **_AXES,
            "Conv": (1, 2),
            "Gemm": (1, 2),
            "LayerNormalization": (1, 2),
            "Reshape": (1,),
            "Slice": (1, 2, 3),
            "Split": (1,),
        },
        fixed=True,
        sized=True,
        ranks=5,
    ),
    "qnn": Rules(
        "onnxruntime-qnn, onnxruntime/core/providers/qnn/builder/op_builder_factory.cc; no open sizes by its page",
        _ALL - {"Erf", "Shape"},
        constants={**_AXES, "Expand": (1,), "Reshape": (1,), "Slice": (1, 2, 3), "Split": (1,)},
        fixed=True,
    ),
    "webgpu": Rules(
        "onnxruntime-web 1.30.0, docs/webgpu-operators.md; fixed sizes are for its graph capture",
        _ALL - {"LogSoftmax"},
        fixed=True,
    ),
}


def violations(path: Path, provider: str) -> list[str]:
    """What keeps `provider` from taking the whole graph, one line each; empty when nothing does."""
    rules = RULES[provider]
    graph = onnx.load(path, load_external_data=False).graph
    return sorted({*_of_ports(graph, rules), *_of_nodes(graph, rules)})


def whole(folder: Path, names: Mapping[str, str]) -> dict[str, dict[str, list[str]]]:
    """For every provider and graph (`names`: of the graph and of its file), what keeps it from taking the graph."""
    return {
        provider: {name: violations(folder / file, provider) for name, file in names.items()} for provider in RULES
    }


def _of_ports(graph: onnx.GraphProto, rules: Rules) -> Iterator[str]:
    for port in graph.input:
        dims = port.type.tensor_type.shape.dim
        if rules.sized and not dims:
            yield f"input {port.name} has no size"
        if rules.fixed and any(not d.HasField("dim_value") for d in dims):
            yield "the batch is open"


def _of_nodes(graph: onnx.GraphProto, rules: Rules) -> Iterator[str]:
    constants = {tensor.name for tensor in graph.initializer}
    for tensor in graph.initializer:
        if rules.ranks is not None and len(tensor.dims) > rules.ranks:
            yield f"{tensor.name} has {len(tensor.dims)} sizes"
    for node in graph.node:
        kind = node.op_type
        if node.domain or kind not in rules.operators:
            yield f"there is no {kind}"
        if kind in rules.first_output and any(node.output[1:]):
            yield f"{kind} has one output"
        for place in rules.constants.get(kind, ()):
            if place < len(node.input) and node.input[place] and node.input[place] not in constants:
                yield f"{kind} wants a constant as input {place}"
