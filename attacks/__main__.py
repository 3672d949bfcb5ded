"""`python -m attacks`: all attacks, or some, for a time or a number of cases; then a table."""

import argparse
import platform
import secrets
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attacks
from attacks import guided, harness
from attacks.harness import Task
from attacks.tally import Found, Tally
from pluto_edge import _text

GUIDED = 0.5  # of a parser's time, where atheris is installed


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command's arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m attacks", description=attacks.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--only", choices=attacks.ATTACKS, nargs="+", metavar="NAME", help=f"of {', '.join(attacks.ATTACKS)}")
    add("--minutes", type=float, default=1.0, help="for all of them together (default: 1)")
    add("--cases", type=int, help="of each, however long that takes, instead of minutes")
    add("--jobs", type=int, default=1, help="processes (default: 1)")
    add("--first", type=int, help="the first case's seed (default: any)")
    add("--seed", type=int, help="do this case of --only NAME again, here, and show what it raises")
    add("--input", type=Path, help="parse this file as --only NAME does, and show what that raises")
    options = parser.parse_args(arguments)
    if (options.seed is not None or options.input is not None) and len(options.only or ()) != 1:
        parser.error("--seed and --input want --only NAME")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the attacks that were asked for, and prints what escaped."""
    options = parse(arguments)
    if options.seed is not None:
        return again(options.only[0], options.seed)
    if options.input is not None:
        return parse_file(options.only[0], options.input)
    names = options.only or attacks.ATTACKS
    first = secrets.randbits(40) if options.first is None else options.first
    seconds = None if options.cases is not None else 60 * options.minutes * options.jobs / len(names)
    found = Path(tempfile.mkdtemp(prefix="attacks-found-")) if guided.installed() else None

    def one(name: str) -> Tally:
        if seconds is None or found is None or not guided.has_parser(name):
            return harness.run([Task(name, first, options.cases, seconds)])[name]
        by_seed = harness.run([Task(name, first, None, (1 - GUIDED) * seconds)])[name]
        return by_seed + guided.run(name, GUIDED * seconds, found / name)

    with ThreadPoolExecutor(options.jobs) as pool:  # each watches a process
        tallies = dict(zip(names, pool.map(one, names), strict=True))
    print(f"{table(tallies)}\n\n{processor()}, {options.jobs} at a time, seeds from {first} on")
    print(stories(tallies) + escapes(tallies), end="")
    return 1 if any(t.escaped for t in tallies.values()) else 0


def again(name: str, seed: int) -> int:
    """One case in this process; what it raises is shown."""
    attack = harness.load(name)
    with harness.scratch() as place, attack.attack(Path(place)) as case:
        refused, story = harness.strike(case, seed)
    print(f"{name} {seed}: {'refused' if refused else 'harmless'}")
    if story is not None:
        print(f"  {_text.printable(story)}")
    return 0


def parse_file(name: str, file: Path) -> int:
    """One input that atheris found, given to its parser again."""
    with harness.scratch() as place, harness.load(name).parser(Path(place)) as parser:
        guided.parse(parser, file.read_bytes())
    print(f"{name} {file}: refused or harmless")
    return 0


def table(tallies: dict[str, Tally]) -> str:
    """Cases, refusals and escapes of every attack, for a terminal."""
    rows = [_row(name, tally) for name, tally in tallies.items()]
    rows.append(_row("all", sum(tallies.values(), Tally())))
    header = ("attack", "cases", "of them by seed", "refused of these", "by atheris", "escapes")
    return _text.table(header, rows, right=range(1, 6))


def _row(name: str, tally: Tally) -> tuple[str, ...]:
    """What atheris makes is counted, but not whether it was refused."""
    counts = (tally.cases, tally.cases - tally.guided, tally.refused, tally.guided, tally.escaped)
    return (name, *(f"{count:,}" for count in counts))


def stories(tallies: dict[str, Tally]) -> str:
    """What was tried on a device by way of its repository, what the device did, and what it said."""
    lines = []
    for name, tally in tallies.items():
        lines += [f"\n{name}\n"] if tally.stories else []
        lines += [f"  {_text.printable(tally.stories[tried])}\n" for tried in sorted(tally.stories)]
    return "".join(lines)


def escapes(tallies: dict[str, Tally]) -> str:
    """Every kind with how to see it again."""
    lines = []
    for name, tally in tallies.items():
        for kind, count in tally.counts.items():
            lines.append(f"\n{name}, {count:,} times: {_text.printable(kind)}\n")
            lines += [f"  {_command(name, f)}\n" for f in tally.escapes[kind]]
    return "".join(lines)


def processor() -> str:
    """Its name, as far as the system tells."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text(errors="replace").splitlines() if file.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _command(name: str, found: Found) -> str:
    how = f"--input {found.file}" if found.file else f"--seed {found.seed}"
    return f"python -m attacks --only {name} {how}"


if __name__ == "__main__":
    sys.exit(main())
