"""What streams cost: memory for every further camera, and what learning does to the latency of predictions.

    python benchmarks/streams.py bundle/                       # memory of ten cameras, then latencies
    python benchmarks/streams.py bundle/ --fps 5 --frames 600

Every camera of the memory table has learned (each frame counts as reliable) and has a full buffer. Latencies are of
a camera with `--fps` frames a second (default: so many that predictions alone take 40 % of the time); a frame that
comes late is not made up for. Each row is a process of its own, on random frames.
"""

import argparse
import json
import subprocess
import sys
from time import perf_counter, sleep

import numpy as np
from memory import resident

from pluto_edge import AdaptConfig, Runtime
from pluto_edge._cpu import this_cpu
from pluto_edge._text import table

CONFIG = AdaptConfig(entropy_margin=1.0, guard=False)
MODES = ("off", "background", "background, budget 0.2", "inline")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle")
    parser.add_argument("--cameras", type=int, default=10)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--frames", type=int, default=640)
    parser.add_argument("--fps", type=float)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(cameras(options) if options.child == "memory" else latency(options)))
        return
    rows = [(n, f"{total:.1f}", f"{more:.2f}") for n, total, more in child(options, "memory")]
    print(this_cpu(), "\n")
    print(table(("cameras", "resident MB", "MB for the last one"), rows, right=range(3)), "\n")
    options.fps = options.fps or 0.4 / (child(options, "probe")[0] / 1e3)
    rows = [(mode, *(f"{v:.4g}" for v in child(options, mode))) for mode in MODES]
    print(f"{options.fps:.1f} frames a second, batches of {options.batch}, milliseconds")
    header = ("learning", "median", "p99", "longest", "steps", "skipped", "late frames")
    print(table(header, rows, right=range(1, 7)))


def child(options: argparse.Namespace, what: str) -> list:
    command = [sys.executable, __file__, options.bundle, "--child", what]
    for name in ("cameras", "batch", "frames", "fps"):
        if getattr(options, name) is not None:
            command += [f"--{name}", str(getattr(options, name))]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def cameras(options: argparse.Namespace) -> list[tuple[int, float, float]]:
    runtime = Runtime(options.bundle, config=CONFIG, verify=False)
    size = runtime.manifest.preprocessing.size
    rng = np.random.default_rng(0)
    rows = []
    last = resident()
    kept = []
    for number in range(1, options.cameras + 1):
        stream = runtime.stream(f"cam{number}", options.batch, background=False)
        for _ in range(2 * options.batch):
            stream(rng.integers(0, 256, (*size, 3), dtype=np.uint8))
        kept.append(stream)
        rows.append((number, resident(), resident() - last))
        last = resident()
    return rows


def latency(options: argparse.Namespace) -> list[float]:
    runtime = Runtime(options.bundle, config=CONFIG, verify=False)
    size = runtime.manifest.preprocessing.size
    rng = np.random.default_rng(0)
    pool = rng.integers(0, 256, (16, *size, 3), dtype=np.uint8)
    budget = 0.2 if "budget" in options.child else None
    stream = runtime.stream("cam", options.batch, budget=budget, background=options.child.startswith("background"))
    stream.frozen = options.child in ("off", "probe")
    for frame in pool:
        stream(frame)
    if options.child == "probe":
        return [stream.metrics.latency_median]
    if not stream.frozen:  # the gradient graph is opened with the first step
        while stream.metrics.steps == 0:
            stream(pool[0])
    times = []
    late = 0
    due = perf_counter()
    for number in range(options.frames):
        due += 1 / options.fps
        if (pause := due - perf_counter()) > 0:
            sleep(pause)
        else:
            late += 1
            due = perf_counter()
        start = perf_counter()
        stream(pool[number % len(pool)])
        times.append(1e3 * (perf_counter() - start))
    stream.wait()
    m = stream.metrics
    skipped = m.skipped_busy + m.skipped_budget
    return [float(np.median(times)), float(np.percentile(times, 99)), max(times), m.steps, skipped, late]


if __name__ == "__main__":
    main()
