"""`pluto build`."""

import argparse
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from pluto_edge.cli.parsing import add_json, needs, print_json
from pluto_edge.cli.train import add_backbone_arguments, add_recipe_arguments, add_selector_arguments
from pluto_edge.manifest import Precision
from pluto_edge.train.api import train

if TYPE_CHECKING:
    from pluto_edge.pipeline.build import Built

OF_THE_BUILD = ("data", "jobs", "threads", "ray", "quiet")  # which `train` has, too


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Make a repository have a module for every domain of ROOT/<domain>/<class>/images: train what is missing,\n"
        "export, measure every module on every domain, check, add and publish. Stopped anywhere, the same command\n"
        "goes on from there; with nothing new it does nothing. A domain that is added costs its own training and\n"
        "its row and column of the matrix (and the generalist, which learns from all)."
    )
    parser.epilog = (
        "examples:\n"
        "  pluto repo init repo/ --keys keys/\n"
        "  pluto build repo/ --data photos/ --work work/ --name meter --keys keys/ \\\n"
        "              --backbone vit_small_patch16_224 --pretrained augreg_in21k --selector-images 16\n"
        "  pluto build repo/ --data photos/ --work work/ --name meter --keys keys/ --ray    # and again, later"
    )
    parser.add_argument("repository", type=Path, metavar="REPOSITORY", help="that `pluto repo init` made")
    parser.add_argument("--data", required=True, type=Path, metavar="ROOT", help="folder of domain folders")
    parser.add_argument("--work", required=True, type=Path, help="folder for store, bundle and matrix; kept")
    parser.add_argument("--name", required=True, help="of the bundle, as in addresses")
    parser.add_argument("--keys", required=True, type=Path, nargs="+", metavar="PATH", help="keys that sign")
    parser.add_argument("--version", help="of the release (default: the next whole number)")
    parser.add_argument("--channel", action="append", metavar="CHANNEL", help="that points at it (default: stable)")
    parser.add_argument(
        "--least",
        type=float,
        metavar="SHARE",
        help="publish nothing if a module's accuracy at home is not above this (default: chance)",
    )
    parser.add_argument(
        "--bundle-precision", choices=get_args(Precision), default="fp32", help="of the bundle (default: fp32)"
    )
    parser.add_argument("--no-generalist", dest="generalist", action="store_false", help="specialists only")
    add_backbone_arguments(parser.add_argument_group("backbone (of a new store)"))
    add_recipe_arguments(parser.add_argument_group("recipe"))
    add_selector_arguments(parser.add_argument_group("selector"))
    running = parser.add_argument_group("running")
    where = running.add_mutually_exclusive_group()
    where.add_argument("--jobs", type=int, default=1, help="domains at the same time, in processes (default: 1)")
    where.add_argument("--ray", action="store_true", help="spread the domains over the Ray cluster found")
    running.add_argument("--threads", type=int, metavar="N", help="of each job")
    running.add_argument("--quiet", action="store_true", help="print nothing unless something is wrong")
    add_json(running)


def run(options: argparse.Namespace) -> int:
    with needs("train,export,matrix,repo"):
        from pluto_edge.pipeline.build import build
        from pluto_edge.repository.keys import load_signers
        from pluto_edge.repository.layout import DEFAULT_CHANNEL
        from pluto_edge.train.jobs import Workers
        from pluto_edge.train.progress import Bars, Silent

    known = set(signature(train).parameters) - set(OF_THE_BUILD)
    with Silent() if options.quiet or options.json else Bars() as progress:
        built = build(
            options.data,
            options.work,
            options.repository,
            load_signers(options.keys, outside=options.repository),
            name=options.name,
            version=options.version,
            channels=options.channel or (DEFAULT_CHANNEL,),
            least=options.least,
            precision=options.bundle_precision,
            training={name: value for name, value in vars(options).items() if name in known},
            workers=Workers(options.jobs, options.threads, options.ray),
            progress=progress,
        )
    if options.json:
        print_json(facts(built))
    elif not options.quiet:
        show(built)
    return 0


def facts(built: "Built") -> object:
    """For machines."""
    return {
        "release": built.release,
        "ran": built.ran,
        "cells": {"computed": built.matrix.computed, "found": built.matrix.found},
        "matrix": str(built.matrix.out),
        "published": built.published,
    }


def show(built: "Built") -> None:
    """For people: what it says of the modules, what was done, and what is still to be signed."""
    from pluto_edge.evaluate.matrix_report import summary

    print("\n".join(summary(built.matrix.matrix)))
    print(f"ran: {', '.join(built.ran) or 'nothing, all of it was there'}")
    print(f"cells: {built.matrix.computed:,} computed, {built.matrix.found:,} found; {built.matrix.out}/matrix.png")
    waiting = built.published.waiting if built.published is not None else ()
    for missing in waiting:
        print(f"{missing.role}: waits for {missing.signatures} more signatures; `pluto repo publish` adds them")
    if not waiting:
        print(f"released: {built.release}")
