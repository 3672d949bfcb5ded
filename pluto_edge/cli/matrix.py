"""`pluto matrix`."""

import argparse
from pathlib import Path

from pluto_edge import _text
from pluto_edge.cli.parsing import add_bundle, add_engine, add_json, needs, print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Every module of a bundle on every domain's held-out images, root/<domain>/<class>/images: who is good\n"
        "where, and who is like whom. Images that the modules were trained on are left out. Writes matrix.json,\n"
        "matrix.md and matrix.png. Every cell is kept: the same command again goes on where it was stopped, and a\n"
        "module or a domain that was added costs its own row and column only."
    )
    parser.epilog = (
        "examples:\n"
        "  pluto matrix bundle/ --data photos/\n"
        "  pluto matrix bundle/ --data photos/ --out matrix/ --jobs 4\n"
        "  pluto matrix bundle/ --data photos/ --ray        # machines that share bundle, photos and --out"
    )
    add_bundle(parser)
    parser.add_argument("--data", required=True, type=Path, metavar="ROOT", help="root/<domain>/<class>/images")
    parser.add_argument("--target", action="append", default=[], help="domain below --data, or a+b mixed; all")
    parser.add_argument("--out", type=Path, default=Path("matrix"), help="default: matrix/")
    parser.add_argument("--limit", type=int, metavar="N", help="at most N images of each domain")
    parser.add_argument("--force", action="store_true", help="overwrite the matrix of another backbone")
    running = parser.add_argument_group("running")
    where = running.add_mutually_exclusive_group()
    where.add_argument("--jobs", type=int, default=1, help="domains at the same time, in processes (default: 1)")
    where.add_argument("--ray", action="store_true", help="spread the domains over the Ray cluster found")
    running.add_argument("--quiet", action="store_true", help="print nothing unless something is wrong")
    add_engine(parser)
    add_json(running, "print matrix.json on stdout instead of the table")


def run(options: argparse.Namespace) -> int:
    with needs("matrix"):
        from pluto_edge.evaluate.matrix import run_matrix
        from pluto_edge.evaluate.matrix_report import lines, summary
        from pluto_edge.train.jobs import Workers
        from pluto_edge.train.progress import Bars, Silent

    with Silent() if options.quiet or options.json else Bars() as progress:
        found = run_matrix(
            options.bundle,
            options.data,
            options.out,
            target=options.target,
            limit=options.limit,
            providers=options.providers,
            workers=Workers(options.jobs, options.threads, options.ray),
            force=options.force,
            progress=progress,
        )
    if options.json:
        print_json(found.matrix)
    elif not options.quiet:
        header = ("domain", "images", "own module", "best module", "generalist", "nearest to its module")
        print(_text.table(header, lines(found.matrix), right=(1, 2, 4)))
        print("\n" + "\n".join(summary(found.matrix)))
        print(f"cells: {found.computed:,} computed, {found.found:,} found")
        print(f"written: {options.out}/matrix.png, matrix.md, matrix.json")
    return 0
