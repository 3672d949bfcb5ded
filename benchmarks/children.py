"""Processes that rivals.py starts: our steps, torch from nothing to a prediction, torch's memory, a third graph's.

Each imports no more than what it measures.
"""

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any, Self

from pluto_edge._schema import decode, encode
from pluto_edge.bench.fresh import Start, run_child
from pluto_edge.bench.fresh_child import peak_resident
from pluto_edge.config import AdaptConfig
from pluto_edge.errors import ConfigError, PlutoError
from pluto_edge.store import Store

# the reference in torch is in tests/reference; a script finds only what lies beside it
sys.path.append(str(Path(__file__).resolve().parents[1]))

CODE = "import sys; sys.path.insert(0, {folder!r}); from children import {name}; {name}()"


def torch_start(store: Path, threads: int) -> Start:
    """As `fresh.cold_start`, with torch: milliseconds from nothing to the prediction of one image."""
    seconds, parts = _run("start_child", store, threads)
    return Start(1e3 * seconds, *parts)


def torch_memory(store: Path, threads: int, batch: int, config: AdaptConfig) -> int:
    """As `fresh.peak_memory`: the most bytes that were resident in steps, without the images."""
    return int(_run("memory_child", store, threads, batch, encode(config))[1][0])


def third_graph(bundle: Path, threads: int) -> tuple[float, float]:
    """Resident MB that the gradient graph adds to `embed` and `forward`: once open, and after one image."""
    opened, run = _run("third_graph_child", bundle, threads)[1]
    return opened, run


class Steps:
    """pluto-edge in a process of its own, without torch beside it. A call is a step, and gives its milliseconds."""

    def __init__(self, bundle: Path, providers: str, threads: int, batch: int, config: AdaptConfig) -> None:
        code = CODE.format(folder=str(Path(__file__).parent), name="steps_child")
        arguments = json.dumps([str(bundle), providers, threads, batch, encode(config)])
        command = [sys.executable, "-c", code, arguments]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.reliable = 0

    def __call__(self) -> float:
        assert self._child.stdin is not None and self._child.stdout is not None
        print(file=self._child.stdin, flush=True)
        line = self._child.stdout.readline()
        if not line:
            raise PlutoError("the process that steps has ended; what it said is above")
        milliseconds, kind, reason, self.reliable = json.loads(line)
        if kind != "step":
            raise PlutoError(f"a step was not a whole one ({kind}: {reason})")
        return float(milliseconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._child.communicate()


def steps_child() -> None:
    path, providers, threads, batch, config = json.loads(sys.argv[1])
    from pluto_edge.bench.workload import images
    from pluto_edge.manifest import Bundle
    from pluto_edge.runtime.runtime import Runtime

    frames = images(Bundle(path, False), batch)
    settings = decode(AdaptConfig, config, "config", ConfigError)
    runtime = Runtime(path, providers, threads, config=settings, verify=False)
    for _ in sys.stdin:
        start = perf_counter()
        runtime.step(frames)
        took = 1e3 * (perf_counter() - start)
        event = runtime.events[-1]
        print(json.dumps([took, event.kind, event.reason, event.reliable]), flush=True)


def start_child() -> None:
    path, threads = json.loads(sys.argv[1])
    begin = perf_counter()
    import numpy as np
    import torch

    from tests.reference.torch_pluto import TorchPluto

    imported = perf_counter()
    torch.set_num_threads(threads)
    store = Store(path)
    pluto = TorchPluto(store, AdaptConfig(selector=False, sam=None))
    opened = perf_counter()
    pluto.step(np.zeros((1, *store.config.preprocessing.size, 3), np.uint8))
    marks = begin, imported, opened, perf_counter()
    print(json.dumps([1e3 * (b - a) for a, b in pairwise(marks)]), flush=True)


def memory_child() -> None:
    path, threads, batch, config = json.loads(sys.argv[1])
    import numpy as np
    import torch

    from tests.reference.torch_pluto import TorchPluto

    torch.set_num_threads(threads)
    store = Store(path)
    pluto = TorchPluto(store, decode(AdaptConfig, config, "config", ConfigError))
    frames = np.full((batch, *store.config.preprocessing.size, 3), 127, np.uint8)
    for _ in range(2):
        pluto.step(frames)
    print(json.dumps([(peak_resident() or 0) - frames.nbytes]), flush=True)


def third_graph_child() -> None:
    path, threads = json.loads(sys.argv[1])
    import numpy as np
    from memory import resident

    from pluto_edge.bench.workload import images
    from pluto_edge.manifest import Bundle
    from pluto_edge.preprocess import ImageBatch
    from pluto_edge.runtime.engine.network import Network
    from pluto_edge.runtime.engine.session import Engine

    bundle = Bundle(path)
    network = Network(bundle, Engine.of(bundle.manifest.precision, "cpu", threads))
    batch = ImageBatch(images(bundle, 1), bundle.manifest.preprocessing)
    name, module = next(iter(network.modules.items()))
    network.run(batch, {})
    before = resident()
    graphs = network.graphs
    graphs.adapt(graphs.lanes(1))
    opened = resident()
    network.gradient(batch, np.array([0]), name, module.exported)
    print(json.dumps([opened - before, resident() - before]), flush=True)


def _run(name: str, where: Path, *arguments: object) -> tuple[float, list[Any]]:
    return run_child(CODE.format(folder=str(Path(__file__).parent), name=name), where, *arguments)
