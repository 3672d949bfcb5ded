"""A Ray cluster of several nodes on this machine, which are lost while jobs run on them."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from pluto_edge.errors import ConfigError
from pluto_edge.store import Store
from pluto_edge.train.jobs import Workers
from pluto_edge.train.progress import RunProgress, Silent
from tests import shapes
from tests.pipeline.conftest import Build

PATIENCE = 180.0  # seconds, for a busy machine
# a lost node is noticed in about a second, not in fifteen, and jobs do not wait for all else on a busy machine
SYSTEM = {
    "worker_niceness": 0,
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 300,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
}


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """A node of one processor, which has this process."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1, "include_dashboard": False, "_system_config": SYSTEM}
    made = Cluster(initialize_head=True, head_node_args=head)
    ray.init(address=made.address, log_to_driver=False)  # before there are other nodes that it could belong to
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture
def cluster(nodes: Any) -> Any:
    """Three of them, whatever became of those of the test before."""
    for _ in range(3 - len(nodes.list_all_nodes())):
        nodes.add_node(num_cpus=1)
    nodes.wait_for_nodes()
    return nodes


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
    """That node is lost which is the first to have a job, but for this process's own."""
    names = ("a", "b", "c", "d", "e")
    others = {node.node_id: node for node in cluster.list_all_nodes()[1:]}
    lost: list[str] = []

    def lose() -> None:
        until = time.monotonic() + PATIENCE
        there: list[tuple[str, int]] = []
        while time.monotonic() < until and not there:
            time.sleep(0.05)
            there = [start for name in names for start in starts(tmp_path, name) if start[0] in others]
        for node, pid in there[:1]:
            lost.append(node)
            cluster.remove_node(others[node], allow_graceful=False)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # a machine that is lost takes its processes along
        (tmp_path / "go").touch()

    killer = Thread(target=lose)
    killer.start()
    jobs = [(name, tmp_path) for name in names]
    found = sorted(Workers(ray=True).each(wait_for_the_word, jobs, Silent(), "jobs"))
    killer.join()
    assert [line.partition(" ")[0] for line in found] == list(names)
    (gone,) = lost
    assert not [line for line in found if gone in line]
    twice = [name for name in names if len(starts(tmp_path, name)) > 1]
    assert len(twice) == 1, "what was lost, and nothing else, is done again"
    assert starts(tmp_path, twice[0])[0][0] == gone


class Lose(Silent):
    """Kills a node as soon as a module is trained, and another one as soon as a domain is measured."""

    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster
        self.lost: list[str] = []

    def step(self, task: str, done: int, total: int, note: str = "") -> None:
        if task in ("modules trained", "domains of the matrix") and done == 1 and task not in self.lost:
            self.lost.append(task)
            self.cluster.remove_node(self.cluster.list_all_nodes()[-1], allow_graceful=False)


def test_a_build_that_loses_two_nodes(cluster: Any, make_build: Build, tmp_path: Path) -> None:
    """As if nothing had happened: the same modules, and a whole matrix."""
    photos = tmp_path / "photos"
    for name in shapes.TINTS:
        shapes.write_domain(photos, name, per_class=5)
    lose = Lose(cluster)
    built = make_build(photos, "ray", workers=Workers(ray=True, threads=1), progress=lose)
    assert lose.lost == ["modules trained", "domains of the matrix"] and len(cluster.list_all_nodes()) == 1
    assert (built.release, built.matrix.computed) == ("shapes@1", 20)
    make_build(photos, "here")
    spread, here = (Store(tmp_path / name / "work/store") for name in ("ray", "here"))
    assert set(spread.names) == set(here.names) and len(spread.names) == 5
    for name in here.names:
        for key, value in here.load_module(name).tensors.items():
            np.testing.assert_allclose(spread.load_module(name).tensors[key], value, atol=1e-4)
