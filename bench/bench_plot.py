"""The picture of a benchmark: predictions and steps over modules and over batches."""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from pluto_edge._look import LIGHT
from pluto_edge.bench.bench import Cell, Report
from pluto_edge.errors import ConfigError
from pluto_edge.observe.plot import check

__all__ = ["check", "check_files", "drawn", "dress", "png"]

MAX_TICKS = 20
LINES = (("predict", LIGHT["m0"]), ("step", LIGHT["m1"]))


def png(report: Report) -> bytes:
    """Milliseconds of a call; bars are as long as the spread."""
    check()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained", facecolor=LIGHT["card"])
    left, right = figure.subplots(1, 2)
    growth = report.growth
    most = report.plan.modules[-1]
    batch = report.plan.batch
    _draw(left, growth["modules"], [c.size.modules for c in growth["modules"]], f"modules (batch {batch})")
    _draw(right, growth["batch"], [c.size.batch for c in growth["batch"]], f"images in a batch (modules {most})")
    busy = ", machine busy" if report.busy else ""
    return drawn(figure, f"{report.architecture}, {report.precision}, {report.threads} threads{busy}")


def drawn(figure: Any, title: str) -> bytes:
    """A figure with this title as a PNG."""
    figure.suptitle(title, fontsize=11, color=LIGHT["ink"], parse_math=False)
    picture = BytesIO()
    figure.savefig(picture, format="png", dpi=120, facecolor=LIGHT["card"])
    return picture.getvalue()


def dress(axes: Any, grid: str) -> None:
    """No frame, faint figures, and lines across the axis that `grid` names."""
    axes.tick_params(colors=LIGHT["muted"], labelsize=9, length=0)
    axes.grid(axis=grid, color=LIGHT["line"], lw=0.6)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _draw(axes: Any, cells: Sequence[Cell], at: Sequence[int], label: str) -> None:
    for name, colour in LINES:
        times = [getattr(c, name) for c in cells]
        spread = [t.spread / 2 for t in times]
        axes.errorbar(
            at, [t.median for t in times], yerr=spread, color=colour, marker="o", ms=5, lw=1.8, label=name
        )
    axes.set_xticks(_apart(at))
    axes.set_xlabel(label, color=LIGHT["muted"])
    axes.set_ylabel("milliseconds a call", color=LIGHT["muted"])
    axes.set_ylim(bottom=0)
    dress(axes, "y")
    axes.legend(frameon=False, fontsize=9, labelcolor=LIGHT["ink"])


def _apart(values: Sequence[int]) -> list[int]:
    """Those that have room for a label."""
    kept: list[int] = []
    for value in sorted(values, reverse=True):
        if not kept or kept[-1] - value >= max(values) / MAX_TICKS:
            kept.append(value)
    return kept


def check_files(json: Path | None, plot: Path | None) -> None:
    """What will be written can be; better asked before the work than after it."""
    for option, path in (("--json", json), ("--plot", plot)):
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            raise ConfigError(f"{option}: {path} cannot be written: it is a folder, or is in none")
    if plot is not None:
        check()
