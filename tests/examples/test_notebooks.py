"""The notebooks run from top to bottom, as somebody who opens them would run them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


def cells(notebook: Path) -> list[dict[str, object]]:
    return list(json.loads(notebook.read_text())["cells"])


def test_there_are_two() -> None:
    assert [n.name for n in NOTEBOOKS] == ["a_stream.ipynb", "first_predictions.ipynb"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda n: n.stem)
def test_it_runs(notebook: Path) -> None:
    code = "\n".join("".join(c["source"]) + "\n" for c in cells(notebook) if c["cell_type"] == "code")
    done = subprocess.run([sys.executable, "-"], input=code, cwd=EXAMPLES, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "%" in done.stdout


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda n: n.stem)
def test_it_is_kept_without_output(notebook: Path) -> None:
    for cell in cells(notebook):
        assert cell["id"] and not cell.get("outputs") and cell.get("execution_count") is None
