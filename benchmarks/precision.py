"""What a precision costs in accuracy: the same steps on the same images in fp32, int8 and bfloat16.

    python benchmarks/leave_one_out.py store/ --data pacs/ --per-class 70 --out loo/
    python benchmarks/precision.py loo/ --data pacs/ --limit 512

Every target's store in loo/ is exported as each way wants it (bfloat16 takes part where OpenVINO and the processor
have it). A bundle steps through up to `--limit` images of its target in batches of 64, in one order for all; what
counts is what it predicts on the way. The error of a difference to fp32 is that of pairs: only images on which the
two disagree contribute.
"""

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from pluto_edge import Runtime
from pluto_edge._text import table
from pluto_edge.errors import PlutoError
from pluto_edge.export.exporter import run_export
from pluto_edge.runtime.engine.providers import choose
from pluto_edge.train.data import Domain, Sample, scan

BATCH = 64


@dataclass(frozen=True)
class Way:
    """How a store is exported, and where it runs."""

    name: str
    export: dict[str, Any]
    provider: str = "cpu"

    @property
    def works(self) -> bool:
        """Whether this machine has it."""
        try:
            choose(self.provider)
        except PlutoError:
            return False
        return True


WAYS = (
    Way("fp32", {}),
    Way("int8", {"precision": "int8"}),
    Way("bfloat16", {"profile": "portable"}, "openvino-bf16"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("loo", type=Path, help="<target>/store for every target")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=512, help="images of each target")
    options = parser.parse_args()
    domains = {d.name: d for d in scan(options.data)}
    ways = [way for way in WAYS if way.works]
    rows = []
    pairs = []
    for folder in sorted(p.parent for p in options.loo.glob("*/store")):
        domain = domains[folder.name]
        samples = (*domain.train, *domain.val)
        chosen = [samples[i] for i in np.random.default_rng(0).permutation(len(samples))[: options.limit]]
        labels = np.array([s.label for s in chosen])
        right = np.array([stepped(folder / "store", way, domain, chosen) == labels for way in ways])
        rows.append((folder.name, *described(right)))
        pairs.append(right)
    rows.append(("all", *described(np.concatenate(pairs, axis=1))))
    header = ("target", "images", "fp32", *(column for way in ways[1:] for column in (way.name, "difference", "±")))
    print(table(header, rows, right=range(1, len(header))))


def stepped(store: Path, way: Way, domain: Domain, samples: Sequence[Sample]) -> NDArray[np.intp]:
    """The labels that a fresh runtime predicts while it learns."""
    with tempfile.TemporaryDirectory() as folder:
        run_export(store, Path(folder) / "bundle", **way.export)
        runtime = Runtime(Path(folder) / "bundle", way.provider)
        if runtime.classes != domain.classes:
            raise SystemExit(f"{store}: its classes are not those of {domain.name}")
        starts = tqdm(range(0, len(samples), BATCH), desc=f"{domain.name} {way.name}", leave=False)
        batches = ([domain.read(s) for s in samples[start : start + BATCH]] for start in starts)
        return np.concatenate([runtime.step(batch).labels for batch in batches])


def described(right: NDArray[np.bool_]) -> tuple[object, ...]:
    """Images, the first way's accuracy, and every other's with its difference and one standard error of that."""
    accuracy = 100 * right.mean(axis=1)
    found: list[object] = [right.shape[1], f"{accuracy[0]:.1f}"]
    for row, other in zip(right[1:], accuracy[1:], strict=True):
        error = 100 * np.std(row.astype(float) - right[0]) / np.sqrt(right.shape[1])
        found += [f"{other:.1f}", f"{other - accuracy[0]:+.1f}", f"{error:.1f}"]
    return tuple(found)


if __name__ == "__main__":
    main()
