"""Whether ONNX Runtime has a CUDA kernel for every operator of a graph, for the types it is used with.

Without a kernel ONNX Runtime runs that one node on the CPU, copies there and back, and says so only in a log.
There need be no GPU to find out: `cuda_kernels.json` is a table of the published kernel list
(docs/OperatorKernels.md in ONNX Runtime's repository; the table names its commit).
"""

import json
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import onnx
import onnx.defs
import onnx.shape_inference

from pluto_edge.export.graph import OPSET

_TYPES = {v: k.lower() for k, v in onnx.TensorProto.DataType.items()}


@cache
def table() -> dict[str, Any]:
    """The published list of CUDA kernels that ships with the exporter."""
    text = files("pluto_edge.export").joinpath("cuda_kernels.json").read_text(encoding="utf-8")
    return json.loads(text)  # type: ignore[no-any-return]


def without_cuda_kernel(path: Path) -> list[str]:
    """What a CUDA session would run on the CPU, one line each; empty when there is nothing."""
    model = onnx.load(path, load_external_data=False)
    typed = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=False)
    graph = typed.graph
    types = {t.name: t.data_type for t in graph.initializer}
    for value in [*graph.input, *graph.output, *graph.value_info]:
        types[value.name] = value.type.tensor_type.elem_type
    problems = {p for node in graph.node if (p := _problem(node, types)) is not None}
    return sorted(problems)


def _problem(node: onnx.NodeProto, types: dict[str, int]) -> str | None:
    domain = node.domain or "ai.onnx"
    schema = onnx.defs.get_schema(node.op_type, OPSET, node.domain)
    rows = table()["kernels"].get(domain, {}).get(node.op_type, [])
    used: dict[str, set[str]] = {}
    for names, formal in ((node.input, schema.inputs), (node.output, schema.outputs)):
        for i, name in enumerate(names):
            if name:
                variable = formal[min(i, len(formal) - 1)].type_str
                used.setdefault(variable, set()).add(_TYPES[types[name]])
    for row in rows:
        if row["since"] <= schema.since_version <= (row["until"] or OPSET):
            # a constraint that the list leaves out is an input that every kernel takes (int64 axes)
            wrong = [
                f"{v}={','.join(t - set(row['types'].get(v, t)))}"
                for v, t in used.items()
                if not t <= set(row["types"].get(v, t))
            ]
            if not wrong:
                return None
            return f"{domain}.{node.op_type} has no CUDA kernel for {' '.join(wrong)}"
    return f"{domain}.{node.op_type} (version {schema.since_version}) has no CUDA kernel"
