"""A Ray cluster of several nodes on this machine, one of which is lost while jobs run on it."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from pluto_edge.errors import ConfigError
from pluto_edge.train.jobs import Workers
from pluto_edge.train.progress import RunProgress, Silent

PATIENCE = 60.0  # seconds, for a busy machine
# that a node is lost is noticed in about a second, not in fifteen
NOTICE = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 300,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
}


@pytest.fixture
def cluster() -> Iterator[Any]:
    """Three nodes of one processor each; the first has this process."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1, "include_dashboard": False, "_system_config": NOTICE}
    made = Cluster(initialize_head=True, head_node_args=head)
    ray.init(address=made.address, log_to_driver=False)  # before there are other nodes that it could belong to
    for _ in range(2):
        made.add_node(num_cpus=1)
    made.wait_for_nodes()
    yield made
    ray.shutdown()
    made.shutdown()


def wait_for_the_word(name: str, folder: Path, progress: RunProgress) -> str:
    """A job that writes down on which node and in which process it runs, and ends when there is a file `go`."""
    import ray

    node = ray.get_runtime_context().get_node_id()
    with (folder / name).open("a") as file:
        file.write(f"{node} {os.getpid()}\n")
    for done in range(int(PATIENCE * 20)):
        progress.step(name, done, int(PATIENCE * 20))
        if (folder / "go").exists():
            return f"{name} on {node}"
        time.sleep(0.05)
    raise ConfigError("nobody said go")


def starts(folder: Path, name: str) -> list[tuple[str, int]]:
    """Nodes and processes that a job was started in, in their order."""
    file = folder / name
    lines = file.read_text().splitlines() if file.exists() else []
    return [(node, int(pid)) for node, pid in map(str.split, lines)]


def test_jobs_of_a_lost_node_run_elsewhere(cluster: Any, tmp_path: Path) -> None:
    lost = cluster.list_all_nodes()[-1]
    names = ("a", "b", "c", "d", "e")

    def lose() -> None:
        until = time.monotonic() + PATIENCE
        there: list[int] = []
        while time.monotonic() < until and not there:
            time.sleep(0.05)
            there = [pid for name in names for node, pid in starts(tmp_path, name) if node == lost.node_id]
        cluster.remove_node(lost, allow_graceful=False)
        for pid in there:  # a machine that is lost takes its processes along
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        (tmp_path / "go").touch()

    killer = Thread(target=lose)
    killer.start()
    jobs = [(name, tmp_path) for name in names]
    found = sorted(Workers(ray=True).each(wait_for_the_word, jobs, Silent(), "jobs"))
    killer.join()
    assert [line.partition(" ")[0] for line in found] == list(names)
    assert not [line for line in found if lost.node_id in line]
    twice = [name for name in names if len(starts(tmp_path, name)) > 1]
    assert len(twice) == 1, "what was lost, and nothing else, is done again"
    assert starts(tmp_path, twice[0])[0][0] == lost.node_id
