"""A camera that adapts while it looks. With no arguments: a simulated one, on the bundle that ships, no torch.

The simulated camera reads meter digits (examples/digits) and changes condition every few hundred frames: fog, wind,
night, and glare, rain drops and frost, which no module was trained for. A stream adapts. Beside it, on the same
frames and as exported, are the one module that one would ship (clear), the generalist alone, the plain average of
the specialists' logits and the bundle without adaptation. The oracle takes each condition's own module and, where
there is none, the one that turns out best. Labels are used for counting only.

    python examples/camera_stream.py                                # about a minute, then a table and a picture
    python examples/camera_stream.py --seeds 5                      # five such days: mean, spread and p-values
    python examples/camera_stream.py --view --fps 15                # the same as a page in the browser
    python examples/camera_stream.py --source 0 --bundle bundle/    # as `pluto stream bundle/ 0`
    python examples/camera_stream.py --record runs/today.jsonl      # then: pluto replay runs/today.jsonl
"""

import argparse
import sys
from functools import partial
from pathlib import Path

DIGITS = Path(__file__).parent / "digits"
sys.path.insert(0, str(DIGITS))

from camera import HOLD, STORY, meter_camera  # noqa: E402

from pluto_edge.cli import guarded  # noqa: E402
from pluto_edge.cli.stream import add_options, watch  # noqa: E402
from pluto_edge.observe.session import Feed  # noqa: E402


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--source", default="sim", help="sim, or a camera, a video, an address, a folder, as of `pluto stream`")
    add("--bundle", default=DIGITS / "bundle", help="default: the digits that ship")
    add("--hold", type=int, default=HOLD, help=f"frames of each simulated condition (default: {HOLD})")
    add("--seeds", type=int, default=1, help="runs, with --seed and those after it (default: 1)")
    add("--plot", type=Path, default=Path("runs/camera_stream.png"), help="default: runs/camera_stream.png")
    add("--no-plot", dest="plot", action="store_const", const=None, help="no picture (needs no matplotlib)")
    add_options(parser)
    options = parser.parse_args(arguments)
    for name in ("hold", "seeds"):
        if getattr(options, name) < 1:
            parser.error(f"--{name}: want more than 0, got {getattr(options, name)}")
    seeds = range(options.seed, options.seed + options.seeds)
    if options.source == "sim":
        feeds = [Feed(f"sim, seed {seed}", partial(meter_camera, seed, options.hold)) for seed in seeds]
        if options.frames is None and options.view is None:
            options.frames = HOLD * (len(STORY) + 1)  # the whole story, and clear again
    else:
        feeds = [Feed.of(options.source, seed) for seed in seeds]
    return guarded("camera_stream", lambda: watch(options, feeds, shipped="clear"))


if __name__ == "__main__":
    sys.exit(main())
