"""When a stream learns, in which thread, and what becomes of errors."""

import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from pluto_edge.errors import StreamError
from pluto_edge.runtime.stream.background import LearningThread
from pluto_edge.runtime.stream.budget import Budget
from pluto_edge.runtime.stream.buffer import Frame
from pluto_edge.runtime.stream.scheduler import Scheduler

FRAMES = [Frame(SimpleNamespace(), SimpleNamespace()) for _ in range(12)]  # type: ignore[arg-type]


class Learning:
    """Steps that are written down; each takes three seconds, ends when it may, and fails if it is to."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps: list[list[Frame]] = []
        self.threads: list[str] = []
        self.began = threading.Event()
        self.go = threading.Event()
        self.go.set()
        self.error: Exception | None = None

    def __call__(self, frames: list[Frame]) -> None:
        self.began.set()
        assert self.go.wait(20)
        self.steps.append(frames)
        self.threads.append(threading.current_thread().name)
        self.now += 3
        if self.error is not None:
            raise self.error

    def clock(self) -> float:
        return self.now

    def scheduler(self, worker: LearningThread | None = None, budget: float | None = None) -> Scheduler:
        return Scheduler("gate 3", self, worker, Budget(budget, self.clock), self.clock)


@pytest.fixture
def worker() -> Iterator[LearningThread]:
    thread = LearningThread()
    yield thread
    thread.close()


def test_without_a_worker_it_learns_inside_the_call() -> None:
    learning = Learning()
    scheduler = learning.scheduler()
    scheduler.offer(FRAMES)
    assert learning.steps == [FRAMES] and learning.threads == [threading.current_thread().name]
    assert scheduler.seconds == 3
    scheduler.settle()
    scheduler.tell()


def test_with_a_worker_it_learns_there_and_one_step_at_a_time(worker: LearningThread) -> None:
    learning = Learning()
    learning.go.clear()
    scheduler = learning.scheduler(worker)
    for _ in range(4):
        scheduler.offer(FRAMES)
    assert scheduler.skipped_busy == 3 and not learning.steps
    learning.go.set()
    scheduler.settle()
    assert len(learning.steps) == 1 and learning.threads[0].startswith("pluto-learning")
    scheduler.offer(FRAMES)
    scheduler.settle()
    assert len(learning.steps) == 2 and scheduler.skipped_busy == 3


def test_a_step_takes_the_newest_frames_that_the_budget_allows() -> None:
    learning = Learning()
    scheduler = learning.scheduler(budget=1500)  # milliseconds; a step takes 3000, whatever its size
    scheduler.offer(FRAMES)
    assert learning.steps == [FRAMES[-8:]]
    scheduler.offer(FRAMES)
    assert learning.steps[1:] == [FRAMES[-4:]]
    assert scheduler.skipped_budget == 0


def test_steps_that_are_not_in_the_budget_are_counted() -> None:
    learning = Learning()
    scheduler = learning.scheduler(budget=0.5)
    scheduler.offer(FRAMES)
    scheduler.offer(FRAMES)
    assert len(learning.steps) == 1 and scheduler.skipped_budget == 1
    learning.now += 3
    scheduler.offer(FRAMES)
    assert len(learning.steps) == 2


@pytest.mark.parametrize("background", [False, True])
def test_what_fails_is_told_once(
    background: bool, worker: LearningThread, caplog: pytest.LogCaptureFixture
) -> None:
    learning = Learning()
    scheduler = learning.scheduler(worker if background else None)
    learning.error = RuntimeError("the device is on fire")
    scheduler.offer(FRAMES)
    scheduler.settle()
    learning.error = None
    scheduler.offer(FRAMES)  # a later success does not hide it
    scheduler.settle()
    assert scheduler.failures == 1 and "on fire" in caplog.text
    assert isinstance(scheduler.error, StreamError) and scheduler.seconds == 6
    with pytest.raises(
        StreamError, match=r"'gate 3': learning failed \(RuntimeError: the device is on fire\)"
    ) as caught:
        scheduler.tell()
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert scheduler.error is None
    scheduler.tell()


def test_what_has_not_begun_is_cancelled(worker: LearningThread) -> None:
    learning = Learning()
    learning.go.clear()
    first, second = learning.scheduler(worker), learning.scheduler(worker)
    first.offer(FRAMES)
    assert learning.began.wait(20)
    second.offer(FRAMES[:1])
    second.cancel()
    second.settle()  # there is nothing to wait for
    learning.go.set()
    first.cancel()  # it has begun, and comes to its end
    first.settle()
    assert learning.steps == [FRAMES]


def test_a_step_does_not_wait_for_itself(worker: LearningThread) -> None:
    def learn(frames: list[Frame]) -> None:
        scheduler.settle()  # as a callback that closes its stream does

    scheduler = Scheduler("x", learn, worker, Budget(None), float)
    scheduler.offer(FRAMES)
    done = threading.Thread(target=scheduler.settle, daemon=True)
    done.start()
    done.join(20)
    assert not done.is_alive()


def test_no_step_is_under_way_in_a_forked_process(worker: LearningThread) -> None:
    learning = Learning()
    learning.go.clear()
    scheduler = learning.scheduler(worker)
    scheduler.offer(FRAMES)
    scheduler.renew()  # as in the child of a fork
    scheduler.settle()
    learning.go.set()
