"""Who may import whom, what is public, and what the wheel holds."""

import ast
import subprocess
import sys
import zipfile
from graphlib import TopologicalSorter
from pathlib import Path

import import_graph
import pytest
from source_tree import NOT_SHIPPED, ROOT, SourceTree, below, imports

import pluto_edge
import pluto_edge.cli
from attacks import ATTACKS, CATALOGUE
from tests.observe.recordings import made, write

HEAVY = {"torch", "timm", "torchvision", "onnx", "onnxscript", "onnx_ir"}
TREE = SourceTree(ROOT)
SETUPTOOLS = TREE.setuptools
FILES = TREE.files


def sources(folder: str) -> list[Path]:
    return below(ROOT / folder)


def test_every_file_that_ships_is_in_a_declared_package() -> None:
    """A folder that setuptools is not told of would be missing from the wheel without a word."""
    declared = {(ROOT / folder).resolve() for folder in SETUPTOOLS["package-dir"].values()}
    assert sorted(SETUPTOOLS["packages"]) == sorted(SETUPTOOLS["package-dir"])
    assert {file.parent for file in TREE.shipped} == declared
    assert {file.parent for file in TREE.shipped if file.name == "__init__.py"} == declared


@pytest.mark.parametrize("name", SETUPTOOLS["packages"])
def test_a_package_is_where_its_name_says(name: str) -> None:
    """From a checkout, too: `pluto_edge` has a link to every folder at the top."""
    folder = ROOT / SETUPTOOLS["package-dir"][name]
    assert ROOT.joinpath(*name.split(".")).resolve() == folder


def package_of(module: str) -> str:
    """`runtime` and so on: the folder at the top that a module is in; "" for the flat modules of pluto_edge."""
    parts = module.split(".")
    return parts[1] if f"pluto_edge.{parts[1] if len(parts) > 1 else ''}" in SETUPTOOLS["packages"] else ""


def of(*starts: str) -> list[str]:
    return sorted(m for m in FILES if any(m == s or m.startswith(f"{s}.") for s in starts))


# package: the packages that it may import; "" are the flat modules of pluto_edge, which all may import
MAY_IMPORT: dict[str, set[str]] = {
    "": {"train", "export", "runtime", "observe", "evaluate"},  # pluto_edge/__init__.py alone, for its lazy names
    "vit": set(),
    "train": {"vit"},
    "export": {"vit"},
    "repository": set(),
    "runtime": {"repository"},  # for addresses and suggestions
    "observe": {"runtime"},
    "bench": {"runtime", "observe"},
    "evaluate": {"runtime", "vit", "train", "export"},
    "fleet": {"repository", "runtime"},
    "service": {"fleet", "repository", "runtime", "observe"},
    "pipeline": {"train", "export", "evaluate", "repository"},
    "cli": {
        "pipeline",
        "train",
        "export",
        "repository",
        "runtime",
        "observe",
        "bench",
        "evaluate",
        "fleet",
        "service",
    },
}

# inside of runtime: a part, and the parts that it must not import
RUNTIME = "pluto_edge.runtime"
SHOWS = {f"{RUNTIME}.types": {f"{RUNTIME}.prediction_html"}}  # how a value is shown imports nothing of ours itself
LEARNING = ("attempt", "guard", "journal", "judging", "learner", "persistence", "prediction", "recent")
NEVER: dict[str, tuple[str, ...]] = {
    "types": ("pluto_edge",),  # but for SHOWS
    "prediction_html": ("pluto_edge",),
    "engine": ("algorithm", "stream", *LEARNING, "runtime"),
    "opening": ("algorithm", "stream", *LEARNING, "runtime"),
    "algorithm": ("stream", *LEARNING, "runtime"),
    "delivery": ("engine.network", "algorithm", "stream", *LEARNING, "runtime"),
    "journal": ("engine", "algorithm", "stream", "guard", "judging", "learner", "persistence", "runtime"),
    "guard": ("engine", "stream", "attempt", "judging", "learner", "persistence", "runtime"),
    "persistence": ("stream", "guard", "attempt", "judging", "learner", "runtime"),
    "recent": ("stream", "prediction", "attempt", "judging", "learner", "persistence", "runtime"),
    "prediction": ("stream", "guard", "attempt", "judging", "learner", "persistence", "runtime"),
    "attempt": ("stream", "guard", "judging", "learner", "persistence", "runtime"),
    "judging": ("stream", "learner", "persistence", "runtime"),
    "learner": ("stream", "runtime"),
    "stream": ("suggestions", "finder", "runtime"),
    "suggestions": ("stream", "finder", "runtime"),
    "finder": (),
}


def test_every_package_has_a_rule() -> None:
    assert set(MAY_IMPORT) == {package_of(name) for name in SETUPTOOLS["packages"]}


@pytest.mark.parametrize("module", FILES)
def test_who_imports_whom(module: str) -> None:
    here = package_of(module)
    allowed = {"", here} | (MAY_IMPORT[here] if here or module == "pluto_edge" else set())
    assert {package_of(name) for name in TREE.own(module)} <= allowed


@pytest.mark.parametrize("part", NEVER)
def test_the_layers_of_runtime(part: str) -> None:
    modules = of(f"{RUNTIME}.{part}")
    assert modules
    never = tuple(n if n == "pluto_edge" else f"{RUNTIME}.{n}" for n in NEVER[part])
    for module in modules:
        found = TREE.own(module) - SHOWS.get(module, set())
        assert not [n for n in found if any(n == x or n.startswith(f"{x}.") for x in never)], module


def test_every_part_of_runtime_has_a_rule() -> None:
    parts = {m.removeprefix(f"{RUNTIME}.").partition(".")[0] for m in of(RUNTIME) if m != RUNTIME}
    assert parts - {"runtime"} == set(NEVER)


@pytest.mark.parametrize("module", of(RUNTIME))
def test_no_file_of_runtime_is_long(module: str) -> None:
    assert len(FILES[module].read_text().splitlines()) <= 300


@pytest.mark.parametrize("module", of(RUNTIME))
def test_everything_public_in_runtime_says_what_it_is(module: str) -> None:
    """Classes, functions and methods have docstrings; what sets a property is documented by what gets it."""
    assert not [n.name for n in public(ast.parse(FILES[module].read_text())) if not ast.get_docstring(n)]


def public(scope: ast.AST) -> list[ast.ClassDef | ast.FunctionDef]:
    """Public classes and functions of a module, and the methods of these classes."""
    found: list[ast.ClassDef | ast.FunctionDef] = []
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            setters = [d for d in node.decorator_list if isinstance(d, ast.Attribute) and d.attr == "setter"]
            found += [] if setters else [node]
            found += public(node) if isinstance(node, ast.ClassDef) else []
    return found


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Of what is imported at once; an import inside of a function or for types alone can wait."""
    graph = {module: TREE.own(module, at_once=True) for module in FILES}
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_no_package_imports_itself_by_way_of_others() -> None:
    graph: dict[str, set[str]] = {}
    for module in FILES:
        if module != "pluto_edge":
            here = package_of(module)
            graph.setdefault(here, set()).update({package_of(n) for n in TREE.own(module)} - {here})
    TopologicalSorter(graph).prepare()  # raises CycleError


@pytest.mark.parametrize("module", FILES)
def test_the_names_of_users_are_for_users(module: str) -> None:
    """What ships imports them where they are made, so that the layers can be seen."""
    names = {f"pluto_edge.{name}" for name in pluto_edge.__all__} - set(SETUPTOOLS["packages"])  # train is both
    assert not imports(FILES[module]) & names


def test_the_picture_is_what_the_imports_say() -> None:
    true = (ROOT / "docs" / "imports.svg").read_text() == import_graph.picture()
    assert true, "docs/imports.svg is out of date: run python benchmarks/import_graph.py"


DEVICE = [f"pluto_edge.{name}" for name in ("runtime", "observe", "bench", "repository", "fleet", "service")]


@pytest.mark.parametrize("module", of(*DEVICE))
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
    assert tuple(sorted(f.stem for f in files)) == ATTACKS
    assert tuple(f.stem for f in files if f.parent.name == "catalogue") == CATALOGUE
    for file in files:
        assert "Must happen:" in (ast.get_docstring(ast.parse(file.read_text())) or "")


@pytest.mark.parametrize("module", FILES)
def test_what_ships_never_imports_what_does_not(module: str) -> None:
    assert not {n.partition(".")[0] for n in imports(FILES[module])} & NOT_SHIPPED


WORKERS = {"pluto_edge.train.jobs", "pluto_edge.train.progress"}  # of training and of matrices, without torch


@pytest.mark.parametrize("module", sorted(WORKERS))
def test_workers_need_no_torch(module: str) -> None:
    assert not {n.partition(".")[0] for n in imports(FILES[module])} & HEAVY
    assert TREE.own(module) <= {"pluto_edge._progress", "pluto_edge.errors", *WORKERS}


@pytest.mark.parametrize("module", of("pluto_edge.evaluate"))
def test_evaluate_needs_torch_in_two_files(module: str) -> None:
    names = {n for n in imports(FILES[module]) if not n.startswith("pluto_edge.evaluate")} - WORKERS
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


def test_onnxruntime_is_loaded_when_a_bundle_is_opened() -> None:
    """And not before: the weights are hashed meanwhile."""
    assert "onnxruntime" not in run("import sys, pluto_edge.runtime.runtime; print(*sys.modules)").split()


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


def test_a_matrix_loads_no_torch(make_bundle, folders: Path, tmp_path: Path) -> None:
    arguments = [
        "matrix",
        str(make_bundle()),
        "--data",
        str(folders),
        "--out",
        str(tmp_path / "m"),
        "--threads",
        "1",
    ]
    code = f"""
import sys
from pluto_edge.cli import main
assert main({arguments!r}) == 0
print("loaded:", *{{m.partition('.')[0] for m in sys.modules}})
"""
    text, _, loaded = run(code).partition("loaded:")
    assert "3 modules on 114 held-out images of 3 domains" in text
    assert not set(loaded.split()) & HEAVY


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
        "observe/web.html",
        "observe/web.js",
        "observe/web-worker.js",
        "service/overview.html",
        "service/example.toml",
        "bench/bench.py",
        "bench/matmul_fp32.onnx",
        "bench/matmul_int8.onnx",
        "vit/backbone.py",
        "cli/eval.py",
        "export/exporter.py",
        "export/cuda_kernels.json",
    ):
        assert f"pluto_edge/{wanted}" in names
    assert len(names) == len(set(names))
