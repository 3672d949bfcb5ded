"""Descriptions: what is written is read back, and rubbish fails with a path."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pluto_edge._schema import MAX_JSON_BYTES, UnknownKeyWarning, decode, encode, read_json, to_text
from pluto_edge.errors import BundleError, PlutoError


@dataclass(frozen=True)
class Inner:
    size: tuple[int, int]
    rate: float = 0.5


@dataclass(frozen=True)
class Outer:
    name: str
    kind: Literal["a", "b"]
    inner: Inner
    rows: tuple[Inner, ...] = ()
    table: dict[str, float] = field(default_factory=dict)
    maybe: str | None = None
    option: bool | int | str = False


inners = st.builds(Inner, st.tuples(st.integers(), st.integers()), st.floats(allow_nan=False, allow_infinity=False))
outers = st.builds(
    Outer,
    st.text(),
    st.sampled_from(["a", "b"]),
    inners,
    st.lists(inners).map(tuple),
    st.dictionaries(st.text(), st.floats(allow_nan=False, allow_infinity=False)),
    st.none() | st.text(),
    st.booleans() | st.integers() | st.text(),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda v: st.lists(v) | st.dictionaries(st.text(), v),
    max_leaves=8,
)


@given(outers)
def test_round_trip(value: Outer) -> None:
    assert decode(Outer, json.loads(to_text(value)), "x", BundleError) == value


@given(outers)
def test_same_value_same_bytes(value: Outer) -> None:
    assert to_text(value) == to_text(decode(Outer, json.loads(to_text(value)), "x", BundleError))


@given(st.dictionaries(st.sampled_from(["name", "kind", "inner", "rows", "table", "maybe"]), json_values))
def test_rubbish_fails_with_the_one_error(data: object) -> None:
    try:
        decode(Outer, data, "x", BundleError)
    except PlutoError as error:
        assert str(error).startswith("x")


GOOD = {"name": "n", "kind": "a", "inner": {"size": [1, 2]}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": 3}, r"x\.name: want str, got int 3"),
        ({"kind": "c"}, r"x\.kind: want one of 'a', 'b'"),
        ({"inner": []}, r"x\.inner: want an object"),
        ({"inner": {}}, r"x\.inner: key 'size' is missing"),
        ({"inner": {"size": [1]}}, r"x\.inner\.size: want 2 values, got 1"),
        ({"inner": {"size": [1, True]}}, r"x\.inner\.size\[1\]: want int, got bool"),
        ({"rows": [{"size": [1, 2], "rate": "fast"}]}, r"x\.rows\[0\]\.rate: want float"),
        ({"table": {"k": None}}, r"x\.table\.k: want float"),
        ({"option": 1.5}, r"x\.option: want one of bool, int, str"),
    ],
)
def test_messages_name_the_key(change: dict[str, object], message: str) -> None:
    with pytest.raises(BundleError, match=message):
        decode(Outer, {**GOOD, **change}, "x", BundleError)


def test_unknown_key_warns() -> None:
    with pytest.warns(UnknownKeyWarning, match="'future' is ignored"):
        assert decode(Outer, {**GOOD, "future": 1}, "x", BundleError).name == "n"


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", '{"a": NaN}', '{"a": Infinity}', "[" * 100_000, '{"a": ' + "9" * 5000 + "}", "\xff"],
)
def test_unreadable_json(tmp_path: Path, text: str) -> None:
    file = tmp_path / "x.json"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(BundleError, match=r"x\.json"):
        read_json(file, BundleError)


def test_huge_json_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    with file.open("wb") as handle:
        handle.truncate(MAX_JSON_BYTES + 1)
    with pytest.raises(BundleError, match="at most"):
        read_json(file, BundleError)
    with pytest.raises(BundleError, match="cannot be read"):
        read_json(tmp_path / "absent.json", BundleError)


def test_encode_leaves_plain_values_alone() -> None:
    assert encode({"a": (1, "b", None)}) == {"a": [1, "b", None]}
