"""Events as a table, all at once or line by line as they come."""

from collections.abc import Sequence

from pluto_edge import _text
from pluto_edge.runtime.types import Event

HEADER = ("step", "", "top module", "weight", "entropy", "after", "reliable", "ms", "")
RIGHT = (0, 3, 4, 5, 6, 7)
WIDTHS = (5, 7, 16, 6, 7, 7, 8, 6, 0)


def row(event: Event) -> tuple[str, ...]:
    """An event as the cells of a table."""
    if event.kind not in ("step", "gather", "rollback"):
        return (str(event.step), event.kind, *[""] * 6, event.reason)
    return (
        str(event.step),
        "+" if event.kind == "gather" else _text.tick(event.kind == "step"),
        event.top,
        f"{event.weights.get(event.top, 0.0):.2f}",
        f"{event.entropy_before:.3f}",
        f"{event.entropy_after:.3f}",
        f"{event.reliable}/{event.samples}",
        f"{sum(event.milliseconds.values()):.0f}",
        event.reason,
    )


def table(events: Sequence[Event]) -> str:
    """Events as a table for a terminal."""
    return _text.table(HEADER, [row(e) for e in events], right=RIGHT)


def heading() -> str:
    """The table's head in fixed widths, for events that are printed as they come."""
    return _fixed(HEADER)


def line(event: Event) -> str:
    """An event in one line."""
    return _fixed(row(event))


def _fixed(cells: Sequence[str]) -> str:
    pairs = enumerate(zip(map(_text.printable, cells), WIDTHS, strict=True))
    return "  ".join(c.rjust(w) if i in RIGHT else c.ljust(w) for i, (c, w) in pairs).rstrip()
