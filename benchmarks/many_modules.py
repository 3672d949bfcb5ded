"""What a step and a frame cost with many modules: all of them run, against the shortlist of `AdaptConfig.probe`.

    python benchmarks/many_modules.py runs/bundles/cifar75 --threads 1 --repeats 3

Every round times each of them once, so that what slows the machine down slows all of them. Images are noise, and
nothing that is learned has an effect: a step costs the same each time. Counts are of images through the graphs,
summed over modules.
"""

import argparse
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import numpy as np
from contest import in_turns

from pluto_edge import Runtime
from pluto_edge._text import table
from pluto_edge.manifest import Bundle
from pluto_edge.runtime.network import Network
from pluto_edge.runtime.workload import images, steady


class Counted:
    """A call that gives its seconds, and the images that it sends through `forward` and `adapt`."""

    def __init__(self, network: Network, call: Callable[[], object], before: Callable[[], object] = lambda: None):
        self.network, self.call, self.before = network, call, before
        self.images: Counter[str] = Counter()

    def __call__(self) -> float:
        self.before()
        self.images = Counter()
        run = self.network._run

        def counted(graph, inputs):
            if "tokens" in inputs:
                kind = "adapt" if "threshold" in inputs else "forward"
                self.images[kind] += inputs["tokens"].numpy().shape[0]
            return run(graph, inputs)

        self.network._run = counted
        start = perf_counter()
        self.call()
        seconds = perf_counter() - start
        del self.network._run
        return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--batch", type=int, default=64, help="images a step (default: 64)")
    parser.add_argument("--top-m", type=int, default=5, help="modules that are blended (default: 5)")
    parser.add_argument("--threads", type=int, help="of ONNX Runtime (default: all cores)")
    parser.add_argument("--repeats", type=int, default=3, help="rounds (default: 3)")
    options = parser.parse_args()
    bundle = Bundle(options.bundle)
    config = replace(steady(bundle.manifest.adaptation), top_m=options.top_m)
    plain, quick, fresh = (
        Runtime(bundle.path, "cpu", options.threads, config=replace(config, probe=p), verify=False)
        for p in (0, config.probe, config.probe)
    )
    batch, frame = images(bundle, options.batch), images(bundle, 1)
    step_all = Counted(plain._network, lambda: plain.step(batch))
    frame_all = Counted(plain._network, lambda: plain.predict(frame))
    rows = {
        "step, all modules": (step_all, step_all),
        "step, shortlist": (Counted(quick._network, lambda: quick.step(batch)), step_all),
        "step, survey": (Counted(fresh._network, lambda: fresh.step(batch), before=fresh.reset), step_all),
        "frame, all modules": (frame_all, frame_all),
        "frame, shortlist": (Counted(quick._network, lambda: quick.predict(frame)), frame_all),
    }
    quick.step(batch)  # the survey
    calls = {name: call for name, (call, _) in rows.items()}
    seconds = in_turns("rounds", calls, options.repeats, 1)  # the first step does not know the top module
    medians = {calls[name]: float(np.median(measured)) for name, measured in seconds.items()}
    print(f"{len(plain.modules)} modules, {options.top_m} blended, batch {options.batch}, probe {config.probe}")
    cells = [
        (
            name,
            str(call.images["forward"]),
            str(call.images["adapt"]),
            f"{1e3 * medians[call]:.0f}",
            f"{medians[against] / medians[call]:.1f}",
        )
        for name, (call, against) in rows.items()
    ]
    print(table(("", "forward", "adapt", "ms", "times as fast"), cells, right=(1, 2, 3, 4)))


if __name__ == "__main__":
    main()
