"""How far a run is: a line with the time left for every task that is under way."""

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from tqdm import tqdm

from pluto_edge._progress import Lines, live, say

Step = Callable[[int, int, str], object]  # done, total, what else there is to say

Message = tuple[str, int, int, str]  # task, done, total, note: a step on its way from another process

INTERVAL = 0.1  # seconds between two reports of one task from another process


def ignore(done: int, total: int, note: str) -> None:
    """A `Step` for those who do not want to know."""


class RunProgress(Protocol):
    """What a run tells: `step` for every task, many times; `say` for a line that stays."""

    def step(self, task: str, done: int, total: int, note: str = "") -> None:
        """How far a task is; called many times."""

    def say(self, line: str) -> None:
        """A line that is worth keeping."""


class Silent(AbstractContextManager["Silent"]):
    """Progress that nobody is told of."""

    def __exit__(self, *error: object) -> None: ...

    def step(self, task: str, done: int, total: int, note: str = "") -> None:
        """Nobody is told."""

    def say(self, line: str) -> None:
        """Nobody is told."""


class Bars(AbstractContextManager["Bars"]):
    """tqdm bars on stderr, gone when their task is over; without a terminal a line now and then."""

    def __init__(self) -> None:
        self.bars: dict[str, Any] = {}
        self.lines = None if live() else Lines()

    def __exit__(self, *error: object) -> None:
        for bar in self.bars.values():
            bar.close()
        self.bars.clear()

    def step(self, task: str, done: int, total: int, note: str = "") -> None:
        if self.lines is not None:
            self.lines.step(task, done, total, note)
            return
        if task not in self.bars:
            self.bars[task] = tqdm(total=total, desc=task, initial=min(done, total), leave=False)
        bar = self.bars[task]
        bar.set_postfix_str(note, refresh=False)
        bar.update(done - bar.n)
        if done >= total:
            self.bars.pop(task).close()

    def say(self, line: str) -> None:
        if self.lines is None:
            tqdm.write(line, file=sys.stderr)
        else:
            say(line)


class Relay:
    """The progress of a job elsewhere: `put` takes it home, not more often than is worth it."""

    def __init__(self, put: Callable[[Message], object]) -> None:
        self.put, self.last = put, dict[str, float]()

    def step(self, task: str, done: int, total: int, note: str = "") -> None:
        """Sends a step home, unless one was sent a moment ago."""
        now = time.monotonic()
        if done >= total or now - self.last.get(task, -INTERVAL) >= INTERVAL:
            self.last[task] = now
            self.put((task, done, total, note))

    def say(self, line: str) -> None:
        """Jobs have no lines of their own."""
        raise NotImplementedError("lines that stay are for the process that runs the jobs")
