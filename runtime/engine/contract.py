"""What the graphs of a bundle take and give, and what they may be made of.

A bundle may come from anywhere: its graphs are compared with what the exporter writes before ONNX Runtime sees
them. The manifest's dims say what goes in and out. The operators are those of `OPERATORS`: none of them runs a
graph of its own, so whatever is run comes to an end.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pluto_edge.errors import BundleError
from pluto_edge.manifest import ADAPT, EMBED, FORWARD, Manifest
from pluto_edge.runtime.engine.untrusted_graph import FLOAT, Port, Shape, read_graph

__all__ = ["OPERATORS", "Contract", "contracts"]

# All that the exporter emits (a test compares this with its source); the last two are the quantizer's.
OPERATORS = frozenset(
    """
    Abs Add Cast Clip Concat Conv Div Erf Exp Expand Gather Gelu Gemm Greater Identity LayerNormalization Less
    LogSoftmax MatMul Mul Neg Reciprocal ReduceMax ReduceMean ReduceSum Relu Reshape Shape Sigmoid Slice Softmax
    Split Sqrt Squeeze Sub Tanh Transpose Unsqueeze
    DynamicQuantizeLinear MatMulInteger
    """.split()  # noqa: SIM905
)


@dataclass(frozen=True)
class Contract:
    """What a graph takes and gives: names and shapes of float32 tensors. None is the size of the batch, which is
    open unless the graph has a `batch` of its own."""

    inputs: Mapping[str, Shape]
    outputs: Mapping[str, Shape]
    batch: int | None = None

    @property
    def batched(self) -> dict[str, Shape]:
        """The inputs whose size is the batch's."""
        return {name: shape for name, shape in self.inputs.items() if None in shape}

    def check(self, path: Path) -> None:
        """The graph in this file keeps the contract, or is refused."""
        graph = read_graph(path)
        for operator in sorted(graph.operators - OPERATORS):
            raise BundleError(
                f"{path}: operator {operator} is none that pluto-export writes; export the store again"
            )
        for found, wanted, where in (
            (graph.inputs, self.inputs, f"{path}: input"),
            (graph.outputs, self.outputs, f"{path}: output"),
        ):
            _check_ports(found, {name: sized(shape, self.batch) for name, shape in wanted.items()}, where)


def sized(shape: Shape, batch: int | None) -> Shape:
    """With the size of the batch in its place."""
    return tuple(batch if n is None else n for n in shape)


def contracts(manifest: Manifest) -> dict[str, Contract]:
    """What the graphs of a bundle take and give, by file (docs/bundle.md)."""
    dims = manifest.dims
    tokens = {"tokens": (None, manifest.tokens, dims.width)}
    module = {**tokens, **dims.shapes, **dims.ln_shapes}
    rows = (dims.depth + 1, dims.width)
    said: dict[str, Shape] = {"logits": (None, dims.classes), "activations": (None, *rows)}
    number: Shape = (1,) if manifest.profile == "portable" else ()
    objective: dict[str, Shape] = {
        "threshold": number,
        "entropy_weight": number,
        "align_offset": rows,
        "align_slope": rows,
        "target": (None, dims.classes),
    }
    gradient: dict[str, Shape] = {
        "entropy": (None,),
        "reliable": number,
        "ln_scale_grad": dims.ln_shape,
        "ln_bias_grad": dims.ln_shape,
    }
    pixels = {"pixels": (None, 3, *manifest.preprocessing.size)}
    return {
        EMBED: Contract(pixels, {**tokens, "x_hat": (None, dims.width)}, manifest.batch),
        FORWARD: Contract(module, said, manifest.batch),
        ADAPT: Contract({**module, **objective}, {**said, **gradient}),
    }


def _check_ports(found: Mapping[str, Port], wanted: Mapping[str, Shape], where: str) -> None:
    """Exactly these names, each a float32 tensor of its shape; the batch and nothing else may vary."""
    for name in sorted(wanted.keys() ^ found.keys()):
        raise BundleError(f"{where} {name!r} is {'missing' if name in wanted else 'not one that it should have'}")
    for name, shape in wanted.items():
        port = found[name]
        if port.kind != FLOAT:
            raise BundleError(f"{where} {name!r}: want float32, got the ONNX type {port.kind}")
        if port.shape != shape:
            shown = ["batch" if n is None else n for n in shape]
            got = "no shape" if port.shape is None else ["batch" if n is None else n for n in port.shape]
            raise BundleError(f"{where} {name!r}: the manifest says {shown}, the graph {got}")
