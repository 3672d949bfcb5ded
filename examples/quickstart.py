"""From a module store to predictions, in one file. `make demo` runs it.

Exports the store of examples/digits (a camera that reads meter digits), then reads freshly drawn digits through
each condition, known and unknown, and shows which modules the selector leans on. Labels are used for counting only.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from pluto_edge.cli import guarded

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "digits"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=200, help="digits drawn for each condition (default: 200)")
    parser.add_argument("--seed", type=int, default=1, help="of the drawn digits (default: 1)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(folder) / "bundle"
        code = export(HERE / "digits/store", bundle)  # on the workstation: torch, timm, onnx
        if code == 0:  # else it has said why
            read_meters(bundle, options.images, options.seed)  # on the device: numpy and ONNX Runtime
    return code


def export(store: Path, bundle: Path) -> int:
    command = [sys.executable, "-m", "pluto_edge.cli", "export", str(store), "--out", str(bundle)]
    return subprocess.run(command, check=False).returncode


def read_meters(bundle: Path, images: int, seed: int) -> None:
    import meter

    from pluto_edge import Runtime

    runtime = Runtime(bundle)
    rng = np.random.default_rng(seed)
    print(f"\n{runtime}\n\n{'condition':18}  accuracy  entropy  leans on")
    for name, condition in {**meter.CONDITIONS, **meter.UNSEEN}.items():
        digits = rng.integers(0, 10, images)
        frames = [condition(meter.render(rng, int(d)), rng) for d in digits]
        prediction = runtime.predict(frames)
        right = np.mean([runtime.classes[i] == str(d) for i, d in zip(prediction.labels, digits, strict=True)])
        mean = prediction.weights.mean(axis=0)
        lean = ", ".join(f"{prediction.modules[j]} {mean[j]:.2f}" for j in np.argsort(-mean)[:2])
        known = "" if name in meter.CONDITIONS else "(no module knows it)"
        print(f"{name:18}  {right:8.3f}  {prediction.entropy.mean():7.2f}  {lean} {known}")


if __name__ == "__main__":
    sys.exit(guarded("quickstart", main))
