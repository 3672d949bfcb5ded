"""Who won: one row, PLUTO's, against every other that needs no hindsight, on the same images."""

from collections.abc import Sequence
from dataclasses import dataclass

from pluto_edge.evaluate.results import BLEND, Result
from pluto_edge.evaluate.significance import LEVEL, Scores, collect, interval, mcnemar
from pluto_edge.evaluate.summary import MethodRow, rows

PLUTO = "pluto"
ZERO_SHOT = "zero-shot"  # PLUTO that learns nothing


@dataclass(frozen=True)
class Comparison:
    """Accuracy of one row less that of another, on a target or on average over all.

    Attributes:
        difference: 0.01 is one point.
        low, high: its 95 % interval, by paired bootstrap over images.
        better, worse: on how many images it is right in more orders than the other, and in fewer.
        p: McNemar's exact test of these two numbers; on average over targets, of their images together.
    """

    difference: float
    low: float
    high: float
    better: int
    worse: int
    p: float

    @property
    def significant(self) -> bool:
        """Both say so, and both in the same direction."""
        same = (self.better - self.worse) * self.difference > 0
        return same and self.low * self.high > 0 and self.p < LEVEL

    def turned(self) -> "Comparison":
        """From the other's side."""
        return Comparison(-self.difference, -self.high, -self.low, self.worse, self.better, self.p)


@dataclass(frozen=True)
class Against:
    """One rival, by target and on average."""

    rival: str
    targets: dict[str, Comparison]
    average: Comparison


@dataclass(frozen=True)
class Findings:
    """What a report says of the results."""

    verdict: str
    rows: list[MethodRow]
    ours: str | None  # label of the row that is compared with the others
    against: list[Against]


def find(results: Sequence[Result]) -> Findings:
    """The table of all rows, the row that stands for PLUTO, and how it compares with each rival."""
    table = rows(results)
    ours = champion(table)
    if ours is None:
        return Findings(_no_blend(table), table, None, [])
    rivals = [row for row in table if row.fair and row is not ours]
    against = [compare(results, ours, row) for row in rivals]
    return Findings(verdict(ours, rivals, against), table, ours.label, against)


def champion(table: Sequence[MethodRow]) -> MethodRow | None:
    """PLUTO, with or without settings of its own, or else the first method that is no ensemble."""
    blends = [row for row in table if row.part == BLEND]
    plain = [row for row in blends if row.method == PLUTO]
    own = [row for row in blends if row.method.partition(":")[0] == PLUTO]
    return next(iter([*plain, *own, *blends]), None)


def compare(results: Sequence[Result], ours: MethodRow, theirs: MethodRow) -> Against:
    """One row against another on the same images, by target and on average."""
    scores = {target: _scores(results, ours, theirs, target) for target in ours.cells}
    counts = {t: (int((s.points > 0).sum()), int((s.points < 0).sum())) for t, s in scores.items()}
    found = {t: Comparison(s.mean, *interval([s]), *counts[t], p=mcnemar(*counts[t])) for t, s in scores.items()}
    mean = sum(s.mean for s in scores.values()) / len(scores)
    better, worse = (sum(c) for c in zip(*counts.values(), strict=True))
    average = Comparison(mean, *interval(list(scores.values())), better, worse, mcnemar(better, worse))
    return Against(theirs.label, found, average)


def _scores(results: Sequence[Result], ours: MethodRow, theirs: MethodRow, target: str) -> Scores:
    """Of every image: in how many more orders it is right than the other."""

    def of(row: MethodRow) -> list[Result]:
        return sorted((r for r in results if (r.method, r.target) == (row.method, target)), key=lambda r: r.seed)

    pairs = list(zip(of(ours), of(theirs), strict=True))
    assert all(a.images == b.images for a, b in pairs), "all methods see the same stream"
    return collect((a.images, a.right(ours.part).astype(int) - b.right(theirs.part)) for a, b in pairs)


def verdict(ours: MethodRow, rivals: Sequence[MethodRow], against: Sequence[Against]) -> str:
    """A sentence on the best rival, and one more if a variant of PLUTO itself is better than PLUTO."""
    where = _where(ours)
    pairs = list(zip(rivals, against, strict=True))
    variants = [p for p in pairs if ours.method.startswith(PLUTO) and p[0].method.startswith((PLUTO, ZERO_SHOT))]
    others = [p for p in pairs if p not in variants]
    text = f"{ours.label} {_percent(ours)} {where}: no other method ran that it could be compared with."
    if others:
        row, found = max(others, key=lambda p: p[0].mean)
        text = f"{ours.label} {_percent(ours)} {_stands(found.average, row, where)}"
    if variants:
        row, found = max(variants, key=lambda p: p[0].mean)
        if found.average.difference < 0:
            text += f" Its variant {row.label}, {_percent(row)}, is better {_by(found.average.turned())}"
    return text


def _stands(c: Comparison, rival: MethodRow, where: str) -> str:
    named = f"the best rival, {rival.label} {_percent(rival)}"
    if c.difference > 0:
        return f"is ahead of {named}, {_by(c, where)}"
    if c.difference < 0:
        return f"did not win: it is behind {named}, {_by(c.turned(), where)}"
    return f"did not win: it is level with {named}, {where}."


def _by(c: Comparison, where: str = "") -> str:
    sure = "significant" if c.significant else "not significant"
    found = f"by {100 * c.difference:.1f} points (95 % interval {span(c)}, {chance(c.p)})"
    return f"{found}{where and ' '}{where}; the difference is {sure}."


def span(c: Comparison) -> str:
    """The 95 % interval of a difference in points, as text."""
    return f"{100 * c.low:.1f} to {100 * c.high:.1f}"


def chance(p: float) -> str:
    """A p-value as text."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def _no_blend(table: Sequence[MethodRow]) -> str:
    best = max((row for row in table if row.fair), key=lambda row: row.mean)
    what = f"{best.label}, {_percent(best)} {_where(best)}"
    return f"Neither PLUTO nor another blend ran; the best of the others is {what}."


def _where(row: MethodRow) -> str:
    names = list(row.cells)
    return f"on {names[0]}" if len(names) == 1 else f"on average over {len(names)} targets"


def _percent(row: MethodRow) -> str:
    return f"{100 * row.mean:.1f}"
