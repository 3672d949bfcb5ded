"""`pluto suggest` and `pluto harvest`, on the meter digits."""

import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

from pluto_edge import Runtime
from pluto_edge.cli import main
from pluto_edge.store import read_module_config
from tests.digits import BUNDLE, MODULES, draw

Capture = pytest.CaptureFixture[str]


def write(folder: Path, condition: str, count: int = 48) -> Path:
    folder.mkdir()
    for number, image in enumerate(draw(condition, count)[0]):
        Image.fromarray(image).save(folder / f"{number:03}.png")
    return folder


def test_suggest(tmp_path: Path, capsys: Capture) -> None:
    shutil.copytree(MODULES / "fog", tmp_path / "modules" / "mist")
    config = tmp_path / "modules" / "mist" / "adapter_config.json"
    config.write_text(config.read_text().replace('"fog"', '"mist"'))
    frames = write(tmp_path / "frames", "fog")
    command = ["suggest", str(BUNDLE), str(frames), "--modules", str(tmp_path / "modules"), "--threads", "1"]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "no other module is needed" in said and "mist" in said and "58.3 kB" in said
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert not found["needed"] and found["images"] == 48 and found["modules"][0]["name"] == "mist"
    assert found["modules"][0]["ahead"] == pytest.approx(0.0, abs=1.0)  # the bundle has the same module
    assert main([*command, "--limit", "0"]) == 2
    assert main([*command[:4], str(tmp_path / "nowhere")]) == 2
    assert "there is no such folder" in capsys.readouterr().err
    (tmp_path / "none").mkdir()
    assert main([*command[:4], str(tmp_path / "none")]) == 0
    assert "no module that fits this bundle is there" in capsys.readouterr().out


def test_harvest(tmp_path: Path, capsys: Capture) -> None:
    with Runtime(BUNDLE, threads=1) as runtime:
        runtime.step(draw("frost", 64)[0])
        runtime.save(tmp_path / "state")
        top = runtime.learner.state.top
    frames = write(tmp_path / "frames", "frost")
    out = tmp_path / "frost"
    command = ["harvest", str(BUNDLE), str(tmp_path / "state"), "--out", str(out), "--name", "frost"]
    command += ["--frames", str(frames), "--threads", "1"]
    assert main(command) == 0
    assert f"frost, learned on a device from {top}, 64 images" in capsys.readouterr().out
    assert read_module_config(out).name == "frost"
    assert main(command) == 2
    assert "--force" in capsys.readouterr().err
    assert main([*command, "--force", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["module"]["metrics"]["images"] == 64
    with Runtime(BUNDLE, threads=1) as other:
        assert other.add_module(out) == "frost"
    assert main([*command[:2], str(tmp_path / "nothing"), *command[3:], "--force"]) == 2
