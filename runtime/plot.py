"""The picture of a run: accuracy and module weights over its frames, with conditions and events."""

from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pluto_edge.errors import MissingExtraError
from pluto_edge.runtime.recording import Recording
from pluto_edge.runtime.summary import ROLLING, rolling, segments

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
MAX_POINTS = 1500  # along a line
SMOOTH = 25  # frames that a weight is averaged over


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
    _conditions((upper, lower), recording, theme)
    for axes in (upper, lower):
        _dress(axes, theme)
    lower.set_xlabel("frame", color=theme["faint"])
    lower.set_xlim(frames[0], max(frames[-1], frames[0] + 1))
    target = BytesIO()
    figure.savefig(target, format="png", dpi=120, facecolor=theme["paper"], metadata={"Software": None})
    return target.getvalue()


def _accuracy(axes: Any, recording: Recording, frames: Any, keep: Any, theme: dict[str, str]) -> None:
    """Rolling accuracy with and without adaptation; entropy where the truth is not known."""
    rows = recording.rows
    adapted, plain = (rolling(rows, answer) for answer in ("label", "plain"))
    if np.isnan(adapted).all():
        entropy = _smooth(np.array([[r.entropy for r in rows]]), ROLLING)[0]
        axes.plot(frames[keep], entropy[keep], color="#2f81f7", lw=2, label="entropy")
        axes.set_ylabel(f"entropy, mean of {ROLLING} frames", color=theme["faint"])
        axes.set_ylim(0, np.log(max(len(recording.header.classes), 2)))
    else:
        axes.plot(
            frames[keep], plain[keep], color=theme["faint"], lw=1.8, ls=(0, (4, 2)), label="without adaptation"
        )
        axes.plot(frames[keep], adapted[keep], color="#2f81f7", lw=2.2, label="adapted")
        axes.set_ylabel(f"accuracy, last {ROLLING} frames", color=theme["faint"])
        axes.set_ylim(0, 1.02)
    _events(axes, recording)
    axes.legend(loc="lower left", ncols=4, frameon=False, fontsize=9, labelcolor=theme["ink"])


def _events(axes: Any, recording: Recording) -> None:
    """Changes and steps taken back as marks on the lower edge."""
    for kind, (marker, colour, name) in MARKS.items():
        at = [e.frame for e in recording.events if e.kind == kind]
        if at:
            height = axes.get_ylim()[1] * 0.965
            axes.scatter(at, [height] * len(at), marker=marker, color=colour, s=42, label=name, zorder=4, lw=0)


def _weights(axes: Any, recording: Recording, frames: Any, keep: Any, theme: dict[str, str]) -> None:
    rows = recording.rows
    names = [*recording.header.modules]
    names += sorted({n for r in rows for n in r.weights} - set(names))
    stack = _smooth(np.array([[r.weights.get(n, 0.0) for r in rows] for n in names]), SMOOTH)
    colours = [COLOURS[i % len(COLOURS)] for i in range(len(names))]
    axes.stackplot(frames[keep], stack[:, keep], labels=names, colors=colours, lw=0.4, edgecolor=theme["paper"])
    axes.set_ylabel("module weights", color=theme["faint"])
    axes.set_ylim(0, 1)
    axes.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, -0.16),
        ncols=min(len(names), 6),
        frameon=False,
        fontsize=9,
        labelcolor=theme["ink"],
    )


def _conditions(pair: tuple[Any, Any], recording: Recording, theme: dict[str, str]) -> None:
    """Every second condition shaded, a line where one ends, its name above; unseen ones in italics with a star."""
    parts = segments(recording)
    if len(parts) == 1 and not parts[0].condition:
        return
    for number, part in enumerate(parts):
        start, end = part.rows[0].frame, part.rows[-1].frame
        if number % 2 == 0:
            pair[0].axvspan(start, end, color=theme["band"], zorder=0, lw=0)
        if number:
            for axes in pair:
                axes.axvline(start, color=theme["ink"], lw=0.7, alpha=0.45, zorder=3)
        pair[0].text(
            (start + end) / 2,
            1.02,
            part.condition.replace("_", " ") + ("" if part.known else "*"),
            transform=pair[0].get_xaxis_transform(),
            ha="center",
            va="bottom",
            fontsize=9,
            color=theme["ink"],
            style="normal" if part.known else "italic",
            weight="normal" if part.known else "bold",
        )
    if any(p.condition and not p.known for p in parts):
        note = "* no module was made for it"
        pair[0].annotate(
            note, (1, 0), (-6, 6), "axes fraction", "offset points", ha="right", color=theme["faint"], fontsize=9
        )


def _dress(axes: Any, theme: dict[str, str]) -> None:
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
