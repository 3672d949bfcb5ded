"""Things that are measured in turns, and compared with the first of them."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tqdm import tqdm

from pluto_edge import _text
from pluto_edge._cpu import Cpu
from pluto_edge._look import LIGHT
from pluto_edge.bench.bench_plot import check, drawn, dress
from pluto_edge.bench.machine import Peak

SCHEMA_VERSION = 2  # 1 did not name the CPU
STEP = "step: "  # rows of steps start with this; the picture has them
EVERY, HALF = f"{STEP}every image reliable", f"{STEP}half reliable"
FORWARD, START = "forward, one module", "from nothing to the first prediction"
TORCH, RELIABLE, PLAIN = "torch", "torch, reliable only", "plain session"
TORCH_BF16 = "torch, autocast to bfloat16"
FP32, INT8 = "pluto-edge fp32", "pluto-edge int8"
BF16 = f"{FP32}, openvino-bf16"


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
    cpu: Cpu
    plans: dict[str, str]
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
        ("cpu", report.cpu),
        *((f"plan, {who}", plan) for who, plan in report.plans.items()),
        ("versions", ", ".join(f"{name} {version}" for name, version in report.versions.items())),
        ("peak", f"fp32 {report.peak.fp32:,.0f} GFLOP/s: the best matrix product in ONNX Runtime"),
        *((a.who, _agreement(a)) for a in report.agreements),
    ]
    sections = [_text.pairs(about), _table(report.rows), markdown(report)]
    if report.busy:
        sections.append(f"warning: the machine is busy, ratios may be off: {'; '.join(report.busy)}")
    return "\n\n".join(sections)


@dataclass(frozen=True)
class Ratio:
    """A ratio that is aimed at: one side's figures over another's, round by round."""

    name: str
    what: str
    above: str
    below: str
    wanted: str
    as_share: bool = False  # 1/x: how many times as long the other takes

    def of(self, rows: tuple[ContestRow, ...]) -> str:
        """The median of the rounds; a dash where a side was not measured."""
        sides = {row.who: row.values for row in rows if row.what == self.what}
        if not (sides.get(self.above) and sides.get(self.below)):
            return "-"
        found = float(np.median(np.array(sides[self.above]) / np.array(sides[self.below])))
        return f"1/{1 / found:.1f}" if self.as_share else f"{found:.2f}"


RATIOS = (
    Ratio("forward against torch (time)", FORWARD, FP32, TORCH, "at most 0.85"),
    Ratio("forward against a plain session (time)", FORWARD, FP32, PLAIN, "at most 0.95"),
    Ratio("step fp32 against eager torch (times as fast)", EVERY, TORCH, FP32, "at least 2"),
    Ratio("step int8 against eager torch (times as fast)", EVERY, TORCH, INT8, "at least 3.5"),
    Ratio("half reliable, against torch on the reliable half", HALF, RELIABLE, FP32, "at least 1.5"),
    Ratio("step bfloat16 (OpenVINO) against eager torch, fp32", EVERY, TORCH, BF16, ""),
    Ratio("the same against eager torch, autocast to bfloat16", EVERY, TORCH_BF16, BF16, ""),
    Ratio("cold start against torch (time)", START, FP32, TORCH, "1/10", as_share=True),
)


def markdown(report: ContestReport) -> str:
    """The ratios that are aimed at, as a table for docs/performance.md, with the CPU that they are from."""
    busy = " The machine was busy." if report.busy else ""
    about = f"{report.cpu}; threads: {report.threads}; batch {report.batch}; rounds: {report.repeats}.{busy}"
    lines = [f"| {r.name} | {r.of(report.rows)} | {r.wanted} |" for r in RATIOS]
    return "\n".join([about, "", "| ratio within one run | here | wanted |", "|---|---|---|", *lines])


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
