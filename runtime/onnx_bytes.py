"""A few bytes of ONNX, read and written without the `onnx` package, which a device does not have.

ONNX files are protobuf messages: fields of a number and either an integer or bytes. The field numbers below are
those of onnx.proto.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pluto_edge.errors import BundleError

Field = int | bytes
Shape = tuple[int | None, ...]

FLOAT, UINT8, INT8, INT32 = 1, 2, 3, 6
IR_VERSION, OPSET = 8, 13


@dataclass(frozen=True)
class Shapes:
    """What a graph says of its values: `of` a name, None for a size that is open; `slices` are Slice's outputs."""

    of: dict[str, Shape]
    slices: tuple[str, ...]


def read_shapes(path: Path) -> Shapes:
    """Shapes of the weights, and of the values between operators that carry one."""
    try:
        graph = _only(_fields(path.read_bytes()), 7)
        of: dict[str, Shape] = {}
        slices = []
        for number, field in _fields(graph):
            if number == 1:  # a node
                node = list(_fields(_message(field)))
                if (4, b"Slice") in node:
                    slices += [_message(f).decode() for n, f in node if n == 2]
            elif number == 5:  # a weight
                tensor = list(_fields(_message(field)))
                of[_only(tensor, 8).decode()] = tuple(d for n, f in tensor if n == 1 for d in _integers(f))
            elif number == 13:  # a value
                value = list(_fields(_message(field)))
                of[_only(value, 1).decode()] = _shape(_only(value, 2))
    except (ValueError, IndexError) as cause:
        raise BundleError(f"{path}: not an ONNX graph that pluto-export wrote ({cause})") from cause
    return Shapes(of, tuple(slices))


def matmul_model(kind: Literal["fp32", "int8"], size: int) -> bytes:
    """y = a b for two square matrices, both inputs."""
    operator, types = {
        "fp32": (b"MatMul", (FLOAT, FLOAT, FLOAT)),
        "int8": (b"MatMulInteger", (UINT8, INT8, INT32)),
    }[kind]
    a, b, y = (_value(name, t, size) for name, t in zip((b"a", b"b", b"y"), types, strict=True))
    node = _write(1, b"a") + _write(1, b"b") + _write(2, b"y") + _write(4, operator)
    graph = _write(1, node) + _write(2, b"peak") + _write(11, a) + _write(11, b) + _write(12, y)
    return _write(1, IR_VERSION) + _write(7, graph) + _write(8, _write(2, OPSET))


def _value(name: bytes, kind: int, size: int) -> bytes:
    side = _write(1, _write(1, size))
    return _write(1, name) + _write(2, _write(1, _write(1, kind) + _write(2, side + side)))


def _write(number: int, field: Field) -> bytes:
    if isinstance(field, int):
        return _varint(number << 3) + _varint(field)
    return _varint(number << 3 | 2) + _varint(len(field)) + field


def _varint(value: int) -> bytes:
    low = []
    while value > 127:
        low.append(value & 127 | 128)
        value >>= 7
    return bytes([*low, value])


def _fields(data: bytes) -> Iterator[tuple[int, Field]]:
    """Number and content of every field of a message."""
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _read_varint(data, at)
            yield number, value
            continue
        if wire == 2:
            length, at = _read_varint(data, at)
        elif wire in (1, 5):
            length = {1: 8, 5: 4}[wire]
        else:
            raise ValueError(f"wire type {wire} at byte {at}")
        if at + length > len(data):
            raise ValueError("it is cut short")
        yield number, data[at : at + length]
        at += length


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def _message(field: Field) -> bytes:
    if isinstance(field, int):
        raise ValueError("a number where a message should be")
    return field


def _only(fields: Iterator[tuple[int, Field]] | list[tuple[int, Field]], number: int) -> bytes:
    found = next((f for n, f in fields if n == number), None)
    if found is None:
        raise ValueError(f"field {number} is missing")
    return _message(found)


def _integers(field: Field) -> list[int]:
    """A repeated integer: one of them, or many packed into bytes."""
    if isinstance(field, int):
        return [field]
    values, at = [], 0
    while at < len(field):
        value, at = _read_varint(field, at)
        values.append(value)
    return values


def _shape(kind: bytes) -> Shape:
    """Sizes of a tensor's type; a size with a name, or none at all, is open."""
    sizes: list[int | None] = []
    for number, tensor in _fields(kind):
        for part, shape in _fields(_message(tensor)) if number == 1 else ():
            for _, side in _fields(_message(shape)) if part == 2 else ():
                sizes.append(next((f for n, f in _fields(_message(side)) if n == 1 and isinstance(f, int)), None))
    return tuple(sizes)
