"""Runs cases: in processes of their own, which may hang or crash, and counts what became of them."""

import importlib
import logging
import multiprocessing
import os
import random
import resource
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from time import monotonic
from typing import NamedTuple, Protocol, cast

from attacks import CATALOGUE
from attacks.mutate import mutate_bytes
from attacks.story import Story
from attacks.tally import Found, Tally
from pluto_edge.errors import PlutoError

Case = Callable[[random.Random], Story | None]

SECONDS = 20.0  # that a case may take, if its attack says nothing else
MEMORY = 8 << 30  # bytes of address space: what wants more gets a MemoryError
MEMORY_FOLDER = Path("/dev/shm")
POLL = 0.5  # seconds from one look at a worker to the next

_CONTEXT = multiprocessing.get_context("spawn")


class Escape(Exception):
    """What must not happen and raises nothing by itself."""


class Attack(Protocol):
    """A file of this folder, or of `catalogue/`. Not all have a `parser`, or `SECONDS` of their own."""

    def attack(self, place: Path) -> AbstractContextManager[Case]:
        """Sets up what is attacked in a folder, and gives a case."""

    def parser(self, place: Path) -> "AbstractContextManager[Parser]":
        """What parses, and samples to start from."""


class Parser(NamedTuple):
    """What makes something of bytes, and bytes that it makes something of."""

    parse: Callable[[bytes], None]
    samples: Sequence[bytes]


@dataclass(frozen=True)
class Task:
    """So many cases of one attack, or as many as there is time for, from seed `first` on."""

    name: str
    first: int = 0
    cases: int | None = None
    seconds: float | None = None


def load(name: str, package: str = "attacks") -> Attack:
    """The attack of this name."""
    folder = f"{package}.catalogue" if name in CATALOGUE else package
    return cast(Attack, importlib.import_module(f"{folder}.{name}"))


def bound(attack: Attack) -> float:
    """Seconds that a case may take."""
    return float(getattr(attack, "SECONDS", SECONDS))


def strike(case: Case, seed: int) -> tuple[bool, Story | None]:
    """One case; whether it was refused, and what there is to tell. An escape is raised."""
    try:
        story = case(random.Random(seed))
    except PlutoError:
        return True, None
    return story is not None and story.refused, story


def describe(error: BaseException, seed: int) -> Found:
    """The kind of an escape is its type and the innermost line of this project that it came through."""
    frames = traceback.extract_tb(error.__traceback__)
    root = Path(__file__).resolve().parent.parent
    own = [f for f in frames if Path(f.filename).resolve().is_relative_to(root) and ".venv" not in f.filename]
    at = f" at {Path(own[-1].filename).resolve().relative_to(root)}:{own[-1].lineno}" if own else ""
    what = f" ({error})" if isinstance(error, Escape) else ""
    text = "".join(traceback.format_exception(error))
    return Found(f"{type(error).__name__}{what}{at}", seed, text)


def mutating(parser: Parser, change: Callable[[random.Random, bytes], bytes]) -> Case:
    """Cases of a parser: samples with a few bytes changed, or changed as its language has it."""

    def case(rng: random.Random) -> None:
        sample = rng.choice(parser.samples)
        parser.parse(change(rng, sample) if rng.random() < 0.7 else mutate_bytes(rng, sample))

    return case


def scratch(within: Path | None = None) -> tempfile.TemporaryDirectory[str]:
    """A folder for what is attacked, in memory where there is such a place.

    A process that may be killed makes its own `within` one of the process that watches it, which cleans up.
    """
    memory = MEMORY_FOLDER if MEMORY_FOLDER.is_dir() else None
    return tempfile.TemporaryDirectory(prefix="attack-", dir=within or memory)


def quieten() -> None:
    """Refusals by the million say nothing, and memory has an end."""
    warnings.simplefilter("ignore")
    logging.getLogger("pluto_edge").setLevel(logging.CRITICAL + 1)
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


# In the worker


class _Board:
    """What a worker and whoever watches it both see: the task, the case and since when, and counts by task."""

    def __init__(self, tasks: int) -> None:
        self._shared = _CONTEXT.Array("d", 3 + 2 * tasks, lock=False)

    def begin(self, task: int, seed: int) -> None:
        self._shared[0] = task
        self._shared[1] = seed
        self._shared[2] = monotonic()

    def rest(self) -> None:
        """No case is under way."""
        self._shared[2] = 0.0

    def count(self, task: int, refused: bool) -> None:
        self._shared[3 + 2 * task] += 1
        self._shared[4 + 2 * task] += refused

    @property
    def now(self) -> tuple[int, int, float]:
        """Task, seed, and when the case began; 0 between cases."""
        return int(self._shared[0]), int(self._shared[1]), self._shared[2]

    def counts(self, task: int) -> tuple[int, int]:
        """Cases that ended, and how many of them were refused."""
        return int(self._shared[3 + 2 * task]), int(self._shared[4 + 2 * task])


def _work(tasks: Sequence[Task], package: str, within: Path, board: _Board, outbox: Connection) -> None:
    quieten()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # ONNX Runtime prints what it thinks of broken graphs
    tempfile.tempdir = str(within)  # so are the cases' temporary files in memory, and gone with the rest
    for index, task in enumerate(tasks):
        _run(index, task, load(task.name, package), within, board, outbox)


def _run(index: int, task: Task, attack: Attack, within: Path, board: _Board, outbox: Connection) -> None:
    """All cases of a task. After an escape, what is attacked is set up anew."""
    until = None if task.seconds is None else monotonic() + task.seconds
    last = None if task.cases is None else task.first + task.cases
    seed = task.first
    told: set[str] = set()
    while True:
        with scratch(within) as place, attack.attack(Path(place)) as case:
            while True:
                if (last is not None and seed >= last) or (until is not None and monotonic() >= until):
                    return
                board.begin(index, seed)
                seed += 1
                try:
                    refused, story = strike(case, seed - 1)
                except Exception as error:
                    board.rest()
                    board.count(index, refused=False)
                    outbox.send((index, describe(error, seed - 1)))
                    break
                board.rest()
                board.count(index, refused)
                if story is not None and story.tried not in told:
                    told.add(story.tried)
                    outbox.send((index, story))


# In the process that watches


def run(tasks: Sequence[Task], package: str = "attacks") -> dict[str, Tally]:
    """Runs the tasks one after another in a process that is killed when a case hangs, and started again then."""
    tallies = {task.name: Tally() for task in tasks}
    left = list(tasks)
    while left:
        with scratch() as within:
            left = _watch(left, package, Path(within), tallies)
    return tallies


def _watch(tasks: Sequence[Task], package: str, within: Path, tallies: dict[str, Tally]) -> list[Task]:
    """One worker, until it is done, crashes or hangs; gives the tasks that are left."""
    board = _Board(len(tasks))
    inbox, outbox = _CONTEXT.Pipe(duplex=False)
    worker = _CONTEXT.Process(target=_work, args=(tasks, package, within, board, outbox), daemon=True)
    began = monotonic()
    worker.start()
    outbox.close()
    hung = False
    while not hung and worker.is_alive():
        wait([inbox, worker.sentinel], timeout=POLL)
        _collect(inbox, tasks, tallies)
        index, _, since = board.now
        hung = since > 0 and monotonic() - since > bound(load(tasks[index].name, package))
    if hung:
        worker.kill()
    worker.join()
    _collect(inbox, tasks, tallies)
    for number, task in enumerate(tasks):
        cases, refused = board.counts(number)
        tallies[task.name].cases += cases
        tallies[task.name].refused += refused
    if worker.exitcode == 0:
        return []
    index, seed, since = board.now
    if since == 0:
        raise RuntimeError(f"{tasks[index].name}: cannot be set up; what it said is above")
    kind = (
        f"hangs for more than {bound(load(tasks[index].name, package)):g} s" if hung else _signal(worker.exitcode)
    )
    tallies[tasks[index].name].cases += 1
    tallies[tasks[index].name].add(Found(kind, seed, ""))
    return _left(tasks[index], seed, monotonic() - began) + list(tasks[index + 1 :])


def _left(task: Task, seed: int, spent: float) -> list[Task]:
    """What remains of a task whose case `seed` was the last."""
    cases = None if task.cases is None else task.cases - (seed + 1 - task.first)
    seconds = None if task.seconds is None else task.seconds - spent
    over = (cases is not None and cases <= 0) or (seconds is not None and seconds <= 0)
    return [] if over else [Task(task.name, seed + 1, cases, seconds)]


def _collect(inbox: Connection, tasks: Sequence[Task], tallies: dict[str, Tally]) -> None:
    try:
        while inbox.poll():
            index, found = inbox.recv()
            tally = tallies[tasks[index].name]
            if isinstance(found, Story):
                tally.stories.setdefault(found.tried, found)
            else:
                tally.add(found)
    except (EOFError, OSError):  # the worker is gone
        return


def _signal(code: int | None) -> str:
    if code is not None and code < 0:
        return f"crashes with {signal.Signals(-code).name}"
    return f"ends the process with {code}"
