"""`pluto stream --modules`: from an empty device to one that runs with modules that it found itself."""

import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

from pluto_edge.cli import main
from pluto_edge.observe.recording import read
from tests.digits import BUNDLE, MODULES, draw

Capture = pytest.CaptureFixture[str]
ELSEWHERE = ("fog", "low_light")


def without(out: Path, *gone: str) -> Path:
    """The bundle as if it had been exported without some modules."""
    shutil.copytree(BUNDLE, out)
    manifest = json.loads((out / "manifest.json").read_text())
    manifest["modules"] = [m for m in manifest["modules"] if m["name"] not in gone]
    for name in gone:
        (out / "modules" / f"{name}.safetensors").unlink()
        del manifest["files"][f"modules/{name}.safetensors"]
    (out / "manifest.json").write_text(json.dumps(manifest))
    return out


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a bundle that does not know fog, and with modules by themselves."""
    folder = tmp_path / "store"
    keys = ["--keys", str(tmp_path / "keys")]
    monkeypatch.setenv("PLUTO_ROOT", str(folder / "metadata" / "1.root.json"))
    monkeypatch.setenv("PLUTO_EDGE_CACHE", str(tmp_path / "cache"))
    assert main(["repo", "init", str(folder), *keys]) == 0
    bundle = without(tmp_path / "bundle", *ELSEWHERE)
    assert main(["repo", "add", str(folder), str(bundle), "--name", "meter", "--version", "1.0"]) == 0
    for name in ELSEWHERE:
        assert main(["repo", "add", str(folder), str(MODULES / name)]) == 0
    assert main(["repo", "publish", str(folder), *keys]) == 0
    return folder


@pytest.fixture
def frames(tmp_path: Path) -> Path:
    """Clear pictures, and then fog."""
    folder = tmp_path / "frames"
    folder.mkdir()
    for part, (condition, count) in enumerate((("clear", 64), ("fog", 256))):
        for number, image in enumerate(draw(condition, count)[0]):
            Image.fromarray(image).save(folder / f"{part}-{number:03}.png")
    return folder


def test_from_empty_to_adapted_in_one_command(store: Path, frames: Path, tmp_path: Path, capsys: Capture) -> None:
    state = tmp_path / "gate.safetensors"
    record = tmp_path / "run.jsonl"
    command = [
        "stream",
        f"{store.as_uri()}/meter@stable",
        str(frames),
        "--modules",
        store.as_uri(),
        "--threads",
        "1",
    ]
    assert main([*command, "--state", str(state), "--record", str(record)]) == 0
    said = capsys.readouterr().out
    assert "5 modules" in said and said.endswith("module fog  joined: it won its trial\n")
    run = read(record)
    assert "fog" not in run.header.modules and run.rows[-1].weights["fog"] > 0.5
    told = [e.reason for e in run.events if e.kind in ("trial", "module")]
    assert told[0].endswith("found: fog") and told[1] == "fog is on trial"
    assert told[-1] == "fog was added: it won its trial"
    assert json.loads((tmp_path / "gate.modules.json").read_text())["found"][0]["standing"] == "joined"
    # the next time, it is there from the first frame on
    again = tmp_path / "again.jsonl"
    assert main([*command, "--state", str(state), "--record", str(again), "--frames", "3"]) == 0
    assert "fog" in read(again).header.modules and "fog" in read(again).rows[0].weights


def test_a_repository_that_is_gone_costs_no_frame(
    store: Path, frames: Path, tmp_path: Path, capsys: Capture
) -> None:
    nowhere = (tmp_path / "nowhere").as_uri()
    command = [
        "stream",
        str(tmp_path / "bundle"),
        str(frames),
        "--modules",
        nowhere,
        "--threads",
        "1",
        "--batch",
        "16",
    ]
    assert main([*command, "--frames", "48", "--background", "--record", str(tmp_path / "run.jsonl")]) == 0
    assert main([*command, "--frames", "48", "--record", str(tmp_path / "inline.jsonl")]) == 0
    assert capsys.readouterr().out.endswith("no other module was found to fit\n")
    run = read(tmp_path / "inline.jsonl")
    told = [e.reason for e in run.events if e.kind == "trial"]
    assert len(run.rows) == 48 and len(told) == 1 and told[0].startswith("no module could be looked for: ")


def test_in_the_background(
    store: Path, frames: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pluto_edge.observe.session.PAUSE", 0.0)
    command = ["stream", str(tmp_path / "bundle"), str(frames), "--modules", str(MODULES), "--threads", "1"]
    assert main([*command, "--background", "--fps", "200"]) == 0
    assert "module fog " in capsys.readouterr().out
