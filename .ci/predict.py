"""An installed pluto-edge predicts, without torch: `python .ci/predict.py BUNDLE`, not from the checkout."""

import importlib.util
import platform
import sys
from pathlib import Path

sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() not in Path(__file__).resolve().parents]

import numpy as np  # noqa: E402

import pluto_edge  # noqa: E402

assert "site-packages" in pluto_edge.__file__, f"not the installed one: {pluto_edge.__file__}"
for name in ("torch", "timm", "onnx", "onnxscript"):
    assert importlib.util.find_spec(name) is None, f"{name} is installed"
with pluto_edge.Runtime(sys.argv[1]) as runtime:
    frames = np.random.default_rng(0).integers(0, 256, (16, 48, 80, 3), np.uint8)
    said = runtime.predict(frames)
    runtime.step(frames)
    assert np.isfinite(said.probabilities).all() and len(said.classes) == 16
    print(f"Python {platform.python_version()}, {platform.system()} {platform.machine()}: {runtime}")
    print(f"pluto-edge {pluto_edge.__version__} predicts {said.classes[0]}, {said.probabilities[0].max():.0%} sure")
