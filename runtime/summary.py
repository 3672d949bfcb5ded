"""What a run of a stream comes to, in numbers and as tables for a terminal."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from pluto_edge import _text
from pluto_edge.runtime.recording import Recording, Row
from pluto_edge.runtime.stream import StreamMetrics

__all__ = ["ROLLING", "Segment", "accuracy", "cell", "figures", "rolling", "segments", "table"]

ROLLING = 200  # frames that a rolling accuracy looks back


@dataclass(frozen=True)
class Segment:
    """Frames in a row under one condition.

    Attributes:
        condition, known: its name ("" where it is not known), and whether a module bears the same.
        rows: the frames.
        without, adapted: accuracy, where the truth is known and was compared.
        top, weight: the module with the largest mean weight, and that.
        entropy: the mean.
    """

    condition: str
    known: bool
    rows: tuple[Row, ...]
    without: float | None
    adapted: float | None
    top: str
    weight: float
    entropy: float


def segments(recording: Recording) -> tuple[Segment, ...]:
    """The run cut where the condition changes."""
    groups = groupby(recording.rows, lambda row: row.condition)
    return tuple(segment(name, tuple(rows), recording.header.modules) for name, rows in groups)


def segment(name: str, rows: tuple[Row, ...], modules: Sequence[str]) -> Segment:
    names = sorted({n for r in rows for n in r.weights})
    means = {n: float(np.mean([r.weights.get(n, 0.0) for r in rows])) for n in names}
    top = max(names, key=lambda n: means[n])
    return Segment(
        condition=name,
        known=name in modules,
        rows=rows,
        without=accuracy(rows, "plain"),
        adapted=accuracy(rows, "label"),
        top=top,
        weight=means[top],
        entropy=float(np.mean([r.entropy for r in rows])),
    )


def hits(rows: Sequence[Row], answer: str) -> NDArray[np.float64]:
    """Per frame: 1 right, 0 wrong, NaN not known. `answer` is `label` (adapted) or `plain` (without)."""
    pairs = ((r.truth, getattr(r, answer)) for r in rows)
    return np.array([np.nan if truth is None or said is None else float(truth == said) for truth, said in pairs])


def accuracy(rows: Sequence[Row], answer: str) -> float | None:
    values = hits(rows, answer)
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


def rolling(rows: Sequence[Row], answer: str, window: int = ROLLING) -> NDArray[np.float64]:
    """Accuracy of the last `window` frames at every frame; NaN where none of them is known."""
    values = hits(rows, answer)
    known = ~np.isnan(values)
    right = np.concatenate([[0.0], np.cumsum(np.where(known, values, 0.0))])
    count = np.concatenate([[0], np.cumsum(known)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - window, 0)
    seen = count[ends] - count[starts]
    return np.where(seen > 0, (right[ends] - right[starts]) / np.maximum(seen, 1), np.nan)


def cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


HEADER = ("condition", "", "frames", "without", "adapted", "entropy", "leans on", "weight")
RIGHT = (2, 3, 4, 5, 7)


def table_rows(recording: Recording) -> list[tuple[str, ...]]:
    """One row for each segment, and one for all."""
    parts = segments(recording)
    rows = [_cells(s.condition or "(not known)", s) for s in parts]
    if len(parts) > 1:
        rows.append(_cells("all", segment("", recording.rows, recording.header.modules)))
    return rows


def _cells(name: str, part: Segment) -> tuple[str, ...]:
    note = "unseen" if part.condition and not part.known else ""
    accuracies = (cell(part.without), cell(part.adapted))
    return name, note, f"{len(part.rows):,}", *accuracies, f"{part.entropy:.2f}", part.top, f"{part.weight:.2f}"


def figures(recording: Recording) -> list[tuple[str, str]]:
    """Names and values of what the whole run did."""
    rows, metrics = recording.rows, recording.metrics
    seconds = rows[-1].seconds - rows[0].seconds
    rate = f", {(len(rows) - 1) / seconds:.1f} a second" if seconds > 0 else ""
    kept = f" (the last of {metrics.frames:,})" if metrics and metrics.frames > len(rows) else ""
    twice = ", each predicted twice" if any(r.plain is not None for r in rows) else ""
    frames = ("frames", f"{len(rows):,}{kept} in {seconds:.1f} s{rate}{twice}")
    return [frames, *(_measured(metrics, recording) if metrics else [("metrics", "none: the run was killed")])]


def _measured(metrics: StreamMetrics, recording: Recording) -> list[tuple[str, str]]:
    learning = "in the background" if recording.header.background else "inline"
    steps = f"{metrics.steps:,} {learning}"
    more = {
        "gathering": metrics.gathered,
        "rolled back": metrics.rolled_back,
        "skipped as the one before was under way": metrics.skipped_busy,
        "skipped by the budget": metrics.skipped_budget,
    }
    steps += "".join(f", {count:,} {what}" for what, count in more.items() if count)
    return [
        ("latency of a prediction", f"median {metrics.latency_median:.1f} ms, p99 {metrics.latency_p99:.1f} ms"),
        ("steps", steps),
        ("time spent learning", f"{metrics.learning_seconds:.1f} s, {metrics.learning_share:.0%} of the run"),
        ("changes noticed", f"{metrics.changes:,}"),
    ]


def table(recording: Recording) -> str:
    """The summary for a terminal."""
    return f"{_text.table(HEADER, table_rows(recording), right=RIGHT)}\n\n{_text.pairs(figures(recording))}"
