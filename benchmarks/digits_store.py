"""The store of the Digits-Five table: a ViT that has only seen rendered digits, and an adapter for each domain.

    python benchmarks/datasets.py --archives ../shared/data --out runs/data
    python benchmarks/digits_store.py --data runs/data/digits --out runs/stores/digits

The backbone must not know the domain that is left out, so it saw no real digit: 24,000 drawn ones, each in a random
condition of examples/digits/meter.py. (It does know what rendered digits look like, and results.md says so.)
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch

from pluto_edge.store import Scalar, Store
from pluto_edge.train.data import scan
from pluto_edge.train.jobs import Workers
from pluto_edge.train.module import Recipe
from pluto_edge.train.progress import Bars
from pluto_edge.train.report import table
from pluto_edge.train.selector import SelectorRecipe
from pluto_edge.train.trainer import BackboneChoice, create_store, run_train

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "digits"))
import meter

import train as example  # noqa: TID251  examples/digits/train.py

SHAPE: dict[str, Scalar] = {"patch_size": 4, "embed_dim": 96, "depth": 6, "num_heads": 3}
IMAGES, EPOCHS = 24000, 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=1, help="of torch, for each job (default: 1)")
    parser.add_argument("--jobs", type=int, default=2, help="modules trained at the same time (default: 2)")
    options = parser.parse_args()
    work = options.out.with_name(options.out.name + "-backbone")
    work.mkdir(parents=True, exist_ok=True)
    weights = example.pretrain(
        work, lambda: drawn(IMAGES, 0), lambda: drawn(1000, 1), epochs=EPOCHS, seed=0, shape=SHAPE
    )
    domains = scan(options.data)
    if (options.out / "store.json").is_file():
        store = Store(options.out)
    else:
        choice = BackboneChoice(example.ARCHITECTURE, meter.SIZE, weights=weights, options=SHAPE)
        store = create_store(options.out, choice, domains[0].classes, "adapter", 8)
    recipe = Recipe(epochs=15, batch=64, lr=0.016, head_lr=0.008, patch_drop=0.1, patience=5)
    workers = Workers(options.jobs, options.threads)
    with Bars() as progress:
        report = run_train(
            store, domains, recipe=recipe, selector=SelectorRecipe(), workers=workers, progress=progress
        )
    print(table(report.matrix))


def drawn(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    conditions = list(meter.CONDITIONS.values())
    labels = rng.integers(10, size=count)
    images = [conditions[rng.integers(len(conditions))](meter.render(rng, int(d)), rng) for d in labels]
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(labels)


if __name__ == "__main__":
    main()
