"""The picture of a run: accuracy and module weights over its frames, with conditions and events."""

from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pluto_edge.errors import MissingExtraError
from pluto_edge.runtime.recording import Recording
from pluto_edge.runtime.summary import rolling, segments

__all__ = ["check", "png"]

COLOURS = (
    "#4e79a7",
    "#f28e2b",
    "#59a14f",
    "#b07aa1",
    "#edc948",
    "#76b7b2",
    "#e15759",
    "#9c755f",
    "#ff9da7",
    "#bab0ac",
)
MARKS = {"change": ("v", "#d1495b", "change noticed"), "rollback": ("X", "#8d5a97", "step taken back")}
LIGHT = {"paper": "#ffffff", "ink": "#24292f", "faint": "#6e7781", "band": "#f3f4f6", "grid": "#d8dee4"}
DARK = {"paper": "#15191e", "ink": "#e6e9ec", "faint": "#9aa4ae", "band": "#1f252c", "grid": "#39424c"}
BLUE = "#2f81f7"
NOTE = "* no module was made for it"
MAX_POINTS = 1500  # along a line
MAX_STEPS = 200  # more would be a bar
MAX_LABELS, MIN_SHARE = 40, 0.05  # conditions that are marked; share of the run that has room for a name
WINDOW = 100  # frames that the accuracy looks back, at most
SMOOTH = 25  # and the weights

Theme = dict[str, str]


def check() -> None:
    """Matplotlib is here; better asked before a run than after it."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as cause:
        raise MissingExtraError("matplotlib", "stream") from cause


def png(recording: Recording, dark: bool = False) -> bytes:
    """The picture as a PNG of 1320 pixels across."""
    check()
    from matplotlib.figure import Figure

    theme = DARK if dark else LIGHT
    figure = Figure(figsize=(11, 6.2), layout="constrained", facecolor=theme["paper"])
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(1, 1.05))
    frames = np.array([r.frame for r in recording.rows])
    keep = np.unique(np.linspace(0, len(frames) - 1, min(MAX_POINTS, len(frames))).astype(int))
    _accuracy(upper, recording, frames, keep, theme)
    _weights(lower, recording, frames, keep, theme)
    _conditions(upper, lower, recording, theme)
    for axes in (upper, lower):
        _dress(axes, theme)
    lower.set_xlabel("frame", color=theme["faint"])
    lower.set_xlim(frames[0], max(frames[-1], frames[0] + 1))
    drawn, small = BytesIO(), BytesIO()
    figure.savefig(drawn, format="png", dpi=120, facecolor=theme["paper"])
    with Image.open(drawn) as image:  # few colours: a third of the bytes
        image.convert("RGB").quantize(255, Image.Quantize.MAXCOVERAGE, kmeans=1).save(small, "png", optimize=True)
    return small.getvalue()


def _accuracy(axes: Any, recording: Recording, frames: Any, keep: Any, theme: Theme) -> None:
    """Rolling accuracy with and without adaptation; entropy where the truth is not known."""
    rows = recording.rows
    adapted, plain = (rolling(rows, answer, WINDOW) for answer in ("label", "plain"))
    if np.isnan(adapted).all():
        entropy = _smooth(np.array([[r.entropy for r in rows]]), WINDOW)[0]
        axes.plot(frames[keep], entropy[keep], color=BLUE, lw=2, label="entropy")
        axes.set_ylabel(f"entropy, last {WINDOW} frames", color=theme["faint"])
        axes.set_ylim(0, 1.08 * np.log(max(len(recording.header.classes), 2)))
    else:
        axes.plot(frames[keep], adapted[keep], color=BLUE, lw=2.4, label="adapted")
        axes.plot(frames[keep], plain[keep], color=theme["ink"], lw=1.2, ls=(0, (4, 2)), label="without adaptation")
        axes.set_ylabel(f"accuracy, last {WINDOW} frames", color=theme["faint"])
        axes.set_ylim(0, 1.08)
    _events(axes, recording, theme)
    _legend(axes, theme, loc="lower left", ncols=5, bbox_to_anchor=(0, 0.05))


def _events(axes: Any, recording: Recording, theme: Theme) -> None:
    """Changes and steps taken back above the lines, steps as ticks below them."""
    top = axes.get_ylim()[1]
    for kind, (marker, colour, name) in MARKS.items():
        at = [e.frame for e in recording.events if e.kind == kind]
        if at:
            axes.scatter(at, [0.965 * top] * len(at), marker=marker, color=colour, s=44, label=name, zorder=4, lw=0)
    steps = [e.frame for e in recording.events if e.kind == "step"]
    if 0 < len(steps) <= MAX_STEPS:
        axes.scatter(steps, [0.02 * top] * len(steps), marker="|", color=theme["faint"], s=40, label="step", lw=1)


def _weights(axes: Any, recording: Recording, frames: Any, keep: Any, theme: Theme) -> None:
    rows, names = recording.rows, list(recording.header.modules)
    names += sorted({n for r in rows for n in r.weights} - set(names))
    stack = _smooth(np.array([[r.weights.get(n, 0.0) for r in rows] for n in names]), SMOOTH)
    colours = [COLOURS[i % len(COLOURS)] for i in range(len(names))]
    axes.stackplot(frames[keep], stack[:, keep], labels=names, colors=colours, lw=0.4, edgecolor=theme["paper"])
    axes.set_ylabel(f"module weights, last {SMOOTH} frames", color=theme["faint"])
    axes.set_ylim(0, 1)
    _legend(axes, theme, loc="upper center", ncols=min(len(names), 6), bbox_to_anchor=(0.5, -0.16))


def _legend(axes: Any, theme: Theme, **place: Any) -> None:
    legend = axes.legend(frameon=False, fontsize=9, labelcolor=theme["ink"], **place)
    for text in legend.get_texts():
        text.set_parse_math(False)


def _conditions(upper: Any, lower: Any, recording: Recording, theme: Theme) -> None:
    """Every second condition shaded, a line where one ends, above it its name and accuracy, without and adapted."""
    parts = segments(recording)
    if not any(p.condition for p in parts) or len(parts) > MAX_LABELS:
        return
    width = recording.rows[-1].frame - recording.rows[0].frame
    for number, part in enumerate(parts):
        start, end = part.rows[0].frame, part.rows[-1].frame
        if number % 2 == 0:
            upper.axvspan(start, end + 1, color=theme["band"], zorder=0, lw=0)
        if number:
            for axes in (upper, lower):
                axes.axvline(start, color=theme["ink"], lw=0.7, alpha=0.45, zorder=3)
        if end - start < MIN_SHARE * width:
            continue
        name = part.condition.replace("_", " ") + ("" if part.known else " *")
        at = {"transform": upper.get_xaxis_transform(), "ha": "center", "va": "bottom", "parse_math": False}
        style = "normal" if part.known else "italic"
        upper.text((start + end) / 2, 1.07, name, fontsize=9.5, color=theme["ink"], style=style, **at)
        if part.without is not None and part.adapted is not None:
            figures = f"{part.without:.3f} → {part.adapted:.3f}"
            upper.text((start + end) / 2, 1.01, figures, fontsize=8.5, color=theme["faint"], **at)
    if any(p.condition and not p.known for p in parts):
        at = {"transform": upper.transAxes, "ha": "right", "fontsize": 9, "style": "italic"}
        upper.text(0.995, 0.07, NOTE, color=theme["faint"], **at)


def _dress(axes: Any, theme: Theme) -> None:
    axes.set_facecolor(theme["paper"])
    axes.tick_params(colors=theme["faint"], labelsize=9, length=0)
    axes.grid(axis="y", color=theme["grid"], lw=0.6)
    axes.set_axisbelow(True)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _smooth(values: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """Mean of the last `window` columns, of fewer at the start."""
    sums = np.concatenate([np.zeros((len(values), 1)), np.cumsum(values, axis=1)], axis=1)
    ends = np.arange(1, values.shape[1] + 1)
    starts = np.maximum(ends - window, 0)
    return np.asarray((sums[:, ends] - sums[:, starts]) / (ends - starts))
