"""`pluto harvest`: what a device has learned, as a module to offer."""

import argparse
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pluto_edge._text import printable
from pluto_edge.cli.parsing import add_bundle, add_engine, add_force, add_json, check_vacant, print_json
from pluto_edge.errors import ConfigError

if TYPE_CHECKING:
    from pluto_edge._arrays import Array
    from pluto_edge.runtime.runtime import Runtime


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write what was learned with a bundle, and saved, as a module folder that can be looked at, checked, and\n"
        "offered to a repository. Nothing is sent. It holds LayerNorm affines and means over many images, no image."
    )
    parser.epilog = (
        "examples:\n"
        "  pluto harvest bundle/ state.safetensors --out frost/ --name frost --frames frames/\n"
        "  pluto harvest bundle/ state.safetensors --out out/ --module generalist"
    )
    add_bundle(parser)
    parser.add_argument("state", metavar="STATE", type=Path, help="what `--state` or Runtime.save wrote")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="the module's folder")
    parser.add_argument("--module", metavar="NAME", help="whose learning is offered (default: the one that led)")
    parser.add_argument("--name", help="of the new module (default: the old one's, with a digest)")
    parser.add_argument(
        "--frames",
        metavar="SOURCE",
        help="images of the domain, as of `pluto predict`: mean and covariance of their looks say what it is for",
    )
    parser.add_argument("--limit", type=int, default=512, metavar="N", help="of these frames (default: 512)")
    parser.add_argument(
        "--add",
        type=Path,
        action="append",
        default=[],
        metavar="FOLDER",
        help="a module that had joined the bundle's",
    )
    add_engine(parser)
    add_force(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from pluto_edge.fleet.harvest import harvest
    from pluto_edge.runtime.runtime import Runtime

    if options.limit < 1:
        raise ConfigError(f"--limit: want at least 1, got {options.limit}")
    check_vacant(options.force, options.out)
    with Runtime(options.bundle, options.providers, options.threads) as runtime:
        joined = {runtime.add_module(folder): folder for folder in options.add}
        runtime.restore(options.state)
        module = options.module or runtime.learner.state.top
        looks = None if options.frames is None else _looks(runtime, options.frames, options.limit)
        config = harvest(
            runtime.learner,
            options.out,
            module,
            name=options.name,
            parent=joined.get(module or ""),
            looks=looks,
        )
    if options.json:
        print_json({"folder": str(options.out), "module": config})
    else:
        print(printable(f"{options.out}: {config.name}, {config.source}"))
    return 0


def _looks(runtime: "Runtime", source: str, limit: int) -> "Array":
    """x̂ [n,d] of the frames."""
    from pluto_edge.observe.sources import open_source, passed_over
    from pluto_edge.preprocess import ImageBatch

    frames = islice(open_source(source, on_unreadable=passed_over), limit)
    batches = (ImageBatch(frame.image, runtime.manifest.preprocessing) for frame in frames)
    found = [runtime.learner.network.look(batch).x_hat for batch in batches]
    if not found:
        raise ConfigError(f"--frames: no image in {source}")
    return np.concatenate(found)
