"""Re-centring: what a new domain does to all of a module's logits alike is taken off again. No gradient, no label.

On its source a module's logits have known means: of class k, on[k] on images of that class and off[k] on others.
On a stream that shows the classes in shares π, the mean logit of class k should be off + π (on - off); what it is
beyond that is the domain's doing. π is estimated from the predictions, so that a stream that shows few classes, or
one after another, is not mistaken for a drift. (Beyond the paper; NEO re-centres features, for balanced streams.)
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Wide = NDArray[np.float64]

HORIZON = 512  # images that the running means reach back
TRUST = 16  # images seen at which half of the drift is taken off


@dataclass(frozen=True)
class Centre:
    """Running means over recent images: of the modules' logits [N,K] and of the predicted probabilities [K]."""

    names: tuple[str, ...] = ()
    logits: Wide | None = None
    shares: Wide | None = None
    count: float = 0.0

    def plus(self, names: tuple[str, ...], logits: NDArray[np.floating], probabilities: Wide) -> "Centre":
        """With one more batch: logits [B,N,K] as they came, probabilities [B,K] as predicted."""
        new, shares = logits.mean(axis=0, dtype=np.float64), probabilities.mean(axis=0)
        if self.names != names or self.logits is None or self.shares is None:
            return Centre(names, new, shares, float(len(logits)))
        count = min(self.count, HORIZON - len(logits)) if len(logits) < HORIZON else 0.0
        share = len(logits) / (count + len(logits))
        return Centre(
            names,
            self.logits + share * (new - self.logits),
            self.shares + share * (shares - self.shares),
            count + len(logits),
        )

    def shift(self, names: tuple[str, ...], means: Sequence[Array | None]) -> Wide | float:
        """What is added to logits [B,N,K]; nothing for modules that do not know their means."""
        if self.names != names or self.logits is None or self.shares is None:
            return 0.0
        trust = self.count / (self.count + TRUST)
        rows = [
            np.zeros_like(now) if known is None else trust * (known[1] + self.shares * (known[0] - known[1]) - now)
            for known, now in zip(means, self.logits, strict=True)
        ]
        return np.stack(rows)
