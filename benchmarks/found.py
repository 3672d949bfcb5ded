"""What it is worth that a camera finds modules by itself: the meter digits, with half of the modules elsewhere.

    python benchmarks/found.py                  # 3 runs, a minute or two
    python benchmarks/found.py --seeds 5 --hold 600

The device has three specialists (clear, sensor_noise, colour_background); fog, low_light and motion_blur are in the
repository. The camera shows clear, fog, low_light and motion_blur, `--hold` frames each. Three devices see the same
frames: one has no repository, one finds and tries what it needs, one had all specialists from the start. The
generalist of the example has learned from fog and the others, too, and would leave little to find: `--generalist`
leaves it in. Learning is inline, so a run is the same every time. Labels are used for counting only.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pluto_edge import Runtime
from pluto_edge._text import table
from pluto_edge.repository.folder import FolderSource
from pluto_edge.runtime.finder import Finder

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "examples" / "digits"))
import meter  # noqa: E402

ELSEWHERE = ("fog", "low_light", "motion_blur")
STORY = ("clear", *ELSEWHERE)
DEVICES = ("without", "finds", "all")
LOOK_EVERY = 64  # frames from one look around to the next


@dataclass
class Device:
    """A runtime with one stream, and how often it was right, by condition."""

    runtime: Runtime
    finder: Finder | None = None
    right: dict[str, list[bool]] = field(default_factory=dict)
    late: dict[str, list[bool]] = field(default_factory=dict)  # in the second half of each condition
    told: list[str] = field(default_factory=list)  # what happened to modules
    joined: dict[str, int] = field(default_factory=dict)  # frame of its condition at which a module joined


def frames(seed: int, hold: int) -> Iterator[tuple[str, int, np.ndarray, int]]:
    """Condition, number within it, image and digit."""
    rng = np.random.default_rng(seed)
    for name in STORY:
        for number in range(hold):
            digit = int(rng.integers(10))
            yield name, number, meter.CONDITIONS[name](meter.render(rng, digit, fonts=()), rng), digit


def play(device: Device, seed: int, hold: int) -> None:
    """One run through the story."""
    stream = device.runtime.stream(f"camera-{seed}", background=False)
    for name, number, image, digit in frames(seed, hold):
        before = set(device.runtime.modules)
        right = int(stream(image).labels[0]) == digit
        device.right.setdefault(name, []).append(right)
        if number >= hold // 2:
            device.late.setdefault(name, []).append(right)
        for module in set(device.runtime.modules) - before:
            device.joined[module] = number
        if device.finder is not None and (number + 1) % LOOK_EVERY == 0:
            device.finder.look(stream)
    device.told += [
        f"frame {e.frame}: {e.reason}" for e in stream.events if e.kind in ("change", "module", "trial")
    ]
    stream.close()


def open_device(kind: str, bundle: Path, generalist: bool = False) -> Device:
    """A fresh one."""
    runtime = Runtime(bundle, providers="cpu", threads=1, plan=None)
    if not generalist:
        runtime.remove_module("generalist")
    if kind == "all":
        return Device(runtime)
    for name in ELSEWHERE:
        runtime.remove_module(name)
    source = FolderSource(ROOT / "examples" / "digits" / "store" / "modules")
    return Device(runtime, Finder(runtime, source) if kind == "finds" else None)


def main() -> None:
    """Play, count and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3, help="runs (default: 3)")
    parser.add_argument("--hold", type=int, default=384, help="frames of each condition (default: 384)")
    parser.add_argument("--bundle", type=Path, default=ROOT / "examples" / "digits" / "bundle")
    parser.add_argument("--generalist", action="store_true", help="leave the generalist in")
    options = parser.parse_args()
    played: dict[str, list[Device]] = {kind: [] for kind in DEVICES}
    for seed in range(options.seeds):
        for kind in DEVICES:
            device = open_device(kind, options.bundle, options.generalist)
            with device.runtime:
                play(device, seed, options.hold)
            if kind == "finds" and seed == 0:
                print("\n".join(device.told))
            played[kind].append(device)
    rows = []
    for name in STORY:
        cells = [_accuracy(played[kind], name) for kind in DEVICES]
        when = [str(d.joined[name]) for d in played["finds"] if name in d.joined]
        rows.append((name, *(c for pair in cells for c in pair), ", ".join(when) or "-"))
    header = ["condition"]
    for kind in DEVICES:
        header += [kind, "2nd half"]
    print()
    print(table([*header, "joined at frame"], rows, right=range(1, 7)))


def _accuracy(devices: list[Device], name: str) -> tuple[str, str]:
    """Of all frames of a condition, and of its second half; mean over runs and their deviation."""
    whole = [float(np.mean(d.right[name])) for d in devices]
    late = [float(np.mean(d.late[name])) for d in devices]
    return tuple(f"{np.mean(v):.3f} ±{np.std(v):.3f}" for v in (whole, late))  # type: ignore[return-value]


if __name__ == "__main__":
    main()
