"""What prepacked weights and spinning threads are worth, as ratios within one run.

    python benchmarks/session_options.py bundle/ [another-bundle/ ...]

Each variant runs in a process of its own (memory is counted), in turn, several rounds, and the best counts.
"""

import argparse
import json
import subprocess
import sys
from itertools import product

from pluto_edge._text import table

CHILD = """
import json, sys, time
import numpy as np
from pluto_edge.runtime import session
bundle, prepack, spin = sys.argv[1], sys.argv[2], sys.argv[3]
original = session.Engine._options
def options(self):
    o = original(self)
    o.add_session_config_entry("session.disable_prepacking", "0" if prepack == "1" else "1")
    o.add_session_config_entry("session.intra_op.allow_spinning", spin)
    return o
session.Engine._options = options
from pluto_edge import Runtime
frames = np.random.default_rng(0).integers(0, 256, (8, 224, 224, 3), dtype=np.uint8)
runtime = Runtime(bundle, verify=False)
pages = int(open("/proc/self/statm").read().split()[1])
runtime.predict(frames)
seconds = []
for _ in range(3):
    start = time.perf_counter()
    runtime.predict(frames)
    seconds.append(time.perf_counter() - start)
print(json.dumps([min(seconds), pages * 4096 / 1e6]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", nargs="+")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    for bundle in options.bundles:
        best: dict[tuple[str, str], tuple[float, float]] = {}
        for _, prepack, spin in product(range(options.rounds), "01", "01"):
            command = [sys.executable, "-c", CHILD, bundle, prepack, spin]
            seconds, megabytes = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
            old = best.get((prepack, spin), (float("inf"), 0.0))
            best[prepack, spin] = min(old, (seconds, megabytes))
        base = best["0", "0"][0]
        rows = [
            ("yes" if p == "1" else "no", "yes" if s == "1" else "no", f"{base / t:.2f}", f"{mb:.0f}")
            for (p, s), (t, mb) in best.items()
        ]
        print(f"{bundle}: a batch of 8 in {base:.2f} s without either")
        print(table(("prepacked", "spinning", "times as fast", "MB when open"), rows, right=(2, 3)), "\n")


if __name__ == "__main__":
    main()
