"""What `fleet.py` has found, as a table, as JSON and as a picture."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from io import BytesIO
from typing import Any

import numpy as np

from pluto_edge._look import LIGHT
from pluto_edge._text import size, table

POINTS = 600  # of time in the picture
SHARES = (50, 90, 99, 100)  # per cent of the devices


@dataclass(frozen=True)
class Change:
    """From this hour on a device runs this release."""

    hour: float
    version: str


@dataclass
class Kind:
    """What the devices on one kind of network did; idle polls are those that found all as it was."""

    devices: int = 0
    polls: int = 0
    failed: int = 0
    killed: int = 0
    requests: int = 0
    idle_bytes: int = 0
    update_bytes: int = 0

    def add(self, size: int, requests: int, *, idle: bool, failed: bool, killed: bool) -> None:
        """One more poll."""
        self.polls += 1
        self.failed += failed
        self.killed += killed
        self.requests += requests
        if idle:
            self.idle_bytes += size
        else:
            self.update_bytes += size


@dataclass(frozen=True)
class Run:
    """A whole simulation; `histories` has a device's network and changes, `hours` release, bad, revoked and end."""

    hours: list[float]
    bundle_bytes: int
    kinds: dict[str, Kind]
    histories: list[tuple[str, list[Change]]]
    problems: dict[str, int]
    client_runs: dict[str, int]
    states_verified: int
    outcomes_compared: int
    outcomes_that_differed: int
    busiest_bytes: int
    processor_seconds: float

    def of(self, kind: str) -> list[list[Change]]:
        """The changes of all devices on one kind of network, or of all."""
        return [changes for found, changes in self.histories if kind in (found, "all")]


def reached(run: Run, kind: str) -> list[float]:
    """Hours from the release until each device had left the one before it; infinite where it never has."""
    return [_first(changes, lambda c: c.version != "1.0") - run.hours[0] for changes in run.of(kind)]


def returned(run: Run, kind: str) -> list[float]:
    """Of the devices that took the bad release: hours from its revocation until each was back."""
    found = []
    for changes in run.of(kind):
        taken = _first(changes, lambda c: c.version == "1.2")
        if taken < float("inf"):
            back = [c.hour for c in changes if c.hour > taken and c.version != "1.2"]
            found.append(min(back, default=float("inf")) - run.hours[2])
    return found


def _first(changes: Sequence[Change], wanted: Any) -> float:
    return next((c.hour for c in changes if wanted(c)), float("inf"))


def percentiles(hours: Sequence[float]) -> dict[str, float | None]:
    """Hours after which so many per cent of the devices had it; None where that many never had."""
    if not hours:
        return {}
    ordered = sorted(hours)
    found = {f"{share}": ordered[max(-(-share * len(ordered) // 100) - 1, 0)] for share in SHARES}
    return {share: round(value, 2) if value < float("inf") else None for share, value in found.items()}


def summary(run: Run) -> tuple[str, dict[str, Any]]:
    """The same in words and in numbers."""
    kinds = [*run.kinds, "all"]
    updates = {kind: percentiles(reached(run, kind)) for kind in kinds}
    back = {kind: percentiles(returned(run, kind)) for kind in kinds}
    took = {kind: len(returned(run, kind)) for kind in kinds}
    sent = sum(k.update_bytes for k in run.kinds.values())
    idle = sum(k.idle_bytes for k in run.kinds.values())
    moves = sum(len(changes) - 1 for _, changes in run.histories)
    whole = moves * run.bundle_bytes
    ends = {version: sum(c[-1].version == version for _, c in run.histories) for version in ("1.0", "1.1", "1.2")}
    figures = {
        "devices": len(run.histories),
        "hours": dict(zip(("release", "bad", "revoked", "end"), run.hours, strict=True)),
        "kinds": {name: asdict(kind) for name, kind in run.kinds.items()},
        "hours_until_share_has_the_release": updates,
        "took_the_bad_release": took,
        "hours_from_revocation_until_share_is_back": back,
        "moves_from_one_release_to_another": moves,
        "bytes": {"updates": sent, "idle_polls": idle, "whole_bundles": whole, "busiest_10_min": run.busiest_bytes},
        "problems": run.problems,
        "release_at_the_end": ends,
        "client_runs": run.client_runs,
        "states_verified": run.states_verified,
        "outcomes": {"compared": run.outcomes_compared, "differed": run.outcomes_that_differed},
        "processor_seconds": round(run.processor_seconds, 1),
    }
    rows = [
        (
            name,
            f"{len(run.of(name)):,}",
            *(_hours(updates[name].get(str(s))) for s in SHARES),
            f"{took[name]:,}",
            *(_hours(back[name].get(str(s))) for s in SHARES),
        )
        for name in kinds
    ]
    header = ("network", "devices", *(f"{s} %" for s in SHARES), "took bad", *(f"{s} % back" for s in SHARES))
    facts = [
        ("polls, failed, killed", ", ".join(f"{_sum(run, n):,}" for n in ("polls", "failed", "killed"))),
        ("runs of the client", ", ".join(f"{n:,} {why}" for why, n in run.client_runs.items())),
        ("states opened and hashed", f"{run.states_verified:,}"),
        ("outcomes compared, differed", f"{run.outcomes_compared:,}, {run.outcomes_that_differed:,}"),
        ("moves to another release", f"{moves:,}"),
        ("sent for them", f"{size(sent)}; whole bundles: {size(whole)} ({whole / max(sent, 1):.0f} times)"),
        ("sent for polls without news", size(idle)),
        ("busiest ten minutes", size(run.busiest_bytes)),
        ("without a working runtime", ", ".join(f"{p}: {n:,}" for p, n in run.problems.items()) or "never"),
        ("releases at the end", ", ".join(f"{v}: {n:,}" for v, n in ends.items())),
        ("processor time", f"{run.processor_seconds:.0f} s"),
    ]
    text = f"{table(header, rows, right=range(1, len(header)))}\n\n{table(('', ''), facts)}"
    return text, figures


def _sum(run: Run, name: str) -> int:
    return sum(getattr(kind, name) for kind in run.kinds.values())


def _hours(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} h"


def shares(run: Run, kind: str, hours: Sequence[float]) -> dict[str, list[float]]:
    """Per cent of the devices that run each release, at these hours."""
    found = {version: [0.0] * len(hours) for version in ("1.0", "1.1", "1.2")}
    histories = run.of(kind)
    for changes in histories:
        starts = [c.hour for c in changes]
        for index, hour in enumerate(hours):
            found[changes[max(bisect_right(starts, hour) - 1, 0)].version][index] += 100 / len(histories)
    return found


def picture(run: Run) -> bytes:
    """Which releases run, over time: of all devices, and how many of each network run what they should."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6.5), layout="constrained", facecolor=LIGHT["card"])
    above, below = figure.subplots(2, 1, sharex=True)
    hours = list(np.linspace(0, run.hours[3], POINTS))
    colours = {"1.0": LIGHT["track"], "1.1": LIGHT["m0"], "1.2": LIGHT["bad"]}
    labels = {"1.0": "1.0", "1.1": "1.1, one module changed", "1.2": "1.2, bad, revoked later"}
    everyone = shares(run, "all", hours)
    above.stackplot(
        hours, *(everyone[v] for v in colours), colors=list(colours.values()), labels=list(labels.values())
    )
    above.set_ylabel(f"% of {len(run.histories):,} devices")
    above.set_ylim(0, 100)
    above.legend(loc="lower right")
    wanted = ["1.0", "1.1", "1.2", "1.1"]
    for number, kind in enumerate(k for k in run.kinds if run.of(k)):
        found = shares(run, kind, hours)
        current = [found[wanted[bisect_right(run.hours[:3], hour)]][i] for i, hour in enumerate(hours)]
        below.plot(hours, current, label=kind, color=LIGHT[f"m{number}"], linewidth=1.4)
    below.set_ylabel("% that run what the channel says")
    below.set_xlabel("hours; dotted: 1.1 is published, 1.2 is published, 1.2 is revoked")
    below.set_ylim(0, 102)
    below.legend(loc="lower right", ncols=3)
    for axes in (above, below):
        axes.set_xlim(0, run.hours[3])
        for hour in run.hours[:3]:
            axes.axvline(hour, color=LIGHT["ink"], linestyle=":", linewidth=0.9)
    out = BytesIO()
    figure.savefig(out, format="png", dpi=100)
    return out.getvalue()
