"""`pluto bench`: what a bundle costs on this device."""

import argparse
import sys
from dataclasses import asdict
from pathlib import Path

from pluto_edge import _text
from pluto_edge._files import write_bytes, write_text
from pluto_edge._progress import say
from pluto_edge._schema import to_text
from pluto_edge.bench import bench_plot
from pluto_edge.bench.bench import Plan, Report, Timing, bench
from pluto_edge.cli.parsing import add_bundle, add_engine, add_force, check_vacant, print_json
from pluto_edge.errors import ConfigError
from pluto_edge.manifest import Bundle, Flops

REPEATS, SECONDS = 7, 10.0  # where --repeats is not given


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Measure what a bundle costs on this device: its parts, predictions and steps in milliseconds, how they\n"
        "grow with the batch and with the modules, memory, the time to the first prediction, and how much of the\n"
        "machine's own peak the graphs reach. Images are noise, and every one of them counts as reliable, so that\n"
        "a step leaves nothing out. docs/performance.md says what each column means."
    )
    parser.epilog = (
        "examples:\n"
        "  pluto bench bundle/                            # batches of 1, 8 and 64\n"
        "  pluto bench bundle/ --batch 1 --repeats 30     # a camera: frame by frame, with a better median\n"
        "  pluto bench bundle/ --modules 1,2,4,6 --plot cost.png   # is there time for another module?\n"
        "  pluto bench bundle/ --threads 1 --json | jq .cells        # for a script\n"
        "  pluto bench bundle/ --threads 1 --json one.json --quiet   # the same in a file"
    )
    add_bundle(parser)
    parser.add_argument("--batch", default="1,8,64", metavar="B,...", help="images in a call (default: 1,8,64)")
    parser.add_argument("--modules", metavar="N,...", help="how many modules (default: 1, 2, 4, ... and all)")
    parser.add_argument(
        "--repeats",
        type=int,
        help=f"measurements of each (default: {REPEATS}, or as many as fit into {SECONDS:g} s, at least 3)",
    )
    add_engine(parser)
    parser.add_argument(
        "--json", nargs="?", const="-", metavar="FILE", help="print everything as JSON, or write it to a file, too"
    )
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw the times over modules and batches, too")
    add_force(parser)
    parser.add_argument("--quiet", action="store_true", help="no progress and no table")


def run(options: argparse.Namespace) -> int:
    printed, file = options.json == "-", None if options.json in (None, "-") else Path(options.json)
    bench_plot.check_files(file, options.plot)
    check_vacant(options.force, file, options.plot)
    batches = numbers("--batch", options.batch)
    bundle = Bundle(options.bundle)
    plan = Plan(
        batches,
        modules(options.modules, len(bundle.manifest.modules)),
        repeats=REPEATS if options.repeats is None else options.repeats,
        seconds=SECONDS if options.repeats is None else None,
    )
    report = bench(bundle, plan, options.providers, options.threads, _silent if options.quiet else _progress)
    if file is not None:
        write_text(file, to_text(report))
    if options.plot is not None:
        write_bytes(options.plot, bench_plot.png(report))
    if printed:
        print_json(report)
    elif not options.quiet:
        print(as_text(report))
    elif report.busy:
        print(warning(report), file=sys.stderr)
    return 0


def numbers(option: str, text: str) -> tuple[int, ...]:
    """ "1,8,64" as numbers from 1 on, ascending, each once."""
    try:
        values = sorted({int(part) for part in text.split(",")})
    except ValueError:
        values = []
    if not values or values[0] < 1:
        raise ConfigError(f"{option}: want numbers from 1 on with commas between them, as in 1,8,64; got {text!r}")
    return tuple(values)


def modules(text: str | None, there: int) -> tuple[int, ...]:
    """What was asked for, or powers of two and all."""
    if text is None:
        return tuple(sorted({2**i for i in range(there.bit_length()) if 2**i <= there} | {there}))
    wanted = numbers("--modules", text)
    if wanted[-1] > there:
        raise ConfigError(f"--modules: the bundle has {there}, {wanted[-1]} were asked for")
    return wanted


def as_text(report: Report) -> str:
    sections = [_text.pairs(_about(report)), _parts(report), _cells(report)]
    if report.busy:
        sections.append(warning(report))
    return "\n\n".join(sections)


def warning(report: Report) -> str:
    return f"warning: the machine is busy, these times are too long: {'; '.join(report.busy)}"


def _about(report: Report) -> list[tuple[str, object]]:
    dims, peak, memory = report.dims, report.peak, report.memory
    height, width = report.image
    int8 = f", int8 {peak.int8:,.0f} GOP/s" if peak.int8 is not None else ""
    resident = [_text.size(b) if b is not None else "?" for b in (memory.open, memory.predict, memory.step)]
    engine = f"ONNX Runtime {report.onnxruntime}, {report.provider}, threads: {report.threads}"
    return [
        ("bundle", f"{report.bundle}: {report.architecture}, {report.precision}, {height} x {width}"),
        ("modules", f"{dims.kind} of size {dims.size}, {dims.classes} classes"),
        ("tokens", f"{report.tokens} of width {dims.width}, {dims.depth} blocks"),
        ("machine", f"{report.machine}, {engine}"),
        ("cpu", report.cpu),
        ("plan", report.followed),
        ("operators", _placed(report.operators)),
        ("peak", f"fp32 {peak.fp32:,.0f} GFLOP/s{int8}: the best matrix product in ONNX Runtime"),
        ("an image", _operations(report.flops)),
        ("cold start", _start(report)),
        (
            "memory",
            f"{resident[0]} when open, peak {resident[1]} in predictions and {resident[2]} in steps "
            f"of {memory.batch}",
        ),
    ]


def _placed(operators: dict[str, dict[str, int]]) -> str:
    """Which provider runs how many operators of each graph."""
    return "; ".join(
        f"{graph} {', '.join(f'{n} on {name}' for name, n in places.items() if n)}"
        for graph, places in operators.items()
    )


def _operations(flops: Flops | None) -> str:
    if flops is None:
        return "operations are not known: the bundle was exported before they were counted"
    return ", ".join(f"{name} {1e-9 * count:.3g} GFLOP" for name, count in asdict(flops).items())


def _start(report: Report) -> str:
    totals = sorted(s.total for s in report.starts)
    middle = next(s for s in report.starts if s.total == totals[len(totals) // 2])
    return (
        f"{_ms(middle.total)} ms to the first prediction ({_ms(totals[0])} to {_ms(totals[-1])}): "
        f"import {_ms(middle.importing)}, open {_ms(middle.opening)}, predict {_ms(middle.predicting)}"
    )


def _parts(report: Report) -> str:
    names = [part.name for part in report.parts]
    rows = [
        (
            part.name,
            part.batch,
            *_times(part.time, part.batch),
            "" if part.gflops is None else f"{part.gflops:.1f}",
            "" if part.share is None else f"{part.share:.0%}",
        )
        for part in sorted(report.parts, key=lambda p: names.index(p.name))
    ]
    header = ("part", "batch", "ms", "spread", "ms an image", "GFLOP/s", "of peak")
    return _text.table(header, rows, right=range(1, 7))


def _cells(report: Report) -> str:
    """A block of rows for each thing that grows; one row where nothing does."""
    growing = {name: cells for name, cells in report.growth.items() if len(cells) > 1}
    rows = [
        (
            grows,
            cell.size.batch,
            cell.size.modules,
            cell.size.top_m,
            *_times(cell.predict, cell.size.batch),
            f"{cell.images_a_second:,.1f}",
            *_times(cell.step, cell.size.batch),
        )
        for grows, cells in (growing or {"nothing": report.cells}).items()
        for cell in cells
    ]
    header = ("grows", "batch", "modules", "blended", "predict ms", "spread", "ms an image", "images/s")
    return _text.table((*header, "step ms", "spread", "ms an image"), rows, right=range(1, 11))


def _times(time: Timing, batch: int) -> tuple[str, str, str]:
    return _ms(time.median), _ms(time.spread), _ms(time.median / batch)


def _ms(value: float) -> str:
    """Three digits that mean something."""
    digits = 3 if value < 1 else 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:,.{digits}f}"


def _progress(stage: str) -> None:
    say(f"... {stage}")


def _silent(stage: str) -> None:
    pass
