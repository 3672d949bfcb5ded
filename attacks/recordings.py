"""Recordings of streams that no recorder wrote.

Must happen: a `RecordingError`; or a recording of which `pluto replay` makes a table and a page to be written.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from attacks.harness import Case, Escape, Parser
from attacks.mutate import mutate_bytes, mutate_json
from pluto_edge._schema import encode
from pluto_edge.config import AdaptConfig
from pluto_edge.observe import summary
from pluto_edge.observe.recording import Header, Row, read
from pluto_edge.observe.report import html
from pluto_edge.runtime.types import Event, StreamMetrics


@contextmanager
def parser(place: Path) -> Iterator[Parser]:
    """Reads a recording."""
    file = place / "run.jsonl"

    def parse(data: bytes) -> None:
        file.write_bytes(data)
        recording = read(file)
        text = summary.table([recording])
        text.encode()
        if not text.replace("\n", "").isprintable():
            raise Escape("pluto replay prints control characters")
        html([recording], b"", b"", b"", b"").encode()

    yield Parser(parse, [_sample()])


@contextmanager
def attack(place: Path) -> Iterator[Case]:
    """Cases that replay a recording whose lines were changed."""
    with parser(place) as opened:
        lines = opened.samples[0].splitlines(keepends=True)

        def case(rng: Random) -> None:
            changed = list(lines)
            for _ in range(rng.randint(1, 3)):
                at = rng.randrange(len(changed))
                kind = rng.randrange(8)
                if kind < 5:
                    changed[at] = mutate_json(rng, lines[at % len(lines)]) + b"\n"
                elif kind == 5:
                    changed[at] = mutate_bytes(rng, changed[at])
                elif kind == 6:
                    changed.insert(at, rng.choice(lines))
                elif len(changed) > 1:
                    del changed[at]
            opened.parse(b"".join(changed))

        yield case


def _sample() -> bytes:
    """A short run, with a line of every kind."""
    header = Header(
        bundle="digits/bundle",
        bundle_sha256="0" * 64,
        source="sim",
        classes=("0", "1", "2"),
        modules=("clear", "fog", "all"),
        batch=4,
        every=4,
        budget=0.2,
        background=True,
        config=AdaptConfig(),
        generalist="all",
        shipped="clear",
    )
    rows = [
        Row(
            frame=number,
            seconds=number / 10,
            label=number % 3,
            entropy=0.5,
            weights={"clear": 0.25, "fog": 0.75},
            truth=1,
            condition="clear" if number < 4 else "fog",
            plain=number % 2,
            alone={"clear": 0, "fog": 1, "all": 2},
            average=0,
        )
        for number in range(1, 7)
    ]
    events = [
        Event("step", 1, top="fog", weights={"fog": 1.0}, samples=4, reliable=3, frame=4),
        Event("change", 1, "entropy rose", frame=5),
    ]
    lines = [("header", header), *(("frame", r) for r in rows), *(("event", e) for e in events)]
    lines.append(("metrics", StreamMetrics(6, 1, 0, 0, 0, 0, 1, 0.1, 0.1, 8.0, 20.0)))
    encoded = ({"type": kind, **dict(encode(value))} for kind, value in lines)  # type: ignore[call-overload]
    return b"".join(json.dumps(line).encode() + b"\n" for line in encoded)
