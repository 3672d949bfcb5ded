"""What runs in the processes of `fresh.py`. It imports next to nothing itself: what it loads counts."""

import json
import sys
from itertools import pairwise
from pathlib import Path
from time import perf_counter


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
