"""A matrix product as an ONNX file, written without the `onnx` package, which a device does not have.

ONNX files are protobuf messages: fields of a number and either an integer or bytes. The field numbers below are
those of onnx.proto.
"""

from typing import Literal

IR_VERSION, OPSET = 8, 13
FLOAT, UINT8, INT8, INT32 = 1, 2, 3, 6


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


def _write(number: int, field: int | bytes) -> bytes:
    if isinstance(field, int):
        return _varint(number << 3) + _varint(field)
    return _varint(number << 3 | 2) + _varint(len(field)) + field


def _varint(value: int) -> bytes:
    low = []
    while value > 127:
        low.append(value & 127 | 128)
        value >>= 7
    return bytes([*low, value])
