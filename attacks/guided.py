"""atheris on the parsers: inputs that reach new branches are kept, and changed further.

An input that escapes is written to a folder; `python -m attacks --only states --input FILE` does it again.
atheris takes over its process and ends it, so each parser has one of its own.
"""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from attacks.harness import Parser, bound, load, quieten, scratch
from attacks.tally import Found, Tally
from pluto_edge.errors import PlutoError

LONGEST = 1 << 20  # bytes of an input


def installed() -> bool:
    """Whether atheris is there."""
    return find_spec("atheris") is not None


def has_parser(name: str) -> bool:
    """Whether an attack has a parser that atheris can feed."""
    return hasattr(load(name), "parser")


def run(name: str, seconds: float, folder: Path) -> Tally:
    """So many seconds of one parser, in a process of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    known = set(folder.glob("*-*"))
    command = [sys.executable, "-m", "attacks.guided", name, str(max(round(seconds), 1)), str(folder)]
    with scratch() as place:  # here, for atheris ends its process without further ado
        done = subprocess.run([*command, place], capture_output=True, text=True, errors="replace")
    tally = Tally()
    counted = re.search(r"stat::number_of_executed_units:\s*(\d+)", done.stderr)
    tally.cases = tally.guided = int(counted[1]) if counted else 0
    for file in sorted(set(folder.glob("*-*")) - known):
        raised = re.findall(r"^(\w+(?:\.\w+)*(?:Error|Exception|Escape)\b.*)$", done.stderr, re.MULTILINE)
        tally.add(Found(raised[-1] if raised else "hangs, crashes or takes all memory", 0, done.stderr, file))
    if not counted and not tally.escapes:
        raise RuntimeError(f"atheris failed on {name}: {done.stderr[-2000:]}")
    return tally


def main() -> None:
    """What the process of `run` does: atheris feeds the parser until its time is over."""
    name = sys.argv[1]
    seconds = sys.argv[2]
    folder = Path(sys.argv[3])
    place = Path(sys.argv[4])
    import atheris

    with atheris.instrument_imports(include=["pluto_edge"]):
        attack = load(name)
    quieten()
    corpus = folder / "corpus"
    corpus.mkdir(exist_ok=True)
    with attack.parser(place) as parser:
        for number, sample in enumerate(parser.samples):
            (corpus / f"sample{number}").write_bytes(sample)
        options = [f"-max_total_time={seconds}", f"-timeout={bound(attack):.0f}", f"-max_len={LONGEST}"]
        options += ["-rss_limit_mb=4096", "-print_final_stats=1", f"-artifact_prefix={folder}/{name}-", str(corpus)]
        atheris.Setup([sys.argv[0], *options], lambda data: parse(parser, data))
        atheris.Fuzz()


def parse(parser: Parser, data: bytes) -> None:
    """One input; refusing it is right, and anything else that it raises is an escape."""
    try:
        parser.parse(data)
    except PlutoError:
        return


if __name__ == "__main__":
    main()
