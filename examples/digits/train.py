"""Make the store of this folder: a small ViT that reads digits, and a module for every condition of `meter.py`.

1. Images: every condition becomes a folder of rendered digits and of real ones (MNIST and USPS printed on a plate;
   MNIST-M for colour_background), the train split for training, the test split for validation.
2. Backbone: a ViT of 0.7 million parameters, from scratch, on clear digits only (rendered, MNIST, USPS, SVHN).
3. Modules: with the backbone frozen, one per condition and a generalist of all of them, as prompts (vpt) and as
   adapters, with their sources' statistics; the kind whose modules validate better on their own conditions is kept,
   together with its selector.
"""

import argparse
import io
import math
import os
import shutil
import sys
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import meter
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from tqdm import tqdm

from pluto_edge import train
from pluto_edge.train.trainer import TrainReport
from pluto_edge.vit.backbone import create

ROOT = Path(__file__).resolve().parents[2]
ARCHITECTURE = "vit_tiny_patch16_224"  # the family; the options below make it a ViT for 32 x 32
OPTIONS = {"patch_size": 8, "embed_dim": 96, "depth": 6, "num_heads": 3}
KINDS: tuple[Literal["vpt", "adapter"], ...] = ("vpt", "adapter")  # in the sizes that `train` gives them
RATES = {"vpt": 1.0, "adapter": 0.016}
CLEAR_REAL = {"mnist": 0.35, "usps": 0.15, "svhn": 0.2}  # shares of the backbone's images; the rest is rendered

Bytes = NDArray[np.uint8]
Data = Callable[[], tuple[Tensor, Tensor]]  # images as bytes [n,3,32,32], labels [n]


class Stage(NamedTuple):
    """Epochs of the backbone's training, from a learning rate down to zero, with one strength of augmentation."""

    share: float
    peak: float
    contrast: float
    level: float
    noise: float


STAGES = (Stage(0.6, 1e-3, 0.6, 0.1, 0.04), Stage(0.4, 7e-4, 0.25, 0.2, 0.06))  # harder once it can read


def main() -> None:
    options = parse()
    if options.threads:
        torch.set_num_threads(options.threads)
    if not options.data.is_file():
        sys.exit(
            f"{options.data}: no such file; give --data, or set PLUTO_DATA to the folder that holds digits.zip"
        )
    if options.out.exists() and not (options.out / "store.json").is_file():
        sys.exit(f"{options.out}: exists and is not a store; give another --out")
    options.work.mkdir(parents=True, exist_ok=True)
    archive = Archive(options.data)
    write_images(archive, options.work / "images", options)
    weights = pretrain(
        options.work,
        lambda: clear_digits(archive, options.samples, "train", options.seed),
        lambda: clear_digits(archive, 1000, "test", options.seed + 1),
        epochs=options.epochs,
        seed=options.seed,
    )
    reports = {kind: train_modules(kind, weights, options) for kind in KINDS}
    kind = max(reports, key=lambda k: own_accuracy(reports[k]))
    shutil.rmtree(options.out, ignore_errors=True)
    shutil.copytree(reports[kind].store, options.out, ignore=shutil.ignore_patterns(".work"))
    for name, report in reports.items():
        print(f"\n{name}: own conditions {own_accuracy(report):.3f} on average\n{report}")
    print(f"\nkept {kind}: {options.out}")
    print(f"next: pluto export {options.out} --out {options.out.parent / 'bundle'} --force")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="examples:\n"
        "  python examples/digits/train.py                              # the store that is in this folder\n"
        "  python examples/digits/train.py --out store --work scratch --epochs 1 --per-class 20   # a quick look\n"
        "\n"
        "A run that was stopped goes on where it was. For other settings give another --work.",
    )
    data = Path(os.environ.get("PLUTO_DATA") or ROOT.parent / "shared" / "data") / "digits.zip"
    folder = ROOT / "examples" / "digits"
    add = parser.add_argument
    add(
        "--data", type=Path, default=data, metavar="ZIP", help="digits.zip of docs/data.md (default: in PLUTO_DATA)"
    )
    add("--out", type=Path, default=folder / "store", metavar="STORE", help="store to write or replace")
    add("--work", type=Path, default=ROOT / "runs" / "digits", help="for images and checkpoints; delete it later")
    add("--seed", type=int, default=0, help="of everything (default: 0)")
    add("--threads", type=int, metavar="N", help="of torch; 1 is far faster on a busy machine")
    backbone = parser.add_argument_group("backbone")
    backbone.add_argument("--samples", type=int, default=24000, help="clear digits (default: 24000)")
    backbone.add_argument("--epochs", type=int, default=20, help="over them (default: 20)")
    modules = parser.add_argument_group("modules")
    modules.add_argument("--per-class", type=int, default=200, help="images a condition and digit (default: 200)")
    modules.add_argument("--val-per-class", type=int, default=40, help="the same for validation (default: 40)")
    modules.add_argument("--module-epochs", type=int, default=12, help="of each module, at most (default: 12)")
    modules.add_argument("--jobs", type=int, default=1, help="modules trained at the same time (default: 1)")
    return parser.parse_args()


# Images


class Archive:
    """digits.zip: `domain/split/class/file`."""

    def __init__(self, path: Path) -> None:
        self.zip = zipfile.ZipFile(path)
        self.names: dict[str, list[str]] = defaultdict(list)
        for name in sorted(self.zip.namelist()):
            if not name.endswith("/"):
                self.names[name.rpartition("/")[0]].append(name)

    def draw(self, rng: np.random.Generator, domain: str, split: str, digit: int, count: int) -> list[Bytes]:
        """Different digits of one domain as clear images: grey ones are printed on a plate."""
        names = self.names[f"{domain}/{split}/{digit}"]
        chosen = rng.choice(len(names), count, replace=count > len(names))
        return [self.read(names[i], rng) for i in chosen]

    def read(self, name: str, rng: np.random.Generator) -> Bytes:
        with Image.open(io.BytesIO(self.zip.read(name))) as image:
            pixels = np.asarray(image)
        return meter.on_plate(pixels, rng) if pixels.ndim == 2 else pixels


def write_images(archive: Archive, root: Path, options: argparse.Namespace) -> None:
    """`root/<condition>/train|val/<digit>/*.png`."""
    done = root / "done"
    if done.exists():
        return
    jobs = [
        (condition, split, count, digit)
        for condition in meter.CONDITIONS
        for split, count in (("train", options.per_class), ("val", options.val_per_class))
        for digit in range(10)
    ]
    for condition, split, count, digit in tqdm(jobs, "images", disable=None):
        rng = np.random.default_rng([options.seed, zlib.crc32(f"{condition} {split}".encode()), digit])
        folder = root / condition / split / str(digit)
        folder.mkdir(parents=True, exist_ok=True)
        for number, image in enumerate(condition_images(archive, rng, condition, split, digit, count)):
            Image.fromarray(image).save(folder / f"{number:04}.png")
    done.touch()


def condition_images(
    archive: Archive, rng: np.random.Generator, condition: str, split: str, digit: int, count: int
) -> list[Bytes]:
    """Half rendered, half real. MNIST-M has its colourful backgrounds already."""
    change = meter.CONDITIONS[condition]
    part = "train" if split == "train" else "test"
    rendered = [change(meter.render(rng, digit), rng) for _ in range(count - count // 2)]
    if condition == "colour_background":
        return rendered + archive.draw(rng, "mnist_m", part, digit, count // 2)
    shares = {"mnist": count // 2 - count // 4, "usps": count // 4}
    real = [image for name, n in shares.items() for image in archive.draw(rng, name, part, digit, n)]
    return rendered + [change(image, rng) for image in real]


# Backbone


class DigitReader(nn.Module):
    """The ViT with a head that is thrown away afterwards; a tenth of the patches is left out at random."""

    def __init__(self, shape: dict[str, int]) -> None:
        super().__init__()
        self.vit: Any = create(ARCHITECTURE, (meter.SIZE, meter.SIZE), {**shape, "patch_drop_rate": 0.1})
        self.vit.requires_grad_(True)
        self.head = nn.Linear(shape["embed_dim"], 10)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.head(self.vit(pixels))  # type: ignore[no-any-return]


def pretrain(
    work: Path, train_data: Data, held_data: Data, *, epochs: int, seed: int, shape: dict[str, int] = OPTIONS
) -> Path:
    """The backbone's weights; the last whole epoch is kept, and gone on from."""
    file = work / "backbone.safetensors"
    checkpoint = work / "pretraining.safetensors"
    if file.is_file():
        return file
    torch.manual_seed(seed)
    net = DigitReader(shape)
    optimizer = torch.optim.AdamW(net.parameters(), weight_decay=0.05, fused=True)
    first = load_checkpoint(checkpoint, net, optimizer) if checkpoint.is_file() else 0
    train = train_data()
    held = held_data()
    for epoch in range(first, epochs):
        torch.manual_seed(seed * 1000 + epoch)
        run_epoch(net, optimizer, *train, epoch, epochs)
        save_checkpoint(checkpoint, net, optimizer, epoch + 1)
        print(f"backbone: epoch {epoch + 1}, accuracy on test digits {score(net, *held):.3f}", flush=True)
    save_file({k: v.contiguous() for k, v in net.vit.state_dict().items()}, file)
    return file


def run_epoch(
    net: DigitReader, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor, epoch: int, epochs: int
) -> None:
    net.train()
    stage, done, whole = stage_of(epoch, epochs)
    batches = torch.split(torch.randperm(len(labels)), 96)
    bar = tqdm(batches, f"backbone {epoch + 1}/{epochs}", disable=None)
    for turn, index in enumerate(bar):
        at, total = done * len(batches) + turn, whole * len(batches)
        optimizer.param_groups[0]["lr"] = stage.peak * cosine(at, total)
        loss = F.cross_entropy(net(augment(images[index], stage)), labels[index], label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        bar.set_postfix(loss=f"{float(loss.detach()):.2f}")


def clear_digits(archive: Archive, count: int, split: str, seed: int) -> tuple[Tensor, Tensor]:
    """Bytes [n,3,32,32], and labels [n]."""
    rng = np.random.default_rng([seed, zlib.crc32(split.encode())])
    images: list[Bytes] = []
    labels: list[int] = []
    for digit in tqdm(range(10), f"clear digits ({split})", disable=None):
        here = [
            i
            for name, share in CLEAR_REAL.items()
            for i in archive.draw(rng, name, split, digit, round(share * count / 10))
        ]
        here += [meter.render(rng, digit) for _ in range(count // 10 - len(here))]
        images += here
        labels += [digit] * len(here)
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous(), torch.tensor(labels)


def augment(images: Tensor, stage: Stage) -> Tensor:
    """Bytes to normalised pixels, each image moved, scaled, turned, of another contrast and slightly noisy."""
    n = len(images)
    scale, angle = torch.empty(n).uniform_(0.85, 1.2), torch.empty(n).uniform_(-0.2, 0.2)
    shift = torch.empty(n, 2).uniform_(-0.15, 0.15)
    cos, sin = angle.cos() * scale, angle.sin() * scale
    matrix = torch.stack([cos, -sin, shift[:, 0], sin, cos, shift[:, 1]], dim=1).view(n, 2, 3)
    grid = F.affine_grid(matrix, [n, 3, meter.SIZE, meter.SIZE], align_corners=False)
    moved = F.grid_sample(images / 255, grid, padding_mode="border", align_corners=False)
    contrast = torch.empty(n, 1, 1, 1).uniform_(stage.contrast, 1.1)
    level = torch.empty(n, 3, 1, 1).uniform_(-stage.level, stage.level)
    noise = torch.randn(moved.shape) * torch.empty(n, 1, 1, 1).uniform_(0, stage.noise)
    return normalise(((moved - 0.5) * contrast + 0.5 + level + noise).clamp(0, 1))


def normalise(images: Tensor) -> Tensor:
    return (images - 0.5) / 0.5


def stage_of(epoch: int, epochs: int) -> tuple[Stage, int, int]:
    """The stage of an epoch, how many of its epochs are over, and how many it has."""
    first = max(1, round(STAGES[0].share * epochs))
    return (STAGES[0], epoch, first) if epoch < first else (STAGES[1], epoch - first, epochs - first)


def cosine(turn: int, total: int) -> float:
    """Linear warm-up over a twentieth, then half a cosine to zero."""
    warm = max(1, total // 20)
    return (turn + 1) / warm if turn < warm else 0.5 * (1 + math.cos(math.pi * (turn - warm) / (total - warm)))


@torch.no_grad()
def score(net: DigitReader, images: Tensor, labels: Tensor) -> float:
    net.eval()
    found = torch.cat([net(normalise(part / 255)).argmax(dim=1) for part in torch.split(images, 250)])
    return float((found == labels).float().mean())


def save_checkpoint(path: Path, net: DigitReader, optimizer: torch.optim.Optimizer, epoch: int) -> None:
    tensors = {f"net.{k}": v for k, v in net.state_dict().items()} | {"epoch": torch.tensor(epoch)}
    for index, memory in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{k}": v for k, v in memory.items()}
    save_file(tensors, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


def load_checkpoint(path: Path, net: DigitReader, optimizer: torch.optim.Optimizer) -> int:
    tensors = load_file(path)
    net.load_state_dict({k[4:]: v for k, v in tensors.items() if k.startswith("net.")})
    state = optimizer.state_dict()
    for key, value in tensors.items():
        if key.startswith("optimizer."):
            _, index, name = key.split(".")
            state["state"].setdefault(int(index), {})[name] = value
    optimizer.load_state_dict(state)
    return int(tensors["epoch"])


# Modules


def train_modules(kind: Literal["vpt", "adapter"], weights: Path, options: argparse.Namespace) -> TrainReport:
    """A store of this kind in the scratch folder."""
    path = options.work / kind / "store"
    settings: dict[str, Any] = {"into": path}
    if not (path / "store.json").is_file():
        settings = {"out": path, "backbone": ARCHITECTURE, "weights": weights, "backbone_options": OPTIONS}
        settings |= {"image_size": meter.SIZE, "kind": kind}
    return train(
        options.work / "images",
        **settings,
        epochs=options.module_epochs,
        batch=64,
        lr=RATES[kind],
        head_lr=0.008,
        patch_drop=0.1,
        patience=5,
        seed=options.seed,
        jobs=options.jobs,
        threads=options.threads,
    )


def own_accuracy(report: TrainReport) -> float:
    """Mean accuracy of every module on its own condition; the generalist has none."""
    return float(np.mean([row[name] for name, row in report.matrix.items() if name in row]))


if __name__ == "__main__":
    main()
