"""The golden vectors are what Python's runtime says, on the bundles that are committed beside them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from pluto_edge.tolerances import relative_error
from tests.hosts.conftest import HOSTS

GOLDEN = HOSTS / "golden"
LISTED = json.loads((GOLDEN / "cases.json").read_text())
# rounding of another processor's kernels, after ten steps; a change of the method shows as 1e-2 and more
SAME = {"fp32": 2e-3, "int8": 0.1}
MOST_BYTES = 1_600_000


def test_all_cases_are_listed(golden: Any) -> None:
    assert [c["name"] for c in LISTED["cases"]] == [c.name for c in golden.cases()]
    kinds = {(c["bundle"], "default" in c["name"]) for c in LISTED["cases"] if c["mode"] == "step"}
    wanted = {f"{kind}-{precision}" for kind in ("vpt", "adapter") for precision in ("fp32", "int8")}
    assert kinds == {(bundle, default) for bundle in wanted for default in (False, True)}


def test_they_are_small() -> None:
    files = [f for folder in ("bundles", "cases") for f in (GOLDEN / folder).rglob("*") if f.is_file()]
    assert sum(f.stat().st_size for f in files) < MOST_BYTES


def test_they_reach_what_a_step_can_end_in() -> None:
    kinds = {event["kind"] for case in LISTED["cases"] for event in case["events"]}
    assert kinds == {"step", "gather", "rollback", "change"}


@pytest.mark.parametrize("case", LISTED["cases"], ids=lambda case: case["name"])
def test_python_says_the_same(case: dict[str, Any], golden: Any, tmp_path: Path) -> None:
    """Where this fails, the method has changed: run `python hosts/golden/make.py`, and change hosts/core, too."""
    (wanted,) = [c for c in golden.cases() if c.name == case["name"]]
    frames = load_file(GOLDEN / LISTED["frames"])["frames"]
    found = golden.run_case(wanted, GOLDEN / "bundles" / wanted.bundle, frames, tmp_path)
    assert [(e["kind"], e["top"]) for e in found["events"]] == [(e["kind"], e["top"]) for e in case["events"]]
    assert json.loads(json.dumps(found["config"])) == case["config"]
    tolerance = SAME[wanted.bundle.partition("-")[2]]
    for name in (f"{wanted.name}.safetensors", f"{wanted.name}.state.safetensors"):
        got, want = load_file(tmp_path / name), load_file(GOLDEN / "cases" / name)
        assert got.keys() == want.keys()
        for key, value in want.items():
            assert relative_error(got[key], value) < tolerance, key


def test_resizes_are_pillows(golden: Any, tmp_path: Path) -> None:
    listed = golden.write_resizes(tmp_path)
    assert json.loads(json.dumps(listed)) == LISTED["resizes"]
    got, want = load_file(tmp_path / listed["file"]), load_file(GOLDEN / "cases" / listed["file"])
    assert got.keys() == want.keys()
    for key, value in want.items():  # Pillow before 13 begins with the other axis at times: a level here and there
        assert np.abs(got[key].astype(np.float64) - value).max() <= 2, key
