"""A camera box for weeks, in minutes: what holds, what grows, what is lost.

    python benchmarks/soak.py --frames 100000 --out runs/soak      # also goes on where an earlier run was stopped
    python benchmarks/soak.py --frames 2000 --life 500             # a quick look

A process of its own reads the digits of examples/digits in one condition after another, learning in the background,
while a second camera and a thread that only predicts use the same runtime. Between good frames come broken ones. It
is reset and saved now and then, and killed (SIGKILL) after `--life` frames, more or less; the next one goes on from
what it saved. In the end there are a picture, `soak.png`, and a table: accuracy, latency, memory, and what went
wrong, which is nothing.
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import numpy as np
from memory import resident

from pluto_edge import Runtime
from pluto_edge._cpu import this_cpu
from pluto_edge._files import write_bytes
from pluto_edge._text import table
from pluto_edge.errors import PlutoError
from pluto_edge.runtime import persistence

DIGITS = Path(__file__).resolve().parent.parent / "examples/digits"
sys.path.insert(0, str(DIGITS))

import meter  # noqa: E402

HOLD = 300  # frames of a condition
BROKEN = 1 / 40  # of the frames
REPORT = 100  # frames that a line of the log is about
SAVE, RESET = 200, 4_000  # frames from one to the next
PLAIN = 10  # of so many frames one is predicted as exported, too
WARM = 300  # frames of a process after which its memory should be flat
PAUSE = 0.1  # seconds between the frames of the other threads
CONDITIONS = {**meter.CONDITIONS, **meter.UNSEEN}
ROUND = HOLD * len(CONDITIONS) // REPORT  # lines of the log in which every condition comes once


@dataclass
class Line:
    """What happened in the last `REPORT` frames; `life` is the process that saw them."""

    frame: int
    life: int
    age: int  # frames of this process
    right: int
    counted: int
    plain_right: int
    plain_counted: int
    median: float
    p99: float
    resident: float
    refused: int
    broken: int
    steps: int
    rollbacks: int
    others: int  # predictions of the other threads
    problems: list[str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=10_000)
    parser.add_argument("--out", type=Path, default=Path("runs/soak"))
    parser.add_argument(
        "--life", type=int, default=10_000, help="frames until a process is killed (default: 10,000)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="of ONNX Runtime (default: 1)")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.child is not None:
        Child(options).run()
        return
    raise_lives(options)
    lines = list(read(options.out))
    write_bytes(options.out / "soak.png", picture(lines))
    print(f"{this_cpu()}\n\n{summary(lines)}\n\n{options.out / 'soak.png'}")
    if any(line.problems for line in lines):
        sys.exit(1)


# The process that starts and kills the others


def raise_lives(options: argparse.Namespace) -> None:
    """One process after another, until all frames were seen."""
    while (done := last_frame(options.out)) < options.frames:
        life = lives(options.out)
        until = done + int(options.life * random.Random(f"{options.seed} {life}").uniform(0.5, 1.5))
        command = [sys.executable, __file__, "--child", str(life), "--out", str(options.out)]
        for name in ("frames", "seed", "threads"):
            command += [f"--{name}", str(getattr(options, name))]
        child = subprocess.Popen(command)
        try:
            while child.poll() is None and last_frame(options.out) < until:
                sleep(0.5)
        finally:
            if child.poll() is None:
                child.send_signal(signal.SIGKILL)
            child.wait()
        if child.returncode not in (0, -signal.SIGKILL):
            sys.exit(f"the process has ended by itself ({child.returncode}); what it said is above")
        print(f"{last_frame(options.out):,} frames, life {life}", flush=True)


def read(out: Path) -> Iterator[Line]:
    """The log, but for lines that a kill has cut off."""
    file = out / "log.jsonl"
    for text in file.read_text().splitlines() if file.is_file() else ():
        try:
            yield Line(**json.loads(text))
        except (ValueError, TypeError):
            continue


def last_frame(out: Path) -> int:
    return max((line.frame for line in read(out)), default=0)


def lives(out: Path) -> int:
    return max((line.life for line in read(out)), default=-1) + 1


# The process that is killed


class Child:
    def __init__(self, options: argparse.Namespace) -> None:
        self.out = options.out
        self.life = options.child
        self.frames = options.frames
        self.seed = options.seed
        self.runtime = Runtime(DIGITS / "bundle", "cpu", options.threads)
        self.stream = self.runtime.stream("one")
        self.others = 0
        self.problems: list[str] = []
        self.stop = threading.Event()
        self._restore()

    def run(self) -> None:
        threads = [threading.Thread(target=self._beside, args=(work,)) for work in (self._camera, self._predictor)]
        for thread in threads:
            thread.start()
        try:
            with (self.out / "log.jsonl").open("a") as log:
                log.write("\n")  # whatever the last process was writing
                self._watch(log)
        finally:
            self.stop.set()
            for thread in threads:
                thread.join()
            self.runtime.close()

    def _watch(self, log: Any) -> None:
        first = last_frame(self.out)
        line = self._fresh()
        latencies = []
        for frame in range(first + 1, self.frames + 1):
            rng = np.random.default_rng([self.seed, frame])
            if rng.random() < BROKEN:
                self._broken(line, rng)
            image, truth = good(frame, rng)
            start = perf_counter()
            said = self.stream(image)
            latencies.append(1e3 * (perf_counter() - start))
            self._check(said.probabilities)
            line.right += int(said.labels[0] == truth)
            line.counted += 1
            if frame % PLAIN == 0:
                line.plain_right += int(self.runtime.predict(image).labels[0] == truth)
                line.plain_counted += 1
            if frame % RESET == 0:
                self.stream.reset()
            if frame % SAVE == 0:
                self.stream.save(self.out / "state")
                (self.out / "saved").write_text(str(self.stream.learner.state.steps))
            if frame % REPORT == 0 or frame == self.frames:
                line.frame = frame
                line.age = frame - first
                line.resident = resident()
                line.median, line.p99 = (float(np.percentile(latencies, q)) for q in (50, 99))
                metrics = self.stream.metrics
                line.steps = metrics.steps
                line.rollbacks = metrics.rolled_back
                line.others = self.others
                line.problems = self.problems
                self.problems = []
                log.write(json.dumps(asdict(line)) + "\n")
                log.flush()
                line = self._fresh()
                latencies = []

    def _fresh(self) -> Line:
        return Line(0, self.life, 0, 0, 0, 0, 0, 0.0, 0.0, 0.0, 0, 0, 0, 0, 0, [])

    def _restore(self) -> None:
        """Where something was saved, it is there, and no older than what was said to be saved."""
        known = self.out / "saved"
        steps = int(known.read_text() or 0) if known.is_file() else -1
        if not persistence.saved(self.out / "state"):
            if steps >= 0:
                self.problems.append("what was saved is gone")
            return
        self.stream.restore(self.out / "state")
        if self.stream.learner.state.steps < steps:
            self.problems.append(f"{steps} steps were saved, {self.stream.learner.state.steps} restored")

    def _broken(self, line: Line, rng: np.random.Generator) -> None:
        """A frame that no camera should send: refused, or predicted in numbers."""
        line.broken += 1
        try:
            self._check(self.stream(broken(rng)).probabilities)
        except PlutoError:
            line.refused += 1

    def _check(self, probabilities: np.ndarray) -> None:
        if not np.isfinite(probabilities).all():
            self.problems.append("a prediction is not finite")

    def _beside(self, work: Any) -> None:
        try:
            while not self.stop.wait(PAUSE):
                work(np.random.default_rng([self.seed, 1, self.others]))
                self.others += 1
        except Exception as error:
            self.problems.append(f"{type(error).__name__}: {error}")

    def _camera(self, rng: np.random.Generator) -> None:
        """A second camera, which is opened and closed all the time."""
        with self.runtime.stream("two", batch=16) as stream:
            for _ in range(20):
                self._check(stream(good(int(rng.integers(10_000)), rng)[0]).probabilities)
                if self.stop.wait(PAUSE):
                    return

    def _predictor(self, rng: np.random.Generator) -> None:
        self._check(self.runtime.predict(good(int(rng.integers(10_000)), rng)[0]).probabilities)


def good(frame: int, rng: np.random.Generator) -> tuple[np.ndarray, int]:
    """A digit in the condition that rules at this frame, and which it is."""
    digit = int(rng.integers(10))
    name = list(CONDITIONS)[frame // HOLD % len(CONDITIONS)]
    return CONDITIONS[name](meter.render(rng, digit, fonts=()), rng), digit


def broken(rng: np.random.Generator) -> Any:
    return [
        lambda: np.zeros((32, 32, 3), np.uint8),
        lambda: np.full((32, 32, 3), 255, np.uint8),
        lambda: rng.integers(0, 256, (32, 32, 3), dtype=np.uint8),
        lambda: np.full((1, 3, 32, 32), np.nan, np.float32),
        lambda: np.zeros((0, 32, 3), np.uint8),
        lambda: np.zeros((32, 32), np.uint8),
        lambda: rng.integers(0, 256, (1, 4000, 3), dtype=np.uint8),
        lambda: None,
    ][int(rng.integers(8))]()


# What is shown


def rolling(lines: list[Line], right: str, counted: str, window: int = ROUND) -> list[float]:
    """Accuracy over the last so many lines, in percent."""
    total = np.cumsum([[getattr(line, right), getattr(line, counted)] for line in lines], axis=0, dtype=float)
    total[window:] -= total[:-window].copy()
    return list(100 * total[:, 0] / np.maximum(total[:, 1], 1))


def picture(lines: list[Line]) -> bytes:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7.5), layout="constrained")
    accuracy, latency, memory = figure.subplots(3, 1, sharex=True)
    frames = [line.frame for line in lines]
    whole = slice(ROUND - 1 if len(lines) > ROUND else 0, None)  # before, not every condition has been there
    accuracy.plot(frames[whole], rolling(lines, "right", "counted")[whole], label="the stream")
    accuracy.plot(
        frames[whole],
        rolling(lines, "plain_right", "plain_counted")[whole],
        label="as exported, frame by frame",
        alpha=0.6,
    )
    accuracy.set_ylabel("accuracy, %, of all conditions")
    accuracy.legend(loc="lower right")
    latency.plot(frames, [line.median for line in lines], label="median")
    latency.plot(frames, [line.p99 for line in lines], label="99th percentile", alpha=0.6)
    latency.set_yscale("log")
    latency.set_ylabel("latency, ms")
    latency.legend(loc="upper right")
    memory.plot(frames, [line.resident for line in lines], ".", markersize=3)
    memory.set_ylim(bottom=0)
    memory.set_ylabel("resident memory, MB")
    memory.set_xlabel("frames; dotted: the process is killed and another goes on")
    for before, after in pairwise(lines):
        if before.life != after.life:
            for axes in (accuracy, latency, memory):
                axes.axvline(before.frame, color="grey", linestyle=":", linewidth=0.8)
    out = BytesIO()
    figure.savefig(out, format="png", dpi=110)
    return out.getvalue()


def summary(lines: list[Line]) -> str:
    few = max(len(lines) // 10 // ROUND, 1) * ROUND  # about a tenth, with every condition equally often
    parts = (lines, lines[:few], lines[-few:])
    header = ("", "all frames", f"first {REPORT * len(parts[1]):,}", f"last {REPORT * len(parts[2]):,}")

    def row(name: str, value: Any, form: str = "{:,.1f}") -> tuple[str, ...]:
        return (name, *(form.format(value(part)) for part in parts))

    def share(right: str, counted: str) -> Any:
        return lambda part: (
            100 * sum(getattr(n, right) for n in part) / max(sum(getattr(n, counted) for n in part), 1)
        )

    rows = [
        row("accuracy, %", share("right", "counted")),
        row("as exported, %", share("plain_right", "plain_counted")),
        row("latency, median ms", lambda part: float(np.median([n.median for n in part]))),
        row("latency, p99 ms", lambda part: float(np.median([n.p99 for n in part]))),
        row("resident, most MB", lambda part: max(n.resident for n in part)),
    ]
    grown = [growth(life) for life in by_life(lines) if life[-1].age > 2 * WARM]
    facts = [
        ("frames", f"{lines[-1].frame:,}"),
        ("changes of condition", f"{lines[-1].frame // HOLD:,}"),
        ("broken frames", f"{sum(n.broken for n in lines):,}, refused {sum(n.refused for n in lines):,}"),
        ("predictions beside them", f"{sum(life[-1].others for life in by_life(lines)):,} rounds of two threads"),
        ("steps, rolled back", f"{total(lines, 'steps'):,}, {total(lines, 'rollbacks'):,}"),
        ("resets, saves", f"{lines[-1].frame // RESET:,}, {lines[-1].frame // SAVE:,}"),
        ("kills", f"{len(by_life(lines)) - 1:,}"),
        (
            "memory of a process",
            f"grows by {max(grown):+.1f} MB at most, {np.mean(grown):+.1f} on average" if grown else "-",
        ),
        ("went wrong", ", ".join(p for n in lines for p in n.problems) or "nothing"),
    ]
    return f"{table(header, rows, right=range(1, 4))}\n\n{table(('', ''), facts)}"


def by_life(lines: list[Line]) -> list[list[Line]]:
    return [[n for n in lines if n.life == life] for life in sorted({n.life for n in lines})]


def total(lines: list[Line], name: str) -> int:
    """Counters of a process start with it."""
    return sum(getattr(life[-1], name) for life in by_life(lines))


def growth(life: list[Line]) -> float:
    """Megabytes, from the lines when it was warm to its last ones."""
    warm = [n.resident for n in life if n.age >= WARM]
    quarter = max(len(warm) // 4, 1)
    return float(np.median(warm[-quarter:]) - np.median(warm[:quarter]))


if __name__ == "__main__":
    main()
