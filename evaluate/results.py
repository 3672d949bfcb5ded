"""How methods meet the images, and what is kept of it: one file for every method, target and order."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pluto_edge._files import write_text
from pluto_edge._schema import check_version, decode, encode, read_json
from pluto_edge.errors import ConfigError
from pluto_edge.evaluate.methods import Method
from pluto_edge.evaluate.targets import Order, Target
from pluto_edge.version import WRITER

SCHEMA_VERSION = 2
FOLDER = "results"
ENSEMBLE, PROBABILITIES, BLEND = "ensemble", "ensemble of probabilities", "blend"
JOINT = "joint"  # the generalist, which was trained on all domains together
FAIR = (ENSEMBLE, PROBABILITIES, JOINT, BLEND)  # rows that need no hindsight; all others are modules


@dataclass(frozen=True)
class Protocol:
    """How methods meet the images; the same for all.

    Attributes:
        batch: images a batch.
        seeds: how many orders of each stream.
        shots: None is online, predict and learn batch after batch; a number learns from that many images first
            and then predicts the others, frozen; 0 learns nothing.
        order: of a stream: all shuffled, or class after class.
        continual: what was learned on a target is taken along to the next.
    """

    batch: int = 64
    seeds: int = 3
    shots: int | None = None
    order: Order = "shuffled"
    continual: bool = False

    def __post_init__(self) -> None:
        for name in ("batch", "seeds"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: want at least 1, got {getattr(self, name)}")
        if self.shots is not None and self.shots < 0:
            raise ConfigError(f"shots: want 0 or more, got {self.shots}")
        if self.shots is not None and self.continual:
            raise ConfigError("shots and continual: a few-shot run starts anew on every target")

    @property
    def learned(self) -> int:
        """Images a method learns from at a time."""
        return min(self.batch, self.shots) if self.shots else self.batch


@dataclass(frozen=True)
class Result:
    """One method on one target in one order: what was predicted, image after image.

    `images` are their places in the target, in the order of the stream. `predicted` has a row for every module and
    for their two ensembles, the uniform averages of logits and of probabilities, or the one row `blend`. `kept` is
    the accuracy of each module, as it is after this target, on its own domain; `unadapted` is what the uniform
    average of the exported modules says: what happens to it is the stream's doing.
    """

    key: str
    method: str
    config: dict[str, str]
    target: str
    seed: int
    protocol: Protocol
    batches: tuple[int, ...]
    images: tuple[int, ...]
    truth: tuple[int, ...]
    predicted: dict[str, tuple[int, ...]]
    unadapted: tuple[int, ...]
    kept: dict[str, float] = field(default_factory=dict)
    notes: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    writer: str = WRITER
    schema_version: int = SCHEMA_VERSION

    def right(self, row: str) -> NDArray[np.bool_]:
        """For every image, whether this row predicted its class."""
        return np.asarray(np.array(self.predicted[row]) == np.array(self.truth))


def key_of(
    bundle: str,
    method: Method,
    seed: int,
    targets: Sequence[Target],
    protocol: Protocol,
    sources: Sequence[Target],
    probes: Sequence[Target],
) -> str:
    """A name for the result of the last of `targets`, with a digest of all that it depends on."""
    described = {
        "bundle": bundle,
        "method": method.name,
        "config": encode(method.config),
        "targets": [t.digest for t in targets],
        "protocol": {**mapping(protocol), "seeds": None},
        "seed": seed,
        "sources": [s.digest for s in sources] if method.uses_sources else [],
        "probes": [p.digest for p in probes],
        "schema": SCHEMA_VERSION,
    }
    digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:16]
    name = "".join(c if c.isalnum() or c in "-." else "_" for c in f"{method.name}-{targets[-1].name}")
    return f"{name[:80]}-{seed}-{digest}"


def mapping(value: object) -> dict[str, object]:
    """A dataclass as what JSON writes."""
    found = encode(value)
    assert isinstance(found, dict)
    return found


def file_of(out: Path, key: str) -> Path:
    """Where the result with this key is kept."""
    return out / FOLDER / f"{key}.json"


def save(out: Path, result: Result) -> None:
    """In one line: labels are many."""
    write_text(file_of(out, result.key), json.dumps(encode(result), sort_keys=True, allow_nan=False) + "\n")


def load(path: Path) -> Result:
    """A result that an earlier run left; a damaged one is a `ConfigError`."""
    data = read_json(path, ConfigError)
    check_version(data, SCHEMA_VERSION, str(path), ConfigError)
    return decode(Result, data, path.name, ConfigError)
