"""The Python files of a checkout as modules, and what they import: read, never imported."""

import ast
import io
import os
import subprocess
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parent.parent
NOT_SHIPPED = {"attacks", "benchmarks", "build", "deploy", "docs", "examples", "hosts", "tests"}


def imports(file: Path, *, at_once: bool = False) -> set[str]:
    """Every name that a file imports, or only those that it imports as soon as it is imported itself."""
    found = set()
    waiting: list[ast.AST] = [ast.parse(file.read_text())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        if at_once and isinstance(node, ast.FunctionDef):
            continue
        if at_once and isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        waiting += ast.iter_child_nodes(node)
    return found


def below(folder: Path) -> list[Path]:
    """Every Python file of a folder and of the folders in it; links are not followed."""
    found = [Path(at, name) for at, _, names in os.walk(folder) for name in names]
    return sorted(file for file in found if file.suffix == ".py")


@dataclass(frozen=True)
class SourceTree:
    """A checkout: the files that ship, by the names under which they are imported."""

    root: Path

    @cached_property
    def setuptools(self) -> dict[str, dict[str, str]]:
        """What pyproject.toml tells setuptools: `packages`, and `package-dir` from name to folder."""
        return tomllib.loads((self.root / "pyproject.toml").read_text())["tool"]["setuptools"]

    @cached_property
    def shipped(self) -> list[Path]:
        """Every Python file that belongs into the wheel."""
        folders = [
            f for f in self.root.iterdir() if f.is_dir() and not f.is_symlink() and f.name not in NOT_SHIPPED
        ]
        return [file for f in sorted(folders) if not f.name.startswith(".") for file in below(f)]

    @cached_property
    def files(self) -> dict[str, Path]:
        """Module to file."""
        return {self.module_name(file): file for file in self.shipped}

    def module_name(self, file: Path) -> str:
        """As it is imported."""
        folder = file.parent.relative_to(self.root).as_posix()
        package = next((n for n, f in self.setuptools["package-dir"].items() if f == folder), folder)
        return package if file.stem == "__init__" else f"{package}.{file.stem}"

    def own(self, module: str, *, at_once: bool = False) -> set[str]:
        """The modules of ours that a module imports."""
        return {name for name in imports(self.files[module], at_once=at_once) if name in self.files} - {module}


@contextmanager
def at_commit(commit: str) -> Iterator[SourceTree]:
    """The tree as it was at a commit, in a folder that is gone afterwards."""
    packed = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(folder, filter="data")
        yield SourceTree(Path(folder))
