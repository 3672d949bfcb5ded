"""`pluto doctor`: what this machine has, and what is slow or broken about it."""

import argparse
import platform
from importlib.metadata import PackageNotFoundError, version

from pluto_edge import _text
from pluto_edge._cpu import BFLOAT16, cpu_flags, this_cpu, usable_cores
from pluto_edge.cli.parsing import add_json, print_json
from pluto_edge.errors import ConfigError
from pluto_edge.runtime.engine.plan import PlanFile, PlanKey, plans_folder
from pluto_edge.runtime.engine.providers import CPU, CUDA, KNOWN, OPENVINO, installed, loads
from pluto_edge.version import VERSION

# instruction sets that ONNX Runtime's int8 kernels use, as /proc/cpuinfo spells them
INT8_FAST = {
    "avx512_vnni": "AVX-512 VNNI",
    "avx_vnni": "AVX-VNNI",
    "amx_int8": "AMX",
    "asimddp": "dot product",
    "i8mm": "I8MM",
}
BUILDS = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino")  # they share one folder
PLUGINS = tuple(dict.fromkeys(known.plugin.replace("_", "-") for known in KNOWN.values() if known.plugin))
PACKAGES = (
    *BUILDS,
    *PLUGINS,
    "numpy",
    "safetensors",
    "pillow",
    "torch",
    "timm",
    "onnx",
    "onnxscript",
)
NO_PLAN = "none: `pluto tune BUNDLE` measures in seconds how a bundle runs fastest here"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Print versions, the providers that really load, threads and instruction sets,\n"
        "and say what is wrong. Exits with 1 when something is."
    )
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    report = examine()
    if options.json:
        print_json(report)
    else:
        print(as_text(report))
    return 1 if report["problems"] else 0


def examine() -> dict[str, object]:
    packages = {name: v for name in PACKAGES if (v := _version(name))}
    providers = {name: loads(name) or "loads" for name in installed()}
    flags = cpu_flags()
    return {
        "pluto-edge": VERSION,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "cpu": str(this_cpu()),
        "packages": packages,
        "providers": providers,
        "threads": usable_cores(),
        "int8": sorted(name for flag, name in INT8_FAST.items() if flag in flags),
        "bfloat16": sorted(name for flag, name in BFLOAT16.items() if flag in flags),
        "plans": known_plans(),
        "problems": problems(packages, providers),
    }


def problems(packages: dict[str, str], providers: dict[str, str]) -> list[str]:
    found = []
    builds = [name for name in BUILDS if name in packages]
    if len(builds) > 1:
        found.append(
            f"{' and '.join(builds)} are both installed and share one folder: whichever came last is what runs. "
            f"Run: pip uninstall -y {' '.join(builds)}, then install one of them"
        )
    for package, name in (("onnxruntime-gpu", CUDA), ("onnxruntime-openvino", OPENVINO)):
        if package in packages and name not in providers:
            found.append(f"{package} is installed, but what runs has no {name}")
    plugins = {known.name for known in KNOWN.values() if known.plugin}  # installed for nothing else
    for name, state in providers.items():
        if state != "loads" and name in {CPU, CUDA, *plugins}:
            found.append(f"{name} does not load: {state}")
    return found


def known_plans() -> dict[str, str]:
    """What `pluto tune` has measured, by file: the plan, or why it is not used here."""
    found = {}
    folder = plans_folder()
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        try:
            file = PlanFile.read(path)
        except ConfigError as error:
            found[str(path)] = f"not used: {error}"
            continue
        here = PlanKey.of(file.key.bundle, file.key.provider)
        other = here.differs(file.key)
        found[str(path)] = f"not used here: {other}" if other else str(file.plan)
    return found


def as_text(report: dict[str, object]) -> str:
    packages, providers = report["packages"], report["providers"]
    assert isinstance(packages, dict) and isinstance(providers, dict)
    int8, bfloat16, plans = report["int8"], report["bfloat16"], report["plans"]
    assert isinstance(int8, list) and isinstance(bfloat16, list) and isinstance(plans, dict)
    fast = ", ".join(int8) or "no fast int8 instructions found: int8 bundles may be no faster than fp32"
    lines = _text.pairs(
        [
            ("pluto-edge", report["pluto-edge"]),
            ("python", f"{report['python']}, {report['machine']}"),
            ("cpu", report["cpu"]),
            *packages.items(),
            ("threads", f"{report['threads']} (cores that this process may use)"),
            ("int8", fast),
            (
                "bfloat16",
                f"{', '.join(bfloat16)}: --providers openvino-bf16 uses it"
                if bfloat16
                else "not on this processor",
            ),
            *((("plan", f"{path}: {plan}") for path, plan in plans.items()) if plans else (("plan", NO_PLAN),)),
        ]
    )
    rows = [(_text.tick(state == "loads"), name, state) for name, state in providers.items()]
    found = report["problems"]
    assert isinstance(found, list)
    verdict = "\n".join(f"{_text.tick(False)} {p}" for p in found) or f"{_text.tick(True)} nothing wrong"
    return f"{lines}\n\n{_text.table(('', 'provider', 'state'), rows)}\n\n{verdict}"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
