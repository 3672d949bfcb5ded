"""What was learned outlives kills, full disks, damaged files, newer versions and savers that meet."""

import json
import logging
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file

from pluto_edge import Runtime
from pluto_edge.cli import main
from pluto_edge.errors import BundleError, StoreError
from pluto_edge.modules import Dims, SelectorWeights
from pluto_edge.runtime import persistence
from pluto_edge.runtime.algorithm.prototypes import Prototypes, Seen
from pluto_edge.runtime.algorithm.state import State
from pluto_edge.runtime.engine.affines import Affines
from pluto_edge.runtime.engine.modules import Modules
from tests.faults import every_fault

DIMS = Dims("vpt", 4, 48, 3, 7)
SELECTOR = SelectorWeights.random(width=48, classes=7, hidden_x=8, hidden_l=8, out=8)
NETWORK: Any = SimpleNamespace(
    bundle=SimpleNamespace(hash="h", manifest=SimpleNamespace(dims=DIMS)),
    modules=Modules(m=SimpleNamespace(digest="d")),
)


def state(steps: int) -> State:
    scale = np.full(DIMS.ln_shape, steps, np.float32)
    return State(SELECTOR, affines={"m": Affines(scale, -scale)}, steps=steps)


def save(path: Path, steps: int) -> None:
    persistence.save(path, state(steps), "h")


def restore(path: Path) -> State:
    return persistence.restore(path, State(SELECTOR), NETWORK)


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def damage(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.unlink()  # it may be one file with the other generation
    file.write_bytes(data)


def rewrite(file: Path, tensors: dict[str, Any] | None = None, **metadata: str) -> None:
    """The file with other tensors and metadata, and a digest that is right for them."""
    with safe_open(file, framework="numpy") as opened:
        old = opened.metadata()
        kept = {k: opened.get_tensor(k) for k in opened.keys()}  # noqa: SIM118
    new = {**old, **metadata}
    arrays = kept if tensors is None else tensors
    if "digest" not in metadata and new["schema_version"].isdecimal():
        new["digest"] = persistence.digest_of(arrays, new)
    file.unlink()
    save_file(arrays, file, new)


def test_every_fault_leaves_a_state(tmp_path: Path) -> None:
    file = tmp_path / "x/state"

    def prepare() -> None:
        shutil.rmtree(file.parent, ignore_errors=True)
        save(file, 1)
        save(file, 2)

    def check() -> None:
        assert persistence.saved(file)
        got = restore(file)
        assert got.steps in (1, 2, 3) and (got.affines["m"].scale == got.steps).all()

    assert every_fault(prepare, lambda: save(file, 3), check) >= 8
    assert restore(file).steps == 3
    assert names(file.parent) == ["state", "state.previous"]


def test_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_: object) -> None:
        raise PermissionError("not on this file system")

    monkeypatch.setattr(persistence.os, "link", link)
    for steps in (1, 2, 3):
        save(tmp_path / "state", steps)
    assert restore(tmp_path / "state").steps == 3
    (tmp_path / "state").unlink()
    assert restore(tmp_path / "state").steps == 2
    assert names(tmp_path) == ["state.previous"]


def test_a_damaged_file_does_not_take_the_place_of_a_good_one(tmp_path: Path) -> None:
    file = tmp_path / "state"
    save(file, 1)
    save(file, 2)
    damage(file)
    save(file, 3)
    damage(file)
    assert restore(file).steps == 1
    save(file, 4)
    assert restore(file).steps == 4
    damage(file)
    damage(tmp_path / "state.previous")
    with pytest.raises(StoreError, match=r"no whole state.*state: damaged.*state\.previous: damaged"):
        restore(file)
    save(file, 5)
    assert restore(file).steps == 5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": "99"}, "newer pluto-edge"),
        ({"schema_version": "x"}, "schema_version"),
        ({"digest": "0"}, "digest differs"),
        ({"counters": "not json"}, "counters: not valid JSON"),
    ],
)
def test_a_bad_or_newer_file_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, change: dict[str, str], message: str
) -> None:
    file = tmp_path / "state"
    save(file, 1)
    save(file, 2)
    rewrite(file, **change)
    with caplog.at_level(logging.WARNING, "pluto_edge"):
        assert restore(file).steps == 1
    assert message in caplog.text
    (tmp_path / "state.previous").unlink()
    with pytest.raises(StoreError, match=message):
        restore(file)


def test_a_killed_save_leaves_no_temporary_files_for_long(tmp_path: Path) -> None:
    for name in (".state.abcdefgh.tmp", ".state.previous.abcdefgh.tmp"):
        (tmp_path / name).write_text("half")
    (tmp_path / ".state.previous").write_text("of another state, whose name is .state")
    save(tmp_path / "state", 1)
    assert names(tmp_path) == [".state.previous", "state"]


def test_savers_that_meet(tmp_path: Path) -> None:
    file, problems = tmp_path / "state", []

    def saver(first: int) -> None:
        try:
            for n in range(20):
                save(file, first + n)
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=saver, args=(1000 * t,)) for t in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert restore(file).steps % 1000 == 19
    assert names(tmp_path) == ["state", "state.previous"]


SAVER = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from tests.runtime.test_persistence import save
for n in range(30):
    save(Path(sys.argv[1]), n)
"""


def test_processes_that_meet(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SAVER, str(tmp_path / "state"), str(Path(__file__).parents[2])]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    assert [p.communicate()[1] for p in running] == ["", ""]
    assert restore(tmp_path / "state").steps == 29
    assert names(tmp_path) == ["state", "state.previous"]


def test_commands_go_on_from_the_previous_state(
    make_bundle: Callable[..., Path], folders: Path, tmp_path: Path
) -> None:
    """A kill has left only `.previous`: `pluto run --state` goes on from there."""
    file = tmp_path / "state"
    command = ["run", str(make_bundle()), str(folders), "--state", str(file), "--limit", "4", "--batch", "4"]
    assert main(command) == 0
    file.rename(tmp_path / "state.previous")
    assert main(command) == 0
    runtime = Runtime(make_bundle())
    runtime.restore(file)
    assert runtime.learner.state.steps == 2


# files that are not what they were


def full(path: Path, optimizer: bool = True) -> dict[str, Any]:
    """A state with everything in it; gives its tensors."""
    moments: dict[str, Any] = {"t": np.ones(1)}
    for key, value in SELECTOR.tensors.items():
        moments |= {f"m.{key}": np.zeros(value.shape), f"v.{key}": np.ones(value.shape)}
    affines = {"m": Affines(np.ones(DIMS.ln_shape, np.float32), np.ones(DIMS.ln_shape, np.float32))}
    seen = Seen(np.ones(7), np.ones((7, 48)), np.ones(1), np.ones(48))
    whole = State(
        SELECTOR,
        moments=moments if optimizer else {},
        affines=affines,
        momentum=affines,
        prototypes=Prototypes({"m": seen}),
        top="m",
        labels=(1, 2, 3),
        average=0.5,
        steps=3,
        samples=12,
    )
    persistence.save(path, whole, "h")
    with safe_open(path, framework="numpy") as opened:
        return {k: opened.get_tensor(k) for k in opened.keys()}  # noqa: SIM118


COUNTERS = {"top": "m", "labels": [1], "average": 0.5, "steps": 1, "rollbacks": 0, "samples": 4}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": ...}, "key 'steps' is missing"),
        ({"steps": "3"}, "steps: want int"),
        ({"steps": -1}, "steps: want at least 0"),
        ({"labels": [7]}, "labels: want 0 to 6, got 7"),
        ({"labels": 3}, "labels: want a list"),
        ({"average": float("nan")}, "average: want float"),
        ({"top": 3}, "top: want str"),
        ({"more": 3}, "'more' is not one of them"),
    ],
)
def test_bad_counters(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    full(tmp_path / "state")
    counters = {k: v for k, v in {**COUNTERS, **change}.items() if v is not ...}
    rewrite(tmp_path / "state", counters=json.dumps(counters))
    with pytest.raises(StoreError, match=message):
        restore(tmp_path / "state")


def test_counters_are_part_of_the_digest(tmp_path: Path) -> None:
    full(tmp_path / "state")
    with safe_open(tmp_path / "state", framework="numpy") as opened:
        digest = opened.metadata()["digest"]
    rewrite(tmp_path / "state", counters=json.dumps(COUNTERS), digest=digest)
    with pytest.raises(StoreError, match="digest differs"):
        restore(tmp_path / "state")


def test_a_file_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    full(tmp_path / "state")
    rewrite(tmp_path / "state", schema_version="3", counters=json.dumps({**COUNTERS, "centre": 1}))
    assert restore(tmp_path / "state").steps == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"affines.m.scale": np.ones((7, 48))}, "want finite float32, got float64"),
        ({"affines.m.scale": np.full((7, 48), np.nan, np.float32)}, "want finite float32"),
        ({"affines.m.scale": np.ones((7, 47), np.float32)}, r"want shape \[7, 48\]"),
        ({"affines.m.bias": None}, "'m.bias' is missing"),
        ({"momentum.m.scale": None}, "'m.scale' is missing"),
        ({"selector.up_x": None}, "'up_x' is missing"),
        ({"selector.up_x": np.ones((8, 8))}, "selector.up_x: want finite float32"),
        ({"moments.t": -np.ones(1)}, "moments.t: want at least 0"),
        ({"moments.v.up_x": None}, "'v.up_x' is missing"),
        ({"prototypes.m.counts": -np.ones(7)}, "counts: want at least 0"),
        ({"other.x": np.ones(1)}, "'other.x' is not part of a state"),
        ({"affines": np.ones(1)}, "is missing|not part"),
        ({"affines.n.scale": np.ones((7, 48), np.float32)}, "'n.bias' is missing"),
    ],
)
def test_bad_tensors(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    tensors = {k: v for k, v in {**full(tmp_path / "state"), **change}.items() if v is not None}
    rewrite(tmp_path / "state", tensors)
    with pytest.raises(StoreError, match=message):
        restore(tmp_path / "state")


def usable(got: State) -> bool:
    narrow = [*got.selector.tensors.values(), *(v for a in got.affines.values() for v in (a.scale, a.bias))]
    return got.finite and all(v.dtype == np.float32 for v in narrow) and min(got.steps, got.samples) >= 0


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
anything = st.recursive(
    scalars, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=5), v, max_size=3), max_leaves=6
)
TYPES = [np.float16, np.float32, np.float64, np.int64, np.uint8, np.bool_]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_mutation_is_refused_or_harmless(tmp_path: Path, data: st.DataObject) -> None:
    file = tmp_path / "state"
    for old in persistence.generations(file):
        old.unlink(missing_ok=True)
    tensors = full(file, data.draw(st.booleans()))
    for _ in range(data.draw(st.integers(0, 2))):
        key = data.draw(st.sampled_from(sorted(tensors)))
        kind = data.draw(st.sampled_from(["drop", "type", "value", "shape", "rename", "copy"]))
        if kind == "drop":
            del tensors[key]
        elif kind in ("type", "value"):
            wanted = np.dtype(data.draw(st.sampled_from(TYPES))) if kind == "type" else tensors[key].dtype
            value = data.draw(st.sampled_from([np.nan, np.inf, -1, 0, 3e38])) if kind == "value" else None
            wide = tensors[key] if value is None else np.full(tensors[key].shape, float(value))
            with np.errstate(invalid="ignore", over="ignore"):  # NaN as an integer is any integer
                tensors[key] = wide.astype(wanted)
        elif kind == "shape":
            tensors[key] = tensors[key].reshape(-1)[: data.draw(st.integers(0, 9))]
        else:
            name = data.draw(st.text(st.characters(codec="utf-8"), max_size=12) | st.just(key + ".x"))
            tensors[name] = tensors[key]
            if kind == "rename" and name != key:
                del tensors[key]
    counters = {**COUNTERS, **data.draw(st.dictionaries(st.sampled_from(sorted(COUNTERS)), anything, max_size=2))}
    text = data.draw(st.just(json.dumps(counters)) | anything.map(json.dumps) | st.text(max_size=8))
    try:
        rewrite(file, tensors, counters=text, bundle=data.draw(st.sampled_from(["h", "h", "h", "other"])))
    except (ValueError, KeyError, OverflowError):  # safetensors does not write such a file
        return
    if data.draw(st.booleans()):  # and on the disk
        content = bytearray(file.read_bytes())
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        file.write_bytes(content[: data.draw(st.integers(0, len(content)) | st.just(len(content)))])
    try:
        got = restore(file)
    except (StoreError, BundleError) as problem:
        assert str(problem)
    else:
        assert usable(got)


@pytest.mark.parametrize("key", ["schema_version", "bundle", "counters", "digest"])
def test_tensors_that_are_no_state(tmp_path: Path, key: str) -> None:
    """Any safetensors file may lie there: what is missing is named, and the state before it is taken."""
    file = tmp_path / "state"
    save(file, 1)
    save(file, 2)
    with safe_open(file, framework="numpy") as opened:
        metadata = {k: v for k, v in opened.metadata().items() if k != key}
    file.unlink()
    save_file({"x": np.zeros(1)}, file, metadata)
    assert restore(file).steps == 1
    (tmp_path / "state.previous").unlink()
    with pytest.raises(StoreError, match=f"its metadata has no '{key}'"):
        restore(file)


def test_a_state_of_modules_that_are_gone_or_others(tmp_path: Path) -> None:
    """It is refused and says of whom: what was learned belongs to the tensors that learned it."""
    file = tmp_path / "state"
    save(file, 1)
    gone: Any = SimpleNamespace(bundle=NETWORK.bundle, modules=Modules(other=SimpleNamespace(digest="d")))
    with pytest.raises(StoreError, match="it has learned for module 'm', which is not loaded; add it first"):
        persistence.restore(file, State(SELECTOR), gone)
    persistence.save(file, replace(state(2), digests={"m": "e"}), "h")
    with pytest.raises(StoreError, match="for another module 'm' than the one that is loaded"):
        restore(file)


def test_where_nothing_was_saved(tmp_path: Path) -> None:
    """`saved` is what whoever would start fresh asks; a link that leads nowhere is not nothing."""
    file = tmp_path / "state"
    newest, previous = persistence.generations(file)
    assert (newest.name, previous.name) == ("state", "state.previous") and not persistence.saved(file)
    previous.symlink_to(tmp_path / "nowhere")
    assert persistence.saved(file)
    with pytest.raises(StoreError, match="no whole state to restore"):
        restore(file)
