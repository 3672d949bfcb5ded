"""Things that are measured in turns, and compared with the first of them."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tqdm import tqdm

from pluto_edge import _text
from pluto_edge._look import LIGHT
from pluto_edge.bench.bench_plot import check, drawn, dress
from pluto_edge.bench.machine import Peak

SCHEMA_VERSION = 1
STEP = "step: "  # rows of steps start with this; the picture has them


@dataclass(frozen=True)
class ContestRow:
    """One side of a comparison.

    Attributes:
        what: is compared, the same for all sides.
        who: the side.
        median, spread: of `values`, one a round; the spread is the width of the middle half.
        ratio: over the first side: the median of the rounds' ratios. None for what did not work.
        reliable: images of the batch that the gradient of a step is of.
    """

    what: str
    batch: int | None
    who: str
    unit: str
    values: tuple[float, ...] = ()
    median: float | None = None
    spread: float | None = None
    ratio: float | None = None
    reliable: int | None = None
    note: str = ""


@dataclass(frozen=True)
class Agreement:
    """A bundle's step against torch's: the largest error of the logits, over the largest logit."""

    who: str
    bundle: str
    precision: str
    error: float
    same_top: bool


@dataclass(frozen=True)
class ContestReport:
    store: str
    architecture: str
    modules: int
    tokens: int
    batch: int
    repeats: int
    threads: int
    busy: tuple[str, ...]
    load: float | None
    peak: Peak
    agreements: tuple[Agreement, ...]
    rows: tuple[ContestRow, ...]
    machine: str
    versions: dict[str, str]
    started: str
    schema_version: int = field(default=SCHEMA_VERSION)


def in_turns(
    what: str, sides: Mapping[str, Callable[[], float]], rounds: int, warm_up: int = 0
) -> dict[str, list[float]]:
    """A B A B ...: what each side measures of itself, round after round; the first `warm_up` do not count."""
    values: dict[str, list[float]] = {who: [] for who in sides}
    total = (warm_up + rounds) * len(sides)
    with tqdm(total=total, file=sys.stderr, desc=what, unit="run", mininterval=1) as bar:
        for _ in range(warm_up + rounds):
            for who, side in sides.items():
                bar.set_postfix_str(who)
                values[who].append(side())
                bar.update()
    return {who: measured[warm_up:] for who, measured in values.items()}


def compare(
    what: str,
    batch: int | None,
    unit: str,
    values: Mapping[str, list[float]],
    *,
    reliable: Mapping[str, int] | None = None,
    notes: Mapping[str, str] | None = None,
) -> list[ContestRow]:
    """A row a side, all over the first one."""
    first = np.array(next(iter(values.values())))
    rows = []
    for who, measured in values.items():
        low, median, high = (float(v) for v in np.percentile(measured, (25, 50, 75)))
        ratio = float(np.median(np.array(measured) / first)) if first.all() else None
        rows.append(
            ContestRow(
                what,
                batch,
                who,
                unit,
                tuple(measured),
                median,
                high - low,
                ratio,
                (reliable or {}).get(who),
                (notes or {}).get(who, ""),
            )
        )
    return rows


def as_text(report: ContestReport) -> str:
    about = [
        ("store", f"{report.store}: {report.architecture}, modules: {report.modules}, all blended"),
        ("tokens", f"{report.tokens} an image, and a module's prompt"),
        ("machine", f"{report.machine}, threads: {report.threads}"),
        ("versions", ", ".join(f"{name} {version}" for name, version in report.versions.items())),
        ("peak", f"fp32 {report.peak.fp32:,.0f} GFLOP/s: the best matrix product in ONNX Runtime"),
        *((a.who, _agreement(a)) for a in report.agreements),
    ]
    sections = [_text.pairs(about), _table(report.rows)]
    if report.busy:
        sections.append(f"warning: the machine is busy, ratios may be off: {'; '.join(report.busy)}")
    return "\n\n".join(sections)


def _agreement(found: Agreement) -> str:
    top = "the same top module" if found.same_top else "another top module"
    return f"{found.bundle}: logits within {found.error:.1e} of torch's, {top}"


def _table(rows: tuple[ContestRow, ...]) -> str:
    lines = []
    last = ""
    for row in rows:
        what = row.what if row.batch is None else f"{row.what}, batch {row.batch}"
        lines.append(
            (
                what if what != last else "",
                row.who,
                "" if row.median is None else f"{row.median:,.1f}",
                row.unit,
                "" if row.spread is None or len(row.values) < 2 else f"{row.spread:,.1f}",
                "" if row.ratio is None else f"{row.ratio:.2f}",
                "" if row.reliable is None else row.reliable,
                row.note,
            )
        )
        last = what
    header = ("what", "who", "median", "unit", "spread", "over the first", "reliable", "note")
    return _text.table(header, lines, right=(2, 4, 5, 6))


def png(report: ContestReport) -> bytes:
    """Bars as long as steps take; a line as long as the spread."""
    check()
    from matplotlib.figure import Figure

    cases = list(dict.fromkeys(r.what for r in report.rows if r.what.startswith(STEP)))
    figure = Figure(figsize=(10, 4.2), layout="constrained", facecolor=LIGHT["card"])
    for axes, case in zip(np.atleast_1d(figure.subplots(1, len(cases))), cases, strict=True):
        _bars(axes, [r for r in report.rows if r.what == case and r.median is not None], case)
    busy = ", machine busy" if report.busy else ""
    title = f"{report.architecture}, {report.modules} modules, batch {report.batch}, {report.threads} threads{busy}"
    return drawn(figure, title)


def _bars(axes: Any, rows: list[ContestRow], case: str) -> None:
    ours = [row.who.startswith("pluto-edge") for row in rows]
    axes.barh(
        [row.who for row in rows],
        [row.median / 1e3 for row in rows if row.median is not None],
        xerr=[(row.spread or 0.0) / 2e3 for row in rows],
        color=[LIGHT["accent"] if own else LIGHT["others"] for own in ours],
        ecolor=LIGHT["ink"],
    )
    for at, row in enumerate(rows):
        axes.text(0, at, f" {row.ratio:.2f}", va="center", fontsize=9, color=LIGHT["ink"])
    axes.invert_yaxis()
    axes.set_title(case.removeprefix(STEP), fontsize=10, color=LIGHT["ink"])
    axes.set_xlabel("seconds a step; in the bar: over the first", color=LIGHT["muted"])
    axes.set_axisbelow(True)
    dress(axes, "x")
