"""What a precision costs in accuracy: the same steps on the same images with an fp32 and an int8 bundle.

    python benchmarks/leave_one_out.py store/ --data pacs/ --per-class 70 --out loo/
    python benchmarks/precision.py loo/ --data pacs/ --limit 512

Every target's store in loo/ is exported in both precisions. A bundle steps through up to `--limit` images of its
target in batches of 64, in one order for both; what counts is what it predicts on the way. The error of the
difference is that of pairs: only images on which the two disagree contribute.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from pluto_edge import Runtime
from pluto_edge._text import table
from pluto_edge.export.exporter import run_export
from pluto_edge.manifest import Precision
from pluto_edge.train.data import Domain, Sample, scan

BATCH = 64
PRECISIONS: tuple[Precision, Precision] = ("fp32", "int8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("loo", type=Path, help="<target>/store for every target")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=512, help="images of each target")
    options = parser.parse_args()
    domains = {d.name: d for d in scan(options.data)}
    rows = []
    pairs = []
    for folder in sorted(p.parent for p in options.loo.glob("*/store")):
        domain = domains[folder.name]
        samples = (*domain.train, *domain.val)
        chosen = [samples[i] for i in np.random.default_rng(0).permutation(len(samples))[: options.limit]]
        labels = np.array([s.label for s in chosen])
        right = np.array([stepped(folder / "store", p, domain, chosen) == labels for p in PRECISIONS])
        rows.append((folder.name, *described(right)))
        pairs.append(right)
    rows.append(("all", *described(np.concatenate(pairs, axis=1))))
    print(table(("target", "images", *PRECISIONS, "difference", "± one error"), rows, right=range(1, 6)))


def stepped(store: Path, precision: Precision, domain: Domain, samples: list[Sample]) -> NDArray[np.intp]:
    """The labels that a fresh runtime predicts while it learns."""
    with tempfile.TemporaryDirectory() as folder:
        run_export(store, Path(folder) / "bundle", precision=precision)
        runtime = Runtime(Path(folder) / "bundle")
        if runtime.classes != domain.classes:
            raise SystemExit(f"{store}: its classes are not those of {domain.name}")
        starts = tqdm(range(0, len(samples), BATCH), desc=f"{domain.name} {precision}", leave=False)
        batches = ([domain.read(s) for s in samples[start : start + BATCH]] for start in starts)
        return np.concatenate([runtime.step(batch).labels for batch in batches])


def described(right: NDArray[np.bool_]) -> tuple[object, ...]:
    plain, small = 100 * right.mean(axis=1)
    error = 100 * np.std(right[1].astype(float) - right[0]) / np.sqrt(right.shape[1])
    return right.shape[1], f"{plain:.1f}", f"{small:.1f}", f"{small - plain:+.1f}", f"{error:.1f}"


if __name__ == "__main__":
    main()
