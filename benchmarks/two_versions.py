"""What a prediction and a step cost in two checkouts of this project, in turns: did a change make anything slower?

    git worktree add ../before c72db3e
    python benchmarks/two_versions.py ../before . --rounds 5

Each checkout runs its own code on its own digits bundle, in a process of its own, one thread, round after round.
Figures are milliseconds of processor time, which other work on the machine hardly changes: the median of the calls
of a round, then of the rounds. The bundle's own settings, and the paper's (`AdaptConfig.paper()`).
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

from pluto_edge._cpu import this_cpu

CHILD = """
import json, sys, time
from statistics import median
import numpy as np
from pluto_edge import AdaptConfig, Runtime

images = np.random.default_rng(0).integers(0, 256, (64, 32, 32, 3), dtype=np.uint8)

def cost(call, times):
    found = []
    for _ in range(times):
        start = time.process_time()
        call()
        found.append(1e3 * (time.process_time() - start))
    return median(found)

costs = {}
for name, config in (("", None), (", the paper's", AdaptConfig.paper())):
    with Runtime("examples/digits/bundle", threads=1, config=config) as runtime:
        for _ in range(3):
            runtime.predict(images)
            runtime.step(images)
        costs["64 images predicted" + name] = cost(lambda: runtime.predict(images), 25)
        costs["one image predicted" + name] = cost(lambda: runtime.predict(images[:1]), 60)
        costs["a step on 64 images" + name] = cost(lambda: runtime.step(images), 15)
print(json.dumps(costs))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="a checkout")
    parser.add_argument("now", type=Path, help="another")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    folders = (options.before, options.now)
    rounds = [[measure(folder) for folder in folders] for _ in range(options.rounds)]
    print(f"{this_cpu()}; processor time of one thread\n")
    print("| | before, ms | now, ms | ratio |\n|---|---:|---:|---:|")
    for name in rounds[0][0]:
        old, new = (median(one[side][name] for one in rounds) for side in (0, 1))
        print(f"| {name} | {old:.2f} | {new:.2f} | {new / old:.3f} |")


def measure(folder: Path) -> dict[str, float]:
    """One round of one checkout."""
    one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    environment = {**os.environ, **one, "PYTHONPATH": str(folder.resolve())}
    command = [sys.executable, "-W", "ignore", "-c", CHILD]
    said = subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    found: dict[str, float] = json.loads(said)
    return found


if __name__ == "__main__":
    main()
