"""Writes are whole: at whatever call a disk fails or a process dies, the old or the new is there, and readable."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pluto_edge._files import (
    alone_in,
    check_name,
    found,
    give_name,
    inside,
    read_tensors,
    recover,
    sha256,
    sweep,
    whole_file,
    whole_folder,
    write_tensors,
    write_text,
)
from pluto_edge.cli import main
from pluto_edge.errors import StoreError
from pluto_edge.manifest import MANIFEST, Bundle
from pluto_edge.modules import Module
from pluto_edge.store import Store
from tests.bundles import contents, write_over
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
    files = contents(made[3])

    def prepare() -> None:
        clear(out.parent)
        shutil.copytree(made[1], out)

    def act() -> None:
        assert (found(out) / MANIFEST).is_file()  # what `run_export` looks for before it replaces a folder
        write_over(out, files)

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


# names, hashes and tensors


@pytest.mark.parametrize("name", ["fog", "fog-3", "a.b_c", "9", "x" * 100])
def test_safe_names(name: str) -> None:
    assert check_name(name, "module", StoreError) == name


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".hidden", "-x", "a/b", "a\\b", "a..b", "a b", "ä", "a\n", "x" * 101]
)
def test_unsafe_names(name: str) -> None:
    with pytest.raises(StoreError, match=r"module: .* is not a safe name"):
        check_name(name, "module", StoreError)


@pytest.mark.parametrize("relative", ["a", "a/b.txt", "a/./b", "missing/too"])
def test_paths_inside(tmp_path: Path, relative: str) -> None:
    assert inside(tmp_path, relative, StoreError) == tmp_path / relative


@pytest.mark.parametrize(
    ("relative", "message"),
    [
        ("", "not a path inside"),
        ("/etc/passwd", "not a path inside"),
        ("../x", "not a path inside"),
        ("a/../../x", "not a path inside"),
        ("a\\b", "not a path inside"),
        ("a\0b", "not a path inside"),
        ("x" * 300, "cannot be the path of a file"),
        ("half \ud800", "cannot be the path of a file"),
        ("circle/x", "cannot be the path of a file|leads outside"),
        ("away/x", "leads outside"),
    ],
)
def test_paths_that_are_not_inside(tmp_path: Path, relative: str, message: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "away").symlink_to(tmp_path)
    (root / "circle").symlink_to("circle")
    with pytest.raises(StoreError, match=message):
        inside(root, relative, StoreError)


def test_a_link_that_stays_inside_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert inside(tmp_path, "link/x", StoreError) == tmp_path / "link/x"


def test_a_hash_is_of_the_contents(tmp_path: Path) -> None:
    data = bytes(range(256)) * 5000
    (tmp_path / "a").write_bytes(data)
    assert sha256(tmp_path / "a") == hashlib.sha256(data).hexdigest()


def test_half_precision_is_kept_on_disk_and_widened_on_reading(tmp_path: Path) -> None:
    """Whatever the memory layout and the type that was given."""
    file = tmp_path / "t.safetensors"
    given = {
        "half": np.arange(6, dtype=np.float16),
        "double": np.arange(6, dtype=np.float64) / 3,
        "turned": np.arange(6, dtype=np.float32).reshape(2, 3).T,
    }
    write_tensors(file, given)
    assert {k: v.dtype.name for k, v in load_file(file).items()} == {
        "half": "float16",
        "double": "float32",
        "turned": "float32",
    }
    found = read_tensors(file, StoreError)
    assert {v.dtype for v in found.values()} == {np.dtype(np.float32)}
    for name, value in given.items():
        np.testing.assert_array_equal(found[name], value.astype(np.float32))


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"t": np.arange(3)}, "t: want float32 or float16, got int64"),
        ({"t": np.ones(3)}, "t: want float32 or float16, got float64"),
        ({"t": np.array([1, np.nan], np.float32)}, "t: holds NaN or infinity"),
        ({"t": np.array([1, np.inf], np.float16)}, "t: holds NaN or infinity"),
    ],
)
def test_tensors_that_are_refused(tmp_path: Path, tensors: dict[str, np.ndarray], message: str) -> None:
    save_file(tensors, tmp_path / "t.safetensors")
    with pytest.raises(StoreError, match=rf"t\.safetensors: {message}"):
        read_tensors(tmp_path / "t.safetensors", StoreError)


def test_files_that_hold_no_tensors(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="the file is missing"):
        read_tensors(tmp_path / "t", StoreError)
    for data in (b"", b"rubbish", b"\xff" * 64):
        (tmp_path / "t").write_bytes(data)
        with pytest.raises(StoreError, match="not a whole safetensors file"):
            read_tensors(tmp_path / "t", StoreError)


# what a write leaves


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
@pytest.mark.parametrize(("mask", "file", "folder"), [(0o022, 0o644, 0o755), (0o077, 0o600, 0o700)])
def test_modes_follow_the_umask(tmp_path: Path, mask: int, file: int, folder: int) -> None:
    """Temporary files and folders are private; what takes their names is as any other."""
    before = os.umask(mask)
    try:
        write_text(tmp_path / "file", "x")
        with whole_folder(tmp_path / "folder"):
            pass
        assert os.umask(mask) == mask
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == file
    assert (tmp_path / "folder").stat().st_mode & 0o777 == folder


def test_a_block_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    write_text(tmp_path / "file", "old")
    with pytest.raises(RuntimeError), whole_file(tmp_path / "file") as out:
        out.write(b"new")
        raise RuntimeError("the writer fails")
    assert (tmp_path / "file").read_text() == "old" and hidden(tmp_path) == []
    with pytest.raises(RuntimeError), whole_folder(tmp_path / "folder") as folder:
        write_text(folder / "a", "new")
        raise RuntimeError("the writer fails")
    assert not (tmp_path / "folder").exists() and hidden(tmp_path) == []


def test_a_full_disk_names_the_file(tmp_path: Path) -> None:
    """The system's own error names none, or a temporary one."""
    with pytest.raises(OSError, match="No space left") as caught, faulty(Faults(2), exchange=False):
        write_text(tmp_path / "file", "x")
    assert caught.value.filename == str(tmp_path / "file") and hidden(tmp_path) == []


def test_folders_above_a_folder_are_made(tmp_path: Path) -> None:
    with whole_folder(tmp_path / "a/b/c") as folder:
        write_text(folder / "x", "here")
    assert (tmp_path / "a/b/c/x").read_text() == "here"


@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
def test_a_second_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool) -> None:
    """Where a file system has no links, the file is moved; nothing temporary is left."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError("no links here")

    if not links:
        monkeypatch.setattr(os, "link", refuse)
    one, other = tmp_path / "one", tmp_path / "other"
    write_text(one, "new")
    write_text(other, "old")
    give_name(one, other)
    assert other.read_text() == "new" and one.exists() == links
    give_name(one, other)  # once more: both are one file, or the first is gone already
    assert other.read_text() == "new" and hidden(tmp_path) == []


def test_only_temporary_files_of_this_name_are_swept(tmp_path: Path) -> None:
    stale = [tmp_path / f".state.{middle}.tmp" for middle in ("abcdefgh", "a_b0c1d2")]
    kept = [
        tmp_path / n
        for n in ("state", ".state.tmp", ".state.abc.tmp", ".other.abcdefgh.tmp", ".state.ABCDEFGH.tmp")
    ]
    for file in (*stale, *kept):
        file.write_text("x")
    sweep(tmp_path / "state")
    assert sorted(tmp_path.iterdir()) == sorted(kept)


# one after another


@pytest.mark.skipif(sys.platform == "win32", reason="no such locks")
def test_who_is_alone(tmp_path: Path) -> None:
    with alone_in(tmp_path) as first:
        assert first
        with alone_in(tmp_path, patience=0.0) as second:  # another handle, as another writer has
            assert not second
        with alone_in(tmp_path.parent) as elsewhere:
            assert elsewhere
    with alone_in(tmp_path, patience=0.0) as again:
        assert again


def test_nobody_is_alone_in_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with alone_in(tmp_path / "nowhere") as alone:
        assert not alone


@pytest.mark.skipif(sys.platform == "win32", reason="no such locks")
def test_a_process_that_dies_lets_go(tmp_path: Path) -> None:
    code = f"""
import os
from pathlib import Path
from pluto_edge._files import alone_in
with alone_in(Path({str(tmp_path)!r})) as alone:
    os._exit(7 if alone else 1)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 7
    with alone_in(tmp_path, patience=0.0) as alone:
        assert alone
