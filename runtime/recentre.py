"""Re-centring: what a new domain does to all of a module's logits alike is taken off again. No gradient, no label.

On its source a module's logits have known means: of class k, on[k] on images of that class and off[k] on others.
On a stream that shows the classes in shares π, the mean logit of class k should be off + π (on - off), in
proportion to how decided the module is here; what it is beyond that is the domain's doing. π is estimated from the
predictions, so that a stream that shows few classes, or one after another, is not mistaken for a drift. (Beyond the
paper; NEO re-centres features, for balanced streams.)
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Wide = NDArray[np.float64]

HORIZON = 512  # images that the running means reach back
TRUST = 16  # images seen at which half of the drift is believed
DECIDED = (0.1, 2.0)  # how decided a module may be, compared with its source


@dataclass(frozen=True)
class Centre:
    """Running means over recent images: of the modules' logits [N,K], of the predicted probabilities [K], and of
    the products of both [N,K]."""

    names: tuple[str, ...] = ()
    logits: Wide | None = None
    shares: Wide | None = None
    products: Wide | None = None
    count: float = 0.0

    def plus(self, names: tuple[str, ...], logits: NDArray[np.floating], probabilities: Wide) -> "Centre":
        """With one more batch: logits [B,N,K] as they came, probabilities [B,K] as predicted."""
        size = len(logits)
        new = (
            logits.mean(axis=0, dtype=np.float64),
            probabilities.mean(axis=0),
            np.einsum("bk,bnk->nk", probabilities, logits.astype(np.float64)) / size,
        )
        if self.names != names or self.logits is None or self.shares is None or self.products is None:
            return Centre(names, *new, count=float(size))
        count = min(self.count, HORIZON - size) if size < HORIZON else 0.0
        share = size / (count + size)
        old = (self.logits, self.shares, self.products)
        means, shares, products = (a + share * (b - a) for a, b in zip(old, new, strict=True))
        return Centre(names, means, shares, products, count + size)

    def shift(self, names: tuple[str, ...], means: Sequence[Array | None], strength: float) -> Wide | float:
        """What is added to logits [B,N,K]: `strength` times the drift, less while few images or few classes were
        seen; nothing for modules that do not know their means."""
        if self.names != names or self.logits is None or self.shares is None or self.products is None:
            return 0.0
        pi = self.shares
        classes = np.exp(-(pi * np.log(np.maximum(pi, 1e-12))).sum())  # as many as there would be in equal shares
        strength *= self.count / (self.count + TRUST) * (classes / len(pi)) ** 2
        rows = [
            np.zeros_like(now) if known is None else strength * _drift(known, now, products, pi)
            for known, now, products in zip(means, self.logits, self.products, strict=True)
        ]
        return np.stack(rows)


def _drift(known: Array, now: Wide, products: Wide, pi: Wide) -> Wide:
    """[K], with the sign of what undoes it; what is the same for all classes is left out, softmax ignores it."""
    on, off = known.astype(np.float64)
    apart = float((pi * (1 - pi) * (on - off)).sum())
    covariance = float((products - pi * now).sum())
    decided = np.clip(covariance / apart, *DECIDED) if apart > 0 else 1.0
    expected = off + pi * (on - off)
    drift = decided * (expected - expected.mean()) - (now - now.mean())
    return np.asarray(drift)
