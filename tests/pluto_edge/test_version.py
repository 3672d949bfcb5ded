"""The version without the standard library's slow way to it."""

from importlib.metadata import version
from pathlib import Path

import pytest

import pluto_edge
from pluto_edge.version import VERSION, WRITER, _installed


def test_it_is_the_installed_one() -> None:
    assert version("pluto-edge") == VERSION == pluto_edge.__version__
    assert f"pluto-edge {VERSION}" == WRITER


def test_the_first_on_the_path_counts_and_what_is_not_there_does_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("a/pluto_edge-2.0.dist-info", "b/pluto_edge-1.0.dist-info", "c/other-3.0.dist-info"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "file.zip").write_bytes(b"")
    monkeypatch.setattr("sys.path", [str(tmp_path / p) for p in ("none", "file.zip", "c", "a", "b")])
    assert _installed() == "2.0"
    monkeypatch.setattr("sys.path", [str(tmp_path / "c")])
    assert _installed() == "0+unknown"
