"""What a graph of a bundle takes, gives and is made of, read before ONNX Runtime reads it.

A bundle may come from anywhere, and ONNX Runtime runs what it is given. So `contract.py` looks at every graph
first. This reader serves that check and nothing else. It is strict where a protobuf library would be generous:
whatever two readers might understand differently is refused. And it needs no `onnx` package, which a device does
not have.

ONNX files are protobuf messages: fields of a number and either an integer or bytes. The field numbers below are
those of onnx.proto.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pluto_edge.errors import BundleError

Field = int | bytes
Shape = tuple[int | None, ...]

FLOAT = 1
MAX_BYTES = 16 * 1024 * 1024  # of a graph, whose weights are in another file: ten times what 32 blocks in int8 need


@dataclass(frozen=True)
class Port:
    """An input or an output: its elements' type, None where it is no tensor, and its shape, None where unknown."""

    kind: int | None
    shape: Shape | None


@dataclass(frozen=True)
class GraphFile:
    """What goes into a graph and comes out of it, and its operators, those of other domains as `domain.Name`."""

    inputs: dict[str, Port]
    outputs: dict[str, Port]
    operators: frozenset[str]


def read_graph(path: Path) -> GraphFile:
    """The one graph of a file. Refused is whatever another reader might find more in: functions, graphs inside of
    operators, fields that are there twice."""
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise BundleError(f"{path}: {size:,} bytes; a graph has at most {MAX_BYTES:,}")
    try:
        model = _fields(path.read_bytes())
        for number, what in ((20, "training graphs"), (25, "functions")):
            if any(n == number for n, _ in model):
                raise ValueError(f"it has {what}")
        inputs: dict[str, Port] = {}
        outputs: dict[str, Port] = {}
        operators = set()
        for number, field in _fields(_only(model, 7)):
            if number == 1:
                operators.add(_operator(_fields(_message(field))))
            elif number in (11, 12):
                value = _fields(_message(field))
                ports = inputs if number == 11 else outputs
                ports[_only(value, 1).decode()] = _port(_only(value, 2))
    except (ValueError, IndexError) as cause:
        raise BundleError(f"{path}: not an ONNX graph that pluto-export wrote ({cause})") from cause
    return GraphFile(inputs, outputs, frozenset(operators))


def _operator(node: list[tuple[int, Field]]) -> str:
    """Its name. One with a graph inside (If, Loop, Scan) is refused, whatever its name is."""
    name, domain = _only(node, 4).decode(), (_at_most_one(node, 7) or b"").decode()
    for number, field in node:
        if number == 5 and any(n in (6, 11) for n, _ in _fields(_message(field))):
            raise ValueError(f"operator {name} has a graph inside")
    return name if domain in ("", "ai.onnx") else f"{domain}.{name}"


def _port(kind: bytes) -> Port:
    """Of a value's type."""
    fields = _fields(kind)
    if [n for n, _ in fields] != [1]:
        return Port(None, None)
    tensor = _fields(_message(fields[0][1]))
    kinds = [f for n, f in tensor if n == 1]
    element = kinds[0] if len(kinds) == 1 and isinstance(kinds[0], int) else None
    return Port(element, None if _at_most_one(tensor, 2) is None else _shape(kind))


def _fields(data: bytes) -> list[tuple[int, Field]]:
    """Number and content of every field of a message.

    Every start of a runtime reads thousands of them, so numbers of one byte, which most are, are read in place.
    """
    found: list[tuple[int, Field]] = []
    at = 0
    end = len(data)
    while at < end:
        key = data[at]
        at += 1
        if key > 127:
            key, at = _read_varint(data, at - 1)
            if key >= 1 << 32:
                raise ValueError(f"field number {key >> 3} is none")  # other readers cut it to 32 bits
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _read_varint(data, at)
            found.append((number, value))
            continue
        if wire == 2:
            length = data[at]
            at += 1
            if length > 127:
                length, at = _read_varint(data, at - 1)
        elif wire in (1, 5):
            length = {1: 8, 5: 4}[wire]
        else:
            raise ValueError(f"wire type {wire} at byte {at}")
        if at + length > end:
            raise ValueError("it is cut short")
        found.append((number, data[at : at + length]))
        at += length
    return found


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at
        if shift == 70:
            raise ValueError("a number has more than 64 bits")


def _message(field: Field) -> bytes:
    if isinstance(field, int):
        raise ValueError("a number where a message should be")
    return field


def _only(fields: Iterable[tuple[int, Field]], number: int) -> bytes:
    found = _at_most_one(fields, number)
    if found is None:
        raise ValueError(f"field {number} is missing")
    return found


def _at_most_one(fields: Iterable[tuple[int, Field]], number: int) -> bytes | None:
    """Protobuf lets a field come again, to replace the first or to add to it; the exporter never does that."""
    found = [f for n, f in fields if n == number]
    if len(found) > 1:
        raise ValueError(f"field {number} is there twice")
    return _message(found[0]) if found else None


def _shape(kind: bytes) -> Shape:
    """Sizes of a tensor's type; a size with a name, or none at all, is open."""
    sizes: list[int | None] = []
    for number, tensor in _fields(kind):
        for part, shape in _fields(_message(tensor)) if number == 1 else ():
            for _, side in _fields(_message(shape)) if part == 2 else ():
                ((n, size),) = tuple(_fields(_message(side))) or ((0, b""),)
                sizes.append(size if n == 1 and isinstance(size, int) else None)
    return tuple(sizes)
