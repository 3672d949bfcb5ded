"""A bundle in processes of its own: how long it takes to the first prediction, and how much memory it needs."""

import json
import subprocess
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

from pluto_edge.errors import BundleError

CODE = "from pluto_edge.bench.fresh import {name}; {name}()"


@dataclass(frozen=True)
class Start:
    """Milliseconds from nothing to the first prediction: all of it, and what its parts take."""

    total: float
    importing: float
    opening: float
    predicting: float


@dataclass(frozen=True)
class Memory:
    """The most bytes that were resident, without the images: once open, after predictions, after steps.

    None where the system does not say.
    """

    batch: int
    open: int | None
    predict: int | None
    step: int | None


def cold_start(bundle: Path, providers: str, threads: int | None) -> Start:
    """How long a new process takes to its first prediction, and each part of it."""
    seconds, parts = run_child(CODE.format(name="start_child"), bundle, providers, threads)
    return Start(1e3 * seconds, *parts)


def peak_memory(bundle: Path, providers: str, threads: int | None, batch: int) -> Memory:
    """How much memory a new process needs to open the bundle, to predict and to learn."""
    return Memory(batch, *run_child(CODE.format(name="memory_child"), bundle, providers, threads, batch)[1])


def start_child() -> None:
    """As an application starts: import, open with all checks, predict one image."""
    bundle, providers, threads = json.loads(sys.argv[1])
    begin = perf_counter()
    import numpy as np

    from pluto_edge.runtime.runtime import Runtime

    imported = perf_counter()
    runtime = Runtime(bundle, providers, threads)
    opened = perf_counter()
    runtime.predict(np.zeros((*runtime.manifest.preprocessing.size, 3), np.uint8))
    marks = begin, imported, opened, perf_counter()
    print(json.dumps([1e3 * (b - a) for a, b in pairwise(marks)]), flush=True)


def memory_child() -> None:
    """What the process of `peak_memory` runs."""
    bundle, providers, threads, batch = json.loads(sys.argv[1])
    from pluto_edge.bench.workload import images, open_runtime
    from pluto_edge.manifest import Bundle

    opened = Bundle(bundle)
    runtime = open_runtime(opened, providers, threads)
    peaks = [peak_resident()]
    frames = images(opened, batch)
    for call in (runtime.predict, runtime.step):
        for _ in range(2):
            call(frames)
        peak = peak_resident()
        peaks.append(None if peak is None else peak - frames.nbytes)
    print(json.dumps(peaks), flush=True)


def peak_resident() -> int | None:
    """The most bytes that this process had resident.

    On Linux from VmHWM: ru_maxrss of a new process starts with what its parent had.
    """
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        pass
    try:
        import resource
    except ImportError:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def run_child(code: str, bundle: Path, *arguments: object) -> tuple[float, list[Any]]:
    """Seconds from the start of a child to the line of JSON that it writes, and what is in that."""
    command = [sys.executable, "-c", code, json.dumps([str(bundle), *arguments])]
    begin = perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        seconds = perf_counter() - begin
        _, errors = process.communicate()
    if process.returncode != 0:
        last = errors.strip().splitlines()[-1:] or [f"exit code {process.returncode}"]
        raise BundleError(f"{bundle}: it does not run in a process of its own ({last[0]})")
    return seconds, json.loads(line)
