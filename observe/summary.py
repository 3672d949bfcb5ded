"""What runs of a stream come to, in numbers and as tables for a terminal.

Several recordings are runs of one story, under the same conditions one after another: figures are means over runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from pluto_edge import _text
from pluto_edge.errors import RecordingError
from pluto_edge.observe.recording import Header, Recording, Row
from pluto_edge.runtime.types import StreamMetrics

__all__ = [
    "ROLLING",
    "ConditionSummary",
    "Paired",
    "accuracy",
    "answers",
    "cell",
    "figures",
    "hits",
    "paired",
    "rolling",
    "scores",
    "segments",
    "table",
    "title",
    "verdict",
    "whole",
]

ROLLING = 200  # frames that a rolling accuracy looks back
SETTLE = 15  # frames of a condition in which nobody needs to know it yet

Scores = NDArray[np.float64]
Labels = Sequence[int | None]


@dataclass(frozen=True)
class ConditionSummary:
    """Frames in a row under one condition, of one run or of several.

    Attributes:
        condition, known: its name ("" where it is not known), and whether a module bears the same.
        start, end: its first and last frame.
        frames: how many, of all runs together.
        accuracies: by answer, the mean over runs; only where truth and answer are known. See `answers`.
        deviation: of the adapted accuracy, over runs; None for one run.
        top, weight: the module with the largest mean weight, and that.
        entropy: the mean.
        leads: where a module bears the condition's name, the share of frames from the 16th on in which it weighs
            most; else None.
    """

    condition: str
    known: bool
    start: int
    end: int
    frames: int
    accuracies: dict[str, float]
    deviation: float | None
    top: str
    weight: float
    entropy: float
    leads: float | None


@dataclass(frozen=True)
class Paired:
    """Two answers on the same frames: where only the first is right, where only the second is, and by run the
    difference of their accuracies."""

    better: int
    worse: int
    gains: tuple[float, ...]

    @property
    def gain(self) -> float:
        """How much more often the one was right than the other, as a share; the mean over the runs."""
        return float(np.mean(self.gains))


def answers(recording: Recording) -> dict[str, Labels]:
    """Everyone's label of every frame, for those who gave any.

    `shipped` is the one module that would have been shipped, `generalist` that module, `average` the specialists'
    plain average, `without` the bundle as exported, `adapted` the stream. `oracle` knows the condition: it takes
    the module of that name and, where there is none, the one that turns out best on this run's frames of it.
    """
    rows, header = recording.rows, recording.header
    found: dict[str, Labels] = {
        "shipped": [r.alone.get(header.shipped) for r in rows],
        "generalist": [r.alone.get(header.generalist) for r in rows],
        "average": [r.average for r in rows],
        "without": [r.plain for r in rows],
        "adapted": [r.label for r in rows],
        "oracle": [label for part in _parts(recording) for label in _oracle(part)],
    }
    return {name: labels for name, labels in found.items() if any(v is not None for v in labels)}


def _oracle(rows: Sequence[Row]) -> Labels:
    """Of frames under one condition."""
    modules = sorted({n for r in rows for n in r.alone})
    if not modules:
        return [None] * len(rows)
    right = {n: sum(r.truth == r.alone.get(n) for r in rows if r.truth is not None) for n in modules}
    own = rows[0].condition
    best = own if own in right else max(modules, key=lambda n: right[n])
    return [r.alone.get(best) for r in rows]


def title(name: str, header: Header) -> str:
    """An answer's name for people."""
    return header.shipped if name == "shipped" else name


def hits(rows: Sequence[Row], labels: Labels) -> Scores:
    """Per frame: 1 right, 0 wrong, NaN not known."""
    pairs = zip((r.truth for r in rows), labels, strict=True)
    return np.array([np.nan if truth is None or said is None else float(truth == said) for truth, said in pairs])


def scores(recording: Recording) -> dict[str, Scores]:
    """The hits of everyone who answered."""
    return {name: hits(recording.rows, labels) for name, labels in answers(recording).items()}


def accuracy(values: Scores) -> float | None:
    """The share of right answers; None where no truth is known."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


def rolling(values: Scores, window: int = ROLLING) -> Scores:
    """Accuracy of the last `window` frames at every frame, from hits; NaN where none of them is known."""
    known = ~np.isnan(values)
    right = np.concatenate([[0.0], np.cumsum(np.where(known, values, 0.0))])
    count = np.concatenate([[0], np.cumsum(known)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - window, 0)
    seen = count[ends] - count[starts]
    return np.where(seen > 0, (right[ends] - right[starts]) / np.maximum(seen, 1), np.nan)


def paired(recordings: Sequence[Recording], first: str, second: str) -> Paired | None:
    """None where they share no frame."""
    differences = []
    for recording in recordings:
        found = scores(recording)
        if first in found and second in found:
            difference = found[first] - found[second]
            differences.append(difference[~np.isnan(difference)])
    differences = [d for d in differences if len(d)]
    if not differences:
        return None
    every = np.concatenate(differences)
    gains = tuple(float(d.mean()) for d in differences)
    return Paired(int((every > 0).sum()), int((every < 0).sum()), gains)


def verdict(recordings: Sequence[Recording]) -> str:
    """The sentence that a report begins with: was adapting worth it, as far as anybody can know?"""
    found = whole(recordings)
    if "adapted" not in found.accuracies:
        return _without_labels(recordings, found)
    rivals = {a: v for a, v in found.accuracies.items() if a not in ("adapted", "oracle")}
    right = f"Adapting was right on {found.accuracies['adapted']:.1%} of the frames"
    if not rivals:
        return f"{right}; nothing else was recorded to compare it with."
    best = max(rivals, key=lambda a: rivals[a])
    pair = paired(recordings, "adapted", best)
    assert pair is not None  # both have answers to frames whose truth is known
    ways = {
        "shipped": f"the module {title(best, recordings[0].header)} alone",
        "generalist": "the generalist alone",
    }
    ways |= {"average": "the plain average of the modules", "without": "the bundle without adapting"}
    gain = round(100 * pair.gain, 1)
    stands = (
        f"{gain:.1f} points better than" if gain > 0 else f"{-gain:.1f} points worse than" if gain else "level with"
    )
    runs = (
        f" In {sum(g > 0 for g in pair.gains)} of {len(pair.gains)} runs it was ahead."
        if len(pair.gains) > 1
        else ""
    )
    return (
        f"{right}: {stands} the best alternative, {ways[best]} ({rivals[best]:.1%}). It was right on "
        f"{pair.better:,} frames where that was wrong, and wrong on {pair.worse:,} where that was right.{runs}"
    )


def _without_labels(recordings: Sequence[Recording], found: ConditionSummary) -> str:
    metrics = [r.metrics for r in recordings if r.metrics is not None]
    done = ""
    if metrics:
        steps, back, changes = (sum(getattr(m, n) for m in metrics) for n in ("steps", "rolled_back", "changes"))
        done = f"It learned {steps:,} times, took {back:,} steps back and noticed {changes:,} changes. "
    return (
        f"These frames have no labels, so nobody can say which answers were right. {done}"
        f"It leaned mostly on {found.top} ({found.weight:.0%})."
    )


# Segments


@dataclass(frozen=True)
class _Cut:
    """Some rows of one run, with everyone's hits on them."""

    rows: tuple[Row, ...]
    hits: dict[str, Scores]


def segments(recordings: Sequence[Recording]) -> tuple[ConditionSummary, ...]:
    """The story cut where its condition changes; a run that was stopped early has fewer of them."""
    runs = [_cuts(r) for r in recordings]
    longest = max(runs, key=len)
    names = [c.rows[0].condition for c in longest]
    for run in runs:
        if [c.rows[0].condition for c in run] != names[: len(run)]:
            raise RecordingError("these recordings are not of one story: their conditions differ")
    modules = recordings[0].header.modules
    parts = ([run[i] for run in runs if len(run) > i] for i in range(len(longest)))
    return tuple(_segment(name, part, modules) for name, part in zip(names, parts, strict=True))


def whole(recordings: Sequence[Recording]) -> ConditionSummary:
    """All frames as one."""
    return _segment("", [_Cut(r.rows, scores(r)) for r in recordings], recordings[0].header.modules)


def _parts(recording: Recording) -> list[tuple[Row, ...]]:
    return [tuple(rows) for _, rows in groupby(recording.rows, lambda row: row.condition)]


def _cuts(recording: Recording) -> list[_Cut]:
    found, cuts, at = scores(recording), [], 0
    for rows in _parts(recording):
        cuts.append(_Cut(rows, {name: values[at : at + len(rows)] for name, values in found.items()}))
        at += len(rows)
    return cuts


def _segment(name: str, cuts: Sequence[_Cut], modules: Sequence[str]) -> ConditionSummary:
    rows = [r for cut in cuts for r in cut.rows]
    weights = {
        n: float(np.mean([r.weights.get(n, 0.0) for r in rows]))
        for n in sorted({n for r in rows for n in r.weights})
    }
    top = max(weights, key=lambda n: weights[n])
    by_answer = {a: [accuracy(cut.hits[a]) for cut in cuts if a in cut.hits] for a in cuts[0].hits}
    known = {a: [v for v in values if v is not None] for a, values in by_answer.items()}
    adapted = known.get("adapted", [])
    settled = [r for cut in cuts for r in cut.rows[SETTLE:]]
    leads = [max(r.weights, key=lambda n: r.weights[n]) == name for r in settled] if name in modules else []
    return ConditionSummary(
        condition=name,
        known=name in modules,
        start=cuts[0].rows[0].frame,
        end=max(cut.rows[-1].frame for cut in cuts),
        frames=len(rows),
        accuracies={a: float(np.mean(values)) for a, values in known.items() if values},
        deviation=float(np.std(adapted, ddof=1)) if len(adapted) > 1 else None,
        top=top,
        weight=weights[top],
        entropy=float(np.mean([r.entropy for r in rows])),
        leads=float(np.mean(leads)) if leads else None,
    )


# Tables


def cell(value: float | None) -> str:
    """An accuracy as text; a dash where it is not known."""
    return "-" if value is None else f"{value:.3f}"


@dataclass(frozen=True)
class Table:
    """A table's header and lines, before they are laid out."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: tuple[int, ...]  # columns of numbers


def conditions(recordings: Sequence[Recording]) -> Table:
    """One row for each segment, and one for all; columns are those that any row has something for."""
    parts = list(segments(recordings))
    names = [p.condition or "(not known)" for p in parts]
    leaders = [f"{p.top} {p.weight:.2f}" for p in parts]
    if len(parts) > 1:
        parts.append(whole(recordings))
        names.append("all")
        leaders.append("")
    known = list(parts[-1].accuracies)
    columns: list[tuple[str, bool, list[str]]] = [
        ("condition", False, names),
        ("", False, ["unseen" if p.condition and not p.known else "" for p in parts]),
        ("frames", True, [f"{p.frames:,}" for p in parts]),
        *((title(a, recordings[0].header), True, [_accuracy(p, a) for p in parts]) for a in known),
        ("leans on", False, leaders),
    ]
    if not known:
        columns.append(("entropy", True, [f"{p.entropy:.2f}" for p in parts]))
    if any(p.leads is not None for p in parts):
        shares = ["-" if p.leads is None else f"{p.leads:.0%}" for p in parts]
        columns.append(("right module leads", True, shares))
    return Table(
        tuple(name for name, _, _ in columns),
        tuple(zip(*(cells for _, _, cells in columns), strict=True)),
        tuple(i for i, (_, right, _) in enumerate(columns) if right),
    )


def _accuracy(part: ConditionSummary, answer: str) -> str:
    spread = f" ±{part.deviation:.3f}" if answer == "adapted" and part.deviation is not None else ""
    return cell(part.accuracies.get(answer)) + spread


def figures(recordings: Sequence[Recording]) -> list[tuple[str, str]]:
    """Names and values of what all of it did."""
    rows = [r.rows for r in recordings]
    count, seconds = sum(map(len, rows)), sum(r[-1].seconds - r[0].seconds for r in rows)
    metrics = [r.metrics for r in recordings if r.metrics is not None]
    rate = f", {(count - len(rows)) / seconds:.1f} a second" if seconds > 0 else ""
    seen = sum(m.frames for m in metrics)
    kept = f" (the last of {seen:,})" if seen > count else ""
    runs = f"{len(rows)} runs, " if len(rows) > 1 else ""
    plain = any(r.plain is not None for run in rows for r in run)
    alone = any(r.alone for run in rows for r in run)
    again = ", each also by every module alone, as exported" if alone else ", each predicted twice" if plain else ""
    found = [("frames", f"{count:,}{kept} in {runs}{seconds:.1f} s{rate}{again}")]
    if len(metrics) < len(rows):
        ended = "is still running" if any(r.running for r in recordings) else "was killed"
        found.append(("metrics", f"none: the run {ended}" if len(rows) == 1 else f"not of all: a run {ended}"))
    return found + (_measured(metrics, recordings[0].header.background) if metrics else [])


def _measured(metrics: Sequence[StreamMetrics], background: bool) -> list[tuple[str, str]]:
    def total(name: str) -> int:
        return sum(getattr(m, name) for m in metrics)

    steps = f"{total('steps'):,} {'in the background' if background else 'inline'}"
    more = {
        "gathering": total("gathered"),
        "rolled back": total("rolled_back"),
        "skipped as the one before was under way": total("skipped_busy"),
        "skipped by the budget": total("skipped_budget"),
    }
    steps += "".join(f", {count:,} {what}" for what, count in more.items() if count)
    median, slow = np.median([m.latency_median for m in metrics]), max(m.latency_p99 for m in metrics)
    share = np.mean([m.learning_share for m in metrics])
    return [
        ("latency of a prediction", f"median {median:.1f} ms, p99 {slow:.1f} ms"),
        ("steps", steps),
        ("time spent learning", f"{sum(m.learning_seconds for m in metrics):.1f} s, {share:.0%} of the run"),
        ("changes noticed", f"{total('changes'):,}"),
    ]


def table(recordings: Sequence[Recording]) -> str:
    """The summary for a terminal."""
    found = conditions(recordings)
    return f"{_text.table(found.header, found.rows, right=found.right)}\n\n{_text.pairs(figures(recordings))}"
