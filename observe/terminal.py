"""A run of a stream as it happens: live in a terminal, or a line now and then where there is none."""

import sys
from collections import deque
from contextlib import suppress
from math import log
from time import perf_counter
from typing import Any, Protocol

from pluto_edge.errors import MissingExtraError
from pluto_edge.observe.recording import Recorder, Row
from pluto_edge.observe.summary import ROLLING, accuracy, cell, hits
from pluto_edge.runtime.types import Event

__all__ = ["Display", "open_display"]

REFRESH = 0.15  # seconds
LINE_EVERY = 100  # frames
WIDTH, BAR = 88, 32  # characters
SHOWN_EVENTS = 6


class Display(Protocol):
    """Something that shows a run as it happens."""

    def show(self, row: Row) -> None:
        """Called with every frame."""

    def close(self) -> None:
        """Called when the run is over."""


def open_display(recorder: Recorder) -> Display:
    """Live where stdout is a terminal and rich is installed, else lines."""
    if sys.stdout.isatty():
        with suppress(MissingExtraError):
            return Live(recorder)
    return Lines()


class Lines:
    """One line every hundred frames."""

    def __init__(self) -> None:
        self._recent = Recent()

    def show(self, row: Row) -> None:
        """Prints a line if a hundred frames have passed."""
        self._recent.add(row)
        if row.frame % LINE_EVERY == 0:
            top = max(row.weights, key=lambda n: row.weights[n])
            parts = [f"frame {row.frame}", row.condition, *self._recent.text(), f"leans on {top}"]
            print(" · ".join(p for p in parts if p), flush=True)

    def close(self) -> None:
        """Nothing: what was printed stays."""
        pass


class Live:
    """Rate, accuracy, weights as bars and the last events, redrawn in place."""

    def __init__(self, recorder: Recorder) -> None:
        try:
            from rich.live import Live as RichLive
        except ImportError as cause:
            raise MissingExtraError("rich", "stream") from cause
        self._recorder = recorder
        self._recent = Recent()
        self._due = 0.0
        self._live = RichLive(auto_refresh=False, transient=True)
        self._live.start()

    def show(self, row: Row) -> None:
        """Redraws, a few times a second at most."""
        self._recent.add(row)
        now = perf_counter()
        if now >= self._due:
            self._due = now + REFRESH
            self._live.update(self._panel(row), refresh=True)

    def close(self) -> None:
        """Gives the terminal back."""
        self._live.stop()

    def _panel(self, row: Row) -> Any:
        from rich import box
        from rich.console import Group
        from rich.panel import Panel
        from rich.text import Text

        header = self._recorder.header
        unseen = row.condition and row.condition not in header.modules
        head = Text(f"frame {row.frame:,}", style="bold")
        if row.condition:
            colour = "magenta" if unseen else "cyan"
            head.append("   ").append(row.condition.replace("_", " "), f"bold {colour}")
            head.append("  no module knows it" if unseen else "", colour)
        said = Text(f"reads {header.classes[row.label]}, ")
        said.append(f"entropy {row.entropy:.2f} of {log(len(header.classes)):.2f}")
        if row.truth is not None:
            right = row.truth == row.label
            said.append("  right" if right else f"  it is {header.classes[row.truth]}", "green" if right else "red")
        parts = [head, said, Text("   ".join(self._recent.text())), Text(), *self._bars(), Text(), *self._events()]
        source = Text(header.source, overflow="ellipsis", no_wrap=True)
        return Panel(Group(*parts), title=source, box=box.ROUNDED, width=WIDTH, padding=(0, 1))

    def _bars(self) -> list[Any]:
        from rich.text import Text

        weights = self._recent.weights()
        width, top = max(map(len, weights)), max(weights, key=lambda n: weights[n])
        lines = []
        for name, weight in weights.items():
            full = round(weight * BAR)
            line = Text(f"{name.ljust(width)}  ", style="bold" if name == top else "")
            line.append("█" * full, "green" if name == top else "blue").append("░" * (BAR - full), "bright_black")
            lines.append(line.append(f"  {weight:.2f}"))
        return lines

    def _events(self) -> list[Any]:
        from rich.text import Text

        styles = {"change": "magenta", "rollback": "red", "reset": "yellow", "restore": "yellow"}
        lines = [
            Text(describe(e), styles.get(e.kind, "bright_black"), overflow="ellipsis", no_wrap=True)
            for e in self._recorder.last_events(SHOWN_EVENTS)
        ]
        return lines + [Text() for _ in range(SHOWN_EVENTS - len(lines))]


class Recent:
    """The last frames, for what is shown of them."""

    def __init__(self) -> None:
        self._rows: deque[Row] = deque(maxlen=ROLLING)
        self._times: deque[float] = deque(maxlen=ROLLING)

    def add(self, row: Row) -> None:
        """Counts a frame in."""
        self._rows.append(row)
        self._times.append(perf_counter())

    def text(self) -> list[str]:
        """Frames a second and the accuracy of the last frames, as parts of a line."""
        seconds = self._times[-1] - self._times[0]
        parts = [f"{(len(self._times) - 1) / seconds:.1f} frames/s"] if seconds > 0 else []
        adapted, plain = (
            accuracy(hits(self._rows, [getattr(r, a) for r in self._rows])) for a in ("label", "plain")
        )
        if adapted is not None:
            parts.append(f"accuracy of the last {len(self._rows)}: {cell(adapted)} adapted, {cell(plain)} without")
        return parts

    def weights(self) -> dict[str, float]:
        """Of the last ten frames, the mean."""
        rows = list(self._rows)[-10:]
        return {n: sum(r.weights.get(n, 0.0) for r in rows) / len(rows) for n in rows[-1].weights}


def describe(event: Event) -> str:
    """An event in a line."""
    at = f"{event.frame:>6}  {event.kind:<8}  "
    if event.kind in ("step", "gather"):
        kept = f"{event.reliable}/{event.samples} reliable, top {event.top}"
        return f"{at}{kept}, entropy {event.entropy_before:.3f} to {event.entropy_after:.3f}"
    return at + event.reason
