"""`pluto eval`: methods compared on a bundle and labelled folders."""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import NoReturn

from pluto_edge import _text
from pluto_edge._progress import Lines, live
from pluto_edge._schema import read_json
from pluto_edge.cli.parsing import BUNDLE, add_engine, add_json, bundle, needs, positional, print_json
from pluto_edge.config import AdaptConfig
from pluto_edge.errors import ConfigError
from pluto_edge.evaluate import report
from pluto_edge.evaluate.api import EvaluationReport, evaluate
from pluto_edge.evaluate.evaluation import Progress
from pluto_edge.evaluate.methods import known
from pluto_edge.evaluate.verdict import Findings, span


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Compare methods on a bundle and labelled folders, root/<domain>/<class>/images: modules as they are,\n"
        "NEO, T3A, LAME, Tent, EATA, SAR, CoTTA, and PLUTO with its parts switched off. All see the same batches\n"
        "in the same order; labels are used to count, never to learn. Images that the modules were trained on are\n"
        "left out. Every result is kept: the same command again goes on where it was stopped. Writes\n"
        "results.json, results.md and report.html; those of another bundle, protocol or target are not overwritten."
    )
    parser.epilog = (
        "examples:\n"
        "  pluto eval bundle/ --data photos/ --target night\n"
        "  pluto eval bundle/ --data photos/ --method single --method pluto --method pluto:top_m=2\n"
        "  pluto eval bundle/ --data photos/ --shots 16         # learn from 16 images, then frozen\n"
        "  pluto eval bundle/ --data c/ --target fog --target snow --continual\n"
        "  pluto eval --leave-out fog --store store/ --data photos/      # as if fog had never been trained on\n\n"
        "methods (name, or name:setting=value,...):\n  " + ", ".join(known(AdaptConfig()))
    )
    parser.add_argument("bundle", nargs="?", type=bundle, metavar="BUNDLE", help=BUNDLE)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--bundle", dest="bundle_flag", type=bundle, metavar="BUNDLE", help="the same, with a flag")
    which.add_argument(
        "--leave-out",
        metavar="DOMAIN",
        help="evaluate on this domain with a bundle that never saw it: from --store, with selector and generalist "
        "trained without it (torch; once, below --out)",
    )
    parser.add_argument("--data", required=True, type=Path, help="root/<domain>/<class>/images")
    parser.add_argument("--target", action="append", default=[], help="domain below --data, or a+b mixed; all")
    parser.add_argument("--method", action="append", default=[], help="what to compare (default: everything)")
    parser.add_argument("--out", type=Path, default=Path("evaluation"), help="default: evaluation/")
    parser.add_argument("--batch", type=int, default=64, help="images a batch (default: 64)")
    parser.add_argument("--seeds", type=int, default=3, help="orders of each stream (default: 3)")
    parser.add_argument("--shots", type=int, help="learn from this many images, then predict the others, frozen")
    parser.add_argument("--limit", type=int, help="at most this many images of each target")
    parser.add_argument("--order", choices=("shuffled", "classes"), default="shuffled", help="of each stream")
    parser.add_argument("--continual", action="store_true", help="take what was learned to the next target")
    parser.add_argument("--store", type=Path, help="store of the bundle: CoTTA and --leave-out need it, and torch")
    trained = parser.add_argument_group("with --leave-out, as given to `pluto train`")
    trained.add_argument("--per-class", type=int, metavar="N", help="at most N training images a class")
    trained.add_argument("--epochs", type=int, default=20, help="of the generalist, at most (default: 20)")
    trained.add_argument("--patience", type=int, default=4, help="epochs without a better validation (default: 4)")
    parser.add_argument(
        "--source", type=Path, help="root/<module>/<class>/images of the modules' own domains, for EATA"
    )
    parser.add_argument(
        "--probe",
        type=Path,
        help="root/<module>/<class>/images of the modules' own domains: what they still know after each target",
    )
    add_engine(parser)
    parser.add_argument("--force", action="store_true", help="overwrite the report of another comparison")
    parser.add_argument("--quiet", action="store_true", help="no progress and no table")
    add_json(parser, "print results.json on stdout instead of the table")


def run(options: argparse.Namespace) -> int:
    """Every option is the argument of `evaluate` that has its name."""
    if options.leave_out is not None:
        with needs("train,export"):
            import_module("pluto_edge.evaluate.without")  # torch
    else:
        options.bundle = positional(
            options.bundle, options.bundle_flag, "bundle", "pluto eval bundle/ --data photos/"
        )
    options.quiet = options.quiet or options.json
    arguments = {name: value for name, value in vars(options).items() if name in signature(evaluate).parameters}
    with _shown(options.quiet) as progress:
        found = evaluate(**arguments, progress=progress)
    if options.json:
        print_json(read_json(found.out / report.RESULTS, ConfigError))
    if not options.quiet:
        show(found)
    return 0


def show(found: EvaluationReport) -> None:
    targets = list(dict.fromkeys(r.target for r in found.evaluation.results))
    print(f"{found.verdict}\n\n{_table(found.findings, targets)}")
    for name, value in report.left_out(found.evaluation, found.bundle):
        print(f"{name}: {value}")
    for line in report.fallen(found.findings.rows):
        print(f"collapsed: {line}")
    for name, reason in found.evaluation.skipped.items():
        print(f"{name} did not run: {reason}")
    print(f"written: {found.out / 'report.html'}, results.md, results.json")


def _table(findings: Findings, targets: Sequence[str]) -> str:
    """Accuracy, and how far ahead of each rival the row is that the verdict is about."""
    ahead = {one.rival: one.average for one in findings.against}
    header = ["accuracy, %", *targets, "average"] + [f"{findings.ours} is ahead by"] * bool(ahead)
    lines = []
    for row in findings.rows:
        c = ahead.get(row.label)
        lead = "" if c is None else f"{100 * c.difference:+.1f} ({span(c)})"
        lines.append([row.label, *report.cells(row, targets), lead][: len(header)])
    return _text.table(header, lines, right=range(1, len(header)))


@contextmanager
def _shown(quiet: bool) -> Iterator[Progress]:
    """How far it is: a bar in a terminal, elsewhere a line now and then."""
    if quiet:
        yield lambda done, total, text: None
        return
    if not live():
        lines = Lines()
        yield lambda done, total, text: lines.step("eval", done, total, text)
        return
    with needs("eval"):
        from tqdm import tqdm
    form = "{percentage:3.0f}% |{bar:20}| {elapsed} < {remaining}  {desc}"
    with ExitStack() as stack:
        bars: list[tqdm[NoReturn]] = []

        def follow(done: float, total: float, text: str) -> None:
            if not bars:  # what --leave-out trains has had bars of its own
                bars.append(stack.enter_context(tqdm(total=1.0, bar_format=form, leave=False)))
            bar = bars[0]
            bar.total = total
            bar.set_description_str(text, refresh=False)
            bar.update(done - bar.n)

        yield follow
