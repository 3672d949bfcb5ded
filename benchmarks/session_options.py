"""What prepacked weights and threads that spin within a graph are worth, as ratios within one run.

    python benchmarks/session_options.py bundle/ [another-bundle/ ...]

Steps of 16 images with all modules. Each variant runs in a process of its own (memory is counted), in turn, several
rounds, and the best counts.
"""

import argparse
from itertools import product
from pathlib import Path

from pluto_edge._cpu import this_cpu
from pluto_edge._text import table
from pluto_edge.bench.fresh import run_child

CHILD = """
import json, sys, time
from pluto_edge.manifest import Bundle
from pluto_edge.runtime.engine import plan as module
from pluto_edge.runtime.engine.plan import MachinePlan
from pluto_edge.bench.fresh_child import peak_resident
from pluto_edge.bench.workload import images, open_runtime
path, prepack, spin = json.loads(sys.argv[1])
bundle = Bundle(path, False)
prepacked = ("embed.onnx", "forward.onnx", "adapt.onnx") if prepack == "1" else ()
module.find_plan = lambda *key: MachinePlan(spinning=spin == "1", prepacked=prepacked)
frames = images(bundle, 16)
with open_runtime(bundle, "cpu", None) as runtime:
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        runtime.step(frames)
        seconds.append(time.perf_counter() - start)
print(json.dumps([min(seconds[2:]), peak_resident() / 1e6]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", type=Path, nargs="+")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    print(this_cpu(), "\n")
    for bundle in options.bundles:
        best: dict[tuple[str, str], tuple[float, float]] = {}
        for _, prepack, spin in product(range(options.rounds), "01", "01"):
            seconds, megabytes = run_child(CHILD, bundle, prepack, spin)[1]
            old = best.get((prepack, spin), (float("inf"), 0.0))
            best[prepack, spin] = min(old, (seconds, megabytes))
        base = best["0", "0"][0]
        rows = [
            ("yes" if p == "1" else "no", "yes" if s == "1" else "no", f"{base / t:.2f}", f"{mb:.0f}")
            for (p, s), (t, mb) in best.items()
        ]
        print(f"{bundle}: a step of 16 in {base:.2f} s without either")
        print(table(("prepacked", "spinning", "times as fast", "peak MB"), rows, right=(2, 3)), "\n")


if __name__ == "__main__":
    main()
