"""What became of the cases of an attack."""

from dataclasses import dataclass, field
from pathlib import Path

from attacks.story import Story

KEPT = 3  # seeds of each kind of escape


@dataclass(frozen=True)
class Found:
    """An escape: what it is called, how it looks, and the case's seed, or the file that atheris found."""

    kind: str
    seed: int
    text: str
    file: Path | None = None


@dataclass
class Tally:
    """What became of an attack's cases."""

    cases: int = 0
    refused: int = 0
    guided: int = 0  # of the cases, those that atheris made
    escapes: dict[str, list[Found]] = field(default_factory=dict)  # by kind, the first few
    counts: dict[str, int] = field(default_factory=dict)  # by kind
    stories: dict[str, Story] = field(default_factory=dict)  # by what was tried, the first

    @property
    def escaped(self) -> int:
        """How many cases escaped."""
        return sum(self.counts.values())

    def __add__(self, other: "Tally") -> "Tally":
        total = Tally(self.cases + other.cases, self.refused + other.refused, self.guided + other.guided)
        total.stories = {**other.stories, **self.stories}
        for tally in (self, other):
            for kind, count in tally.counts.items():
                total.counts[kind] = total.counts.get(kind, 0) + count
                total.escapes[kind] = (total.escapes.get(kind, []) + tally.escapes[kind])[:KEPT]
        return total

    def add(self, found: Found) -> None:
        """Counts an escape, and keeps the first few of each kind."""
        self.counts[found.kind] = self.counts.get(found.kind, 0) + 1
        kept = self.escapes.setdefault(found.kind, [])
        if len(kept) < KEPT:
            kept.append(found)
