"""What a harvested module is worth: does another device get what this one has learned?

    python benchmarks/harvested.py              # 3 runs, a minute or two

A device adapts to 512 meter digits in a condition that its modules do not know, and offers what it has learned as a
module (`pluto harvest`). Another device, with the same bundle, takes the module and learns nothing itself. Accuracy
is on 512 new images: of the bundle as exported, of the device that has adapted, and of the other one.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np

from pluto_edge import Runtime
from pluto_edge._text import table
from pluto_edge.fleet.harvest import harvest, inspect
from pluto_edge.preprocess import ImageBatch

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "examples" / "digits"))
import meter  # noqa: E402

BUNDLE = ROOT / "examples" / "digits" / "bundle"
BATCH = 64
IMAGES = 512

# condition: modules that are taken out, so that it is unknown
CASES = {"frost": (), "glare": (), "fog": ("fog",), "low_light": ("low_light",)}


def draw(name: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images and digits."""
    rng = np.random.default_rng(seed)
    condition = {**meter.CONDITIONS, **meter.UNSEEN}[name]
    digits = rng.integers(10, size=IMAGES)
    return np.stack([condition(meter.render(rng, int(d), fonts=()), rng) for d in digits]), digits


def accuracy(runtime: Runtime, images: np.ndarray, digits: np.ndarray) -> float:
    """Of predictions in batches; nothing is learned."""
    said = [runtime.predict(images[i : i + BATCH]).labels for i in range(0, IMAGES, BATCH)]
    return float((np.concatenate(said) == digits).mean())


def open_device(gone: tuple[str, ...]) -> Runtime:
    """A fresh one, without some modules."""
    runtime = Runtime(BUNDLE, providers="cpu", threads=1, plan=None)
    for name in gone:
        runtime.remove_module(name)
    return runtime


def play(name: str, gone: tuple[str, ...], seed: int) -> tuple[list[float], list[str], str]:
    """The three accuracies, what was found in the harvested module, and which module leads on the other device."""
    images, digits = draw(name, 1000 + seed)
    seen, _ = draw(name, seed)
    with open_device(gone) as device, open_device(gone) as other, tempfile.TemporaryDirectory() as folder:
        found = [accuracy(device, images, digits)]
        for start in range(0, IMAGES, BATCH):
            device.step(seen[start : start + BATCH])
        found.append(accuracy(device, images, digits))
        looks = device.learner.network.look(ImageBatch(seen, device.manifest.preprocessing)).x_hat
        harvest(device.learner, Path(folder) / "module", looks=looks)
        top = device.learner.state.top
        assert top is not None
        findings = inspect(Path(folder) / "module", device.bundle.load_module(top))
        other.add_module(Path(folder) / "module")
        found.append(accuracy(other, images, digits))
        return found, list(map(str, findings)), other.predict(images[:BATCH]).selected[0]


def main() -> None:
    """Play, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3, help="runs (default: 3)")
    options = parser.parse_args()
    rows = []
    for name, gone in CASES.items():
        played = [play(name, gone, seed) for seed in range(options.seeds)]
        values = np.array([found for found, _, _ in played])
        cells = [f"{m:.3f} ±{s:.3f}" for m, s in zip(values.mean(axis=0), values.std(axis=0), strict=True)]
        rows.append((name, *cells, played[0][2]))
        print(f"{name}: {'; '.join(played[0][1])}")
    print()
    print(table(["condition", "as exported", "adapted", "harvested", "leads there"], rows, right=(1, 2, 3)))


if __name__ == "__main__":
    main()
