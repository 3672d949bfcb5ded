"""Two kinds of plots as inline SVG, so that a report is one file and needs no plotting library.

Each is drawn twice, for a desk and for a phone: a picture that is only scaled has letters that nobody can read. The
stylesheet of `_look` shows the one that fits, and has the colours.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor

from pluto_edge._look import SERIES

DESK, PHONE = 760, 340  # pixels across
LETTER = 6.8  # pixels that a letter is wide, about
DASHES = ("", "7 3", "2 3", "9 3 2 3")  # of the first seven curves, of the next seven, and so on
TURN = 6  # pixels that a curve is seen before another one on the same place is
TICKS = 6  # along an axis, at most


def bars(values: Sequence[tuple[str, float, float, bool]], ours: str | None = None) -> str:
    """Horizontal bars: label, mean and spread in 0 to 1, and whether it is filled; `ours` is the label to mark."""
    return _both(lambda width: _bars(values, ours, width))


def lines(series: Sequence[tuple[str, Sequence[float]]], ours: str | None = None) -> str:
    """Curves in 0 to 1 over the batches of a stream, with a legend; `ours` is the label to mark."""
    return _both(lambda width: _lines(series, ours, width))


def _both(draw: Callable[[int], tuple[int, list[str]]]) -> str:
    parts = []
    for kind, width in (("desk", DESK), ("phone", PHONE)):
        height, drawn = draw(width)
        parts.append(
            f"<svg xmlns='http://www.w3.org/2000/svg' class='{kind}' role='img' viewBox='0 0 {width} {height}' "
            f"width='{width}' height='{height}'>{''.join(drawn)}</svg>"
        )
    return f"<div class='chart'>{''.join(parts)}</div>"


def _bars(values: Sequence[tuple[str, float, float, bool]], ours: str | None, width: int) -> tuple[int, list[str]]:
    """Labels are beside the bars where there is room, else above them."""
    above = width < DESK
    left, right, step, top = (0, 44, 40, 20) if above else (260, 60, 24, 4)
    room = width - left - right
    bottom = step * len(values) + 4
    parts = []
    for tick in range(0, 101, 25):
        x = left + room * tick / 100
        anchor = "start" if above and not tick else "middle"
        parts.append(
            f"<path class='grid' d='M{x:.1f} 0V{bottom}'/>"
            f"<text class='axis' x='{x:.1f}' y='{bottom + 14}' text-anchor='{anchor}'>{tick}"
            f"{' %' if tick == 100 else ''}</text>"
        )
    for index, (label, mean, spread, filled) in enumerate(values):
        y = index * step
        low, high = left + room * max(0.0, mean - spread), left + room * min(1.0, mean + spread)
        at = f"x='0' y='{y + 15}'" if above else f"x='{left - 8}' y='{y + 16}' text-anchor='end'"
        fill = "var(--ours)" if label == ours else "var(--accent)" if filled else "var(--others)"
        parts.append(
            f"<text {at}>{_fit(label, width if above else left - 8)}</text>"
            f"<rect x='{left}' y='{y + top}' width='{room * mean:.1f}' height='16' style='fill:{fill}'/>"
            f"<path d='M{low:.1f} {y + top + 8}H{high:.1f}' style='stroke:var(--ink)' stroke-width='2'/>"
            f"<text x='{max(left + room * mean, high) + 6:.1f}' y='{y + top + 12}'>{100 * mean:.1f}</text>"
        )
    return bottom + 20, parts


def _lines(series: Sequence[tuple[str, Sequence[float]]], ours: str | None, width: int) -> tuple[int, list[str]]:
    """The legend is beside the chart where there is room, else below it."""
    below = width < DESK
    left, top, right, height = (40, 22, 8, 200) if below else (44, 22, 250, 250)
    room = width - left - right
    longest = max([1, *(len(values) for _, values in series)])
    lowest = min((min(values) for _, values in series if len(values)), default=0.0)
    base = min(floor(max(0.0, lowest - 0.02) * 10) / 10, 0.9)  # the tenth below the lowest curve

    def place(index: int, value: float) -> tuple[str, str]:
        x, share = left + room * (index + 0.5) / longest, (value - base) / (1 - base)
        return f"{x:.1f}", f"{top + height * (1 - share):.1f}"

    parts = ["<text class='axis' x='0' y='11'>accuracy of a batch, %, over batches</text>"]
    for tick in _ticks(round(100 * base), 100):
        y = place(0, tick / 100)[1]
        parts.append(
            f"<path class='grid' d='M{left} {y}h{room}'/>"
            f"<text class='axis' x='{left - 6}' y='{float(y) + 4:.1f}' text-anchor='end'>{tick}</text>"
        )
    for number in _ticks(1, longest):
        x = place(number - 1, 1.0)[0]
        parts.append(f"<text class='axis' x='{x}' y='{top + height + 17}' text-anchor='middle'>{number}</text>")
    curves = [[place(i, v) for i, v in enumerate(values)] for _, values in series]
    pens = [_Pen.of(index, label == ours) for index, (label, _) in enumerate(series)]
    for index, ((label, _), points) in enumerate(zip(series, curves, strict=True)):
        parts += _curve(index, points, curves, pens[index])
        start = 0 if below else width - right + 18
        line = top + height + 38 + 20 * index if below else top + 8 + 19 * index
        parts.append(
            f"<path d='M{start} {line}h24'{pens[index].stroke()}/>"
            f"<text x='{start + 30}' y='{line + 4}'>{_fit(label, width - start - 30)}</text>"
        )
    legend = 20 * len(series)
    return max(top + height + 24, top + height + 32 + legend if below else top + legend), parts


@dataclass(frozen=True)
class _Pen:
    """How a curve is drawn."""

    colour: str
    width: float
    dash: str

    @classmethod
    def of(cls, index: int, ours: bool) -> "_Pen":
        if ours:
            return cls("var(--ours)", 3.5, "")
        return cls(f"var(--m{index % SERIES})", 2, DASHES[index // SERIES % len(DASHES)])

    def stroke(self, dash: str | None = None, start: int = 0) -> str:
        dash = self.dash if dash is None else dash
        dashed = f" stroke-dasharray='{dash}' stroke-dashoffset='{-start}'" if dash else ""
        return f" style='stroke:{self.colour}' stroke-width='{self.width}'{dashed}"


def _curve(
    index: int, points: Sequence[tuple[str, str]], curves: Sequence[Sequence[tuple[str, str]]], pen: _Pen
) -> list[str]:
    """Where curves lie on each other they take turns: each is seen for a while, then the next one."""
    if len(points) == 1:
        here = [i for i, other in enumerate(curves) if list(other) == list(points)]
        radius = 3 + 2 * (len(here) - 1 - here.index(index))  # rings, the first one outermost
        return [f"<circle cx='{points[0][0]}' cy='{points[0][1]}' r='{radius}' style='fill:{pen.colour}'/>"]
    runs: list[tuple[list[int], list[tuple[str, str]]]] = []
    for at in range(len(points) - 1):
        piece = list(points[at : at + 2])
        here = [i for i, other in enumerate(curves) if list(other[at : at + 2]) == piece]
        if runs and runs[-1][0] == here:
            runs[-1][1].append(piece[1])
        else:
            runs.append((here, piece))
    parts = []
    for here, run in runs:
        turn = pen.stroke()
        if len(here) > 1:
            turn = pen.stroke(f"{TURN} {TURN * (len(here) - 1)}", TURN * here.index(index))
        parts.append(f"<polyline points='{' '.join(','.join(p) for p in run)}' fill='none'{turn}/>")
    return parts


def _ticks(first: int, last: int) -> list[int]:
    """Round numbers from the first to the last, so few that none touches another."""
    step = 1
    while ceil((last - first) / step) > TICKS - 1:
        step = step * 5 // 2 if str(step)[0] == "2" else step * 2
    return [n for n in range(first, last + 1) if n % step == 0]


def _fit(label: str, room: float) -> str:
    """Cut to what fits; pointing at it shows the whole."""
    most = max(int(room / LETTER), 2)
    if len(label) <= most:
        return escape(label)
    return f"{escape(label[: most - 1])}…<title>{escape(label)}</title>"
