"""What was learned outlives kills, full disks, damaged files, newer versions and savers that meet."""

import logging
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from faults import every_fault
from safetensors import safe_open
from safetensors.numpy import save_file

from pluto_edge import Runtime
from pluto_edge.cli import main
from pluto_edge.errors import StoreError
from pluto_edge.modules import Dims, SelectorWeights
from pluto_edge.runtime import persistence
from pluto_edge.runtime.state import Affines, State

DIMS = Dims("vpt", 4, 48, 3, 7)
SELECTOR = SelectorWeights.random(width=48, classes=7, hidden_x=8, hidden_l=8, out=8)
NETWORK: Any = SimpleNamespace(
    bundle=SimpleNamespace(hash="h", manifest=SimpleNamespace(dims=DIMS)), modules={"m": None}
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
    if "digest" not in metadata:
        new["digest"] = persistence._digest(arrays)
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
from test_persistence import save
for n in range(30):
    save(Path(sys.argv[1]), n)
"""


def test_processes_that_meet(tmp_path: Path) -> None:
    here = Path(__file__).parent
    command = [sys.executable, "-c", SAVER, str(tmp_path / "state"), str(here), str(here.parent)]
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
    assert runtime._learner.state.steps == 2
