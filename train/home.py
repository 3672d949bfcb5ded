"""At home: how much say a specialist has on its own domain, and how much is left to the generalist.

A specialist has seen fewer images than the generalist, and only of its domain. Which of the two is better there,
or whether both together are, is known from the domain's validation images, which neither has learned from. In a
store without a generalist the other specialists together take its place: many weak ones may know more than one.
"""

import json
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from pluto_edge._arrays import Wide
from pluto_edge._files import sha256, write_text
from pluto_edge.errors import StoreError
from pluto_edge.store import Store
from pluto_edge.train.cache import Cache, module_params
from pluto_edge.train.features import Embedded, logits
from pluto_edge.train.selector import SourceLogits
from pluto_edge.vit.torch_vit import TorchViT

SHARES = (1.0, 0.75, 0.5, 0.25, 0.0)
SECOND = (
    0.02  # by so much per image must two modules make the labels more likely than one, for they cost two passes
)

PRIOR = 64.0  # images' worth of what is so in all domains, where specialists stand beside each other


def home_of(vit: TorchViT, cache: Cache, beside: Store) -> float:
    """The say of the domain's specialist beside the generalist of a store, which may be another (`leave_out`)."""
    val = cache.embedded("val")
    generalist = beside.generalist
    assert generalist is not None
    own = _probabilities(vit, cache.store, cache.domain.name, val)
    return home_share(own, _probabilities(vit, beside, generalist, val), val.labels.numpy())


def keep_home(vit: TorchViT, cache: Cache) -> None:
    """What `home_of` says for the store's own generalist, in `.work/`."""
    cache.home_file.parent.mkdir(exist_ok=True)
    found = {"key": _key(cache), "home": home_of(vit, cache, cache.store)}
    write_text(cache.home_file, json.dumps(found))


def kept_home(cache: Cache) -> float | None:
    """What was kept, if it is of these very images and modules."""
    try:
        found = json.loads(cache.home_file.read_text())
        return float(found["home"]) if found["key"] == _key(cache) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _key(cache: Cache) -> list[str]:
    store = cache.store
    names = (cache.domain.name, cache.store.generalist or "")
    return [cache.digest, *(sha256(store.module_file(n)) if n in store.names else "" for n in names)]


def home_share(own: Wide, general: Wide, labels: NDArray[np.integer]) -> float:
    """From both modules' probabilities [n,K] on labelled images."""
    return SHARES[int(np.argmin(_costs(own, general, labels)))]


def homes_beside_others(logits: Mapping[str, SourceLogits], temperatures: Sequence[float]) -> dict[str, float]:
    """For each domain the say of its own module beside the average of the others, from all modules' logits on
    validation images; `temperatures` are the modules'.

    Where the selector sees few images of a domain, what is so in all domains together counts beside them.
    """
    costs = {}
    for name, source in logits.items():
        p = torch.softmax(source.logits.double() / torch.tensor(temperatures)[:, None], dim=2).numpy()
        own = int(source.own[0])
        others = np.delete(p, own, axis=1).mean(axis=1)
        costs[name] = _costs(p[:, own], others, source.labels.numpy())
    counts = {name: len(source.labels) for name, source in logits.items()}
    everywhere = sum(counts[n] * costs[n] for n in costs) / sum(counts.values())
    return {n: SHARES[int(np.argmin(counts[n] * costs[n] + PRIOR * everywhere))] for n in costs}


def _costs(own: Wide, general: Wide, labels: NDArray[np.integer]) -> Wide:
    """Of each share, for an image on average: how surprising labels are, and that two modules cost two passes."""
    rows = np.arange(len(labels))
    ours, theirs = (np.maximum(p[rows, labels], 1e-9) for p in (own, general))
    surprise = [-float(np.log(share * ours + (1 - share) * theirs).mean()) for share in SHARES]
    return np.array(surprise) + [SECOND * (0 < share < 1) for share in SHARES]


def _probabilities(vit: TorchViT, store: Store, name: str, data: Embedded) -> Wide:
    signature = store.load_module(name).signature(StoreError)
    scores = torch.cat(list(logits(vit, data, module_params(vit, store, name)))).double()
    return np.asarray(torch.softmax(scores / (signature.temperature if signature else 1.0), dim=1).numpy())
