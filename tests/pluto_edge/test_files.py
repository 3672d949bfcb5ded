"""Writes are whole: at whatever call a disk fails or a process dies, the old or the new is there, and readable."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from pluto_edge._files import (
    found,
    read_tensors,
    recover,
    whole_file,
    whole_folder,
    write_bytes,
    write_tensors,
    write_text,
)
from pluto_edge.cli import main
from pluto_edge.errors import StoreError
from pluto_edge.manifest import MANIFEST, Bundle
from pluto_edge.modules import Module
from pluto_edge.store import Store
from tests.faults import Faults, Killed, every_fault, faulty, hidden

EXCHANGE = pytest.mark.parametrize("exchange", [True, False], ids=["exchange", "two renames"])


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is such a place: hundreds of bundles come and go."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as place:
        yield Path(place)


def clear(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def test_tensors(tmp_path: Path) -> None:
    file = tmp_path / "x/t.safetensors"
    old, new = np.zeros(3, np.float32), np.ones(3, np.float32)

    def prepare() -> None:
        clear(file.parent)
        write_tensors(file, {"t": old})

    def check() -> None:
        found = read_tensors(file, StoreError)["t"]
        assert (found == old).all() or (found == new).all()

    assert every_fault(prepare, lambda: write_tensors(file, {"t": new}), check) >= 5
    assert (read_tensors(file, StoreError)["t"] == new).all()


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "x/text"

    def prepare() -> None:
        clear(file.parent)
        write_text(file, "old")

    def act() -> None:
        with whole_file(file) as out:
            out.write(b"ne")
            out.write(b"w")

    every_fault(prepare, act, lambda: {"old": 0, "new": 1}[file.read_text()])
    assert file.read_text() == "new"


@EXCHANGE
def test_folders(tmp_path: Path, exchange: bool) -> None:
    place = tmp_path / "x"
    target = place / "folder"

    def prepare() -> None:
        clear(place)
        target.mkdir()
        for name in ("a", "b"):
            (target / name).write_text("old")

    def act() -> None:
        with whole_folder(target) as folder:
            for name in ("a", "b"):
                write_text(folder / name, "new")

    def check() -> None:
        found(target)
        assert sorted(p.name for p in target.iterdir()) == ["a", "b"]
        assert (target / "a").read_text() == (target / "b").read_text()

    every_fault(prepare, act, check, exchange)
    assert (target / "a").read_text() == "new"
    assert hidden(place) == []


@EXCHANGE
def test_a_first_folder(tmp_path: Path, exchange: bool) -> None:
    """Where there was nothing, there is nothing or all of it."""
    target = tmp_path / "x/folder"

    def act() -> None:
        with whole_folder(target) as folder:
            write_text(folder / "a", "new")
            write_text(folder / "b", "new")

    def check() -> None:
        if target.exists():
            assert sorted(p.name for p in target.iterdir()) == ["a", "b"]

    every_fault(lambda: clear(target.parent), act, check, exchange)
    assert target.exists() and hidden(target.parent) == []


@EXCHANGE
def test_modules(make_store: Callable[..., Store], in_memory: Path, exchange: bool) -> None:
    place = in_memory / "store"

    def prepare() -> None:
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(make_store().path, place)

    prepare()
    store = Store(place)
    module, config = store.load_module("domain-0"), store.module_config("domain-0")
    other = Module(module.name, module.dims, {**module.tensors, "head_bias": module.tensors["head_bias"] + 1})

    def check() -> None:
        bias = Store(place).load_module("domain-0").tensors["head_bias"]
        assert any((bias == m.tensors["head_bias"]).all() for m in (module, other))

    every_fault(prepare, lambda: store.write_module(other, config), check, exchange)
    assert (Store(place).load_module("domain-0").tensors["head_bias"] == other.tensors["head_bias"]).all()
    assert hidden(place) == []


@EXCHANGE
def test_bundles(make_bundle: Callable[..., Path], in_memory: Path, exchange: bool) -> None:
    """`run_export` over an old bundle; what it computes is taken from bundles that are there."""
    out, made = in_memory / "place/bundle", {n: make_bundle("vpt", n) for n in (1, 3)}
    contents = {p.relative_to(made[3]): p.read_bytes() for p in made[3].rglob("*") if p.is_file()}

    def prepare() -> None:
        clear(out.parent)
        shutil.copytree(made[1], out)

    def act() -> None:
        assert (found(out) / MANIFEST).is_file()  # what `run_export` looks for before it replaces a folder
        with whole_folder(out) as folder:
            (folder / "modules").mkdir()
            for name, data in contents.items():
                write_bytes(folder / name, data)

    every_fault(prepare, act, lambda: Bundle(out, verify=False).load_module("domain-0"), exchange)
    assert len(Bundle(out).manifest.names) == 3
    assert hidden(out.parent) == []


def killed_between_renames(target: Path) -> None:
    """What a run leaves that was killed after it had moved the old folder away."""
    with (
        pytest.raises(Killed),
        faulty(Faults(), exchange=False) as faults,
        pytest.MonkeyPatch.context() as patch,
        whole_folder(target) as folder,
    ):
        shutil.copytree(target, folder, dirs_exist_ok=True)
        real = Path.rename

        def rename(self: Path, to: Path) -> Path:
            if self == folder:
                faults.dead = True
            return real(self, to)

        patch.setattr(Path, "rename", rename)
    assert not target.exists() and len(hidden(target.parent)) >= 2


def test_readers_recover(
    make_bundle: Callable[..., Path],
    make_store: Callable[..., Store],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bundle, store = tmp_path / "a/bundle", tmp_path / "b/store"
    shutil.copytree(make_bundle(), bundle)
    shutil.copytree(make_store().path, store)
    for folder, read in (
        (bundle, lambda: Bundle(bundle)),
        (bundle, lambda: main(["info", str(bundle)]) and pytest.fail("info")),
        (store, lambda: Store(store)),
        (store / "modules/domain-0", lambda: Store(store).load_module("domain-0")),
    ):
        killed_between_renames(folder)
        read()
    assert "checksums right" in capsys.readouterr().out


def test_a_failing_second_run_keeps_what_the_killed_one_left(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    target.mkdir()
    (target / "a").write_text("old")
    killed_between_renames(target)
    with pytest.raises(RuntimeError), whole_folder(target):
        raise RuntimeError("the second export fails")
    assert (target / "a").read_text() == "old"


def test_what_an_earlier_version_left_is_recovered(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    for name, text in (("folder.partial-abcdefgh", "new"), ("folder.partial-abcdefgh-old", "old")):
        (tmp_path / f".{name}").mkdir()
        (tmp_path / f".{name}" / "a").write_text(text)
    recover(target)
    assert (target / "a").read_text() == "new"


def test_links_are_not_recovered_and_neighbours_are_not_swept(tmp_path: Path) -> None:
    """A store from anywhere must not make a reader follow a link out of it."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / ".folder.partial-abcdefgh-old").symlink_to(tmp_path / "elsewhere")
    recover(tmp_path / "folder")
    assert not (tmp_path / "folder").exists()
    neighbour = tmp_path / ".folder.partial-abcdefgh.partial-abcdefgh"  # of a target with such a name
    neighbour.mkdir()
    with whole_folder(tmp_path / "folder"):
        pass
    assert neighbour.exists() and (tmp_path / "elsewhere").exists()
