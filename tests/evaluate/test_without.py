"""From folders to a verdict with the real commands: train, then evaluate on a domain as if it had never been."""

import json
import shutil
from pathlib import Path

import pytest

from pluto_edge.cli import main
from pluto_edge.manifest import Bundle
from tests.shapes import ARCHITECTURE, SIZE, write_domain


@pytest.fixture(scope="module")
def made(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`photos` of three domains and the `store` that was trained on them."""
    place = tmp_path_factory.mktemp("without")
    for name in ("dawn", "noon", "night"):
        write_domain(place / "photos", name)
    where = ["--data", str(place / "photos"), "--out", str(place / "store")]
    backbone = ["--backbone", ARCHITECTURE, "--weights", str(weights), "--image-size", str(SIZE)]
    recipe = ["--epochs", "1", "--batch", "8", "--per-class", "5", "--quiet"]
    assert main(["train", *where, *backbone, *recipe]) == 0
    return place


@pytest.fixture
def photos(made: Path) -> Path:
    """Tests only read them."""
    return made / "photos"


@pytest.fixture
def trained(made: Path, tmp_path: Path) -> Path:
    """A copy of its own for every test, with what the training kept."""
    return shutil.copytree(made / "store", tmp_path / "store")


def evaluate(trained: Path, photos: Path, out: Path, *more: str) -> int:
    methods = ["single", "neo", "foa", "pluto", "pluto-joint", "pluto-paper"]
    fixed = ["--store", str(trained), "--data", str(photos), "--out", str(out), "--per-class", "5", "--epochs", "1"]
    chosen = [a for m in methods for a in ("--method", m)]
    return main(["eval", *fixed, "--seeds", "2", "--batch", "16", "--threads", "1", *chosen, *more])


def test_a_domain_left_out(trained: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert evaluate(trained, photos, out, "--leave-out", "night") == 0
    text = capsys.readouterr().out
    assert text.startswith("pluto ")
    facts = json.loads((out / "results.json").read_text())
    rows = {(r["method"], r["part"]) for r in facts["rows"]}
    assert {("single", "joint"), ("neo", "joint"), ("foa", "joint"), ("pluto", "blend")} <= rows
    assert {r["rival"] for r in facts["against"]} >= {"joint", "joint neo", "joint foa", "uniform average"}
    manifest = Bundle(out / "without-night" / "bundle").manifest
    assert manifest.names == ("dawn", "noon", "generalist")
    assert manifest.specialists == ("dawn", "noon")
    made = (out / "without-night" / "bundle" / "manifest.json").stat().st_mtime_ns
    assert evaluate(trained, photos, out, "--leave-out", "night", "--quiet") == 0
    assert (out / "without-night" / "bundle" / "manifest.json").stat().st_mtime_ns == made, "made once"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--leave-out", "dusk"], "has no module 'dusk'; there are: dawn, night, noon"),
        (["--leave-out", "night", "--target", "noon"], "it is the target"),
    ],
)
def test_what_cannot_be_left_out(
    trained: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], message: str
) -> None:
    assert evaluate(trained, photos, tmp_path / "out", *more) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out" / "without-dusk").exists()


def test_leaving_out_needs_the_store(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "--leave-out", "dawn", "--data", str(photos), "--out", str(tmp_path / "o")]) == 2
    assert "--store" in capsys.readouterr().err
