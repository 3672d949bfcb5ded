"""JSON to frozen dataclasses and back: the one place that knows how descriptions are read.

Unknown keys warn, missing or ill-typed keys fail with the key's path, and a newer schema is refused. The
reader is bounded (file size, nesting) because a bundle may come from anywhere.
"""

import dataclasses
import json
import math
import types
import typing
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pluto_edge.errors import ConfigError, PlutoError

MAX_JSON_BYTES = 16 * 1024 * 1024

T = TypeVar("T")
Error = type[PlutoError]


class UnknownKeyWarning(UserWarning):
    """A description holds a key that this version does not know; it is ignored."""


def read_json(path: Path, error: Error) -> dict[str, Any]:
    """The JSON object in `path`; anything else is an `error` that names the file."""
    try:
        size = path.stat().st_size
        if size > MAX_JSON_BYTES:
            raise error(f"{path}: {size:,} bytes; a description has at most {MAX_JSON_BYTES:,}")
        data = path.read_bytes()
    except OSError as cause:
        raise error(f"{path}: cannot be read ({cause.strerror or cause})") from cause
    return parse_json(data, str(path), error)


def parse_json(data: bytes, where: str, error: Error) -> dict[str, Any]:
    """The JSON object in `data`; anything else is an `error` that says where it was."""
    if len(data) > MAX_JSON_BYTES:
        raise error(f"{where}: {len(data):,} bytes; a description has at most {MAX_JSON_BYTES:,}")
    try:
        value = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as cause:
        raise error(f"{where}: not valid JSON ({cause or 'nested too deeply'})") from cause
    if not isinstance(value, dict):
        raise error(f"{where}: want a JSON object, got {type(value).__name__}")
    return value


def check_version(data: dict[str, Any], newest: int, where: str, error: Error) -> None:
    """Refuse a schema that this release cannot know, before any other key is looked at."""
    version = data.get("schema_version")
    if type(version) is not int or version < 1:
        raise error(f"{where}: schema_version: want a positive integer, got {version!r}")
    if version > newest:
        raise error(
            f"{where}: schema version {version} is newer than this pluto-edge understands ({newest}); "
            "run: pip install --upgrade pluto-edge"
        )


def check_once(names: Sequence[str], what: str) -> None:
    """Every name is there once."""
    if len(set(names)) < len(names):
        twice = min(name for name, count in Counter(names).items() if count > 1)
        raise ConfigError(f"{what}: {twice!r} is there twice")


def check_shares(what: str, values: Mapping[str, float]) -> None:
    """Numbers from 0 to 1."""
    for name, value in values.items():
        if not 0 <= value <= 1:
            raise ConfigError(f"{what}.{name}: want a share from 0 to 1, got {value}")


def decode(cls: type[T], data: object, where: str, error: Error) -> T:
    """`data` as an instance of the dataclass `cls`; `where` starts the path that messages give."""
    return typing.cast(T, _decode(cls, data, where, error))


def encode(value: object) -> object:
    """Dataclasses and tuples to what `json` writes."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {k: encode(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [encode(v) for v in value]
    return value


def to_text(value: object) -> str:
    """Sorted, indented JSON: the same description is always the same bytes."""
    return json.dumps(encode(value), indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n"


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _decode(hint: Any, data: object, where: str, error: Error) -> object:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _decode_dataclass(hint, data, where, error)
    if origin in (typing.Union, types.UnionType):
        return _decode_union(args, data, where, error)
    if origin is typing.Literal:
        if data not in args or type(data) not in {type(a) for a in args}:
            raise error(f"{where}: want one of {', '.join(map(repr, args))}, got {_show(data)}")
        return data
    if origin is tuple:
        return _decode_tuple(args, data, where, error)
    if origin is dict:
        if not isinstance(data, dict):
            raise error(f"{where}: want an object, got {_show(data)}")
        return {_text(k, where, error): _decode(args[1], v, f"{where}.{k}", error) for k, v in data.items()}
    if hint is float and type(data) is int and abs(data) < 2**53:
        return float(data)
    if type(data) is not hint or (hint is float and not math.isfinite(typing.cast(float, data))):
        raise error(f"{where}: want {hint.__name__}, got {_show(data)}")
    return _text(data, where, error) if isinstance(data, str) else data


def _text(text: str, where: str, error: Error) -> str:
    """JSON can spell half a character, which no file and no terminal can hold."""
    try:
        text.encode()
    except UnicodeEncodeError as cause:
        raise error(f"{where}: want text, got {text[cause.start]!r} in it") from cause
    return text


def _decode_dataclass(cls: Any, data: object, where: str, error: Error) -> object:
    if not isinstance(data, dict):
        raise error(f"{where}: want an object, got {_show(data)}")
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls)}
    for key in sorted(data.keys() - fields.keys()):
        warnings.warn(f"{where}: unknown key {key!r} is ignored", UnknownKeyWarning, stacklevel=5)
    values = {}
    for name, field in fields.items():
        if name in data:
            values[name] = _decode(hints[name], data[name], f"{where}.{name}", error)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise error(f"{where}: key {name!r} is missing")
    try:
        return cls(**values)
    except ValueError as cause:
        raise error(f"{where}: {cause}") from cause


def _decode_union(args: tuple[Any, ...], data: object, where: str, error: Error) -> object:
    if data is None and type(None) in args:
        return None
    options = [a for a in args if a is not type(None)]
    for option in options:
        if len(options) == 1:
            return _decode(option, data, where, error)
        try:
            return _decode(option, data, where, error)
        except PlutoError:
            continue
    names = ", ".join(getattr(a, "__name__", str(a)) for a in args)
    raise error(f"{where}: want one of {names}, got {_show(data)}")


def _decode_tuple(args: tuple[Any, ...], data: object, where: str, error: Error) -> object:
    if not isinstance(data, list):
        raise error(f"{where}: want a list, got {_show(data)}")
    if len(args) == 2 and args[1] is Ellipsis:
        return tuple(_decode(args[0], v, f"{where}[{i}]", error) for i, v in enumerate(data))
    if len(data) != len(args):
        raise error(f"{where}: want {len(args)} values, got {len(data)}")
    return tuple(_decode(a, v, f"{where}[{i}]", error) for i, (a, v) in enumerate(zip(args, data, strict=True)))


def _show(value: object) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"
