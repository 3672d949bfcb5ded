"""Which images a store was made from: written, merged, carried into the bundle, and checked on the way."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pluto_edge.errors import StoreError
from pluto_edge.seen import Seen, hashes_of, read_seen, write_seen


def numbers(*values: int) -> np.ndarray:
    return np.array(values, np.uint64)


def test_an_image_is_its_content(tmp_path: Path) -> None:
    for name, content in (("a", b"one"), ("b", b"two"), ("copy of a", b"one")):
        (tmp_path / name).write_bytes(content)
    want = sorted(int.from_bytes(hashlib.sha256(c).digest()[:8], "big") for c in (b"one", b"two"))
    found = hashes_of(tmp_path.iterdir())
    assert found.dtype == np.uint64 and found.tolist() == want
    assert hashes_of([]).shape == (0,)


def test_round_trip_and_merge(tmp_path: Path) -> None:
    big = 2**64 - 1
    first = Seen(numbers(1, 5, big), numbers(2), ("dawn",))
    second = Seen(numbers(3, 5), numbers(), ("noon", "dawn"))
    write_seen(tmp_path / "seen.safetensors", first | second)
    assert set(load_file(tmp_path / "seen.safetensors")) == {"train", "validation"}
    found = read_seen(tmp_path / "seen.safetensors", StoreError)
    assert (found.train.tolist(), found.validation.tolist()) == ([1, 3, 5, big], [2])
    assert found.modules == ("dawn", "noon") and found.unknown(["noon", "night"]) == ["night"]


@pytest.mark.parametrize(
    "tensors, modules, what",
    [
        ({"train": numbers(1)}, "[]", "seen images"),
        ({"train": numbers(2, 1), "validation": numbers()}, "[]", "train: want sorted"),
        ({"train": numbers(1, 1), "validation": numbers()}, "[]", "train: want sorted"),
        ({"train": numbers(), "validation": numbers(1).astype(np.int64)}, "[]", "validation: want sorted"),
        ({"train": numbers(1)[None], "validation": numbers()}, "[]", "train: want sorted"),
        ({"train": numbers(1), "validation": numbers()}, "{", "seen images"),
        ({"train": numbers(1), "validation": numbers()}, json.dumps({"a": 1}), "modules: want a list"),
    ],
)
def test_rubbish(tmp_path: Path, tensors: dict[str, np.ndarray], modules: str, what: str) -> None:
    save_file(tensors, tmp_path / "seen.safetensors", {"modules": modules})
    with pytest.raises(StoreError, match=what):
        read_seen(tmp_path / "seen.safetensors", StoreError)


def test_a_damaged_file(tmp_path: Path) -> None:
    (tmp_path / "seen.safetensors").write_bytes(b"rubbish")
    with pytest.raises(StoreError, match="not a whole safetensors file"):
        read_seen(tmp_path / "seen.safetensors", StoreError)
