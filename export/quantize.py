"""int8: the frozen MatMuls of `forward` and `adapt`, with ONNX Runtime's own quantizer."""

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx
import onnx_ir as ir

from pluto_edge._ort import onnxruntime  # noqa: F401  sets telemetry before the quantizer imports it
from pluto_edge.export.graph import INLINE_BYTES, WeightsFile


@contextmanager
def _quiet() -> Iterator[None]:
    """The quantizer advises on the root logger to run a pass that these graphs do not need."""
    root = logging.getLogger()
    level = logging.getLogger().level
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.setLevel(level)


def quantize_dynamic(graph: Path, target: Path, weights: WeightsFile, metadata: dict[str, str]) -> None:
    """Write `graph` (fp32) to `target` with int8 weights in `weights`, activations quantized as they come.

    Only MatMuls with a constant second factor change: attention's own products, everything a module brings and
    what is written as a Gemm stay fp32. Weights keep 7 bits (reduce_range): processors without VNNI add two
    products in 16 bits, and with 8 bits these saturate.
    """
    from onnxruntime.quantization import QuantType
    from onnxruntime.quantization import quantize_dynamic as quantize

    exact = [
        f"{n.name}_MatMul" for n in onnx.load(graph, load_external_data=False).graph.node if n.op_type == "Gemm"
    ]
    with tempfile.TemporaryDirectory() as folder, _quiet():
        temporary = Path(folder) / "quantized.onnx"
        quantize(
            graph,
            temporary,
            op_types_to_quantize=["MatMul"],
            nodes_to_exclude=exact,  # it makes MatMuls of them
            per_channel=True,
            reduce_range=True,
            weight_type=QuantType.QInt8,
            use_external_data_format=True,
            extra_options={"MatMulConstBOnly": True, "DefaultTensorType": 1},
        )
        model = ir.load(temporary)
        for value in model.graph.initializers.values():
            tensor = value.const_value
            if tensor is not None and tensor.nbytes > INLINE_BYTES:
                value.const_value = weights.add(value.name or "", tensor.numpy())
            elif tensor is not None:
                value.const_value = ir.tensor(tensor.numpy(), name=value.name)
        model.metadata_props.update(metadata)
        model.producer_name = "pluto-edge"
        ir.save(model, target)
