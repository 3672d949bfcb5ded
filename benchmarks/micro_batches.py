"""Steps and predictions by the number of images that go through a graph at a time, as ratios within one run.

    python benchmarks/micro_batches.py bundle/ [another-bundle/ ...] --batch 64

Each size runs in a process of its own, since its peak of memory is counted; `*` marks what the runtime chooses for
the bundle (FORWARD_VALUES and ADAPT_VALUES in runtime/engine/graphs.py).
"""

import argparse
from pathlib import Path

from pluto_edge._cpu import this_cpu
from pluto_edge._text import table
from pluto_edge.bench.fresh import run_child
from pluto_edge.manifest import Bundle
from pluto_edge.runtime.engine.graphs import ADAPT_VALUES, FORWARD_VALUES, micro_batch

CHILD = """
import json, sys
from time import perf_counter
import numpy as np
from pluto_edge.manifest import Bundle
from pluto_edge.bench.fresh_child import peak_resident
from pluto_edge.bench.workload import images, open_runtime
path, batch, forward, adapt = json.loads(sys.argv[1])
bundle = Bundle(path, False)
frames = images(bundle, batch)
with open_runtime(bundle, "cpu", None) as runtime:
    graphs = runtime.learner.network.graphs
    graphs.micro_batch = forward
    graphs.micro_batch_adapt = adapt
    times = []
    for _ in range(5):
        start = perf_counter()
        runtime.step(frames)
        middle = perf_counter()
        runtime.predict(frames)
        times.append((middle - start, perf_counter() - middle))
step, predict = np.median(times[2:], axis=0)
print(json.dumps([step, predict, (peak_resident() - frames.nbytes) / 1e6]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", type=Path, nargs="+")
    parser.add_argument("--batch", type=int, default=64)
    options = parser.parse_args()
    print(this_cpu(), "\n")
    for path in options.bundles:
        manifest = Bundle(path, False).manifest
        chosen = tuple(micro_batch(manifest, v) for v in (FORWARD_VALUES, ADAPT_VALUES))
        found = {}
        for sizes in sorted({(8, 4), chosen, *((2 * n, n) for n in (2, 8, 16, 32) if 2 * n <= options.batch)}):
            found[sizes] = run_child(CHILD, path, options.batch, *sizes)[1]
        base = found[8, 4]
        rows = [
            (
                f"{forward}{'*' * ((forward, adapt) == chosen)}",
                adapt,
                f"{base[0] / step:.2f}",
                f"{base[1] / predict:.2f}",
                f"{megabytes:.0f}",
            )
            for (forward, adapt), (step, predict, megabytes) in found.items()
        ]
        print(f"{path}: a step of {options.batch} in {base[0]:.2f} s, a prediction in {base[1]:.2f} s at 8 and 4")
        print(table(("forward", "adapt", "step, times as fast", "predict", "peak MB"), rows, right=range(5)), "\n")


if __name__ == "__main__":
    main()
