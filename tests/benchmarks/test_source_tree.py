"""source_tree.py, import_graph.py and code_metrics.py on a tree that is small enough to count by hand."""

import re
from pathlib import Path

import code_metrics
import import_graph
import pytest
from source_tree import SourceTree

PYPROJECT = """
[tool.setuptools]
packages = ["pluto_edge", "pluto_edge.runtime", "pluto_edge.train"]
[tool.setuptools.package-dir]
pluto_edge = "pluto_edge"
"pluto_edge.runtime" = "runtime"
"pluto_edge.train" = "train"
"""

ERRORS = '''"""Errors."""


class PlutoError(Exception):
    """The base."""
'''

RUNTIME = '''from pluto_edge import errors
from pluto_edge.runtime.types import Array


def predict(x):
    low, high = 0, 1
    first, second = x
    return low, high, first, second


class Runtime:
    """Predicts."""

    def __init__(self):
        self.network, self._learner = None, None

    def step(self): ...

    def _hidden(self): ...
'''

TEST = """def test_it(runtime, self):
    assert runtime._learner.affines and self._own and runtime.__class__ and f()._private
"""


@pytest.fixture
def tree(tmp_path: Path) -> SourceTree:
    files = {
        "pyproject.toml": PYPROJECT,
        "pluto_edge/__init__.py": "",
        "pluto_edge/errors.py": ERRORS,
        "runtime/__init__.py": "",
        "runtime/runtime.py": RUNTIME,
        "runtime/types.py": "Array = list[float]\nMAX = 3\n",
        "train/__init__.py": "",
        "train/trainer.py": "def run():\n    from pluto_edge.runtime.runtime import Runtime\n\n\nArray = tuple\n",
        "tests/test_it.py": TEST,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "pluto_edge" / "runtime").symlink_to("../runtime")
    return SourceTree(tmp_path)


def test_modules_and_their_imports(tree: SourceTree) -> None:
    assert set(tree.files) == {
        "pluto_edge",
        "pluto_edge.errors",
        "pluto_edge.runtime",
        "pluto_edge.runtime.runtime",
        "pluto_edge.runtime.types",
        "pluto_edge.train",
        "pluto_edge.train.trainer",
    }
    assert tree.own("pluto_edge.runtime.runtime") == {"pluto_edge", "pluto_edge.errors", "pluto_edge.runtime.types"}
    assert tree.own("pluto_edge.train.trainer") == {"pluto_edge.runtime.runtime"}
    assert tree.own("pluto_edge.train.trainer", at_once=True) == set()


def test_metrics(tree: SourceTree) -> None:
    assert code_metrics.measure(tree, {}) == code_metrics.Metrics(
        modules=7,
        lines=5 + 19 + 2 + 5,
        functions=5,  # predict, __init__, step, _hidden; run
        median=2,
        p90=pytest.approx(3.2),
        longest=4,
        long_files=0,
        private_reads=2,
        callables=5,  # PlutoError, predict, Runtime, step, run
        undocumented=3,  # predict, step, run
        packed=2,
        upward=1,
        repeated_types=1,
    )


def test_the_table_replaces_the_one_in_the_page(
    tree: SourceTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{code_metrics.START}\nan old table\n{code_metrics.END}\nafter\n")
    monkeypatch.setattr(code_metrics, "PAGE", page)
    metrics = code_metrics.measure(tree, {})
    for _ in range(2):
        code_metrics.write(code_metrics.table(metrics, metrics))
        text = page.read_text()
        assert text.startswith(f"before\n{code_metrics.START}\n| |") and text.endswith(
            f"{code_metrics.END}\nafter\n"
        )
        assert "an old table" not in text and text.count("| modules | 7 | 7 |") == 1


def test_arcs_go_down_or_up(tree: SourceTree) -> None:
    """`train` is the lower layer: its import of `runtime` is red. What is shared has no arc."""
    parts = import_graph.members(tree, {})
    assert parts["runtime"] == ["pluto_edge.runtime.runtime"] and parts["shared"] == ["pluto_edge.errors"]
    arcs = import_graph.edges(tree, parts)
    assert arcs == [("runtime", "runtime: types"), ("train", "runtime")]
    assert [import_graph.goes_up(arc) for arc in arcs] == [False, True]
    picture = import_graph.draw(tree, "A & B", {})
    red = re.findall(r'stroke="#d62728"><title>(.*?)</title>', picture)
    assert red == ["train imports runtime"]
    assert "A &amp; B" in picture and picture == import_graph.draw(tree, "A & B", {})


def test_a_module_may_stand_where_another_tree_has_it(tree: SourceTree) -> None:
    parts = import_graph.members(tree, {"pluto_edge.runtime.runtime": "cli"})
    assert parts["cli"] == ["pluto_edge.runtime.runtime"] and parts["runtime"] == []


def test_a_folder_without_a_box_is_an_error(tree: SourceTree) -> None:
    (tree.root / "fleet").mkdir()
    (tree.root / "fleet" / "news.py").write_text("")
    with pytest.raises(ValueError, match=r"fleet\.news is in no part of the picture: add its folder to PARTS"):
        import_graph.members(SourceTree(tree.root), {})
