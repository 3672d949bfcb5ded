"""The picture of a run, or of several: accuracy and module weights over frames, with conditions and events."""

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pluto_edge._look import DARK, LIGHT, SERIES, Theme
from pluto_edge.errors import MissingExtraError
from pluto_edge.observe.recording import Header, Recording
from pluto_edge.observe.summary import rolling, scores, segments, title

__all__ = ["check", "png"]

MARKS = {"change": ("v", "ink", "change noticed"), "rollback": ("X", "bad", "step taken back")}
BAND = "adapted, lowest to highest run"
MAX_POINTS = 1500  # along a line
MAX_STEPS = 200  # more would be a bar
MAX_LABELS = 40  # conditions that are marked
GAP = 0.1  # inches between two conditions' labels, at least
WINDOW = 100  # frames that the accuracy looks back, at most
SMOOTH = 25  # and the weights
FEW = 20  # frames at the start of which no mean is shown
ROOM = 0.22  # share of the accuracy's chart that its legend has


def check() -> None:
    """Matplotlib is here; better asked before a run than after it."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as cause:
        raise MissingExtraError("matplotlib", "stream") from cause


@dataclass(frozen=True)
class _Sheet:
    """What is drawn, and on what: the frames of the longest run, which of them are kept, and modules' colours."""

    recordings: Sequence[Recording]
    frames: NDArray[np.int64]
    keep: NDArray[np.int64]
    colours: dict[str, str]
    theme: Theme
    phone: bool


def png(recordings: Sequence[Recording], dark: bool = False, phone: bool = False) -> bytes:
    """The picture as a PNG: one run, or several of one story as their mean and band.

    It is 1320 pixels across or, for a phone, 720, with letters that can be read there.
    """
    check()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    theme = DARK if dark else LIGHT
    size, dpi = ((4.5, 7.6), 160) if phone else ((11, 7.2), 120)
    figure = Figure(figsize=size, dpi=dpi, layout="constrained", facecolor=theme["card"])
    FigureCanvasAgg(figure)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(1.5, 1))
    longest = max(recordings, key=lambda r: len(r.rows))
    frames = np.array([r.frame for r in longest.rows])
    keep = np.unique(np.linspace(0, len(frames) - 1, min(MAX_POINTS, len(frames))).astype(int))
    sheet = _Sheet(recordings, frames, keep, _module_colours(recordings, theme), theme, phone)
    _accuracy(upper, sheet)
    _weights(lower, sheet)
    labels = _conditions(upper, lower, sheet)
    for axes in (upper, lower):
        _dress(axes, theme)
    lower.set_xlabel("frame", color=theme["muted"])
    lower.set_xlim(frames[0], max(frames[-1], frames[0] + 1))
    lower.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    lower.locator_params(axis="x", nbins=5 if phone else 10, integer=True)
    _thin(figure, labels)
    drawn, small = BytesIO(), BytesIO()
    figure.savefig(drawn, format="png", dpi=dpi, facecolor=theme["card"])
    with Image.open(drawn) as image:  # few colours: a third of the bytes
        image.convert("RGB").quantize(255, Image.Quantize.MAXCOVERAGE, kmeans=1).save(small, "png", optimize=True)
    return small.getvalue()


def _thin(figure: Any, labels: Sequence[Sequence[Any]]) -> None:
    """From left to right, those that would touch the one before them are left out."""
    from matplotlib.transforms import Bbox

    figure.draw_without_rendering()
    edge = -np.inf
    for texts in labels:
        box = Bbox.union([text.get_window_extent() for text in texts])
        if box.x0 < edge + GAP * figure.dpi:
            for text in texts:
                text.set_visible(False)
        else:
            edge = box.x1


def _module_colours(recordings: Sequence[Recording], theme: Theme) -> dict[str, str]:
    """In the order of the weights' chart: the generalist, which has what is left, comes last, in grey."""
    header = recordings[0].header
    others = {n for recording in recordings for r in recording.rows for n in r.weights} - set(header.modules)
    names = [n for n in (*header.modules, *sorted(others)) if n != header.generalist]
    found = {n: theme[f"m{i % SERIES}"] for i, n in enumerate(names)}
    return found | ({header.generalist: theme["others"]} if header.generalist else {})


def _lines(colours: dict[str, str], header: Header, theme: Theme) -> dict[str, dict[str, Any]]:
    """How each answer is drawn, from the back to the front; a module that answers alone has its colour of the
    weights' chart. The widest line is behind and those before it have gaps, so that none hides another."""
    one = title("shipped", header)
    return {
        "adapted": {"color": theme["ours"], "lw": 3.6, "label": "adapted"},
        "shipped": {"color": colours.get(one, theme["ink"]), "lw": 1.6, "label": f"the module {one} alone"},
        "generalist": {"color": theme["others"], "lw": 1.6, "ls": (0, (6, 2)), "label": "generalist alone"},
        "average": {"color": theme["ink"], "lw": 1.2, "ls": (0, (4, 4)), "label": "plain average of the modules"},
        "without": {"color": theme["ink"], "lw": 1.2, "ls": (0, (1, 3)), "label": "without adaptation"},
    }


def _accuracy(axes: Any, sheet: _Sheet) -> None:
    """Rolling accuracy of everyone who answered; entropy where the truth is not known."""
    recordings, frames, keep, theme = sheet.recordings, sheet.frames, sheet.keep, sheet.theme
    header = recordings[0].header
    found = [scores(r) for r in recordings]
    several = len(recordings) > 1
    mean = ", mean of " + f"{len(recordings)} runs" if several else ""
    if all(np.isnan(run["adapted"]).all() for run in found):
        entropies = [_smooth(np.array([[row.entropy for row in r.rows]]), WINDOW)[0] for r in recordings]
        entropy = _mean(_together(entropies, len(frames)))
        axes.plot(frames[keep], entropy[keep], color=theme["ours"], lw=2, label="entropy")
        axes.set_ylabel(f"entropy, last {WINDOW} frames{mean}", color=theme["muted"])
        axes.set_ylim(0, 1.08 * np.log(max(len(header.classes), 2)))
    else:
        lowest = 1.0
        for name, style in _lines(sheet.colours, header, theme).items():
            known = [rolling(run[name], WINDOW) for run in found if name in run]
            if not known:
                continue
            lines = _together(known, len(frames))[:, keep]
            if len(frames) > WINDOW:  # the mean of a few frames is anything
                lines[:, frames[keep] < frames[0] + FEW] = np.nan
            lowest = min(lowest, float(np.nanmin(lines if name == "adapted" else _mean(lines))))
            if name == "adapted" and several:
                low, high = np.fmin.reduce(lines), np.fmax.reduce(lines)
                axes.fill_between(frames[keep], low, high, color=theme["ours"], alpha=0.22, lw=0, label=BAND)
            axes.plot(frames[keep], _mean(lines), **style)
        axes.set_ylabel(f"accuracy, last {WINDOW} frames{mean}", color=theme["muted"])
        room = 0.0 if sheet.phone else ROOM * (1.25 - lowest)  # for the legend
        axes.set_ylim(max(0.0, np.round(lowest - room, 1)), 1.08)
    _events(axes, recordings, theme)
    place: dict[str, Any] = {"loc": "lower left", "ncols": 4, "bbox_to_anchor": (0, 0.03)}
    if sheet.phone:
        place = {"loc": "upper left", "ncols": 1, "bbox_to_anchor": (-0.02, -0.02)}
    _legend(axes, theme, **place)


def _together(lines: Sequence[NDArray[np.float64]], length: int) -> NDArray[np.float64]:
    """Runs as rows; one that was stopped early ends in NaN."""
    return np.stack([np.concatenate([line, np.full(length - len(line), np.nan)]) for line in lines])


def _mean(lines: NDArray[np.float64]) -> NDArray[np.float64]:
    """Over the runs that are known; NaN where none is."""
    known = ~np.isnan(lines)
    count = np.where(known.any(axis=0), known.sum(axis=0), np.nan)
    return np.asarray(np.where(known, lines, 0.0).sum(axis=0) / count)


def _events(axes: Any, recordings: Sequence[Recording], theme: Theme) -> None:
    """Changes and steps taken back above the lines; of a single run also steps, as ticks below them."""
    at_height = {"transform": axes.get_xaxis_transform(), "lw": 0}
    events = [e for r in recordings for e in r.events]
    for kind, (marker, colour, name) in MARKS.items():
        at = [e.frame for e in events if e.kind == kind]
        if at:
            axes.scatter(
                at, [0.965] * len(at), marker=marker, color=theme[colour], s=36, label=name, zorder=4, **at_height
            )
    steps = [e.frame for e in events if e.kind == "step"]
    if len(recordings) == 1 and 0 < len(steps) <= MAX_STEPS:
        at_height["lw"] = 1
        axes.scatter(steps, [0.02] * len(steps), marker="|", color=theme["muted"], s=40, label="step", **at_height)


def _weights(axes: Any, sheet: _Sheet) -> None:
    frames, keep, colours = sheet.frames, sheet.keep, sheet.colours
    runs = [
        _smooth(np.array([[r.weights.get(n, 0.0) for r in recording.rows] for n in colours]), SMOOTH)
        for recording in sheet.recordings
    ]
    stack = [_mean(_together([run[i] for run in runs], len(frames)))[keep] for i in range(len(colours))]
    axes.stackplot(
        frames[keep],
        stack,
        labels=list(colours),
        colors=list(colours.values()),
        lw=0.4,
        edgecolor=sheet.theme["card"],
    )
    axes.set_ylabel("who has a say: module weights", color=sheet.theme["muted"])
    axes.set_ylim(0, 1)
    columns, below = (2, -0.26) if sheet.phone else (min(len(colours), 7), -0.16)
    _legend(axes, sheet.theme, loc="upper center", ncols=columns, bbox_to_anchor=(0.5, below))


def _legend(axes: Any, theme: Theme, **place: Any) -> None:
    legend = axes.legend(frameon=False, fontsize=9, labelcolor=theme["ink"], **place)
    for text in legend.get_texts():
        text.set_parse_math(False)


def _conditions(upper: Any, lower: Any, sheet: _Sheet) -> list[list[Any]]:
    """Conditions that no module was made for are shaded; above each its name, and on a desk what was right in it.

    Gives what is written above each of them.
    """
    theme, phone, header, parts = sheet.theme, sheet.phone, sheet.recordings[0].header, segments(sheet.recordings)
    if not any(p.condition for p in parts) or len(parts) > MAX_LABELS:
        return []
    lines, labels = _lines(sheet.colours, header, theme), []
    for number, part in enumerate(parts):
        if part.condition and not part.known:
            upper.axvspan(part.start, part.end + 1, color=theme["track"], zorder=0, lw=0)
        if number:
            for axes in (upper, lower):
                axes.axvline(part.start, color=theme["ink"], lw=0.7, alpha=0.45, zorder=3)
        middle, said = (part.start + part.end) / 2, []
        style = {"style": "normal" if part.known else "italic", "weight": "bold"}
        said.append((part.condition.replace("_", " "), 0.19, {"fontsize": 9.5, "color": theme["ink"], **style}))
        if part.condition and not part.known and not phone:
            said.append(("no module for it", 0.15, {"fontsize": 7.5, "color": theme["muted"]}))
        rival = "shipped" if "shipped" in part.accuracies else "without"
        if rival in part.accuracies and not phone:
            shown = {"adapted": "adapted", rival: title(rival, header)}
            shown["oracle"] = "own module" if part.known else "best module"
            for row, (answer, text) in enumerate(shown.items()):
                if answer in part.accuracies:
                    colour = lines[answer]["color"] if answer in lines else theme["muted"]
                    text = f"{text} {part.accuracies[answer]:.3f}"
                    said.append((text, 0.1 - 0.045 * row, {"fontsize": 8, "color": colour}))
        at = {"transform": upper.get_xaxis_transform(), "ha": "center", "va": "bottom", "parse_math": False}
        lowest = min(height for _, height, _ in said) - 0.01
        labels.append([upper.text(middle, 1 + h - (lowest if phone else 0), t, **s, **at) for t, h, s in said])
    return labels


def _dress(axes: Any, theme: Theme) -> None:
    axes.set_facecolor(theme["card"])
    axes.tick_params(colors=theme["muted"], labelsize=9, length=0)
    axes.grid(axis="y", color=theme["line"], lw=0.6)
    axes.set_axisbelow(True)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _smooth(values: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """Mean of the last `window` columns, of fewer at the start."""
    sums = np.concatenate([np.zeros((len(values), 1)), np.cumsum(values, axis=1)], axis=1)
    ends = np.arange(1, values.shape[1] + 1)
    starts = np.maximum(ends - window, 0)
    return np.asarray((sums[:, ends] - sums[:, starts]) / (ends - starts))
