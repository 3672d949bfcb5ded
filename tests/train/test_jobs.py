"""Jobs here and in processes: results, progress, and what happens when one fails or is killed."""

import errno
import os
import signal
import time
from multiprocessing import active_children

import pytest
import torch

from pluto_edge.errors import ConfigError, PlutoError
from pluto_edge.train.jobs import Workers
from pluto_edge.train.progress import Relay, RunProgress


class Notes:
    """A `RunProgress` that remembers."""

    def __init__(self) -> None:
        self.last: dict[str, tuple[int, int]] = {}

    def step(self, task: str, done: int, total: int, note: str = "") -> None:
        self.last[task] = (done, total)

    def say(self, line: str) -> None: ...


def count(name: str, total: int, progress: RunProgress) -> str:
    for done in range(total + 1):
        progress.step(name, done, total)
    return f"{name} {torch.get_num_threads()}"


def fail(name: str, how: str, progress: RunProgress) -> str:
    if how == "config":
        raise ConfigError("it diverged")
    if how == "disk":
        raise OSError(errno.ENOSPC, "No space left on device", "a/file")
    os.kill(os.getpid(), signal.SIGKILL)
    return name


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_and_progress(jobs: int) -> None:
    notes = Notes()
    arguments = [("a", 3), ("b", 5), ("c", 4)]
    found = set(Workers(jobs, threads=1).each(count, arguments, notes, "all"))
    if jobs == 1:
        found = {f"{r.split()[0]} 1" for r in found}  # here torch's threads are the caller's to set
    assert found == {"a 1", "b 1", "c 1"}
    assert notes.last["all"] == (3, 3)
    assert {k: notes.last[k] for k in "abc"} == {"a": (3, 3), "b": (5, 5), "c": (4, 4)}


def numpy_threads(name: str, progress: RunProgress) -> str:
    return f"{name} {os.environ['OPENBLAS_NUM_THREADS']}"


@pytest.mark.parametrize(("chosen", "found"), [(None, "3"), ("1", "1")])
def test_processes_have_as_many_threads_for_numpy(
    chosen: str | None, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    if chosen:
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", chosen)
    assert set(Workers(2, threads=3).each(numpy_threads, [("a",), ("b",)], Notes(), "all")) == {
        f"a {found}",
        f"b {found}",
    }
    assert os.environ.get("OPENBLAS_NUM_THREADS") == chosen


@pytest.mark.parametrize(
    ("how", "error"), [("config", "it diverged"), ("killed", "a process of --jobs was killed")]
)
def test_a_failed_job_ends_the_others(how: str, error: str) -> None:
    with pytest.raises(PlutoError, match=error):
        list(Workers(2).each(fail, [("a", how), ("b", how)], Notes(), "all"))
    for _ in range(200):  # they have ended; the pool's own thread may not have taken note of it yet
        if not active_children():
            break
        time.sleep(0.05)
    assert active_children() == []


def test_a_full_disk_in_a_process_keeps_its_file_name() -> None:
    with pytest.raises(OSError, match="a/file") as caught:
        list(Workers(2).each(fail, [("a", "disk"), ("b", "disk")], Notes(), "all"))
    assert caught.value.errno == errno.ENOSPC


def test_relay_sends_the_first_and_the_last_and_not_all() -> None:
    sent: list[tuple[str, int, int, str]] = []
    relay = Relay(sent.append)
    for done in range(10_001):
        relay.step("a", done, 10_000)
    assert sent[0][1] == 0 and sent[-1][1] == 10_000 and len(sent) < 10_000


@pytest.mark.parametrize("wrong", [{"jobs": 0}, {"threads": 0}])
def test_workers_are_validated(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(wrong))}: want at least 1, got 0"):
        Workers(**wrong)
