"""Zero-shot PLUTO on a domain that no module and no selector has seen, from a store's cached logits.

    pluto train --data pacs/ --out store/ ...          # leaves store/.work/ with every module's logits
    python benchmarks/leave_one_out.py store/ --data pacs/ --per-class 70

For each target the selector is initialised on the other domains only, with their modules only, and evaluated on all
images of the target; then the same with re-centring, batch after batch (nothing else learns). Then the selector's
learning rate: on streams of the *source* validation images (never the target's) the selector takes the paper's
entropy step, and the accuracy for each rate is shown.
"""

import argparse
from pathlib import Path

import numpy as np

from pluto_edge._text import table
from pluto_edge.config import AdaptConfig
from pluto_edge.modules import LOGIT_MEANS, SelectorWeights
from pluto_edge.runtime import selector as numpy_selector
from pluto_edge.runtime.algorithm import blend, update_centre, update_selector
from pluto_edge.runtime.network import Pass
from pluto_edge.runtime.recentre import Centre
from pluto_edge.runtime.state import State
from pluto_edge.store import Store
from pluto_edge.train.cache import Cache
from pluto_edge.train.data import Domain, scan
from pluto_edge.train.selector import SelectorRecipe, SourceLogits, compare, join, train_selector

RATES = (0.0, 1e-4, 1e-3, 1e-2, 1e-1)
BATCH = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--per-class", type=int, help="as given to pluto train")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    store = Store(options.store)
    domains = [d for d in scan(options.data, per_class=options.per_class) if d.name in store.names]
    zero, rates = [], []
    for target in domains:
        sources = [d for d in domains if d != target]
        names = [d.name for d in sources]
        held = join([Cache(store, target).source(part, names) for part in ("train", "val")])
        scores = []
        for seed in range(options.seeds):
            weights = initialise(store, sources, seed)
            scores.append((*compare(weights, held), recentred(store, names, weights, held, seed)))
            rates.append([follow(store, sources, weights, rate) for rate in RATES])
        (blended, uniform, best, centred), spread = np.mean(scores, axis=0), np.std(scores, axis=0)
        cells = (f"{100 * best:.1f}", f"{100 * uniform:.1f}", f"{100 * blended:.1f} ± {100 * spread[0]:.1f}")
        zero.append((target.name, *cells, f"{100 * centred:.1f} ± {100 * spread[3]:.1f}"))
    numbers = np.array([[float(c.split()[0]) for c in row[1:]] for row in zero]).mean(axis=0)
    zero.append(("average", *(f"{n:.1f}" for n in numbers)))
    print("accuracy on the domain left out, %")
    header = ("target", "best single module", "uniform average", "PLUTO, zero-shot", "re-centred")
    print(table(header, zero, right=range(1, 5)))
    print("\nselector's learning rate: accuracy on streams of the sources' validation images, %")
    mean = 100 * np.array(rates).mean(axis=0)
    print(table([f"{r:g}" for r in RATES], [[f"{m:.2f}" for m in mean]], right=range(len(RATES))))


def initialise(store: Store, sources: list[Domain], seed: int) -> SelectorWeights:
    names = [d.name for d in sources]
    train, val = (join([Cache(store, d).source(part, names) for d in sources]) for part in ("train", "val"))
    return train_selector(train, val, SelectorRecipe(seed=seed)).weights


def recentred(store: Store, names: list[str], g: SelectorWeights, held: SourceLogits, seed: int) -> float:
    """The zero-shot blend with re-centring, batch after batch; nothing else learns."""
    means = tuple(store.load_module(n).tensors.get(LOGIT_MEANS) for n in names)
    centre, right = Centre(), 0
    order = np.random.default_rng(seed).permutation(len(held.labels))
    for start in range(0, len(order), BATCH):
        index = order[start : start + BATCH]
        logits, x = held.logits.numpy()[index], held.x_hat.numpy()[index]
        passed, weights = Pass(tuple(names), logits, x, (), means), numpy_selector.weights(g, x, logits)
        centre = update_centre(centre, passed, weights, AdaptConfig(recentre=True))
        right += int((blend(passed, centre, weights).argmax(axis=1) == held.labels.numpy()[index]).sum())
    return right / len(order)


def follow(store: Store, sources: list[Domain], start: SelectorWeights, rate: float) -> float:
    """Domain after domain, batch after batch: predict with the updated selector, as a step does."""
    config, state, right, total = AdaptConfig(selector_lr=rate), State(start), 0, 0
    names = [d.name for d in sources]
    for domain in sources:
        data: SourceLogits = Cache(store, domain).source("val", names)
        order = np.random.default_rng(0).permutation(len(data.labels))
        for index in np.array_split(order, max(1, len(order) // BATCH)):
            logits, x = data.logits.numpy()[index], data.x_hat.numpy()[index]
            *_, state = update_selector(state, Pass(tuple(names), logits, x, (), ()), config)
            weights = numpy_selector.weights(state.selector, x, logits)
            predicted = np.einsum("bn,bnk->bk", weights, logits).argmax(axis=1)
            right += int((predicted == data.labels.numpy()[index]).sum())
            total += len(index)
    return right / total


if __name__ == "__main__":
    main()
