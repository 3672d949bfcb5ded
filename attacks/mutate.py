"""Small hostile changes: of bytes, of JSON, of safetensors files."""

import json
import struct
from collections.abc import Mapping
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

Tensors = Mapping[str, NDArray[Any]]

BYTES = (0, 1, 0x0A, 0x20, 0x22, 0x2D, 0x2F, 0x30, 0x5B, 0x5C, 0x7B, 0x7F, 0x80, 0xC0, 0xED, 0xFE, 0xFF)
TOKENS = (
    b"NaN",
    b"-1e999",
    b"null",
    b"\\ud800",
    b"\\u0000",
    b"[" * 40,
    b"1" * 40,
    b"9" * 5000,
    b"../",
    b"\xed\xa0\x80",
)
SCALARS = (
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    7,
    0.5,
    -0.0,
    1e-320,
    1e300,
    -1e300,
    float("nan"),
    float("inf"),
    2**31,
    2**53 + 1,
    2**63,
    10**400,
    "",
    "x",
    "../../evil",
    "/etc/passwd",
    "a\0b",
    "\x1b[2J",
    "\ud800",
    "\u202e",
    "é" * 40,
    "n" * 300,
    "CON",
    "-",
    ".",
    "nan",
    "1e5",
)
NUMBERS = (np.nan, np.inf, -np.inf, -1.0, 0.0, 1.0, 1e-38, 65504.0, 1e30, 3e38, -3e38)
TYPES = (np.float16, np.float32, np.float64, np.int64, np.int8, np.uint8, np.bool_)


def mutate_bytes(rng: Random, data: bytes, changes: int = 4) -> bytes:
    """Up to so many changes: bits, bytes, spans that go, come twice or are something else, an end too soon."""
    out = bytearray(data)
    for _ in range(rng.randint(1, changes)):
        at = rng.randrange(len(out) + 1)
        kind = rng.randrange(7)
        size = min(1 << rng.randrange(8), len(out))
        if kind == 0 and at < len(out):
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and at < len(out):
            out[at] = rng.choice(BYTES)
        elif kind == 2:
            del out[at : at + size]
        elif kind == 3:
            out[at:at] = out[at : at + size]
        elif kind == 4:
            out[at:at] = rng.choice(TOKENS)
        elif kind == 5:
            out[at : at + size] = rng.randbytes(size)
        elif rng.random() < 0.2:
            del out[at:]
    return bytes(out)


def mutate_json(rng: Random, data: bytes, changes: int = 3) -> bytes:
    """Valid JSON in which values are others, of other types, gone or there twice; sometimes no longer valid."""
    value = json.loads(data)
    for _ in range(rng.randint(1, changes)):
        value = _change(rng, value)
    text = json.dumps(value).encode()
    return mutate_bytes(rng, text, 1) if rng.random() < 0.1 else text


def hostile(rng: Random) -> Any:
    """Any JSON value, but rarely a good one."""
    kind = rng.randrange(12)
    if kind == 0:
        return [hostile(rng) for _ in range(rng.randrange(4))]
    if kind == 1:
        return {str(hostile(rng))[:40]: hostile(rng) for _ in range(rng.randrange(4))}
    if kind == 2:
        nested: Any = 0
        for _ in range(rng.choice((3, 100))):
            nested = [nested] if rng.random() < 0.5 else {"x": nested}
        return nested
    if kind == 3:
        return rng.randint(-(2**20), 2**20)
    if kind == 4:
        return rng.uniform(-2, 2) * 10.0 ** rng.randint(-30, 30)
    return rng.choice(SCALARS)


def _change(rng: Random, value: Any) -> Any:
    """One change somewhere in the tree."""
    holder: Any = value
    while isinstance(holder, dict | list) and holder:
        key: Any = rng.choice(list(holder)) if isinstance(holder, dict) else rng.randrange(len(holder))
        inner = holder[key]
        if isinstance(inner, dict | list) and inner and rng.random() < 0.85:
            holder = inner
            continue
        kind = rng.randrange(6)
        if kind == 0:
            del holder[key]
        elif kind == 1 and isinstance(holder, list):
            holder.insert(key, inner)
        elif kind == 1 and isinstance(holder, dict):
            holder[str(hostile(rng))[:60]] = inner
        elif kind == 2 and isinstance(inner, int | float):
            holder[key] = rng.choice((inner + 1, inner - 1, -inner, inner * 2, inner * 10**6, str(inner)[:99]))
        elif kind == 3:
            other = rng.choice(list(holder)) if isinstance(holder, dict) else rng.randrange(len(holder))
            holder[key] = holder[other]
        else:
            holder[key] = hostile(rng)
        return value
    return hostile(rng)


def mutate_tensors(rng: Random, tensors: Tensors) -> dict[str, NDArray[Any]]:
    """Tensors that are gone, renamed, of another type or shape, or of numbers that nobody should compute with."""
    made = dict(tensors)
    for _ in range(rng.randint(1, 3)):
        if not made:
            break
        key = rng.choice(list(made))
        kind = rng.randrange(8)
        value = made[key]
        if kind == 0:
            del made[key]
        elif kind == 1:
            with np.errstate(all="ignore"):
                made[key] = value.astype(rng.choice(TYPES))
        elif kind == 2:
            made[key] = np.full(value.shape, _number(rng, value.dtype))
        elif kind == 3:
            made[key] = value.reshape(-1)[: rng.randrange(9)]
        elif kind == 4:
            made[rng.choice(("", key + ".x", key[:-1], "other", "a\0", "\u202e"))] = made.pop(key)
        elif kind == 5:
            with np.errstate(all="ignore"):
                made[key] = (value * rng.choice((-1.0, 0.0, 1e-30, 1e3, 1e18, 1e38))).astype(value.dtype)
        elif value.size:
            flat = value.copy().reshape(-1)
            flat[rng.randrange(flat.size)] = _number(rng, value.dtype)
            made[key] = flat.reshape(value.shape)
    return made


def _number(rng: Random, dtype: np.dtype[Any]) -> Any:
    with np.errstate(all="ignore"):
        return np.asarray(rng.choice(NUMBERS)).astype(dtype)


def to_safetensors(tensors: Tensors, metadata: Mapping[str, str] | None = None) -> bytes:
    """Tensors as the bytes of a file."""
    return bytes(save({k: np.ascontiguousarray(v) for k, v in tensors.items()}, dict(metadata or {}) or None))


def mutate_file(rng: Random, data: bytes) -> bytes:
    """A safetensors file whose header, or any byte, is something else."""
    if rng.random() < 0.5:
        return mutate_bytes(rng, data)
    (size,) = struct.unpack("<Q", data[:8])
    header = mutate_json(rng, data[8 : 8 + size])
    told = rng.choice((len(header),) * 6 + (size, 0, 2**63, len(header) + 8))
    return struct.pack("<Q", told) + header + data[8 + size :]
