"""A repository of many domains, built on a Ray cluster of several nodes on this machine, two of which are lost.

    python benchmarks/many_domains.py --out runs/many --picture docs/matrix.png

Rendered digits with every corruption at every severity are 75 domains. One `build` trains a module for each and a
generalist, exports, measures every module on every domain's held-out images and publishes. Half-way through the
training a node of the cluster is killed, and another one half-way through the matrix. Then a domain is added. It
prints what was lost, what was done twice, and what each part took.
"""

import argparse
import shutil
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import ray
from PIL import Image
from ray.cluster_utils import Cluster

from pluto_edge._text import table
from pluto_edge.evaluate.matrix_report import PICTURE
from pluto_edge.pipeline.build import Built, build
from pluto_edge.repository.keys import load_signers, new_key
from pluto_edge.repository.publisher import Publisher
from pluto_edge.repository.roles import TOP
from pluto_edge.store import Store
from pluto_edge.train.corruptions import NAMES, SEVERITIES, corrupt
from pluto_edge.train.jobs import Workers

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "digits"))
import meter

DIGITS = Path(__file__).resolve().parents[1] / "examples" / "digits" / "store"
SPLITS = {"train": 8, "val": 3, "test": 6}  # images a class and domain; those of test are in no training
RECIPE = {"epochs": 8, "batch": 32, "lr": 0.016, "head_lr": 0.008, "patience": 3, "selector_images": 8}
TRAINED, MEASURED = "modules trained", "domains of the matrix"
NAME = "many"


def write_domain(root: Path, name: str, corruption: tuple[str, int] | None) -> None:
    """Digits of its own, corrupted; a folder that is there already stays."""
    if (root / name).is_dir():
        return
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    partial = root.parent / f"{name}.partial"
    for split, count in SPLITS.items():
        for digit in range(10):
            folder = partial / split / str(digit)
            folder.mkdir(parents=True, exist_ok=True)
            for number in range(count):
                image = meter.render(rng, digit)
                if corruption is not None:
                    image = corrupt(image, *corruption, int(rng.integers(2**31)))
                Image.fromarray(image).save(folder / f"{number}.png")
    root.mkdir(parents=True, exist_ok=True)
    partial.rename(root / name)


class Watch:
    """A `RunProgress` that loses nodes on the way, and counts what is done twice."""

    def __init__(self, cluster: Cluster, loses: bool) -> None:
        self.cluster = cluster
        self.loses = {TRAINED, MEASURED} if loses else set()
        self.last: dict[str, tuple[int, int]] = {}
        self.twice: dict[str, int] = {}
        self.at: dict[str, tuple[float, float]] = {}
        self.said: list[str] = []

    def step(self, task: str, done: int, total: int, note: str = "") -> None:
        before, all_of_it = self.last.get(task, (0, 0))
        if done < before < all_of_it:  # a job that was not at its end is started again, or from its last checkpoint
            self.twice[task] = self.twice.get(task, 0) + before - done
        self.last[task] = (done, total)
        now = time.monotonic()
        self.at[task] = (self.at.get(task, (now, now))[0], now)
        if task in self.loses and done == total // 2:
            self.loses.remove(task)
            self.lose(task)

    def say(self, line: str) -> None:
        self.said.append(line)

    def lose(self, task: str) -> None:
        node = self.cluster.list_all_nodes()[-1]
        print(f"{task}: half-way; node {node.node_id[:8]} is killed", flush=True)
        self.cluster.remove_node(node, allow_graceful=False)

    def seconds(self, task: str) -> float:
        """From the first word of a task to its last."""
        first, last = self.at.get(task, (0.0, 0.0))
        return last - first


@contextmanager
def nodes(count: int) -> Iterator[Cluster]:
    """A cluster of so many nodes of one processor each; the first has this process."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        for _ in range(count - 1):
            cluster.add_node(num_cpus=1)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def repository(folder: Path, keys: Path) -> None:
    """Empty, with new keys, unless it is there."""
    if not folder.exists():
        Publisher.create(folder, {role: [new_key(keys / f"{role}.pem")] for role in TOP})


def built(out: Path, watch: Watch, training: dict[str, Any]) -> tuple[Built, float]:
    began = time.monotonic()
    signers = load_signers([out / "keys"])
    workers = Workers(ray=True, threads=1)
    done = build(
        out / "data",
        out / "work",
        out / "repo",
        signers,
        name=NAME,
        training=training,
        workers=workers,
        progress=watch,
    )
    return done, time.monotonic() - began


def show(title: str, out: Path, watch: Watch, done: Built, seconds: float) -> None:
    store, publisher = Store(out / "work/store"), Publisher(out / "repo")
    matrix = done.matrix.matrix
    domains = sorted(f.name for f in (out / "data").iterdir())
    cells = len(list((out / "work/matrix/cells").rglob("*.json")))
    rows: list[tuple[str, object]] = [
        ("stages that ran", ", ".join(done.ran)),
        ("release", done.release),
        ("domains", len(domains)),
        ("domains without a module", len(set(domains) - set(store.specialists))),
        ("modules in the repository", len(publisher.modules())),
        ("modules that are not there", len(set(store.names) - {m.name for m in publisher.modules()})),
        ("cells of the matrix", len(matrix.modules) * len(matrix.domains)),
        ("cells computed, found", f"{done.matrix.computed}, {done.matrix.found}"),
        ("cells on the disk", cells),
        ("done twice", ", ".join(f"{task} ({count})" for task, count in watch.twice.items()) or "nothing"),
        ("seconds", f"{seconds:.0f}"),
        *((f"seconds: {task}", f"{watch.seconds(task):.0f}") for task in (TRAINED, MEASURED)),
        ("seconds: logits of all modules, for the selector", f"{watch.seconds('domains predicted'):.0f}"),
    ]
    print(f"\n{title}\n{table(('', ''), rows)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--corruptions", nargs="+", default=list(NAMES), choices=NAMES, metavar="NAME")
    parser.add_argument("--severities", nargs="+", type=int, default=list(SEVERITIES), choices=SEVERITIES)
    parser.add_argument("--nodes", type=int, default=3, help="of one processor each (default: 3)")
    parser.add_argument("--picture", type=Path, help="copy matrix.png of the first build to here")
    options = parser.parse_args()
    out = options.out.resolve()
    began = time.monotonic()
    for name in options.corruptions:
        for severity in options.severities:
            write_domain(out / "data", f"{name}-{severity}", (name, severity))
    print(f"images written: {time.monotonic() - began:.0f} s", flush=True)
    repository(out / "repo", out / "keys")
    config = Store(DIGITS).config
    backbone = {
        "backbone": config.backbone.architecture,
        "weights": Store(DIGITS).backbone_file,
        "backbone_options": config.backbone.options,
        "image_size": config.preprocessing.size[0],
    }
    with nodes(options.nodes) as cluster:
        watch = Watch(cluster, loses=True)
        show("all domains", out, watch, *built(out, watch, {**backbone, **RECIPE}))
        if options.picture is not None:
            shutil.copyfile(out / "work/matrix" / PICTURE, options.picture)
        write_domain(out / "data", "clean", None)
        watch = Watch(cluster, loses=False)
        show("a domain more", out, watch, *built(out, watch, {**backbone, **RECIPE, "generalist": False}))
        watch = Watch(cluster, loses=False)
        show("nothing new", out, watch, *built(out, watch, {**backbone, **RECIPE, "generalist": False}))


if __name__ == "__main__":
    main()
