"""From a module store to a prediction, in one file. `make demo` runs it.

The store is random until there is a trained one: what it shows is the path, not the accuracy.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="keep store and bundle here (default: a temporary folder)")
    options = parser.parse_args()
    if options.out:
        show(options.out)
        return
    with tempfile.TemporaryDirectory() as folder:
        show(Path(folder))


def show(folder: Path) -> None:
    store, bundle = folder / "store", folder / "bundle"
    if not store.exists():  # on the workstation: torch and timm
        from pluto_edge.export.random_store import make_random_store

        make_random_store(store, architecture="vit_tiny_patch16_224", image_size=(96, 96))
    command = [
        sys.executable,
        "-m",
        "pluto_edge.cli",
        "export",
        "--modules",
        store,
        "--out",
        bundle,
        "--force",
    ]
    subprocess.run(command, check=True)

    from pluto_edge import Runtime  # on the device: numpy and ONNX Runtime

    runtime = Runtime(bundle)
    print(f"\n{runtime}")
    frames = np.random.default_rng(0).integers(0, 256, (4, 120, 160, 3), dtype=np.uint8)
    prediction = runtime.predict(frames)
    for name, entropy, weights in zip(prediction.classes, prediction.entropy, prediction.weights, strict=True):
        blend = ", ".join(f"{m} {w:.2f}" for m, w in zip(prediction.modules, weights, strict=True))
        print(f"  {name:8}  entropy {entropy:.2f}  blend of {blend}")


if __name__ == "__main__":
    main()
