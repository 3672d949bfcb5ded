"""Who may import whom, what is public, and what the wheel holds."""

import ast
import os
import subprocess
import sys
import tomllib
import zipfile
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import pluto_edge
import pluto_edge.cli
from attacks import ATTACKS
from tests.observe.recordings import made, write

ROOT = Path(__file__).parent.parent
HEAVY = {"torch", "timm", "torchvision", "onnx", "onnxscript", "onnx_ir"}
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
NOT_SHIPPED = {"attacks", "benchmarks", "build", "deploy", "docs", "examples", "tests"}


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


def sources(folder: str) -> list[Path]:
    return below(ROOT / folder)


def shipped() -> list[Path]:
    folders = [f for f in ROOT.iterdir() if f.is_dir() and not f.is_symlink() and f.name not in NOT_SHIPPED]
    return [file for f in folders if not f.name.startswith(".") for file in below(f)]


def module_name(file: Path) -> str:
    """As it is imported."""
    folder = file.parent.relative_to(ROOT).as_posix()
    package = next((n for n, f in SETUPTOOLS["package-dir"].items() if f == folder), folder)
    return package if file.stem == "__init__" else f"{package}.{file.stem}"


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


FILES = {module_name(file): file for file in shipped()}


def package_of(module: str) -> str:
    """`runtime` and so on: the folder at the top that a module is in; "" for the flat modules of pluto_edge."""
    parts = module.split(".")
    return parts[1] if f"pluto_edge.{parts[1] if len(parts) > 1 else ''}" in SETUPTOOLS["packages"] else ""


def own(module: str, *, at_once: bool = False) -> set[str]:
    """The modules of ours that a module imports."""
    return {name for name in imports(FILES[module], at_once=at_once) if name in FILES} - {module}


def of(*starts: str) -> list[str]:
    return sorted(m for m in FILES if any(m == s or m.startswith(f"{s}.") for s in starts))


# package: the packages that it may import; "" are the flat modules of pluto_edge, which all may import
MAY_IMPORT: dict[str, set[str]] = {
    "": {"runtime"},  # pluto_edge/__init__.py alone, for its lazy names
    "vit": set(),
    "train": {"vit"},
    "export": {"vit"},
    "runtime": set(),
    "observe": {"runtime"},
    "bench": {"runtime", "observe"},
    "evaluate": {"runtime", "vit", "train", "export"},
    "cli": {"train", "export", "runtime", "observe", "bench", "evaluate"},
}

# inside of runtime: a part, and the parts that it must not import
RUNTIME = "pluto_edge.runtime"
NEVER: dict[str, tuple[str, ...]] = {
    "types": ("pluto_edge",),
    "engine": ("algorithm", "stream", "runtime", "learner", "guard", "persistence"),
    "algorithm": ("stream", "runtime", "learner", "guard", "persistence"),
    "guard": ("stream", "runtime", "learner", "persistence"),
    "persistence": ("stream", "runtime", "learner", "guard"),
    "learner": ("stream.stream", "stream.canary", "stream.background", "runtime"),
    "stream": ("runtime",),
}


def test_every_package_has_a_rule() -> None:
    assert set(MAY_IMPORT) == {package_of(name) for name in SETUPTOOLS["packages"]}


@pytest.mark.parametrize("module", FILES)
def test_who_imports_whom(module: str) -> None:
    here = package_of(module)
    allowed = {"", here} | (MAY_IMPORT[here] if here or module == "pluto_edge" else set())
    assert {package_of(name) for name in own(module)} <= allowed


@pytest.mark.parametrize("part", NEVER)
def test_the_layers_of_runtime(part: str) -> None:
    modules = of(f"{RUNTIME}.{part}")
    assert modules
    never = tuple(n if n == "pluto_edge" else f"{RUNTIME}.{n}" for n in NEVER[part])
    for module in modules:
        assert not [n for n in own(module) if any(n == x or n.startswith(f"{x}.") for x in never)], module


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Of what is imported at once; an import inside of a function or for types alone can wait."""
    graph = {module: own(module, at_once=True) for module in FILES}
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_no_package_imports_itself_by_way_of_others() -> None:
    graph: dict[str, set[str]] = {}
    for module in FILES:
        if module != "pluto_edge":
            here = package_of(module)
            graph.setdefault(here, set()).update({package_of(n) for n in own(module)} - {here})
    TopologicalSorter(graph).prepare()  # raises CycleError


@pytest.mark.parametrize("module", of("pluto_edge.runtime", "pluto_edge.observe", "pluto_edge.bench"))
def test_device_code_imports_nothing_heavy(module: str) -> None:
    assert not {name.partition(".")[0] for name in imports(FILES[module])} & HEAVY


@pytest.mark.parametrize("module", [m for m in FILES if package_of(m) in ("", "cli")])
def test_what_all_share_imports_nothing_heavy(module: str) -> None:
    assert not {name.partition(".")[0] for name in imports(FILES[module])} & HEAVY


@pytest.mark.parametrize("command", pluto_edge.cli.COMMANDS)
def test_help_loads_nothing_heavy(command: str) -> None:
    code = f"""
import sys
from pluto_edge.cli import main
try:
    main([{command!r}, "--help"])
except SystemExit as end:
    assert not end.code
print("loaded:", *{{m.partition('.')[0] for m in sys.modules}})
"""
    text, _, loaded = run(code).partition("loaded:")
    assert f"usage: pluto {command}" in text
    assert loaded and not set(loaded.split()) & HEAVY


@pytest.mark.parametrize("file", sources("attacks"), ids=str)
def test_attacks_need_no_torch(file: Path) -> None:
    """What attacks a device's code runs on the device."""
    others = ("pluto_edge.export", "pluto_edge.train", "pluto_edge.evaluate", "pluto_edge.vit", "pluto_edge.cli")
    assert not {name.partition(".")[0] for name in imports(file)} & HEAVY
    assert not [n for n in imports(file) if n.startswith(others)]


def test_every_attack_is_run() -> None:
    """Each file that has an attack is in the list, says in its docstring what must happen, and nothing else is."""
    files = [f for f in sources("attacks") if "def attack(" in f.read_text() and f.stem != "harness"]
    assert tuple(f.stem for f in files) == ATTACKS
    for file in files:
        assert "Must happen:" in (ast.get_docstring(ast.parse(file.read_text())) or "")


@pytest.mark.parametrize("module", FILES)
def test_what_ships_never_imports_what_does_not(module: str) -> None:
    assert not {n.partition(".")[0] for n in imports(FILES[module])} & NOT_SHIPPED


@pytest.mark.parametrize("module", of("pluto_edge.evaluate"))
def test_evaluate_needs_torch_in_two_files(module: str) -> None:
    names = {n for n in imports(FILES[module]) if not n.startswith("pluto_edge.evaluate")}
    if not module.endswith((".cotta", ".without")):  # CoTTA changes all weights; --leave-out trains
        assert not {n.partition(".")[0] for n in names} & HEAVY
        assert not {package_of(n) for n in names if n in FILES} & {"vit", "train", "export"}


def test_a_recording_is_replayed_without_onnxruntime(tmp_path: Path) -> None:
    """A recording is JSON: whoever reads it needs no bundle, and nothing that runs one."""
    write(made({"clear": 20, "fog": 20}), tmp_path / "run.jsonl")
    code = f"""
import sys
sys.modules["onnxruntime"] = None  # as if it were not installed
from pluto_edge.cli import main
assert main(["replay", {str(tmp_path / "run.jsonl")!r}]) == 0
print("loaded:", *{{m.partition('.')[0] for m in sys.modules if sys.modules[m]}})
"""
    assert not set(run(code).partition("loaded:")[2].split()) & (HEAVY | {"onnxruntime"})
    assert "</html>" in (tmp_path / "run.html").read_text()


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
    code = "import os, pluto_edge.runtime.engine.session; print(os.environ['ORT_DISABLE_TELEMETRY'])"
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
        "runtime/algorithm/step.py",
        "runtime/engine/session.py",
        "runtime/stream/stream.py",
        "observe/view.html",
        "bench/bench.py",
        "vit/backbone.py",
        "cli/eval.py",
        "export/exporter.py",
        "export/cuda_kernels.json",
    ):
        assert f"pluto_edge/{wanted}" in names
    assert len(names) == len(set(names))
