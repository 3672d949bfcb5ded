"""A table of shares as a picture, with a size for every number of rows: with figures where they are few, with names
that can still be read where they are many."""

from collections.abc import Sequence
from io import BytesIO

__all__ = ["heat_map"]

FEW = 24  # columns whose figures are written into the cells
WIDE, HIGH = 0.62, 0.42  # inches of a cell with its figure
CELL, LEAST, ACROSS = 0.17, 0.085, 14.0  # inches of a cell without: at most, at least, and of all of them
DPI = 120


def heat_map(
    rows: Sequence[str], columns: Sequence[str], values: Sequence[Sequence[float]], x_label: str, y_label: str
) -> bytes:
    """A PNG of shares from 0 to 1, `values[row][column]`."""
    from matplotlib.figure import Figure

    few = len(columns) <= FEW
    cell = min(CELL, max(LEAST, ACROSS / max(len(rows), len(columns))))
    wide, high = (WIDE, HIGH) if few else (cell, cell)
    names = None if few else 50 * cell  # points: letters a little smaller than their row
    figure = Figure(figsize=(2.6 + wide * len(columns), 1.8 + high * len(rows)), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(values, cmap="viridis", vmin=0, vmax=1, aspect="auto")
    turned = {"rotation": 45, "ha": "right"} if few else {"rotation": 90}
    axes.set_xticks(range(len(columns)), columns, fontsize=names, **turned)
    axes.set_yticks(range(len(rows)), rows, fontsize=names)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    if few:
        for i, row in enumerate(values):
            for j, value in enumerate(row):
                colour = "white" if value < 0.6 else "black"
                axes.text(j, i, f"{value:.2f}", ha="center", va="center", color=colour, fontsize=8)
    figure.colorbar(image, ax=axes, label="accuracy")
    picture = BytesIO()
    figure.savefig(picture, format="png", dpi=DPI)
    return picture.getvalue()
