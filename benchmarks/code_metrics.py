"""The table of docs/architecture.md: the code in numbers, with a flat runtime/ and as it is now.

    python benchmarks/code_metrics.py             # print the table
    python benchmarks/code_metrics.py --write     # and put it into docs/architecture.md, in place of the one there

What ships is counted, and for private reads the tests. Files are read, not imported; those of before come from git.
"""

import argparse
import ast
import re
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from import_graph import BEFORE, THEN, edges, goes_up, members
from source_tree import ROOT, SourceTree, at_commit, below

PAGE = ROOT / "docs" / "architecture.md"
START, END = "<!-- code_metrics: start -->", "<!-- code_metrics: end -->"
LONG_FILE = 300

Function = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Metrics:
    """Of one tree; a field is a row of the table, see `ROWS`."""

    modules: int
    lines: int
    functions: int
    median: float
    p90: float
    longest: int
    long_files: int
    private_reads: int
    callables: int
    undocumented: int
    packed: int
    upward: int
    repeated_types: int


ROWS = {
    "modules": "modules",
    "lines": "lines",
    "functions": "functions and methods",
    "median": "lines of a function, median",
    "p90": "lines of a function, 90th percentile",
    "longest": "lines of the longest function",
    "long_files": f"files above {LONG_FILE} lines",
    "private_reads": "private reads from tests (`x._y` where `x` is not `self` or `cls`)",
    "callables": "public classes, functions and methods",
    "undocumented": "of these without a docstring",
    "packed": "packed assignments (`a, b = x, y`)",
    "upward": "arcs that go up in the pictures",
    "repeated_types": "names of classes and types defined in more than one module",
}


def measure(tree: SourceTree, then: Mapping[str, str]) -> Metrics:
    """Everything that the table has, of one tree; `then` as for `import_graph.members`."""
    texts = [file.read_text() for file in tree.shipped]
    trees = [ast.parse(text) for text in texts]
    lengths = sorted(_length(n) for parsed in trees for n in ast.walk(parsed) if isinstance(n, FUNCTION))
    counts = [len(text.splitlines()) for text in texts]
    public = [node for parsed in trees for node in _public(parsed)]
    tests = [ast.parse(file.read_text()) for file in below(tree.root / "tests")]
    return Metrics(
        modules=len(trees),
        lines=sum(counts),
        functions=len(lengths),
        median=statistics.median(lengths),
        p90=statistics.quantiles(lengths, n=10, method="inclusive")[-1],
        longest=lengths[-1],
        long_files=sum(count > LONG_FILE for count in counts),
        private_reads=sum(_is_private_read(node) for parsed in tests for node in ast.walk(parsed)),
        callables=len(public),
        undocumented=sum(ast.get_docstring(node) is None for node in public),
        packed=sum(_is_packed(node) for parsed in trees for node in ast.walk(parsed)),
        upward=sum(goes_up(edge) for edge in edges(tree, members(tree, then))),
        repeated_types=_repeated(trees),
    )


def _length(node: Function) -> int:
    """From its first line, decorators not counted, to its last."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _public(node: ast.Module | ast.ClassDef) -> Iterator[Function | ast.ClassDef]:
    """Public classes and functions of a module, and the public methods of these classes."""
    for child in node.body:
        if isinstance(child, (*FUNCTION, ast.ClassDef)) and not child.name.startswith("_"):
            yield child
            if isinstance(child, ast.ClassDef):
                yield from _public(child)


def _is_private_read(node: ast.AST) -> bool:
    if not isinstance(node, ast.Attribute) or not re.match("_[^_]", node.attr):
        return False
    return not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))


def _is_packed(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Tuple)
        and isinstance(node.value, ast.Tuple)
        and not any(isinstance(part, ast.Starred) for part in node.value.elts)
    )


def _types(parsed: ast.Module) -> set[str]:
    """Classes, and names of types: `Array = NDArray[np.float32]`."""
    classes = {node.name for node in parsed.body if isinstance(node, ast.ClassDef)}
    targets = [node.targets[0] for node in parsed.body if isinstance(node, ast.Assign)]
    names = {target.id for target in targets if isinstance(target, ast.Name)}
    return classes | {name for name in names if re.fullmatch("[A-Z][A-Za-z]*[a-z][A-Za-z]*", name)}


def _repeated(trees: list[ast.Module]) -> int:
    counts = Counter(name for parsed in trees for name in _types(parsed))
    return sum(count > 1 for count in counts.values())


def table(before: Metrics, now: Metrics) -> str:
    """As Markdown."""
    lines = [f"| | before (`{BEFORE}`) | now |", "|---|---:|---:|"]
    for field, title in ROWS.items():
        lines.append(f"| {title} | {getattr(before, field):,g} | {getattr(now, field):,g} |")
    return "\n".join(lines) + "\n"


def write(text: str) -> None:
    """Put a table between the two marks of the page."""
    head, _, rest = PAGE.read_text().partition(START)
    PAGE.write_text(f"{head}{START}\n{text}{END}{rest.partition(END)[2]}")


def main() -> None:
    """Print the table, and write it where it belongs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="replace the table in docs/architecture.md")
    options = parser.parse_args()
    with at_commit(BEFORE) as tree:
        text = table(measure(tree, THEN), measure(SourceTree(ROOT), {}))
    print(text, end="")
    if options.write:
        write(text)


if __name__ == "__main__":
    main()
