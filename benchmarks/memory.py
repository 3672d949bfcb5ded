"""Peak memory of a step, whatever the batch, and memory over a long run.

    python benchmarks/memory.py bundle/ --batches 16 128
    python benchmarks/memory.py bundle/ --steps 2000 --batch 4

Each batch size runs in a process of its own. Memory is the process's resident set.
"""

import argparse
from pathlib import Path

import numpy as np

from pluto_edge import AdaptConfig, Runtime
from pluto_edge._cpu import this_cpu
from pluto_edge._text import table
from pluto_edge.bench.fresh import run_child

CHILD = """
import json, sys, time
import numpy as np
from pluto_edge import AdaptConfig, Runtime
from pluto_edge.bench.fresh_child import peak_resident
bundle, batch = json.loads(sys.argv[1])
runtime = Runtime(bundle, verify=False, config=AdaptConfig(entropy_margin=1.0, guard=False))
frames = np.random.default_rng(0).integers(0, 256, (batch, 224, 224, 3), dtype=np.uint8)
start = time.perf_counter()
for _ in range(2):
    runtime.step(frames)
seconds = (time.perf_counter() - start) / 2
print(json.dumps([(peak_resident() - frames.nbytes) / 1e6, seconds, runtime.events[-1].reliable]))
"""


def resident() -> float:
    with open("/proc/self/statm") as file:  # noqa: PTH123
        return int(file.read().split()[1]) * 4096 / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--batches", type=int, nargs="*", default=[])
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--batch", type=int, default=4)
    options = parser.parse_args()
    print(this_cpu(), "\n")
    rows = []
    for batch in options.batches:
        peak, seconds, reliable = run_child(CHILD, options.bundle, batch)[1]
        rows.append((batch, f"{peak:.0f}", f"{seconds:.1f}", reliable))
    if rows:
        print(table(("batch", "peak MB without the frames", "seconds a step", "reliable"), rows, right=range(4)))
    if options.steps:
        long_run(options.bundle, options.steps, options.batch)


def long_run(bundle: Path, steps: int, batch: int) -> None:
    runtime = Runtime(bundle, config=AdaptConfig(entropy_margin=1.0, ln_lr=1e-5, selector_lr=1e-5))
    size = runtime.manifest.preprocessing.size
    rng = np.random.default_rng(0)
    rows = []
    for step in range(1, steps + 1):
        runtime.step(rng.integers(0, 256, (batch, *size, 3), dtype=np.uint8))
        if step in (10, 100) or step % (steps // 4) == 0:
            rows.append((step, f"{resident():.1f}", len(runtime.events)))
    print(table(("step", "resident MB", "events kept"), rows, right=range(3)))


if __name__ == "__main__":
    main()
