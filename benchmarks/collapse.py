"""Can a stream be fed so that adaptation ruins it? Attacks of 12 batches, then 5 normal ones, then accuracy.

    python benchmarks/datasets.py --archives ../shared/data --out runs/data
    python benchmarks/collapse.py examples/digits/bundle --data runs/data/meter

Every domain is attacked in turn: 12 batches of 64 that could mislead adaptation, 5 batches of the domain as it is.
Then what became of the bundle predicts 1024 other images of the domain, and learns nothing from them. The figures
are the points by which it is ahead of a bundle that never learned, on the same images: the mean over domains, and
in brackets the worst of them. The row `nothing` is no attack but 12 normal batches: what adaptation gains alone.
OPENBLAS_NUM_THREADS=1 makes streams several times faster on a busy machine.
"""

import argparse
import platform
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from tqdm import tqdm

from pluto_edge import AdaptConfig, Runtime
from pluto_edge.preprocess import ImageBatch

BATCH, ATTACK, NORMAL, JUDGED = 64, 12, 5, 1024
ALLOWED = 2.0  # points that an attack may cost
DOMAINS = ("clear", "colour_background", "fog", "low_light", "motion_blur", "sensor_noise")
WAYS = ("steps", "stream")

Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class DomainImages:
    """One domain's images, [n,H,W,3], and their classes: those for attacks, for normal batches, and to judge by."""

    images: Pixels
    labels: NDArray[np.intp]

    @property
    def attack(self) -> "DomainImages":
        return DomainImages(self.images[: -NORMAL * BATCH - JUDGED], self.labels[: -NORMAL * BATCH - JUDGED])

    @property
    def normal(self) -> Pixels:
        return self.images[-NORMAL * BATCH - JUDGED : -JUDGED]

    @property
    def judged(self) -> Pixels:
        return self.images[-JUDGED:]


Domains = dict[str, DomainImages]
Attack = Callable[[Domains, str, np.random.Generator], Pixels]
COUNT = ATTACK * BATCH


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--data", type=Path, required=True, help="<domain>/<class>/*.png")
    parser.add_argument("--domains", nargs="+", default=DOMAINS, help="attacked in turn")
    parser.add_argument("--attacks", nargs="+", default=tuple(ATTACKS), choices=tuple(ATTACKS))
    parser.add_argument("--ways", nargs="+", default=WAYS, choices=WAYS)
    options = parser.parse_args()
    domains = {name: read(options.data / name) for name in options.domains}
    print(f"{processor()}, {len(domains)} domains: {', '.join(domains)}\n")
    columns = [(setting, way) for setting in SETTINGS for way in options.ways]
    unadapted = {
        (home, setting, way): accuracy(options.bundle, SETTINGS[setting], way, domain.judged[:0], domain)
        for home, domain in tqdm(domains.items(), desc="unadapted", leave=False)
        for setting, way in columns
    }
    print("| attack | " + " | ".join(", ".join(c) for c in columns) + " |")
    print("|---" * (1 + len(columns)) + "|", flush=True)
    worst = 0.0
    for attack in options.attacks:
        cells = []
        for setting, way in tqdm(columns, desc=attack, leave=False):
            gains = []
            for home, domain in domains.items():
                fed = np.concatenate([ATTACKS[attack](domains, home, np.random.default_rng(1)), domain.normal])
                reached = accuracy(options.bundle, SETTINGS[setting], way, fed, domain)
                gains.append(reached - unadapted[home, setting, way])
            worst = min(worst, *gains)
            cells.append(f"{np.mean(gains):+.1f} ({min(gains):+.1f})")
        print(f"| {attack} | " + " | ".join(cells) + " |", flush=True)
    print(f"\nthe worst is {worst:+.1f} points; {-ALLOWED:+.1f} is allowed")


def read(folder: Path) -> DomainImages:
    """All images, in an order that is the same every time."""
    files = sorted(folder.glob("*/*.png"))
    classes = sorted({f.parent.name for f in files})
    order = np.random.default_rng(0).permutation(len(files))
    images = np.stack([np.asarray(Image.open(files[i]).convert("RGB")) for i in order])
    return DomainImages(images, np.array([classes.index(files[i].parent.name) for i in order]))


def accuracy(bundle: Path, setting: AdaptConfig | None, way: str, fed: Pixels, domain: DomainImages) -> float:
    """In percent, on the domain's judges, of a bundle that was fed these images."""
    with Runtime(bundle, threads=1, config=setting, verify=False) as runtime:
        play = in_steps if way == "steps" else in_a_stream
        return 100 * float((play(runtime, fed, domain.judged) == domain.labels[-JUDGED:]).mean())


def in_steps(runtime: Runtime, fed: Pixels, judged: Pixels) -> NDArray[np.intp]:
    for batch in batches(fed):
        runtime.step(batch)
    return np.concatenate([runtime.predict(batch).labels for batch in batches(judged)])


def in_a_stream(runtime: Runtime, fed: Pixels, judged: Pixels) -> NDArray[np.intp]:
    with runtime.stream(batch=BATCH, background=False) as stream:
        for frame in fed:
            stream(frame)
        parts = [ImageBatch(batch, runtime.manifest.preprocessing) for batch in batches(judged)]
        return np.concatenate([stream.learner.predict(part)[0].probabilities.argmax(axis=1) for part in parts])


def batches(images: Pixels) -> list[Pixels]:
    return [images[start : start + BATCH] for start in range(0, len(images), BATCH)]


# what is fed


def nothing(domains: Domains, home: str, rng: np.random.Generator) -> Pixels:
    return some(domains[home].attack.images, COUNT, rng)


def one_class(domains: Domains, home: str, rng: np.random.Generator) -> Pixels:
    return of_class(domains[home].attack, 3, COUNT, rng)


def classes_in_order(domains: Domains, home: str, rng: np.random.Generator) -> Pixels:
    domain = domains[home].attack
    classes = int(domain.labels.max()) + 1
    return np.concatenate([of_class(domain, k, COUNT // classes, rng) for k in range(classes)])


def black(domains: Domains, home: str, rng: np.random.Generator) -> Pixels:
    return np.zeros_like(nothing(domains, home, rng))


def noise(domains: Domains, home: str, rng: np.random.Generator) -> Pixels:
    return rng.integers(0, 256, nothing(domains, home, rng).shape, np.uint8)


def alternating(domains: Domains, home: str, rng: np.random.Generator) -> Pixels:
    names = list(domains)
    turns = (domains[names[i % len(names)]].attack.images for i in range(ATTACK))
    return np.concatenate([some(images, BATCH, rng) for images in turns])


def stuck(domains: Domains, home: str, rng: np.random.Generator) -> Pixels:
    return np.repeat(some(domains[home].attack.images, 1, rng), COUNT, axis=0)


def scrambled(domains: Domains, home: str, rng: np.random.Generator) -> Pixels:
    """Images of nothing that look right in colour and texture: 16 tiles of each in another order."""
    images = nothing(domains, home, rng)
    count, height, width, _ = images.shape
    high, wide = height // 4, width // 4
    tiles = images[:, : 4 * high, : 4 * wide].reshape(count, 4, high, 4, wide, 3).transpose(0, 1, 3, 2, 4, 5)
    tiles = tiles.reshape(count, 16, high, wide, 3)
    mixed = np.stack([t[rng.permutation(16)] for t in tiles]).reshape(count, 4, 4, high, wide, 3)
    return np.ascontiguousarray(mixed.transpose(0, 1, 3, 2, 4, 5).reshape(count, 4 * high, 4 * wide, 3))


ATTACKS: dict[str, Attack] = {
    "nothing": nothing,
    "one class": one_class,
    "classes in order": classes_in_order,
    "black frames": black,
    "noise frames": noise,
    "alternating domains": alternating,
    "a stuck frame": stuck,
    "scrambled images": scrambled,
}

SETTINGS: dict[str, AdaptConfig | None] = {
    "as exported": None,
    "entropy": replace(AdaptConfig(), objective="entropy"),
    "aggressive": replace(AdaptConfig(), ln_lr=0.3, filter=False),
}


def some(images: Pixels, count: int, rng: np.random.Generator) -> Pixels:
    return images[rng.integers(0, len(images), count)]


def of_class(domain: DomainImages, label: int, count: int, rng: np.random.Generator) -> Pixels:
    return some(domain.images[domain.labels == label], count, rng)


def processor() -> str:
    """Its name, where the system says it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
