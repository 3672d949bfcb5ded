"""`pluto upgrade` says what can be carried over, and does it where it can."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from pluto_edge import Runtime
from pluto_edge.cli import main
from pluto_edge.runtime.persistence import SCHEMA_VERSION
from pluto_edge.store import Store
from tests.runtime.test_persistence import rewrite


def version(file: Path) -> str:
    with safe_open(file, framework="numpy") as opened:
        return str(opened.metadata()["schema_version"])


@pytest.fixture
def state(make_bundle: Callable[..., Path], frames: np.ndarray, tmp_path: Path) -> Path:
    """As an earlier version would have written it."""
    with Runtime(make_bundle(), threads=1) as runtime:
        runtime.step(frames)
        runtime.save(tmp_path / "state.safetensors")
    rewrite(tmp_path / "state.safetensors", schema_version="2")
    return tmp_path / "state.safetensors"


def test_a_state_is_written_anew(
    state: Path, make_bundle: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = str(make_bundle())
    before = state.read_bytes()
    assert main(["upgrade", str(state), "--bundle", bundle, "--check"]) == 1
    assert f"schema 2: can be written anew as schema {SCHEMA_VERSION}" in capsys.readouterr().out
    assert state.read_bytes() == before
    assert main(["upgrade", str(state), "--bundle", bundle]) == 0
    text = capsys.readouterr().out
    assert f"schema 2: was written anew as schema {SCHEMA_VERSION}" in text and "re-centring is passed over" in text
    assert version(state) == str(SCHEMA_VERSION)
    assert state.with_name("state.safetensors.previous").read_bytes() == before
    assert main(["upgrade", str(state), "--bundle", bundle]) == 0
    assert "nothing to do" in capsys.readouterr().out
    with Runtime(bundle, threads=1) as runtime:
        runtime.restore(state)


def test_a_state_needs_its_bundle(
    state: Path, make_bundle: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["upgrade", str(state)]) == 2
    assert "--bundle BUNDLE" in capsys.readouterr().err
    assert main(["upgrade", str(state), "--bundle", str(make_bundle("adapter"))]) == 2
    assert "saved with another bundle" in capsys.readouterr().err
    (tmp_path / "note.txt").write_text("not a state")
    assert main(["upgrade", str(tmp_path / "note.txt"), "--bundle", str(make_bundle())]) == 2
    assert "neither a folder nor a saved state" in capsys.readouterr().err


def test_an_older_bundle_is_exported_again(
    make_bundle: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["upgrade", str(make_bundle())]) == 0
    assert "nothing to do" in capsys.readouterr().out
    old = tmp_path / "bundle"
    shutil.copytree(make_bundle(), old)
    data = json.loads((old / "manifest.json").read_text())
    for number, code, said in ((1, 1, f"pluto export --modules STORE --out {old} --force"), (99, 2, "newer")):
        (old / "manifest.json").write_text(json.dumps({**data, "schema_version": number}))
        assert main(["upgrade", str(old)]) == code
        assert said in "".join(capsys.readouterr())


def test_a_store_says_which_modules_lack_a_signature(
    make_store: Callable[..., Store], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["upgrade", str(make_store().path)]) == 1
    text = capsys.readouterr().out
    assert "domain-0, domain-1, domain-2" in text and "pluto signatures" in text
    digits = Path(__file__).parent.parent.parent / "examples/digits/store"
    assert main(["upgrade", str(digits)]) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert main(["upgrade", str(tmp_path)]) == 2
    assert "neither a bundle" in capsys.readouterr().err
