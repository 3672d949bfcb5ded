"""Every module of the digits example on every condition that it knows: what each part is worth, at home and away.

    python benchmarks/datasets.py --archives ARCHIVES    # runs/data/meter, which needs none of the archives
    python benchmarks/conditions.py

These are development domains. Seven modules on six conditions are 42 pairs: *own* is a module on the condition it
was trained on, *generalist* has seen them all, *away* are the thirty pairs in which a module meets another's
condition, the nearest thing to an unknown domain here. Everything works on features that are recorded once.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pluto_edge.evaluate.adapters import Bench, Neo, NoConfig
from pluto_edge.evaluate.features import T3a, T3aConfig
from pluto_edge.evaluate.recorded import RecordedNetwork
from pluto_edge.evaluate.targets import TargetBatch, TargetStream, find_targets, prepare
from pluto_edge.manifest import Bundle
from pluto_edge.runtime.algorithm import prototypes as parts
from pluto_edge.runtime.algorithm.continuity import Continuity
from pluto_edge.runtime.algorithm.prototypes import Prototypes
from pluto_edge.runtime.engine.session import Engine

BUNDLE = Path("examples/digits/bundle")
CACHE = Path("runs/conditions")
BATCH = 64

Indices = NDArray[np.intp]
Step = Callable[[TargetBatch], NDArray[np.floating]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("runs/data/meter"))
    parser.add_argument("--images", type=int, default=640, help="of every condition (default: 640)")
    options = parser.parse_args()
    bundle = Bundle(BUNDLE)
    manifest = bundle.manifest
    network = RecordedNetwork(bundle, Engine("cpu", 1))
    streams = {}
    for target in find_targets(options.data, manifest.specialists, manifest.classes, seen=bundle.load_seen()):
        streams[target.name] = prepare(target, manifest.preprocessing, CACHE)
        network.record(streams[target.name], CACHE)
    for order in ("shuffled", "runs of 3", "runs of 10", "classes in order"):
        print(f"\n{order:36}      own  generalist  away  (worst pair)")
        for name, make in rows(network).items():
            found = {"own": [], "generalist": [], "away": []}
            for module in network.modules:
                for condition, stream in streams.items():
                    images = arranged(np.array(stream.target.labels), order, options.images)
                    where = "own" if module == condition else "away"
                    where = "generalist" if module == network.modules.generalist else where
                    found[where].append(accuracy(make(module), stream, images))
            own, general, away = (100 * float(np.mean(v)) for v in found.values())
            print(
                f"{name:36}    {own:5.1f}  {general:10.1f} {away:5.1f}  {100 * min(found['away']):5.1f}", flush=True
            )


def rows(network: RecordedNetwork) -> dict[str, Callable[[str], Step]]:
    """What is compared; each starts anew for every pair."""
    bench = Bench(network, BATCH)
    return {
        "head": lambda module: lambda batch: network.logits(batch, module, None),
        "NEO": lambda module: Neo(bench, module, NoConfig()).step,
        "T3A": lambda module: T3a(bench, module, T3aConfig()).step,
        "prototypes, distance alone": lambda module: Follow(network, module, along=0.0).step,
        "prototypes, distance and direction": lambda module: Follow(network, module).step,
        "and continuity": lambda module: Follow(network, module, continuity=Continuity()).step,
    }


class Follow:
    """Prototypes of one module that follow a stream, as a step of the runtime does it, and continuity if asked."""

    def __init__(
        self,
        network: RecordedNetwork,
        module: str,
        along: float = parts.ALONG,
        continuity: Continuity | None = None,
    ) -> None:
        self.network = network
        self.module = module
        self.along = along
        self.continuity = continuity
        self.prototypes = Prototypes()

    def step(self, batch: TargetBatch) -> NDArray[np.floating]:
        """Predicts a batch, twice as the runtime does: with what was known, and with what it shows."""
        passed = self.network.run(batch, {}, [self.module])
        known = self.network.modules.references
        ones = np.ones((len(batch), 1))
        learned = self.prototypes
        kept, parts.ALONG = parts.ALONG, self.along
        for _ in range(2):
            said = learned.predict([self.module], known, passed.logits, passed.features, ones)
            independence = 1.0
            if self.continuity is not None:
                said, after = self.continuity.follow(said)
                independence = after.independence
            learned = self.prototypes.learn([self.module], known, passed.features, ones, said, independence)
        parts.ALONG = kept
        self.prototypes = learned
        if self.continuity is not None:
            self.continuity = after
        return said

    def taught(self, batch: TargetBatch, truth: Indices) -> NDArray[np.floating]:
        """Predicts a batch with what was known, and learns its true classes, which nobody has on a device."""
        passed = self.network.run(batch, {}, [self.module])
        known = self.network.modules.references
        ones = np.ones((len(batch), 1))
        said = self.prototypes.predict([self.module], known, passed.logits, passed.features, ones)
        labels = np.eye(said.shape[1])[truth]
        self.prototypes = self.prototypes.learn([self.module], known, passed.features, ones, labels, 1.0)
        return said


def accuracy(step: Step, stream: TargetStream, images: Indices) -> float:
    """Online, batch after batch."""
    truth = np.array(stream.target.labels)
    right = [step(b).argmax(axis=1) == truth[b.indices] for b in stream.batches(images, BATCH)]
    return float(np.concatenate(right).mean())


def arranged(labels: Indices, order: str, count: int) -> Indices:
    """So many images in this order, each at most once."""
    rng = np.random.default_rng(1)
    shuffled = rng.permutation(len(labels))
    if order == "shuffled":
        return shuffled[:count]
    waiting = {int(k): list(shuffled[labels[shuffled] == k]) for k in np.unique(labels)}
    if order == "classes in order":
        each = count // len(waiting)
        return np.array([i for k in rng.permutation(list(waiting)) for i in waiting[int(k)][:each]])
    length = int(order.rsplit(" ", 1)[1])
    return np.array(_runs(waiting, length, count, rng))


def _runs(waiting: dict[int, list[int]], length: int, count: int, rng: np.random.Generator) -> Sequence[int]:
    """A class stays with probability 1 - 1/length."""
    found: list[int] = []
    now = int(rng.choice(list(waiting)))
    while len(found) < count and waiting[now]:
        found.append(waiting[now].pop())
        if rng.random() < 1 / length:
            now = int(rng.choice(list(waiting)))
    return found


if __name__ == "__main__":
    main()
