"""What adaptation could reach at most on PACS, left out, with the features of the joint adapter as they are.

    python benchmarks/tables.py pacs-still      # makes the bundles' recordings
    python benchmarks/ceiling.py

Three rows use labels of the target, which nobody has on a device. *Taught*: PLUTO's own prototypes, which learn
from the true class of every image as soon as it was predicted. *Half*: a linear classifier that is fitted to one
half of the target with its labels and reads the other half, and the other way round. *One of two*: head or
prototypes, whichever is right.
"""

import numpy as np
from conditions import BATCH, Follow
from numpy.typing import NDArray
from tables import OUT, PACS, RUNS
from tqdm import tqdm

from pluto_edge.evaluate.evaluation import CACHE
from pluto_edge.evaluate.recorded import RecordedNetwork
from pluto_edge.evaluate.targets import TargetStream, arrange, find_targets, prepare
from pluto_edge.manifest import Bundle
from pluto_edge.runtime.engine.session import Engine

ORDERS = 3
RIDGE = 0.1  # of the mean variance

Wide = NDArray[np.float64]


def main() -> None:
    rows: dict[str, list[float]] = {}
    for target in tqdm(PACS, disable=None):
        for name, value in on(target).items():
            rows.setdefault(name, []).append(100 * value)
    print(f"{'':28}" + "".join(f"{t:>14}" for t in (*PACS, "average")))
    for name, values in rows.items():
        print(f"{name:28}" + "".join(f"{v:14.1f}" for v in (*values, np.mean(values))))


def on(name: str) -> dict[str, float]:
    """Accuracy by row on one target, averaged over orders."""
    bundle = Bundle(RUNS / "loo" / "pacs-adapter" / name / "bundle")
    manifest = bundle.manifest
    network = RecordedNetwork(bundle, Engine("cpu", 1))
    (target,) = find_targets(RUNS / "data" / "pacs", (name,), manifest.classes, seen=bundle.load_seen())
    stream = prepare(target, manifest.preprocessing, OUT / CACHE)
    network.record(stream, OUT / CACHE)
    assert stream.outputs is not None
    module = network.modules.generalist
    assert module is not None
    column = list(network.modules).index(module)
    features = stream.outputs.features[:, column].astype(np.float64)
    labels = np.array(target.labels)
    head = stream.outputs.logits[:, column].argmax(axis=1) == labels
    found = []
    for seed in range(ORDERS):
        order = arrange(target.labels, "shuffled", seed)
        own = _follow(network, module, stream, order, taught=False)
        taught = _follow(network, module, stream, order, taught=True)
        found.append([head, own, head | own, taught, _halves(features, labels, order)])
    names = ("joint", "prototypes", "one of two, with labels", "taught, with labels", "half, with labels")
    return {n: float(np.mean([row[i].mean() for row in found])) for i, n in enumerate(names)}


def _follow(
    network: RecordedNetwork, module: str, stream: TargetStream, order: NDArray[np.intp], *, taught: bool
) -> NDArray[np.bool_]:
    """Prototypes of a shuffled stream: for every image whether it was right."""
    labels = np.array(stream.target.labels)
    follow = Follow(network, module)
    right = np.zeros(len(labels), bool)
    for batch in stream.batches(order, BATCH):
        truth = labels[batch.indices]
        said = follow.taught(batch, truth) if taught else follow.step(batch)
        right[batch.indices] = said.argmax(axis=1) == truth
    return right


def _halves(features: Wide, labels: NDArray[np.intp], order: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Linear discriminants, fitted to one half and tried on the other, both ways."""
    right = np.zeros(len(labels), bool)
    half = len(order) // 2
    for known, others in ((order[:half], order[half:]), (order[half:], order[:half])):
        classes = np.unique(labels[known])
        means = np.stack([features[known][labels[known] == k].mean(axis=0) for k in classes])
        within = features[known] - means[np.searchsorted(classes, labels[known])]
        covariance = within.T @ within / len(known)
        covariance += RIDGE * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
        weight = np.linalg.solve(covariance, means.T)
        scores = features[others] @ weight - 0.5 * np.einsum("kd,dk->k", means, weight)
        right[others] = classes[scores.argmax(axis=1)] == labels[others]
    return right


if __name__ == "__main__":
    main()
