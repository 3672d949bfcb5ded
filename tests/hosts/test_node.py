"""The hosts on Node: golden vectors, the digits bundle, states that both sides read, and what is built."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pluto_edge import Runtime
from pluto_edge.config import AdaptConfig
from pluto_edge.observe.site import ORT_VERSION, SCRIPTS
from tests.hosts.conftest import DIGITS, HOSTS, ROOT, node


def test_types(hosts: Path) -> None:
    node(hosts, "node_modules/typescript/bin/tsc")


def test_golden_vectors_and_what_is_refused(hosts: Path) -> None:
    said = node(hosts, "--test", "build/golden.test.mjs", "build/runtime.test.mjs").stdout
    assert "# fail 0" in said and "# skipped 0" in said
    cases = json.loads((HOSTS / "golden/cases.json").read_text())["cases"]
    assert all(f"{case['name']} equals Python's runtime" in said for case in cases)


def test_a_wrong_number_is_noticed(hosts: Path, tmp_path: Path) -> None:
    """The check itself: one probability of one case is changed, and that case fails."""
    shutil.copytree(HOSTS / "golden", tmp_path / "golden")
    file = tmp_path / "golden/cases/vpt-fp32-default.safetensors"
    from safetensors.numpy import load_file, save_file

    tensors = load_file(file)
    tensors["during.probabilities"][100, 3] += 1e-3
    save_file(tensors, file)
    command = ["node", "--test", "build/golden.test.mjs"]
    environment = {**os.environ, "PLUTO_GOLDEN": str(tmp_path / "golden")}
    done = subprocess.run(command, cwd=hosts, capture_output=True, text=True, env=environment)
    assert done.returncode == 1 and "# fail 1" in done.stdout
    assert "during.probabilities: differs by 1.0e-3" in done.stdout


def digits(counts: dict[str, int], seed: int = 2) -> np.ndarray:
    """Meter digits through these conditions, one after the other."""
    import meter

    rng = np.random.default_rng(seed)
    known = {**meter.CONDITIONS, **meter.UNSEEN}
    return np.stack(
        [known[c](meter.render(rng, int(d), ()), rng) for c, n in counts.items() for d in rng.integers(0, 10, n)]
    )


@pytest.fixture
def meters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(DIGITS), *sys.path])


def test_the_digits_bundle(hosts: Path, golden: Any, meters: None, tmp_path: Path) -> None:
    """A trained bundle as it ships, ten steps through two conditions that it knows and one that it does not."""
    shutil.copytree(DIGITS / "bundle", tmp_path / "bundles/digits")
    frames = digits({"clear": 64, "fog": 48, "glare": 48})
    shipped = Runtime(DIGITS / "bundle").config
    cases = [
        golden.Case("shipped", "digits", shipped),
        golden.Case("paper", "digits", AdaptConfig.paper()),
        golden.Case("moving", "digits", replace(shipped, objective="both", continuity=False)),
        golden.Case("stream", "digits", shipped, "stream"),
    ]
    golden.write_cases(tmp_path, cases, tmp_path / "bundles", frames)
    learned = {c["name"]: c["events"] for c in json.loads((tmp_path / "cases.json").read_text())["cases"]}
    assert {"clear", "fog", "generalist"} <= {e["top"] for e in learned["shipped"]}
    node(hosts, "--test", "build/golden.test.mjs", env={**os.environ, "PLUTO_GOLDEN": str(tmp_path)})


def test_a_state_goes_from_node_to_python_and_back(hosts: Path, meters: None, tmp_path: Path) -> None:
    """The command reads frames, learns and saves; Python goes on from that, and the command from Python's."""
    state = tmp_path / "state.safetensors"
    frames = digits({"glare": 64})
    command = ["build/cli.mjs", str(DIGITS / "bundle"), "--size", "32x32", "--batch", "32", "--state", str(state)]

    def stream(pictures: np.ndarray, *more: str) -> list[dict[str, Any]]:
        done = subprocess.run(["node", *command, *more], cwd=hosts, input=pictures.tobytes(), capture_output=True)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    lines = stream(frames)
    assert [line["frame"] for line in lines] == list(range(1, 65))
    assert lines[-1]["steps"] == 2 and sum(lines[-1]["weights"].values()) == pytest.approx(1)
    with Runtime(DIGITS / "bundle", threads=1) as runtime:
        runtime.restore(state)
        assert runtime.learner.state.steps == 2 and runtime.learner.state.prototypes.modules
        runtime.step(frames[:32])
        runtime.save(state)
    assert stream(frames[:1], "--still")[0]["steps"] == 3


def test_the_command_says_what_is_wrong(hosts: Path, tmp_path: Path) -> None:
    for arguments, given, message in (
        ([], b"", "usage: node cli.mjs"),
        ([str(DIGITS / "bundle")], b"", "usage: node cli.mjs"),
        ([str(tmp_path), "--size", "2x2"], b"", "is this a bundle of pluto export?"),
        ([str(DIGITS / "bundle"), "--size", "2x2"], b"12345", "stdin ended within a frame: 5 of 12 bytes"),
    ):
        done = subprocess.run(["node", "build/cli.mjs", *arguments], cwd=hosts, input=given, capture_output=True)
        assert done.returncode == 2 and message in done.stderr.decode()


def test_what_is_shipped_is_built_from_the_sources(hosts: Path, tmp_path: Path) -> None:
    node(hosts, "build.mjs", "--page", str(tmp_path))
    for script in SCRIPTS:
        same = (tmp_path / script).read_bytes() == (ROOT / "observe" / script).read_bytes()
        assert same, f"observe/{script} is out of date: run npm run build in hosts/"


def test_versions_are_pinned_in_one_place_each() -> None:
    package = json.loads((HOSTS / "package.json").read_text())
    assert package["dependencies"]["onnxruntime-web"] == ORT_VERSION == package["dependencies"]["onnxruntime-node"]
    lock = json.loads((HOSTS / "package-lock.json").read_text())
    assert lock["packages"]["node_modules/onnxruntime-web"]["version"] == ORT_VERSION
    assert not [name for name, entry in lock["packages"].items() if "resolved" in entry]
