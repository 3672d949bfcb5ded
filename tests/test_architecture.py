"""Who may import whom, what is public, and what the wheel holds."""

import ast
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import pluto_edge
from attacks import ATTACKS

ROOT = Path(__file__).parent.parent
HEAVY = {"torch", "timm", "torchvision", "onnx", "onnxscript", "onnx_ir"}
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
NOT_SHIPPED = {"attacks", "benchmarks", "build", "docs", "examples", "tests"}


def imports(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def below(folder: Path) -> list[Path]:
    """Every Python file of a folder and of the folders in it; links are not followed."""
    found = [Path(at, name) for at, _, names in os.walk(folder) for name in names]
    return sorted(file for file in found if file.suffix == ".py")


def sources(folder: str) -> list[Path]:
    return below(ROOT / folder)


def shipped() -> list[Path]:
    folders = [f for f in ROOT.iterdir() if f.is_dir() and not f.is_symlink() and f.name not in NOT_SHIPPED]
    return [file for f in folders if not f.name.startswith(".") for file in below(f)]


def test_every_file_that_ships_is_in_a_declared_package() -> None:
    """A folder that setuptools is not told of would be missing from the wheel without a word."""
    declared = {(ROOT / folder).resolve() for folder in SETUPTOOLS["package-dir"].values()}
    assert sorted(SETUPTOOLS["packages"]) == sorted(SETUPTOOLS["package-dir"])
    assert {file.parent for file in shipped()} == declared
    assert {file.parent for file in shipped() if file.name == "__init__.py"} == declared


@pytest.mark.parametrize("name", SETUPTOOLS["packages"])
def test_a_package_is_where_its_name_says(name: str) -> None:
    """From a checkout, too: `pluto_edge` has a link to every folder at the top."""
    folder = ROOT / SETUPTOOLS["package-dir"][name]
    assert ROOT.joinpath(*name.split(".")).resolve() == folder


@pytest.mark.parametrize("file", [*sources("pluto_edge"), *sources("runtime")], ids=str)
def test_device_code_imports_nothing_heavy(file: Path) -> None:
    assert not {name.partition(".")[0] for name in imports(file)} & HEAVY


@pytest.mark.parametrize("file", sources("runtime"), ids=str)
def test_runtime_never_imports_its_users_or_export_or_train(file: Path) -> None:
    others = ("pluto_edge.export", "pluto_edge.train", "pluto_edge.evaluate")
    assert not [n for n in imports(file) if n.startswith(others)]


@pytest.mark.parametrize("file", sources("attacks"), ids=str)
def test_attacks_need_no_torch(file: Path) -> None:
    """What attacks a device's code runs on the device."""
    others = ("pluto_edge.export", "pluto_edge.train", "pluto_edge.evaluate")
    assert not {name.partition(".")[0] for name in imports(file)} & HEAVY
    assert not [n for n in imports(file) if n.startswith(others)]


def test_every_attack_is_run() -> None:
    """Each file that has an attack is in the list, says in its docstring what must happen, and nothing else is."""
    files = [f for f in sources("attacks") if "def attack(" in f.read_text() and f.stem != "harness"]
    assert tuple(f.stem for f in files) == ATTACKS
    for file in files:
        assert "Must happen:" in (ast.get_docstring(ast.parse(file.read_text())) or "")


@pytest.mark.parametrize("file", [*sources("pluto_edge"), *sources("runtime"), *sources("export")], ids=str)
def test_what_ships_never_imports_attacks(file: Path) -> None:
    assert not [n for n in imports(file) if n.partition(".")[0] in ("attacks", "tests")]


@pytest.mark.parametrize("file", sources("evaluate"), ids=str)
def test_evaluate_needs_torch_in_two_files(file: Path) -> None:
    names = {n for n in imports(file) if not n.startswith("pluto_edge.evaluate")}
    if file.name not in ("cotta.py", "without.py"):  # CoTTA changes all weights; --leave-out trains
        assert not {n.partition(".")[0] for n in names} & HEAVY
        assert not [n for n in names if n.startswith(("pluto_edge.export", "pluto_edge.train"))]


@pytest.mark.parametrize("file", [*sources("export"), *sources("train")], ids=str)
def test_export_and_train_never_import_runtime(file: Path) -> None:
    assert not [n for n in imports(file) if n.startswith(("pluto_edge.runtime", "pluto_edge.evaluate"))]


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_import_loads_nothing_heavy() -> None:
    loaded = run("import sys, pluto_edge; print(*{m.partition('.')[0] for m in sys.modules})").split()
    assert not set(loaded) & (HEAVY | {"onnxruntime", "numpy", "PIL"})


def test_a_prediction_loads_no_torch(make_bundle) -> None:
    code = f"""
import sys, numpy as np
from pluto_edge import Runtime
print(Runtime({str(make_bundle())!r}).predict(np.zeros((30, 30, 3), np.uint8)).labels[0])
print(*{{m.partition('.')[0] for m in sys.modules}})
"""
    assert not set(run(code).split()) & HEAVY


def test_a_comparison_loads_no_torch(make_bundle, folders: Path, tmp_path: Path) -> None:
    arguments = ["eval", "--bundle", str(make_bundle()), "--data", str(folders), "--target", "other", "--quiet"]
    arguments += ["--seeds", "1", "--out", str(tmp_path)]
    code = f"""
import sys
from pluto_edge.cli import main
assert main({arguments!r}) == 0
print(*{{m.partition('.')[0] for m in sys.modules}})
"""
    assert not set(run(code).split()) & (HEAVY | {"tqdm", "matplotlib"})
    assert "cotta" in (tmp_path / "results.md").read_text()


def test_all_is_what_is_visible() -> None:
    assert sorted(pluto_edge.__all__) == dir(pluto_edge)
    for name in pluto_edge.__all__:
        assert getattr(pluto_edge, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = pluto_edge.no_such_name


def test_importing_runtime_turns_telemetry_off() -> None:
    code = "import os, pluto_edge.runtime.session; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    assert run(code).strip() == "1"


def test_wheel_has_one_import_root(tmp_path: Path) -> None:
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "-q",
            "--no-deps",
            "--no-build-isolation",
            "-w",
            tmp_path,
            ROOT,
        ],
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    roots = {n.partition("/")[0] for n in names if ".dist-info/" not in n}
    assert roots == {"pluto_edge"}
    for wanted in (
        "py.typed",
        "runtime/runtime.py",
        "runtime/view.html",
        "evaluate/cli.py",
        "export/exporter.py",
        "export/cuda_kernels.json",
    ):
        assert f"pluto_edge/{wanted}" in names
    assert len(names) == len(set(names))
