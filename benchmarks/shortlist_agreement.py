"""How far a shortlist selects what all modules would: no labels, nothing learns, only the selection.

    python benchmarks/shortlist_agreement.py runs/bundles/cifar75 runs/data/cifar-c

On every domain a life of its own: steps on its images, shuffled again and again. `domains in one life` is the hard
case: the domain changes every `--steps` steps and nobody says so. `all modules, two batches` is how far what all
modules select agrees from one batch to another that shares no image with it.
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path

import numpy as np

from pluto_edge._text import table
from pluto_edge.evaluate.evaluation import CACHE
from pluto_edge.evaluate.recorded import RecordedNetwork
from pluto_edge.evaluate.targets import Stream, StreamBatch, find_targets, prepare
from pluto_edge.manifest import Bundle
from pluto_edge.runtime.learner import Blend, Learner
from pluto_edge.runtime.session import Engine

OUT = Path("runs/results")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("data", type=Path, help="folder of domains")
    parser.add_argument("--limit", type=int, default=64, help="images of each domain (default: 64)")
    parser.add_argument("--batch", type=int, default=32, help="images a step (default: 32)")
    parser.add_argument("--steps", type=int, default=20, help="on each domain (default: 20)")
    parser.add_argument("--top-m", type=int, default=5, help="modules that are blended (default: 5)")
    parser.add_argument("--probe", type=int, default=8, help="images on which modules are tried (default: 8)")
    parser.add_argument("--threads", type=int, help="of ONNX Runtime (default: all cores)")
    options = parser.parse_args()
    bundle = Bundle(options.bundle)
    manifest, network = bundle.manifest, RecordedNetwork(bundle, Engine("cpu", options.threads))
    streams = []
    for target in find_targets(options.data, (), manifest.classes, options.limit):
        streams.append(prepare(target, manifest.preprocessing, OUT / CACHE))
        network.record(streams[-1], OUT / CACHE)
    still = replace(manifest.adaptation, selector=False, sam=None, recentre=0.0, guard=False, top_m=options.top_m)

    def life(probe: int) -> Learner:
        return Learner(network, replace(still, probe=probe))

    apart, joined, itself = [], [], []
    travelling = life(options.probe)
    for stream in streams:
        everything, few = life(0), life(options.probe)
        wanted = []
        for batch in islice(batches(stream, options.batch), options.steps):
            wanted.append((batch, everything.step(batch)[0]))
            apart.append(agreement(few.step(batch)[0], wanted[-1][1]))
            joined.append(agreement(travelling.step(batch)[0], wanted[-1][1]))
        for (one, first), (two, second) in pairwise(wanted):
            if not np.intersect1d(one.indices, two.indices).size:
                itself.append(agreement(first, second))
    rows = {"a life for each domain": apart, "domains in one life": joined, "all modules, two batches": itself}
    cells = [(name, *(f"{v:.3f}" for v in np.mean(found, axis=0))) for name, found in rows.items()]
    print(f"{len(network.modules)} modules, top {options.top_m}, {len(streams)} domains, probe {options.probe}")
    header = ("", "shared", "the top one is in", "the same top one")
    print(table(header, cells, right=(1, 2, 3)))


def batches(stream: Stream, size: int) -> Iterator[StreamBatch]:
    rng = np.random.default_rng(0)
    while True:
        order = rng.permutation(len(stream.target))
        yield from stream.batches(order[: len(order) // size * size], size)


def agreement(got: Blend, want: Blend) -> tuple[float, bool, bool]:
    """The share of modules that both selected; whether the top one was selected, and whether it is the top one."""
    mine, theirs = got.order.tolist(), want.order.tolist()
    return len({*mine} & {*theirs}) / len(theirs), theirs[0] in mine, theirs[0] == mine[0]


if __name__ == "__main__":
    main()
