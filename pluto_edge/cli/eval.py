"""`pluto eval`: methods compared on a bundle and labelled folders."""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pluto_edge import _text
from pluto_edge._progress import Lines, live
from pluto_edge._schema import read_json
from pluto_edge.cli.parsing import add_engine, add_json, needs, positional, print_json
from pluto_edge.config import AdaptConfig
from pluto_edge.errors import ConfigError
from pluto_edge.evaluate import report
from pluto_edge.evaluate.evaluation import Evaluation, Progress, evaluate
from pluto_edge.evaluate.methods import choose, known
from pluto_edge.evaluate.recorded import RecordedNetwork
from pluto_edge.evaluate.results import Protocol
from pluto_edge.evaluate.targets import find_targets
from pluto_edge.evaluate.verdict import Findings, span
from pluto_edge.manifest import Bundle
from pluto_edge.runtime.engine.session import Engine

RESULTS = "results.json"


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
    parser.add_argument("bundle", nargs="?", type=Path, metavar="BUNDLE", help="bundle that `pluto export` wrote")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--bundle", dest="bundle_flag", type=Path, metavar="BUNDLE", help="the same, with a flag")
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
    protocol = Protocol(options.batch, options.seeds, options.shots, options.order, options.continual)
    if options.limit is not None and options.limit < 1:
        raise ConfigError(f"--limit: want at least 1, got {options.limit}")
    options.quiet = options.quiet or options.json
    if options.leave_out is not None:
        _leave_out(options)
    else:
        options.bundle = positional(
            options.bundle, options.bundle_flag, "bundle", "pluto eval bundle/ --data photos/"
        )
    bundle = Bundle(options.bundle)
    manifest = bundle.manifest
    methods = choose(options.method, manifest.adaptation)
    seen = bundle.load_seen()
    targets = find_targets(options.data, options.target, manifest.classes, options.limit, seen)
    sources, probes = (
        find_targets(root, manifest.specialists, manifest.classes, seen=left_out) if root is not None else ()
        for root, left_out in ((options.source, None), (options.probe, seen))
    )
    if not options.force:
        _check_report(options.out / RESULTS, protocol, bundle, [t.name for t in targets])
    network = RecordedNetwork(bundle, Engine.of(manifest.precision, options.providers, options.threads))
    with _shown(options.quiet) as progress:
        evaluation = evaluate(
            network,
            targets,
            methods,
            protocol,
            options.out,
            sources=sources,
            probes=probes,
            store=options.store,
            progress=progress,
        )
    findings = report.write(evaluation, protocol, bundle, options.out)
    if options.json:
        print_json(read_json(options.out / RESULTS, ConfigError))
    if not options.quiet:
        print(f"{findings.verdict}\n\n{_table(findings, [t.name for t in targets])}")
        for name, value in report.left_out(evaluation, bundle):
            print(f"{name}: {value}")
        for line in report.fallen(findings.rows):
            print(f"collapsed: {line}")
        for name, reason in evaluation.skipped.items():
            print(f"{name} did not run: {reason}")
        print(f"written: {options.out / 'report.html'}, results.md, results.json")
    return 0


def _leave_out(options: argparse.Namespace) -> None:
    """Makes the bundle, and sets the options that follow from it."""
    if options.bundle is not None:
        raise ConfigError(f"--leave-out: makes a bundle of its own; leave {options.bundle} out")
    if options.store is None:
        raise ConfigError("--leave-out: give the store that the domain is left out of with --store")
    if options.target and options.target != [options.leave_out]:
        raise ConfigError(f"--leave-out {options.leave_out}: it is the target; leave --target out")
    with needs("train,export"):
        from pluto_edge.evaluate.without import bundle_without  # torch
    options.target = [options.leave_out]
    options.bundle = bundle_without(
        options.store,
        options.data,
        options.leave_out,
        options.out,
        per_class=options.per_class,
        epochs=options.epochs,
        patience=options.patience,
        quiet=options.quiet,
    )
    options.store = options.bundle.parent / "store"


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


def _check_report(results: Path, protocol: Protocol, bundle: Bundle, targets: Sequence[str]) -> None:
    """A report of the same comparison goes on, with more methods or images; any other stays."""
    if not results.is_file():
        return
    now = dict(report.describe(Evaluation((), {}), protocol, bundle))
    then = read_json(results, ConfigError).get("facts", {})
    images = [one.rpartition(" ")[0] for one in str(then.get("images", "")).split(", ")]
    differs = [what for what in ("bundle", "protocol") if then.get(what) != now[what]]
    if differs or images != list(targets):
        what = " and ".join(differs) or "target"
        raise ConfigError(
            f"{results.parent}: has the report of a comparison with another {what}; overwrite it with --force, or "
            "write elsewhere with --out"
        )


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
    with tqdm(total=1.0, bar_format=form, leave=False) as bar:

        def follow(done: float, total: float, text: str) -> None:
            bar.total = total
            bar.set_description_str(text, refresh=False)
            bar.update(done - bar.n)

        yield follow
