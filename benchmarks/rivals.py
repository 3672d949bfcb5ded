"""The same work by what one would use instead, as ratios within one run.

    python benchmarks/rivals.py store/ bundle/ bundle-int8/
    python benchmarks/rivals.py --random runs/vits --json rivals.json --plot rivals.png
    python benchmarks/rivals.py --random runs/vits --quick          # the table of ratios, in about 7 minutes
    python benchmarks/rivals.py --random runs/vits --quick --groups start
    python benchmarks/rivals.py store/ bundle/ portable/@openvino-bf16   # a bundle on another provider

Steps against eager and compiled torch, a module's forward pass against torch and a plain ONNX session, memory, the
time to the first prediction, and what a second stream and the gradient graph add. `--random` makes a store of
random weights (ViT-S/16 at 224, 4 modules) and its bundles first, where they are not there. Where OpenVINO loads,
it takes part, in bfloat16 where the processor has that. What each row is:
docs/performance.md. Sides take turns; nothing is timed before both say the same of a few images.

Bundles are tuned first (`pluto tune`; `--no-tune` leaves that out). With `--keep DIR`, which `--random` sets, plans
and every group of rows are kept there as soon as they are measured: the same command goes on where it ended.
"""

import argparse
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from contest import (
    as_text,
    png,
)
from contestants import GROUPS, Contestants, Entrant
from kept import keeper

from pluto_edge._cpu import usable_cores
from pluto_edge._files import whole_folder, write_bytes, write_text
from pluto_edge._schema import to_text
from pluto_edge.bench.bench_plot import check_files
from pluto_edge.errors import ConfigError, PlutoError
from pluto_edge.export.exporter import run_export
from pluto_edge.export.random_store import make_random_store
from pluto_edge.runtime.engine.providers import choose
from pluto_edge.store import Store

QUICK: dict[str, Any] = {"batch": 32, "repeats": 2, "compile": 0.0, "groups": "steps,half,forward,start"}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path, nargs="?")
    parser.add_argument(
        "bundles",
        nargs="*",
        help="exported from the store; the first is the measure. BUNDLE@PROVIDER runs where it says",
    )
    parser.add_argument("--random", type=Path, metavar="DIR", help="a store of random weights and its bundles")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3, help="rounds in which the sides take turns (default: 3)")
    parser.add_argument("--threads", type=int, default=usable_cores(), help="of each side (default: one per core)")
    parser.add_argument(
        "--compile",
        type=float,
        default=900,
        metavar="SECONDS",
        help="how long torch.compile may take for one graph; 0 leaves it out (default: 900)",
    )
    parser.add_argument("--groups", help=f"what is measured (default: {','.join(GROUPS)})")
    parser.add_argument("--quick", action="store_true", help=f"the table of ratios alone: {QUICK}")
    parser.add_argument("--no-tune", dest="tune", action="store_false", help="run bundles as without a plan")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep plans and rows there, and go on from them")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything as JSON, too")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw the times of steps, too")
    options = parser.parse_args(arguments)
    try:
        run(options)
    except PlutoError as error:
        print(f"rivals: error: {error}", file=sys.stderr)
        return 2
    return 0


def run(options: Namespace) -> None:
    if options.quick:
        vars(options).update({**QUICK, "groups": options.groups or QUICK["groups"]})
    options.groups = options.groups or ",".join(GROUPS)
    check_files(json=options.json, plot=options.plot)
    wrong = [name for name in options.groups.split(",") if name not in GROUPS]
    if wrong:
        raise ConfigError(f"--groups: want some of {', '.join(GROUPS)}, got {wrong[0]!r}")
    for name, least in (("batch", 2), ("repeats", 1), ("threads", 1)):
        if getattr(options, name) < least:
            raise ConfigError(f"--{name}: want at least {least}, got {getattr(options, name)}")
    if (options.random is None) == (not options.bundles):
        raise ConfigError("want a store and its bundles, or --random and a folder")
    store, bundles = random_store(options.random) if options.random else (options.store, options.bundles)
    if options.random and options.keep is None:
        options.keep = options.random / "rivals"
    with keeper(options.keep) as kept:
        report = Contestants(Store(store), [Entrant.parse(one) for one in bundles], options, kept).report()
    if options.json is not None:
        write_text(options.json, to_text(report))
    if options.plot is not None:
        write_bytes(options.plot, png(report))
    print(as_text(report))


def random_store(folder: Path) -> tuple[Path, list[str]]:
    """What is there already is left alone."""
    store = folder / "store"
    if not store.exists():
        with whole_folder(store) as partial:
            make_random_store(partial)
    wanted: dict[str, dict[str, Any]] = {"bundle": {}, "bundle-int8": {"precision": "int8"}}
    others = [name for name in ("openvino", "openvino-bf16") if not why_not(name)]
    if others:
        wanted["bundle-portable"] = {"profile": "portable"}
    for name, how in wanted.items():
        if not (folder / name).exists():
            run_export(store, folder / name, **how)
    return store, [
        str(folder / "bundle"),
        str(folder / "bundle-int8"),
        *(f"{folder / 'bundle-portable'}@{name}" for name in others),
    ]


def why_not(provider: str) -> str:
    """Empty where it loads."""
    try:
        choose(provider)
    except PlutoError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    sys.exit(main())
