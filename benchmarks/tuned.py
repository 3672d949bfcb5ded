"""Rates and other settings of the compared methods, chosen on development domains as PLUTO's own were.

    python benchmarks/tuned.py pacs      # art_painting and photo, left out in turn: the others' generalist
    python benchmarks/tuned.py digits    # conditions of the digits example, read by the module for clear weather

Every setting of the grid, with the published one among them, runs on the same images in the same order. The best on
average is written to benchmarks/tuned.json, which `tables.py` reads. What was run is kept in runs/tuned/, so that a
search that was stopped goes on.
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from pluto_edge._files import write_text
from pluto_edge.evaluate.adapters import Bench
from pluto_edge.evaluate.methods import choose
from pluto_edge.evaluate.recorded import RecordedNetwork
from pluto_edge.evaluate.targets import arrange, find_targets, prepare
from pluto_edge.manifest import Bundle
from pluto_edge.runtime.engine.session import Engine

RUNS = Path("runs")
FOUND = Path(__file__).with_name("tuned.json")
BATCH = 64

RATES = ("0.001", "0.003", "0.01", "0.03", "0.1")
GRID: dict[str, tuple[str, ...]] = {
    "t3a": tuple(f"filter_k={k}" for k in (5, 20, 50, 100, 1000)),
    "lame": tuple(f"affinity={a},neighbours={n}" for a in ("knn", "rbf") for n in (1, 3, 5)),
    "tent": tuple(f"lr={r}" for r in RATES),
    "sar": tuple(f"lr={r}" for r in RATES),
    "eata": tuple(f"lr={r}" for r in RATES),
    "foa": tuple(f"lr={r}" for r in ("0.0002", "0.001", "0.005", "0.02")),
    "cotta": tuple(f"lr={r},views=4" for r in ("0.0005", "0.005", "0.02")),
}
SLOW = {"eata": 2, "cotta": 4}  # an image costs so much more: so many fewer of them


@dataclass(frozen=True)
class Case:
    """One development domain, and the module that meets it."""

    bundle: Path
    data: Path
    target: str
    module: str
    store: Path


def cases(family: str) -> list[Case]:
    """The development domains of a family of tables."""
    if family == "pacs":
        folder = RUNS / "loo" / "pacs-adapter"
        return [
            Case(folder / t / "bundle", RUNS / "data" / "pacs", t, "generalist", folder / t / "store")
            for t in ("art_painting", "photo")
        ]
    example = Path("examples/digits")
    return [
        Case(example / "bundle", RUNS / "data" / "meter", t, "clear", example / "store")
        for t in ("fog", "low_light", "motion_blur", "sensor_noise")
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("family", choices=("pacs", "digits"))
    parser.add_argument("--method", action="append", help="this one only (may be repeated)")
    parser.add_argument("--images", type=int, default=512, help="of each domain (default: 512)")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    known = json.loads(FOUND.read_text()) if FOUND.exists() else {}
    mine = known.setdefault(options.family, {})
    for name in options.method or GRID:
        images = options.images // SLOW.get(name, 1)
        scores = {}
        for setting in tqdm(GRID[name], name, disable=None):
            method = f"{name}:{setting}" + ",mirror=false" * (name == "cotta" and options.family == "digits")
            scores[method] = [accuracy(case, method, images, options.threads) for case in cases(options.family)]
        best = max(scores, key=lambda m: float(np.mean(scores[m])))
        mine[name] = best
        for method, found in scores.items():
            cells = " ".join(f"{100 * a:5.1f}" for a in found)
            print(f"{'*' if method == best else ' '} {method:28} {cells}  {100 * np.mean(found):5.1f}", flush=True)
        write_text(FOUND, json.dumps(known, indent=2, sort_keys=True) + "\n")


def accuracy(case: Case, method: str, images: int, threads: int) -> float:
    """Of one setting on one domain, online."""
    bundle = Bundle(case.bundle)
    manifest = bundle.manifest
    file = RUNS / "tuned" / f"{bundle.hash[:12]}-{case.target}-{images}-{method.replace(':', '-')}.json"
    if file.exists():
        return float(json.loads(file.read_text()))
    network = RecordedNetwork(bundle, Engine("cpu", threads))
    (target,) = find_targets(case.data, (case.target,), manifest.classes, images, bundle.load_seen())
    stream = prepare(target, manifest.preprocessing, RUNS / "tuned")
    network.record(stream, RUNS / "tuned")
    (chosen,) = choose((method,), manifest.adaptation)
    adapter = chosen.make(Bench(network, BATCH, store=case.store), case.module, chosen.config)
    truth = np.array(target.labels)
    right = 0
    for batch in stream.batches(arrange(target.labels, "shuffled", 0), BATCH):
        right += int((np.asarray(adapter.step(batch)).argmax(axis=1) == truth[batch.indices]).sum())
    write_text(file, json.dumps(right / len(truth)))
    return right / len(truth)


if __name__ == "__main__":
    main()
