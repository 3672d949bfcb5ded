"""How far a command is where no terminal shows it: a line now and then, on stderr or in the log."""

import logging
import sys
from time import monotonic

__all__ = ["Lines", "live", "say"]

INTERVAL = 10.0  # seconds between two lines

log = logging.getLogger("pluto_edge.progress")


def live() -> bool:
    """Whether there is a terminal that bars can be drawn on, with no log between them."""
    return sys.stderr.isatty() and not log.isEnabledFor(logging.INFO)


def say(line: str) -> None:
    """A line that stays: in the log where that is on (`-v`, `--log-json`), else on stderr."""
    if log.isEnabledFor(logging.INFO):
        log.info(line)
    else:
        print(line, file=sys.stderr, flush=True)


class Lines:
    """Says of tasks how far they are, one line every ten seconds at most: a short run says nothing."""

    def __init__(self) -> None:
        self._last = monotonic()
        self._began: dict[str, tuple[float, float]] = {}  # by task: when, and what was done by then

    def step(self, task: str, done: float, total: float, note: str = "") -> None:
        now = monotonic()
        since, before = self._began.setdefault(task, (now, done))
        if now - self._last < INTERVAL or not total:
            return
        self._last = now
        parts = [f"{task}: {done / total:.0%}"]
        if before < done < total:
            parts.append(f"about {_time((now - since) * (total - done) / (done - before))} left")
        say(", ".join([*parts, *filter(None, [note])]))


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
