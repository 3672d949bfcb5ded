"""What one module learns from: the images of its domain, or for the generalist those of all domains together."""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from safetensors.torch import load_file

from pluto_edge._files import whole_file
from pluto_edge.store import Store
from pluto_edge.train.cache import HEADER, PARTS, Cache, header, metadata
from pluto_edge.train.data import GENERALIST, Domain
from pluto_edge.train.features import Embedded


@dataclass(frozen=True)
class Pool:
    """One domain or several, with what the cache has of them; in the order of their names, however they are given.

    The tokens of several are copied into one file, which is memory-mapped: however many domains there are, they
    need no more memory than one.
    """

    store: Store
    domains: tuple[Domain, ...]

    @cached_property
    def caches(self) -> tuple[Cache, ...]:
        """What is kept of each domain, in the order of their names."""
        return tuple(Cache(self.store, d) for d in sorted(self.domains, key=lambda d: d.name))

    @property
    def single(self) -> bool:
        """Whether it is one domain, and so a specialist's."""
        return len(self.domains) == 1

    @property
    def name(self) -> str:
        """Of the module that learns from it."""
        return self.domains[0].name if self.single else GENERALIST

    @property
    def names(self) -> tuple[str, ...]:
        """The domains that it is of."""
        return tuple(c.domain.name for c in self.caches)

    @cached_property
    def digest(self) -> str:
        """Of the very images of every domain."""
        if self.single:
            return self.caches[0].digest
        return hashlib.sha256(json.dumps([[c.domain.name, c.digest] for c in self.caches]).encode()).hexdigest()

    @property
    def checkpoint(self) -> Path:
        """Where a training that is under way keeps its state."""
        return self.caches[0].work / f"{self.name}.{self.store.config.kind}.safetensors"

    @property
    def tokens_file(self) -> Path:
        """All domains' tokens in one file, which training maps into memory."""
        return self.caches[0].work / "tokens" / f"{GENERALIST}-{self.digest[:16]}.safetensors"

    def embedded(self, part: str) -> Embedded:
        """One split of all of its domains; the tokens stay on the disk until they are used."""
        if self.single:
            return self.caches[0].embedded(part)
        if metadata(self.tokens_file).get("digest") != self.digest:
            self._join_tokens()
        features = [load_file(c.features_file) for c in self.caches]
        x_hat, labels = (torch.cat([f[f"{part}.{n}"] for f in features]) for n in ("x_hat", "labels"))
        return Embedded(load_file(self.tokens_file)[part], x_hat, labels, self.digest)

    def _join_tokens(self) -> None:
        """Like a domain's tokens, in a file that is written piece by piece."""
        with whole_file(self.tokens_file) as out:
            out.write(bytes(HEADER))
            counts = dict.fromkeys(PARTS, 0)
            for part in PARTS:
                for cache in self.caches:
                    tokens = cache.embedded(part).tokens
                    counts[part] += len(tokens)
                    out.write(tokens.contiguous().numpy().data)
            out.seek(0)
            out.write(header({p: [n, *tokens.shape[1:]] for p, n in counts.items()}, self.digest))

    def forget(self) -> None:
        """Delete the joined tokens; those of the domains stay."""
        if not self.single:
            self.tokens_file.unlink(missing_ok=True)
