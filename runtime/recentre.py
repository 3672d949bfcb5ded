"""Re-centring: what a new domain does to all of a module's logits alike is taken off again. No gradient, no label.

On its source a module's logits have known means: of class k, on[k] on images of that class and off[k] on others.
On a stream that shows the classes in shares π, the mean logit of class k should be off + π (on - off), in
proportion to how decided the module is here; what it is beyond that is the domain's doing. π is estimated from the
predictions, so that a stream that shows few classes, or one after another, is not mistaken for a drift. (Beyond the
paper; NEO re-centres features, for balanced streams.)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Wide = NDArray[np.float64]

HORIZON = 512  # images that the running means reach back
TRUST = 16  # images seen at which half of the drift is believed
DECIDED = (0.1, 2.0)  # how decided a module may be, compared with its source


@dataclass(frozen=True)
class Means:
    """Of one module, over the recent images that it ran on: its logits [K], the probabilities [K] that were
    predicted, and the products of both [K]."""

    logits: Wide
    shares: Wide
    products: Wide
    count: float

    def plus(self, new: "Means") -> "Means":
        count = min(self.count, HORIZON - new.count) if new.count < HORIZON else 0.0
        share = new.count / (count + new.count)
        old, recent = ((m.logits, m.shares, m.products) for m in (self, new))
        logits, shares, products = (a + share * (b - a) for a, b in zip(old, recent, strict=True))
        return Means(logits, shares, products, count + new.count)

    def shift(self, known: Array, strength: float) -> Wide:
        """[K]: `strength` times what undoes the drift, less while few images or few classes were seen."""
        pi = self.shares
        classes = np.exp(-(pi * np.log(np.maximum(pi, 1e-12))).sum())  # as many as there would be in equal shares
        strength *= self.count / (self.count + TRUST) * (classes / len(pi)) ** 2
        return np.asarray(strength * _drift(known, self.logits, self.products, pi))


@dataclass(frozen=True)
class Centre:
    """Running means by module: each has its own, as not all need to run on every image."""

    modules: Mapping[str, Means] = field(default_factory=dict)

    def plus(self, names: Sequence[str], logits: NDArray[np.floating], probabilities: Wide) -> "Centre":
        """With one more batch: logits [B,N,K] as they came, probabilities [B,K] as predicted."""
        size = len(logits)
        means, shares = logits.mean(axis=0, dtype=np.float64), probabilities.mean(axis=0)
        products = np.einsum("bk,bnk->nk", probabilities, logits.astype(np.float64)) / size
        modules = dict(self.modules)
        for name, mean, product in zip(names, means, products, strict=True):
            new = Means(mean, shares, product, float(size))
            modules[name] = modules[name].plus(new) if name in modules else new
        return Centre(modules)

    def shift(self, names: Sequence[str], means: Sequence[Array | None], strength: float) -> Wide:
        """What is added to logits [B,N,K]; nothing for modules that do not know their means, or never ran."""
        rows = [
            np.zeros(1) if known is None or name not in self.modules else self.modules[name].shift(known, strength)
            for name, known in zip(names, means, strict=True)
        ]
        return np.stack(np.broadcast_arrays(*rows))


def _drift(known: Array, now: Wide, products: Wide, pi: Wide) -> Wide:
    """[K], with the sign of what undoes it; what is the same for all classes is left out, softmax ignores it."""
    on, off = known.astype(np.float64)
    apart = float((pi * (1 - pi) * (on - off)).sum())
    covariance = float((products - pi * now).sum())
    decided = np.clip(covariance / apart, *DECIDED) if apart > 0 else 1.0
    expected = off + pi * (on - off)
    drift = decided * (expected - expected.mean()) - (now - now.mean())
    return np.asarray(drift)
