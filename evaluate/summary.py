"""Results to rows of a table: mean and spread over the orders, best and worst module, and who collapsed."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pluto_edge.evaluate.results import BLEND, ENSEMBLE, FAIR, JOINT, PROBABILITIES, Result
from pluto_edge.evaluate.significance import Scores, collect, interval

# Collapse: from the first third of the stream to the last, accuracy falls this much more than that of the same row
# without learning, and by more than chance; or this share of the last third is predicted as one class that is less
# than half of it.
LOST, CHANCE, ONE_CLASS, HALF = 0.15, 3.0, 0.9, 0.5
MIN_THIRD = 16  # fewer images say nothing

SINGLE = {
    "best": "best single, in hindsight",
    "worst": "worst single",
    ENSEMBLE: "uniform average",
    PROBABILITIES: "uniform average of probabilities",
    JOINT: "joint",
}

Still = dict[tuple[str, int], dict[str, tuple[int, ...]]]  # what does not learn, by target, seed and row


@dataclass(frozen=True)
class TargetScore:
    """One row on one target."""

    mean: float
    spread: float
    accuracies: tuple[float, ...]  # by seed
    interval: tuple[float, float]  # of 95 %, over images
    module: str = ""  # of the best or worst
    modules: dict[str, float] = field(default_factory=dict)  # of an ensemble: each member, mean over the seeds
    collapsed: tuple[str, ...] = ()  # how, once for every seed that did
    curve: tuple[float, ...] = ()  # accuracy by batch, mean over the seeds
    kept: float | None = None  # accuracy of the modules, as they are after this target, on their own domains


@dataclass(frozen=True)
class MethodRow:
    """A line of the table."""

    method: str
    part: str  # best or worst, one of the two ensembles, joint, or blend for what has no modules of its own
    cells: dict[str, TargetScore]  # by target
    mean: float
    spread: float
    interval: tuple[float, float]  # of 95 %, over images
    notes: dict[str, float]
    seconds: float

    @property
    def fair(self) -> bool:
        """It needs no hindsight."""
        return self.part in FAIR

    @property
    def label(self) -> str:
        """What the row is called in tables: the method, and which part of it."""
        if self.method == "single":
            return SINGLE[self.part]
        if self.part == JOINT:
            return f"{JOINT} {self.method}"
        return self.method if self.part == BLEND else f"{self.method} {self.part}"


def rows(results: Sequence[Result]) -> list[MethodRow]:
    """In the order of the results."""
    found = []
    still: Still = {}
    for result in results:
        if result.method in ("single", "zero-shot"):
            still.setdefault((result.target, result.seed), {}).update(result.predicted)
    for method in dict.fromkeys(r.method for r in results):
        mine = [r for r in results if r.method == method]
        parts: tuple[str, ...] = (BLEND,)
        if ENSEMBLE in mine[0].predicted:
            joint = (JOINT,) if JOINT in mine[0].predicted else ()
            parts = ("best", "worst", ENSEMBLE, PROBABILITIES, *joint)
        found += [_row(method, part, mine, still) for part in parts]
    return found


def _row(method: str, part: str, results: Sequence[Result], still: Still) -> MethodRow:
    by_target: dict[str, list[Result]] = {}
    for result in results:
        by_target.setdefault(result.target, []).append(result)
    found = {target: _cell(part, group, still) for target, group in by_target.items()}
    cells = {target: cell for target, (cell, _) in found.items()}
    by_seed = np.array([cell.accuracies for cell in cells.values()]).mean(axis=0)
    notes: dict[str, float] = {}
    for result in results:
        notes |= {k: notes.get(k, 0.0) + v for k, v in result.notes.items()}
    seconds = sum(r.seconds for r in results)
    sure = interval([scores for _, scores in found.values()])
    return MethodRow(method, part, cells, float(by_seed.mean()), float(by_seed.std()), sure, notes, seconds)


def _cell(part: str, results: Sequence[Result], still: Still) -> tuple[TargetScore, Scores]:
    members = [module for module in results[0].predicted if module not in FAIR]
    means = {module: float(np.mean([r.right(module).mean() for r in results])) for module in members}
    name = part
    if part in ("best", "worst"):
        name = max(means, key=means.__getitem__) if part == "best" else min(means, key=means.__getitem__)
    accuracies = [float(r.right(name).mean()) for r in results]
    fallen = [
        collapse(r.predicted[name], r.truth, still.get((r.target, r.seed), {}).get(name, r.unadapted))
        for r in results
    ]
    scores = collect((r.images, r.right(name).astype(int)) for r in results)
    cell = TargetScore(
        mean=float(np.mean(accuracies)),
        spread=float(np.std(accuracies)),
        accuracies=tuple(accuracies),
        interval=interval([scores]),
        module=name if name != part else "",
        modules=means if part == ENSEMBLE else {},
        collapsed=tuple(filter(None, fallen)),
        curve=tuple(map(float, np.mean([curve(r, name) for r in results], axis=0))),
        kept=float(np.mean([v for r in results for v in r.kept.values()])) if results[0].kept else None,
    )
    return cell, scores


def curve(result: Result, row: str) -> NDArray[np.float64]:
    """Accuracy batch by batch."""
    ends = np.cumsum(result.batches)
    right = np.concatenate([[0], np.cumsum(result.right(row))])
    return np.asarray(np.diff(right[np.concatenate([[0], ends])]) / np.array(result.batches))


def collapse(predicted: Sequence[int], truth: Sequence[int], unadapted: Sequence[int]) -> str:
    """How a stream of predictions went down, or nothing."""
    third = len(truth) // 3
    if third < MIN_THIRD or tuple(predicted) == tuple(unadapted):
        return ""
    labels, wanted = np.array(predicted), np.array(truth)
    last = labels[-third:]
    dominant = int(np.bincount(last).argmax())
    share, real = float((last == dominant).mean()), float((wanted[-third:] == dominant).mean())
    if share > ONE_CLASS and real < HALF:
        return f"one class is {share:.0%} of the last third, in truth {real:.0%}"
    right = labels == wanted
    ahead = right.astype(float) - (np.array(unadapted) == wanted)
    lost = ahead[:third].mean() - ahead[-third:].mean()
    error = np.sqrt((ahead[:third].var() + ahead[-third:].var()) / third)
    first, end = right[:third].mean(), right[-third:].mean()
    if end < first and lost > LOST and lost > CHANCE * error:
        return f"accuracy {first:.2f} in the first third, {end:.2f} in the last"
    return ""
