"""Plain tables and sizes for terminals; on a device there is nothing to install for them."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches


def printable(value: object) -> str:
    """Text that a terminal only shows: control characters, and what is no character at all, as escapes."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(value))


def table(header: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[int] = ()) -> str:
    """Columns two spaces apart under a rule; columns in `right` are aligned to the right."""
    cells = [[printable(c) for c in row] for row in (header, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        parts = [c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        return "  ".join(parts).rstrip()

    rule = "  ".join("─" * w for w in widths)
    return "\n".join([line(cells[0]), rule, *map(line, cells[1:])])


def pairs(items: Sequence[tuple[str, object]]) -> str:
    """Names on the left, values on the right."""
    width = max(len(name) for name, _ in items)
    return "\n".join(f"{name.ljust(width)}  {printable(value)}" for name, value in items)


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def is_address(text: object) -> bool:
    """Whether this is an address and no path: it has a scheme."""
    return isinstance(text, str) and "://" in text


def tick(passed: bool) -> str:
    """A sign for yes and one for no."""
    return "✓" if passed else "✗"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a sentence about a word that is not among those that are known; nothing where none is like it."""
    near = get_close_matches(word, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""
