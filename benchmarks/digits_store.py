"""The store of the Digits-Five table: a small ViT that learned to read MNIST and drawn digits, an adapter a domain.

    python benchmarks/datasets.py --archives ../shared/data --out runs/data
    python benchmarks/digits_store.py --archives ../shared/data --data runs/data/digits --out runs/stores/digits

The backbone saw labels of MNIST's training split and of rendered digits, none of mnist_m, usps or svhn. So it is
these three rows of the table that leave out a domain altogether; in the other two only modules and selector have
not seen it.
"""

import argparse
import sys
import zlib
from pathlib import Path

import numpy as np
import torch

from pluto_edge.store import Scalar, Store
from pluto_edge.train.data import scan
from pluto_edge.train.jobs import Workers
from pluto_edge.train.progress import Bars
from pluto_edge.train.recipe import Recipe, SelectorRecipe
from pluto_edge.train.report import table
from pluto_edge.train.trainer import BackboneChoice, create_store, run_train

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "digits"))
import meter

import train as example  # noqa: TID251  examples/digits/train.py

SHAPE: dict[str, Scalar] = {"patch_size": 8, "embed_dim": 128, "depth": 6, "num_heads": 4}
IMAGES, EPOCHS = 24000, 14


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--archives", type=Path, required=True, help="folder of digits.zip")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=1, help="of torch, for each job (default: 1)")
    parser.add_argument("--jobs", type=int, default=2, help="modules trained at the same time (default: 2)")
    options = parser.parse_args()
    archive = example.Archive(options.archives / "digits.zip")
    work = options.out.with_name(options.out.name + "-backbone")
    work.mkdir(parents=True, exist_ok=True)
    weights = example.pretrain(
        work,
        lambda: digits(archive, IMAGES, "train"),
        lambda: digits(archive, 1000, "test"),
        epochs=EPOCHS,
        seed=0,
        shape=SHAPE,
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


def digits(archive: example.Archive, count: int, split: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Half rendered, half MNIST on plates of two colours."""
    rng = np.random.default_rng(zlib.crc32(split.encode()))
    images: list[example.Bytes] = []
    for digit in range(10):
        images += [meter.render(rng, digit) for _ in range(count // 20)]
        images += archive.draw(rng, "mnist", split, digit, count // 20)
    labels = torch.arange(10).repeat_interleave(count // 10)
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous(), labels


if __name__ == "__main__":
    main()
