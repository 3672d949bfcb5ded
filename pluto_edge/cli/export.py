"""`pluto export`."""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from pluto_edge import _text
from pluto_edge._progress import Lines, live
from pluto_edge.cli.parsing import add_json, needs, positional, print_json
from pluto_edge.errors import ParityError
from pluto_edge.manifest import ParityEntry, Precision, Profile

if TYPE_CHECKING:
    from pluto_edge.export.exporter import ExportReport


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Compile a module store into a bundle: ONNX graphs whose module-specific tensors are inputs,\n"
        "the modules, the selector and a manifest with checksums. Every export is compared with torch\n"
        "before it is kept."
    )
    parser.epilog = (
        "examples:\n"
        "  pluto export store/\n"
        "  pluto export store/ --out phone/ --precision int8\n"
        "  pluto export store/ --out box/ --profile portable             # for --providers openvino\n"
        "  pluto export store/ --out mac/ --profile portable --batch 8   # CoreML, QNN: always 8 images\n"
        "  pluto export store/ --force --json | jq .parity\n"
        "\n"
        "`pluto-export` is the same command."
    )
    parser.add_argument("store", nargs="?", type=Path, metavar="STORE", help="store that `pluto train` wrote")
    parser.add_argument("--modules", type=Path, metavar="STORE", help="the same, with a flag")
    parser.add_argument("--out", default="bundle", metavar="BUNDLE", help="folder to write (default: bundle)")
    parser.add_argument(
        "--precision",
        choices=get_args(Precision),
        default="fp32",
        help="fp32 anywhere (default); fp16 for CUDA; int8 for CPU: quantizes the frozen matrices",
    )
    parser.add_argument(
        "--profile",
        choices=get_args(Profile),
        default="default",
        help="default for CPUs and CUDA; portable: operators as OpenVINO, TensorRT, CoreML, QNN, WebGPU take them",
    )
    parser.add_argument(
        "--batch",
        type=int,
        metavar="N",
        help="of a portable bundle: embed and forward take N images, always (default: any number)",
    )
    parser.add_argument(
        "--learn-from",
        type=int,
        default=0,
        metavar="BLOCK",
        help="first block whose LayerNorm affines learn: steps cost less (default: 0, all of them)",
    )
    parser.add_argument("--force", action="store_true", help="replace a bundle that is there already")
    parser.add_argument("--quiet", action="store_true", help="print nothing unless something is wrong")
    add_json(parser, "print the report as JSON on stdout")


def run(options: argparse.Namespace) -> int:
    store = positional(options.store, options.modules, "store", "pluto export store/")
    with needs("export"):
        from pluto_edge.export.exporter import STAGES, run_export

    try:
        with _stages(STAGES, options.quiet or options.json) as on_stage:
            report = run_export(
                store,
                options.out,
                precision=options.precision,
                profile=options.profile,
                batch=options.batch,
                learn_from=options.learn_from,
                force=options.force,
                on_stage=on_stage,
            )
    except ParityError as error:
        entries = tuple(e for e in error.entries if isinstance(e, ParityEntry))
        print(parity_table(entries), file=sys.stderr)
        raise
    if options.json:
        print_json(facts(report))
    elif not options.quiet:
        print(as_text(report))
    return 0


@contextmanager
def _stages(stages: Sequence[str], quiet: bool) -> Iterator[Callable[[str], None]]:
    """Shows which stage it is: a bar in a terminal, elsewhere a line now and then."""
    if quiet or not live():
        lines = Lines()
        yield lambda stage: None if quiet else lines.step("export", stages.index(stage), len(stages), stage)
        return
    with needs("export"):
        from tqdm import tqdm
    with tqdm(total=len(stages), leave=False, unit="stage") as bar:

        def on_stage(stage: str) -> None:
            bar.set_description(f"{stage:9}")
            bar.update(stages.index(stage) - bar.n)

        yield on_stage


def parity_table(entries: tuple[ParityEntry, ...]) -> str:
    rows = [(_text.tick(e.passed), e.output, e.batch, f"{e.error:.1e}", f"{e.tolerance:g}") for e in entries]
    return _text.table(("", "output", "batch", "error", "tolerance"), rows, right=(2, 3, 4))


def as_text(report: "ExportReport") -> str:
    m = report.manifest
    seconds = sum(report.seconds.values())
    return "\n".join(
        [
            parity_table(m.parity),
            "",
            _text.pairs(
                [
                    ("backbone", f"{m.architecture}, {m.precision}, {m.tokens} tokens"),
                    ("profile", m.profile if m.batch is None else f"{m.profile}, {m.batch} images at a time"),
                    ("modules", f"{len(m.modules)} {m.dims.kind}, {m.dims.parameters:,} parameters each"),
                    *((name, _text.size(m.files[name].size)) for name in sorted(m.files) if "/" not in name),
                    ("whole bundle", _text.size(report.bytes)),
                    ("CUDA", report.cuda),
                    *((name, taken(graphs)) for name, graphs in report.providers.items()),
                    (
                        "seconds",
                        f"{seconds:.1f}  ({', '.join(f'{k} {v:.1f}' for k, v in report.seconds.items())})",
                    ),
                ]
            ),
            "",
            f"{_text.tick(True)} {report.path} agrees with torch; next: pluto info {report.path}",
        ]
    )


def taken(graphs: dict[str, list[str]]) -> str:
    """Which graphs a provider takes whole, and what keeps it from the others."""
    whole = [name for name, problems in graphs.items() if not problems]
    rest = [f"{name}: {', '.join(problems)}" for name, problems in graphs.items() if problems]
    return "; ".join([f"{', '.join(whole) or 'nothing'} by its published rules", *rest])


def facts(report: "ExportReport") -> object:
    return {
        "bundle": str(report.path),
        "bytes": report.bytes,
        "cuda": report.cuda,
        "providers": report.providers,
        "seconds": report.seconds,
        "parity": [{**vars(e), "passed": e.passed} for e in report.manifest.parity],
        "manifest": report.manifest,
    }
