"""Execution providers: their names, where they come from, and whether they really load.

A provider is asked for by a short name ("cuda", "openvino") or by ONNX Runtime's own. What is asked for runs there
or raises; only "auto" may choose. Some are part of a build of ONNX Runtime, some are packages of their own that
register a library with whatever build is installed (plugins).
"""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from pluto_edge._cpu import BFLOAT16, cpu_flags
from pluto_edge._ort import onnxruntime as ort
from pluto_edge._ort import preload_cuda, silent
from pluto_edge.errors import ConfigError, ProviderError
from pluto_edge.manifest import GRAPHS
from pluto_edge.runtime.engine import cuda
from pluto_edge.runtime.engine.untrusted_graph import Shape

__all__ = ["CPU", "CUDA", "KNOWN", "TENSORRT", "Provider", "Providers", "choose", "installed", "loads"]

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
OPENVINO = "OpenVINOExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"

Provider = str | tuple[str, dict[str, Any]]
Wanted = str | Sequence[Provider] | None
Providers = Wanted | Mapping[str, Wanted]  # for all graphs, or for each of them by the names of `GRAPHS`

# y = -x on one float, to learn whether a provider really loads
_PROBE = base64.b64decode(
    "CAg6PgoXCgF4EgF5Ggpub2RlX05lZ18wIgNOZWcSAXBaDwoBeBIKCggIARIECgIIAWIPCgF5EgoKCAgBEgQKAggBQgQKABAN"
)


_BFLOAT16 = {"precision": "BF16"}  # of OpenVINO: products in bfloat16, sums in fp32
_by_plugin: set[str] = (
    set()
)  # names that ONNX Runtime lists since a plugin registered: it does not take them by name


@dataclass(frozen=True)
class Known:
    """ONNX Runtime's name of a provider, what brings it, the module of its plugin package where it is one, and
    what it is told."""

    name: str
    install: str
    plugin: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)


KNOWN: dict[str, Known] = {
    "cpu": Known(CPU, 'pip install "pluto-edge[cpu]"'),
    "cuda": Known(CUDA, 'pip install "pluto-edge[gpu]"'),
    "openvino": Known(OPENVINO, 'pip install "pluto-edge[openvino]"', plugin="onnxruntime_ep_openvino"),
    "openvino-bf16": Known(
        OPENVINO, 'pip install "pluto-edge[openvino]"', plugin="onnxruntime_ep_openvino", settings=_BFLOAT16
    ),
    "tensorrt": Known(TENSORRT, 'pip install "pluto-edge[gpu]", and TensorRT'),
    "tensorrt-rtx": Known(
        "NvTensorRTRTXExecutionProvider",
        "pip install onnxruntime-ep-nv-tensorrt-rtx",
        plugin="onnxruntime_ep_nv_tensorrt_rtx",
    ),
    "coreml": Known("CoreMLExecutionProvider", 'pip install "pluto-edge[cpu]" on macOS'),
    "qnn": Known("QNNExecutionProvider", "pip install onnxruntime-qnn", plugin="onnxruntime_qnn"),
    "webgpu": Known("WebGpuExecutionProvider", "pip install onnxruntime-ep-webgpu", plugin="onnxruntime_ep_webgpu"),
}
KNOWN_NAMES = {known.name: known for known in KNOWN.values()}


def choose(providers: Wanted, cpu_only: str = "") -> list[Provider]:
    """The providers to make a session with, each of which loads. `cpu_only` says why it must be the CPU."""
    if providers is None or providers == "auto":
        return [CUDA, CPU] if not cpu_only and not loads(CUDA) else [CPU]
    wanted = [providers] if isinstance(providers, str) else list(providers)
    if not wanted:
        raise ConfigError('providers: want "auto", a name or a list of names, got an empty list')
    chosen = [_full(p) for p in wanted]
    for provider in chosen:
        name = name_of(provider)
        if cpu_only and name != CPU:
            raise ProviderError(f"{name} was asked for, but {cpu_only}")
        reason = loads(provider)
        if reason:
            raise ProviderError(
                f"{name} was asked for and does not load: {reason}. There is {', '.join(there())}; "
                'providers="auto" takes what works'
            )
    return chosen


def for_graphs(providers: Providers, cpu_only: str = "") -> dict[str, list[Provider]]:
    """The same for each graph's file."""
    if isinstance(providers, str) and "=" in providers:
        providers = _parse(providers)
    if not isinstance(providers, Mapping):
        return dict.fromkeys(GRAPHS.values(), choose(providers, cpu_only))
    for name in sorted(providers.keys() ^ GRAPHS.keys()):
        problem = "is missing" if name in GRAPHS else "is no graph"
        raise ConfigError(f"providers: {name!r} {problem}; want one for each of {', '.join(GRAPHS)}")
    return {file: choose(providers[name], cpu_only) for name, file in GRAPHS.items()}


def with_settings(provider: Provider, threads: int, batched: Mapping[str, Shape], most: int) -> Provider:
    """With what it must be told beside its name; what the caller said about it wins.

    OpenVINO has threads of its own, and computes in bfloat16 where the processor can unless told otherwise. It is
    told by way of its own configuration: the plugin ignores the options that the build of ONNX Runtime has for it.
    TensorRT wants the smallest and the largest shape of every input with an open size (`batched`, None is the
    batch).
    """
    name = name_of(provider)
    given = {} if isinstance(provider, str) else provider[1]
    own: dict[str, Any] = {}
    if name == OPENVINO and given.get("device_type", "CPU") == "CPU":
        hint = "bf16" if in_bfloat16(provider) else "f32"
        count = int(given.get("num_of_threads", threads))
        told = {"INFERENCE_NUM_THREADS": count, "INFERENCE_PRECISION_HINT": hint}
        own = {"load_config": json.dumps({"CPU": told})}
        given = {k: v for k, v in given.items() if k not in ("num_of_threads", "precision")}
    elif name == TENSORRT and batched:
        for option, batch in (("min", 1), ("opt", most), ("max", most)):
            shapes = (f"{n}:{'x'.join(str(batch if d is None else d) for d in s)}" for n, s in batched.items())
            own[f"trt_profile_{option}_shapes"] = ",".join(shapes)
    return (name, {**own, **given}) if own or given else name


def loads(provider: Provider) -> str:
    """Empty when a session on `provider` really runs, else why not, in one sentence."""
    name = name_of(provider)
    if name == CPU:
        return ""  # part of every build
    if name in (CUDA, TENSORRT):
        preload_cuda()
    if name not in built_in() and not devices(name):
        return _absent(name)
    if in_bfloat16(provider) and not BFLOAT16.keys() & cpu_flags():
        return f"this processor does not compute in bfloat16 (it has none of {', '.join(BFLOAT16.values())})"
    options = ort.SessionOptions()
    try:
        with silent():
            told = with_settings(provider, 1, {}, 1)  # as a graph's session is: a build knows no other "BF16"
            session = ort.InferenceSession(_PROBE, options, **arguments([told], options), enable_fallback=0)
            if name not in session.get_providers():
                return _reason(name) or "ONNX Runtime fell back to the CPU"
            session.run(None, {"x": np.ones(1, np.float32)})
    except Exception as cause:  # onnxruntime raises a dozen types of its own
        return _reason(name) or (str(cause).splitlines()[0] if str(cause) else type(cause).__name__)
    return ""


def there() -> list[str]:
    """Providers of this build of ONNX Runtime, and of the plugins beside it that have a device here."""
    own = built_in()
    return [*own, *(name for name in KNOWN_NAMES if name not in own and devices(name))]


def built_in() -> list[str]:
    """Providers of this build of ONNX Runtime."""
    return [name for name in ort.get_available_providers() if name not in _by_plugin]


def in_bfloat16(provider: Provider) -> bool:
    """Whether OpenVINO is asked for products in bfloat16."""
    given = {} if isinstance(provider, str) else provider[1]
    return name_of(provider) == OPENVINO and _BFLOAT16.items() <= given.items()


def installed() -> list[str]:
    """The same, with plugins that find no device, or do not register."""
    plugins = [known.name for known in KNOWN.values() if _installed(known)]
    return list(dict.fromkeys([*built_in(), *plugins]))


@cache
def devices(name: str) -> list[Any]:
    """What the plugin of this provider runs on; nothing where it is no plugin, or not installed."""
    known = KNOWN_NAMES.get(name)
    if known is None or not _installed(known):
        return []
    there = _devices(name)  # registered already: that is done once in a process
    return there if there or plugin_problem(known.plugin) else _devices(name)


@cache
def plugin_problem(module: str) -> str:
    """Registers a plugin's library with ONNX Runtime; gives why that failed, or nothing."""
    before = set(ort.get_available_providers())
    try:
        with silent():
            ort.register_execution_provider_library(module, import_module(module).get_library_path())
    except Exception as cause:  # a library that does not load, or is for another version
        return f"{module} does not register ({str(cause).splitlines()[0]})"
    _by_plugin.update(set(ort.get_available_providers()) - before)
    return ""


def arguments(providers: Sequence[Provider], options: Any) -> dict[str, Any]:
    """What `InferenceSession` takes beside `options`. A plugin is not given by name: its device joins `options`."""
    plugins = [p for p in providers if name_of(p) not in built_in() and devices(name_of(p))]
    if not plugins:
        return {"providers": list(providers)}
    for provider in plugins:
        settings = {} if isinstance(provider, str) else {k: str(v) for k, v in provider[1].items()}
        options.add_provider_for_devices(devices(name_of(provider))[:1], settings)
    return {}


def name_of(provider: Provider) -> str:
    """ONNX Runtime's name of it."""
    return provider if isinstance(provider, str) else provider[0]


def described(provider: Provider) -> str:
    """Its name, and whether it rounds to bfloat16."""
    return name_of(provider) + " in bfloat16" * in_bfloat16(provider)


def _parse(text: str) -> dict[str, str]:
    """As commands take it: "embed=openvino,forward=openvino,adapt=cpu"."""
    parts = [part.partition("=") for part in text.split(",")]
    return {name.strip(): provider.strip() for name, _, provider in parts}


def _devices(name: str) -> list[Any]:
    return [device for device in ort.get_ep_devices() if device.ep_name == name]


def _installed(known: Known) -> bool:
    return bool(known.plugin) and find_spec(known.plugin) is not None


def _absent(name: str) -> str:
    known = KNOWN_NAMES.get(name)
    if known is None:
        return "not in this build of ONNX Runtime"
    if _installed(known):
        return plugin_problem(known.plugin) or f"{known.plugin} is installed, and finds no device that it runs on"
    return f"not in this build of ONNX Runtime; run: {known.install}"


def _reason(name: str) -> str:
    """What is found to be missing, where somebody knows where to look."""
    if name == CUDA:
        return cuda.why_not()
    return cuda.why_not("tensorrt") if name == TENSORRT else ""


def _full(provider: Provider) -> Provider:
    """Short names stand for ONNX Runtime's long ones, and for what it is told."""
    name, given = (provider, {}) if isinstance(provider, str) else provider
    known = KNOWN.get(name.lower())
    if known is None:
        return provider
    settings = {**known.settings, **given}
    return (known.name, settings) if settings else known.name
