"""`evaluate`: every method on every target, in several orders; a result is on the disk as soon as it is there."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from pluto_edge._files import write_text
from pluto_edge._schema import check_version, decode, encode, read_json
from pluto_edge.errors import ConfigError
from pluto_edge.evaluate.adapters import Adapter, Bench, Logits
from pluto_edge.evaluate.methods import Method
from pluto_edge.evaluate.recorded import RecordedNetwork
from pluto_edge.evaluate.stream import Order, Stream, Target, arrange, prepare
from pluto_edge.version import WRITER

SCHEMA_VERSION = 1
RESULTS, CACHE = "results", "cache"
ENSEMBLE, BLEND = "ensemble", "blend"

Progress = Callable[[float, float, str], None]  # done, total, what is going on


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

    `predicted` has a row for every module and their ensemble, or the one row `blend`.
    """

    key: str
    method: str
    config: dict[str, str]
    target: str
    seed: int
    protocol: Protocol
    batches: tuple[int, ...]
    truth: tuple[int, ...]
    predicted: dict[str, tuple[int, ...]]
    notes: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    writer: str = WRITER
    schema_version: int = SCHEMA_VERSION

    def right(self, row: str) -> NDArray[np.bool_]:
        return np.asarray(np.array(self.predicted[row]) == np.array(self.truth))


@dataclass(frozen=True)
class Job:
    """A method in one order of one target or, where it is continual, of all of them."""

    method: Method
    seed: int
    targets: tuple[Target, ...]
    keys: tuple[str, ...]


@dataclass(frozen=True)
class Evaluation:
    results: tuple[Result, ...]
    skipped: dict[str, str]  # methods that could not run, and why


def evaluate(
    network: RecordedNetwork,
    targets: Sequence[Target],
    methods: Sequence[Method],
    protocol: Protocol,
    out: Path,
    *,
    sources: Sequence[Target] = (),
    store: Path | None = None,
    progress: Progress = lambda done, total, text: None,
) -> Evaluation:
    """Run what is not in `out` yet.

    `sources` are images of the modules' own domains, by the modules' names: EATA's Fisher term needs them.
    """
    _check(network, targets, protocol)
    bench = Bench(network, protocol.learned, store=store)
    skipped = {m.name: reason for m in methods if (reason := m.missing(bench))}
    (out / RESULTS).mkdir(parents=True, exist_ok=True)
    groups = [tuple(targets)] if protocol.continual else [(t,) for t in targets]
    jobs = [
        _job(network, method, seed, group, protocol, sources)
        for group in groups
        for seed in range(protocol.seeds)
        for method in methods
        if method.name not in skipped
    ]
    pending = [job for job in jobs if not all(_file(out, key).exists() for key in job.keys)]
    meter = _Meter(network, pending, progress)
    needed = {t.name: t for job in pending for t in job.targets}
    streams = {name: _stream(network, target, out, meter) for name, target in needed.items()}
    if any(job.method.name.partition(":")[0] == "eata" for job in pending):
        bench = replace(bench, sources={s.name: _stream(network, s, out, meter) for s in sources})
    for job in pending:
        for result in _run(
            replace(bench, seed=job.seed), job, [streams[t.name] for t in job.targets], protocol, meter
        ):
            write_text(_file(out, result.key), _compact(result))
    return Evaluation(tuple(_read(_file(out, key)) for job in jobs for key in job.keys), skipped)


def _check(network: RecordedNetwork, targets: Sequence[Target], protocol: Protocol) -> None:
    if network.bundle.manifest.dims.classes < 2:
        raise ConfigError("a bundle with one class has nothing to be evaluated")
    for target in targets:
        if protocol.shots is not None and len(target) <= protocol.shots:
            raise ConfigError(f"{target.name}: {len(target)} images leave none after {protocol.shots} shots")


def _job(
    network: RecordedNetwork,
    method: Method,
    seed: int,
    targets: tuple[Target, ...],
    protocol: Protocol,
    sources: Sequence[Target],
) -> Job:
    keys = []
    for index, target in enumerate(targets):
        described = {
            "bundle": network.bundle.hash,
            "method": method.name,
            "config": encode(method.config),
            "targets": [t.digest for t in targets[: index + 1]],
            "protocol": {**_object(encode(protocol)), "seeds": None},
            "seed": seed,
            "sources": [s.digest for s in sources] if method.name.startswith("eata") else [],
            "schema": SCHEMA_VERSION,
        }
        digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:16]
        safe = "".join(c if c.isalnum() or c in "-." else "_" for c in f"{method.name}-{target.name}")
        keys.append(f"{safe[:80]}-{seed}-{digest}")
    return Job(method, seed, targets, tuple(keys))


def _run(bench: Bench, job: Job, streams: Sequence[Stream], protocol: Protocol, meter: "_Meter") -> list[Result]:
    """Module after module, so that one state is in memory at a time; then the ensembles."""
    start = perf_counter()
    orders = [arrange(s.target.labels, protocol.order, job.seed) for s in streams]
    rows = tuple(bench.network.modules) if job.method.per_module else (BLEND,)
    logits: list[list[Logits]] = [[] for _ in streams]  # by target, by row
    notes: dict[str, float] = {}
    for row in rows:
        adapter = job.method.make(bench, row, job.method.config)
        for index, (stream, order) in enumerate(zip(streams, orders, strict=True)):
            meter.says(f"{job.method.name} on {stream.target.name}, seed {job.seed}")
            logits[index].append(_play(adapter, stream, order, protocol, meter, job.method.cost))
        notes |= {k: notes.get(k, 0.0) + v for k, v in adapter.notes.items()}
    seconds = (perf_counter() - start) / len(streams)
    return [
        _result(job, index, orders[index], rows, logits[index], notes, seconds, protocol)
        for index in range(len(streams))
    ]


def _play(
    adapter: Adapter, stream: Stream, order: NDArray[np.intp], protocol: Protocol, meter: "_Meter", cost: float
) -> Logits:
    """Logits of the stream in its order; in a few-shot run, of what comes after the shots."""
    shots = 0 if protocol.shots is None else protocol.shots
    for batch in stream.batches(order[:shots], protocol.batch):
        adapter.step(batch)
        meter.advance(cost * len(batch))
    ahead = adapter.step if protocol.shots is None else adapter.predict
    found = []
    for batch in stream.batches(order[shots:], protocol.batch):
        found.append(np.asarray(ahead(batch), np.float32))
        meter.advance(cost * len(batch))
    return np.concatenate(found)


def _result(
    job: Job,
    index: int,
    order: NDArray[np.intp],
    rows: Sequence[str],
    logits: Sequence[Logits],
    notes: dict[str, float],
    seconds: float,
    protocol: Protocol,
) -> Result:
    target, order = job.targets[index], order[protocol.shots or 0 :]
    predicted = {row: _labels(values) for row, values in zip(rows, logits, strict=True)}
    if job.method.per_module:
        predicted[ENSEMBLE] = _labels(np.mean(logits, axis=0, dtype=np.float64))
    sizes = [min(protocol.batch, len(order) - s) for s in range(0, len(order), protocol.batch)]
    return Result(
        key=job.keys[index],
        method=job.method.name,
        config={k: json.dumps(v) for k, v in _object(encode(job.method.config)).items()},
        target=target.name,
        seed=job.seed,
        protocol=protocol,
        batches=tuple(sizes),
        truth=tuple(target.labels[i] for i in order),
        predicted=predicted,
        notes=notes,
        seconds=seconds,
    )


def _labels(logits: Logits) -> tuple[int, ...]:
    return tuple(map(int, logits.argmax(axis=1)))


class _Meter:
    """Work in passes through the network: what is done, and what there is."""

    def __init__(self, network: RecordedNetwork, jobs: Sequence[Job], progress: Progress) -> None:
        modules, self.progress, self.text, self.done = len(network.modules), progress, "", 0.0
        targets = {t.digest: len(t) for job in jobs for t in job.targets}
        self.recorded = modules + 1.0  # and the image's decoding
        self.total = self.recorded * sum(targets.values())
        for job in jobs:
            rows = modules if job.method.per_module else 1
            self.total += job.method.cost * rows * sum(len(t) for t in job.targets)

    def says(self, text: str) -> None:
        self.text = text
        self.advance(0)

    def advance(self, passes: float) -> None:
        self.done += passes
        self.total = max(self.total, self.done)
        self.progress(self.done, self.total, self.text)


def _stream(network: RecordedNetwork, target: Target, out: Path, meter: _Meter) -> Stream:
    meter.says(f"reading {target.name}")
    before = meter.done
    stream = prepare(target, network.bundle.manifest.preprocessing, out / CACHE, meter.advance)
    network.record(stream, out / CACHE, lambda count: meter.advance(count * (meter.recorded - 1)))
    meter.advance(max(0.0, before + meter.recorded * len(target) - meter.done))
    return stream


def _object(value: object) -> dict[str, object]:
    assert isinstance(value, dict)
    return value


def _file(out: Path, key: str) -> Path:
    return out / RESULTS / f"{key}.json"


def _compact(result: Result) -> str:
    """Lists of labels in one line each."""
    return json.dumps(encode(result), sort_keys=True, allow_nan=False) + "\n"


def _read(path: Path) -> Result:
    data = read_json(path, ConfigError)
    check_version(data, SCHEMA_VERSION, str(path), ConfigError)
    return decode(Result, data, path.name, ConfigError)
