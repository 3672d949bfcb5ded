"""`pluto replay`: the picture and the report of a recorded stream."""

import argparse
from pathlib import Path

from pluto_edge._files import write_bytes, write_text
from pluto_edge.cli.parsing import add_force, add_json, check_vacant, print_json
from pluto_edge.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Read what a stream recorded (`pluto stream bundle/ 0 --record run.jsonl`) and write a report: one page\n"
        "that needs nothing else, with the picture of accuracy and module weights over time, the conditions, the\n"
        "figures and the events. A recording of a run that is still running, or was killed, is read as far as it\n"
        "goes, and the report says which."
    )
    parser.epilog = (
        "examples:\n"
        "  pluto replay run.jsonl                        # prints the summary, writes run.html\n"
        "  pluto replay run.jsonl --out report.html      # elsewhere\n"
        "  pluto replay run.jsonl --force                # the report anew, of a run that goes on\n"
        "  pluto replay run.jsonl --plot run.png         # the picture as a file of its own, too\n"
        "  pluto replay run-*.jsonl                      # mean and band of runs with other seeds"
    )
    parser.add_argument(
        "recordings", type=Path, nargs="+", metavar="recording", help="lines of JSON; several are runs of one story"
    )
    parser.add_argument("--out", type=Path, metavar="HTML", help="the report (default: as the first one, .html)")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="write the picture here as well")
    add_force(parser)
    add_json(parser, "print the conditions and figures as JSON on stdout, and no table")


def run(options: argparse.Namespace) -> int:
    from pluto_edge.observe import plot, summary
    from pluto_edge.observe.recording import read
    from pluto_edge.observe.report import page

    plot.check()
    out = options.out or options.recordings[0].with_suffix(".html")
    for path in options.recordings:
        _check_apart(path, out, options.plot)
    check_vacant(options.force, out, options.plot)
    recordings = [read(path) for path in options.recordings]
    write_text(out, page(recordings))
    if options.plot is not None:
        write_bytes(options.plot, plot.png(recordings))
    if options.json:
        facts = {
            "conditions": summary.segments(recordings),
            "figures": dict(summary.figures(recordings)),
            "running": any(r.running for r in recordings),
            "report": str(out),
        }
        print_json(facts)
    else:
        print(f"{summary.table(recordings)}\n")
        for written in filter(None, (out, options.plot)):
            print(written)
    return 0


def _check_apart(recording: Path, out: Path, picture: Path | None) -> None:
    """Nothing is written over the recording, nor one result over the other."""
    for option, file in (("--out", out), ("--plot", picture)):
        if file is not None and file.resolve() == recording.resolve():
            raise ConfigError(f"{file}: that is the recording itself; write elsewhere with {option}")
    if picture is not None and picture.resolve() == out.resolve():
        raise ConfigError(f"{out}: --out and --plot are the same file")
