"""What the machine itself can do: the peak of its matrix products, and whether something else is running on it."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import as_file, files
from math import inf
from time import perf_counter, process_time
from typing import Literal

import numpy as np

from pluto_edge._cpu import usable_cores
from pluto_edge.runtime.engine.providers import CPU
from pluto_edge.runtime.engine.session import Engine

SIZES = (512, 768, 1536)  # of square matrices: which one is fastest differs between processors
RUNS, SECONDS = 3, 0.3  # at least this often, and this long, for each size
IDLE_SHARE = 0.85  # of the threads' time that matrix products get on a machine that does nothing else


@dataclass(frozen=True)
class Peak:
    """Billions of operations a second of the fastest matrix product that ONNX Runtime did on this engine.

    Attributes:
        fp32: float matrices.
        int8: bytes times signed bytes, as in an int8 bundle; None on other providers than the CPU's.
        cpu_share: of the threads' time during the float products, how much this process got.
    """

    fp32: float
    int8: float | None
    cpu_share: float


def measure_peak(engine: Engine) -> Peak:
    """The best of a few sizes, since which one is fastest differs between processors."""
    cpu, wall = process_time(), perf_counter()
    fp32 = _fastest(engine, "fp32")
    threads = min(engine.threads, usable_cores())
    share = (process_time() - cpu) / ((perf_counter() - wall) * threads)
    return Peak(fp32, _fastest(engine, "int8") if engine.provider == CPU else None, min(share, 1.0))


def busy(engine: Engine, load: float | None, peak: Peak) -> tuple[str, ...]:
    """Why times of this machine are not to be trusted; nothing when they are. `load` is from before the work."""
    found = []
    cores = usable_cores()
    if load is not None and load > cores:
        found.append(f"the load average was {load:.1f} on {cores} cores before the start")
    if engine.device == "cpu" and peak.cpu_share < IDLE_SHARE:
        found.append(f"matrix products got {peak.cpu_share:.0%} of the time of their {engine.threads} threads")
    return tuple(found)


def load_average() -> float | None:
    """Of the last minute; None where the system does not know it."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def _fastest(engine: Engine, kind: Literal["fp32", "int8"]) -> float:
    return max(2e-9 * size**3 / _best(_product(engine, kind, size)) for size in SIZES)


def _product(engine: Engine, kind: Literal["fp32", "int8"], size: int) -> Callable[[], object]:
    """The graphs beside this file multiply two square matrices of any size, both inputs."""
    types = (np.float32, np.float32) if kind == "fp32" else (np.uint8, np.int8)
    with as_file(files("pluto_edge.bench") / f"matmul_{kind}.onnx") as path:
        graph = engine.open(path)
    rng = np.random.default_rng(0)
    a, b = (engine.tensor(rng.integers(0, 64, (size, size)).astype(t)) for t in types)
    return lambda: graph({"a": a, "b": b})


def _best(call: Callable[[], object]) -> float:
    call()
    best = inf
    runs = 0
    begin = perf_counter()
    while runs < RUNS or perf_counter() - begin < SECONDS:
        start = perf_counter()
        call()
        best = min(best, perf_counter() - start)
        runs += 1
    return best
