"""What a release says of itself in several places is the same in all of them."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def test_the_version_is_the_same_everywhere() -> None:
    assert f"\nversion: {PROJECT['version']}\n" in (ROOT / "CITATION.cff").read_text()


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda w: w.stem)
def test_workflows_run_what_is_there(workflow: Path) -> None:
    text = workflow.read_text()
    for script in re.findall(r"python (\S+\.py)", text):
        assert (ROOT / script).is_file()
    for extras in re.findall(r'-e "\.\[([\w,]+)\]"', text):
        assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"])
    assert "permissions:\n  contents: read" in text


def test_every_extra_that_docs_name_exists() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for extras in re.findall(r"pluto-edge\[([\w,]+)\]", page.read_text()):
            assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"]), page


def test_pins_are_of_what_is_installed() -> None:
    """Everything that an extra names, but for what does not run here: every installation is the same."""
    pinned = {line.partition("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines()}
    needed = [*PROJECT["dependencies"], *(n for g in PROJECT["optional-dependencies"].values() for n in g)]
    names = {re.split(r"[\[<>=]", need)[0].lower() for need in needed}
    assert names - pinned <= {"onnxruntime-gpu", "onnxruntime-openvino", "setuptools"}
