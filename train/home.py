"""At home: how much say a specialist has on its own domain, and how much is left to the generalist.

A specialist has seen fewer images than the generalist, and only of its domain. Which of the two is better there,
or whether both together are, is known from the domain's validation images, which neither has learned from.
"""

import json

import numpy as np
import torch
from numpy.typing import NDArray

from pluto_edge._arrays import Wide
from pluto_edge._files import sha256, write_text
from pluto_edge.errors import StoreError
from pluto_edge.store import Store
from pluto_edge.train.cache import Cache, module_params
from pluto_edge.train.features import Embedded, logits
from pluto_edge.vit.torch_vit import TorchViT

SHARES = (1.0, 0.75, 0.5, 0.25, 0.0)
SECOND = (
    0.02  # by so much per image must two modules make the labels more likely than one, for they cost two passes
)


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
    rows = np.arange(len(labels))
    ours, theirs = (np.maximum(p[rows, labels], 1e-9) for p in (own, general))

    def cost(share: float) -> float:
        surprise = -float(np.log(share * ours + (1 - share) * theirs).mean())
        return surprise + SECOND * (0 < share < 1)

    return min(SHARES, key=cost)


def _probabilities(vit: TorchViT, store: Store, name: str, data: Embedded) -> Wide:
    signature = store.load_module(name).signature(StoreError)
    scores = torch.cat(list(logits(vit, data, module_params(vit, store, name)))).double()
    return np.asarray(torch.softmax(scores / (signature.temperature if signature else 1.0), dim=1).numpy())
