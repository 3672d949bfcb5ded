"""`pluto signatures`."""

import argparse
from pathlib import Path

from pluto_edge.cli.parsing import add_json, needs, print_json
from pluto_edge.cli.train import add_corruption_arguments, read_corruptions
from pluto_edge.domains import DomainFolders, domain_folders
from pluto_edge.store import Store
from pluto_edge.train.api import Choice
from pluto_edge.train.recipe import Recipe


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Give the modules of an older store what `pluto train` gives new ones: a signature each, the statistics\n"
        "of their source's images that a device compares its stream with. Nothing is trained, and nothing else\n"
        "changes.\n"
        "Each module needs the folder of its own domain, the generalist those of all domains."
    )
    parser.epilog = (
        "examples:\n"
        "  pluto signatures store/ --data photos/\n"
        "  pluto signatures store/ --data photos/ --per-class 70         # if that was given to pluto train\n"
        "  pluto signatures store/ --data clean/ --corruptions fog,snow\n"
        "\n"
        "Modules that have a signature are left alone. Export the store again afterwards (pluto export --force)."
    )
    parser.add_argument("store", type=Path, metavar="STORE", help="the store to add to")
    parser.add_argument("--data", required=True, type=Path, metavar="ROOT", help="folder of domain folders")
    parser.add_argument("--force", action="store_true", help="also modules that have a signature")
    split = parser.add_argument_group("as given to pluto train, so that the validation images are the same")
    split.add_argument("--per-class", type=int, metavar="N", help="at most N training images a class")
    split.add_argument("--val-share", type=float, default=0.2, help="held out without a val/ (default: 0.2)")
    split.add_argument("--seed", type=int, default=Recipe.seed, help=f"(default: {Recipe.seed})")
    add_corruption_arguments(split)
    running = parser.add_argument_group("running")
    running.add_argument("--jobs", type=int, default=1, help="modules at the same time (default: 1)")
    running.add_argument("--threads", type=int, metavar="N", help="of torch, for each job")
    running.add_argument("--quiet", action="store_true", help="print nothing unless something is wrong")
    add_json(running, "print the modules that got a signature as JSON on stdout")


def run(options: argparse.Namespace) -> int:
    with needs("train"):
        from pluto_edge.train.jobs import Workers
        from pluto_edge.train.progress import Bars, Silent
        from pluto_edge.train.signatures import add_signatures

    store, workers = Store(options.store), Workers(options.jobs, options.threads)
    chosen = Choice(
        data=options.data,
        val_share=options.val_share,
        per_class=options.per_class,
        seed=options.seed,
        **read_corruptions(options),
    )
    domains = chosen.domains(DomainFolders(domain_folders(options.data)))
    with Silent() if options.quiet or options.json else Bars() as progress:
        names = add_signatures(store, domains, force=options.force, workers=workers, progress=progress)
    if options.json:
        print_json({"store": str(store.path), "added": names})
    elif not options.quiet:
        left = len(store.names) - len(names)
        print(f"{store.path}: {len(names)} signatures added" + (f", {left} modules had one" if left else ""))
    return 0
