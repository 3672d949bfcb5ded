"""A thin layer over onnx-ir: emit operators, keep large weights in one file that all graphs share."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

OPSET = 20  # the first with Gelu; every operator used is in it
IR_VERSION = 9
INLINE_BYTES = 1024  # smaller tensors stay in the graph

Value = ir.Value


class WeightsFile:
    """External data: each named tensor is written once, whatever number of graphs uses it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._entries: dict[str, ir.ExternalTensor] = {}
        self._file = path.open("wb")

    def add(self, name: str, array: NDArray[Any]) -> ir.ExternalTensor:
        """Writes a tensor unless it is there already; gives the reference that graphs use."""
        key = f"{name}:{array.dtype}"
        if key not in self._entries:
            data = np.ascontiguousarray(array)
            # pages of their own for matrices, so that mapping them shares no page with a neighbour
            align = 4096 if data.nbytes >= 65536 else 64
            self._file.write(b"\0" * (-self._file.tell() % align))
            self._entries[key] = ir.ExternalTensor(
                self.path.name,
                self._file.tell(),
                data.nbytes,
                ir.DataType.from_numpy(data.dtype),
                shape=ir.Shape(data.shape),
                name=name,
                base_dir=str(self.path.parent),
            )
            self._file.write(data.tobytes())
        return self._entries[key]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()


class GraphBuilder:
    """Records nodes, constants and weights; `save` writes the graph.

    `op("Add", a, b)` emits a node and gives its output; `ops("Split", 3, x, axis=-1)` gives three.

    `portable` asks the layers for operators as the providers of many vendors take them (`portable.py`). `batch` is
    how many images the graph takes, always; None leaves it open.
    """

    def __init__(
        self,
        name: str,
        weights: WeightsFile,
        dtype: ir.DataType = ir.DataType.FLOAT,
        *,
        portable: bool = False,
        batch: int | None = None,
    ) -> None:
        self.name = name
        self.weights = weights
        self.dtype = dtype
        self.portable = portable
        self.batch = batch
        self._tape = ir.tape.Tape()
        self._inputs: list[Value] = []
        self._outputs: list[Value] = []
        self._constants: dict[tuple[str, bytes, tuple[int, ...]], Value] = {}
        self._weights: dict[str, Value] = {}
        self._rows: dict[Value, Sequence[Value]] = {}

    def input(self, name: str, shape: Sequence[int | str], doc: str) -> Value:
        """A float32 graph input, converted to the graph's own type."""
        value = ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=self.sizes(shape), doc_string=doc)
        self._inputs.append(value)
        if self.dtype == ir.DataType.FLOAT:
            return value
        cast = self.op("Cast", value, to=self.dtype)
        cast.shape = value.shape
        cast.type = ir.TensorType(self.dtype)
        return cast

    def output(self, name: str, value: Value, shape: Sequence[int | str], doc: str) -> None:
        """A float32 graph output."""
        if self.portable and self.dtype == ir.DataType.FLOAT and value not in self._outputs:
            out = value  # WebGPU has no Identity
        else:
            kind = "Identity" if self.dtype == ir.DataType.FLOAT else "Cast"
            attributes = {"to": ir.DataType.FLOAT} if kind == "Cast" else {}
            out = self.op(kind, value, **attributes)
        out.name = name
        out.type = ir.TensorType(ir.DataType.FLOAT)
        out.shape = self.sizes(shape)
        out.doc_string = doc
        self._outputs.append(out)

    def sizes(self, shape: Sequence[int | str]) -> ir.Shape:
        """A shape, with the number of images where that is fixed."""
        return ir.Shape([self.batch if n == "batch" and self.batch is not None else n for n in shape])

    def op(self, kind: str, *inputs: Value | None, **attributes: Any) -> Value:
        """Emits an operator; gives its one output."""
        return self._tape.op(kind, inputs, attributes)

    def ops(self, kind: str, count: int, *inputs: Value | None, **attributes: Any) -> Sequence[Value]:
        """An operator with `count` outputs."""
        return self._tape.op_multi_out(kind, inputs, attributes, num_outputs=count)

    def ints(self, *values: int) -> Value:
        """A small int64 vector: a shape, an axis list, a bound."""
        return self.constant(np.array(values, np.int64))

    def scalar(self, value: float) -> Value:
        """A number in the graph's own type."""
        return self.constant(np.array(value, self.dtype.numpy()))

    def index(self, value: int) -> Value:
        """A single int64, as Gather takes it."""
        return self.constant(np.array(value, np.int64))

    def constant(self, array: NDArray[Any]) -> Value:
        """A small tensor inside the graph; the same values are there once."""
        key = (str(array.dtype), array.tobytes(), array.shape)
        if key not in self._constants:
            name = f"constant_{len(self._constants)}"
            self._constants[key] = self._tape.initializer(ir.tensor(array, name=name))
        return self._constants[key]

    def weight(self, name: str, array: NDArray[np.float32]) -> Value:
        """A frozen tensor of the backbone, in the graph's own type; large ones go to the shared file."""
        if name not in self._weights:
            data = array.astype(self.dtype.numpy(), copy=False)
            tensor = self.weights.add(name, data) if data.nbytes > INLINE_BYTES else ir.tensor(data, name=name)
            self._weights[name] = self._tape.initializer(tensor, name=name)
        return self._weights[name]

    def rows(self, value: Value, count: int) -> Sequence[Value]:
        """The `count` rows of a value, [1, ...] each. One Split: not every provider has Gather."""
        if value not in self._rows:
            self._rows[value] = self.ops("Split", count, value, axis=0, num_outputs=count)
        return self._rows[value]

    def model(self, metadata: dict[str, str]) -> ir.Model:
        """All that was emitted, as a model."""
        graph = ir.Graph(
            self._inputs,
            self._outputs,
            nodes=self._tape.nodes,
            initializers=self._tape.initializers,
            opset_imports={"": OPSET},
            name=self.name,
        )
        model = ir.Model(graph, ir_version=IR_VERSION, producer_name="pluto-edge")
        model.metadata_props.update(metadata)
        return model

    def save(self, path: Path, metadata: dict[str, str]) -> None:
        """Writes the graph; its large weights are in the shared file already."""
        ir.save(self.model(metadata), path)
