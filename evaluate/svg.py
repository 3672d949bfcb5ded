"""Two kinds of plots as inline SVG, so that a report is one file and needs no plotting library."""

from collections.abc import Sequence
from html import escape

COLOURS = (
    "#2563eb",
    "#d97706",
    "#059669",
    "#db2777",
    "#7c3aed",
    "#0891b2",
    "#65a30d",
    "#dc2626",
    "#57534e",
    "#1e3a8a",
)
AXIS, GRID = "#667085", "#e3e6ec"


def bars(values: Sequence[tuple[str, float, float, bool]]) -> str:
    """Horizontal bars: label, mean and spread in 0 to 1, and whether it is filled."""
    left, right, step = 220, 90, 24
    width = 760 - left - right
    parts = []
    for index, (label, mean, spread, filled) in enumerate(values):
        y = index * step
        end = left + width * mean
        fill = COLOURS[0] if filled else "#b8c4dc"
        low, high = left + width * max(0.0, mean - spread), left + width * min(1.0, mean + spread)
        parts.append(
            f"<text x='{left - 8}' y='{y + 16}' text-anchor='end'>{escape(label)}</text>"
            f"<rect x='{left}' y='{y + 4}' width='{width * mean:.1f}' height='{step - 8}' fill='{fill}'/>"
            f"<path d='M{low:.1f} {y + 12}H{high:.1f}' stroke='#111' stroke-width='2'/>"
            f"<text x='{max(end, high) + 6:.1f}' y='{y + 16}'>{100 * mean:.1f}</text>"
        )
    height = step * len(values) + 4
    return _svg(760, height, [*(_grid(left + width * t / 4, 0, height) for t in range(5)), *parts])


def lines(series: Sequence[tuple[str, Sequence[float]]]) -> str:
    """Curves in 0 to 1 over equal steps, with a legend."""
    left, top, width, height = 44, 10, 500, 240
    longest = max((len(values) for _, values in series), default=1)
    parts = []
    for tick in range(0, 101, 25):
        y = top + height * (1 - tick / 100)
        parts.append(
            f"<path d='M{left} {y:.1f}h{width}' stroke='{GRID}'/>"
            f"<text x='{left - 6}' y='{y + 4:.1f}' text-anchor='end' fill='{AXIS}'>{tick}</text>"
        )
    parts.append(f"<text x='{left + width}' y='{top + height + 18}' text-anchor='end' fill='{AXIS}'>batch</text>")
    for index, (label, values) in enumerate(series):
        colour = COLOURS[index % len(COLOURS)]
        dash = " stroke-dasharray='5 3'" if index >= len(COLOURS) else ""
        xs = [left + width * (i + 0.5) / longest for i in range(len(values))]
        points = " ".join(f"{x:.1f},{top + height * (1 - v):.1f}" for x, v in zip(xs, values, strict=True))
        parts.append(f"<polyline points='{points}' fill='none' stroke='{colour}' stroke-width='1.8'{dash}/>")
        if len(values) == 1:
            parts.append(
                f"<circle cx='{xs[0]:.1f}' cy='{top + height * (1 - values[0]):.1f}' r='3' fill='{colour}'/>"
            )
        y = top + 8 + 17 * index
        parts.append(
            f"<path d='M{left + width + 16} {y}h22' stroke='{colour}' stroke-width='3'{dash}/>"
            f"<text x='{left + width + 44}' y='{y + 4}'>{escape(label)}</text>"
        )
    return _svg(760, max(top + height + 26, top + 16 + 17 * len(series)), parts)


def _grid(x: float, top: float, bottom: float) -> str:
    return f"<path d='M{x:.1f} {top}V{bottom}' stroke='{GRID}'/>"


def _svg(width: int, height: int, parts: Sequence[str]) -> str:
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' height='{height}' "
        f"font-family='system-ui,sans-serif' font-size='12' fill='#1c2330'>{''.join(parts)}</svg>"
    )
