"""What an installed pluto-edge predicts and learns, as numbers: the same on every kind of processor, to tolerance.

python .ci/numbers.py BUNDLE here.npz                 # write them
python .ci/numbers.py BUNDLE there.npz here.npz       # and compare with those of another machine
"""

import platform
import sys
from dataclasses import replace
from pathlib import Path

sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() not in Path(__file__).resolve().parents]

import numpy as np  # noqa: E402
import onnxruntime  # noqa: E402

import pluto_edge  # noqa: E402
from pluto_edge import AdaptConfig, Runtime  # noqa: E402
from pluto_edge.tolerances import TRAJECTORY_WEIGHTS  # noqa: E402

assert "site-packages" in pluto_edge.__file__, f"not the installed one: {pluto_edge.__file__}"


def numbers(bundle: str) -> dict[str, np.ndarray]:
    """Probabilities before, in and after a step, as the paper has it and as the runtime does by itself. Every
    sample counts as reliable: the gradient is of all of them."""
    frames = np.random.default_rng(0).integers(0, 256, (2, 32, 48, 80, 3), np.uint8)
    found = {}
    for name, config in (("paper", AdaptConfig.paper()), ("defaults", AdaptConfig())):
        with Runtime(bundle, "cpu", config=replace(config, filter=False)) as runtime:
            found[f"{name}: prediction"] = runtime.predict(frames[1]).probabilities
            found[f"{name}: step"] = runtime.step(frames[0]).probabilities
            found[f"{name}: after it"] = runtime.predict(frames[1]).probabilities
            learned = np.abs(found[f"{name}: after it"] - found[f"{name}: prediction"]).max()
            event = runtime.events[-1]
            print(f"{name}: {event.kind}, gradient of {event.reliable} of {event.samples} samples", end=", ")
            print(f"probabilities moved by up to {learned:.1e}")
    return found


print(f"{platform.system()} {platform.machine()}, Python {platform.python_version()}", end=", ")
print(f"ONNX Runtime {onnxruntime.__version__}, pluto-edge {pluto_edge.__version__}")
mine = numbers(sys.argv[1])
np.savez(sys.argv[2], **mine)
if len(sys.argv) > 3:
    errors = {name: np.abs(value - np.load(sys.argv[3])[name]).max() for name, value in mine.items()}
    for name, error in errors.items():
        print(f"{name:22} differs by {error:.1e} at most, tolerance {TRAJECTORY_WEIGHTS:.0e}")
    sys.exit(any(not error <= TRAJECTORY_WEIGHTS for error in errors.values()))
