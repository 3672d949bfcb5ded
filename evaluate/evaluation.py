"""`evaluate`: every method on every target, in several orders; a result is on the disk as soon as it is there."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter

import numpy as np

from pluto_edge._arrays import Indices
from pluto_edge.errors import ConfigError
from pluto_edge.evaluate.adapters import Adapter, Bench, Logits
from pluto_edge.evaluate.methods import Method
from pluto_edge.evaluate.recorded import RecordedNetwork
from pluto_edge.evaluate.results import (
    BLEND,
    ENSEMBLE,
    FOLDER,
    JOINT,
    PROBABILITIES,
    Protocol,
    Result,
    file_of,
    key_of,
    load,
    mapping,
    save,
)
from pluto_edge.evaluate.targets import LeftOut, Target, TargetStream, arrange, prepare
from pluto_edge.runtime.algorithm.selector import softmax

CACHE = "cache"

Progress = Callable[[float, float, str], None]  # done, total, what is going on


@dataclass(frozen=True)
class Job:
    """A method in one order of one target or, where it is continual, of all of them."""

    method: Method
    seed: int
    targets: tuple[Target, ...]
    keys: tuple[str, ...]


@dataclass(frozen=True)
class Evaluation:
    """What was found: every result, what could not run and why, and which images were left out."""

    results: tuple[Result, ...]
    skipped: dict[str, str]  # methods that could not run, and why
    left_out: dict[str, LeftOut] = field(default_factory=dict)  # by target, where it is known


def evaluate(
    network: RecordedNetwork,
    targets: Sequence[Target],
    methods: Sequence[Method],
    protocol: Protocol,
    out: Path,
    *,
    sources: Sequence[Target] = (),
    probes: Sequence[Target] = (),
    store: Path | None = None,
    progress: Progress = lambda done, total, text: None,
) -> Evaluation:
    """Run what is not in `out` yet.

    `sources` and `probes` are images of the modules' own domains, by the modules' names: the first for EATA's
    Fisher term, the others to see after every target what the adapted modules still know.
    """
    _check(network, targets, probes, protocol)
    bench = Bench(network, protocol.learned, store=store)
    skipped = {m.name: reason for m in methods if (reason := m.missing(bench))}
    able = [m for m in methods if m.name not in skipped]
    if not able:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in skipped.items())
        raise ConfigError(f"none of the methods can run. {reasons}")
    (out / FOLDER).mkdir(parents=True, exist_ok=True)
    groups = [tuple(targets)] if protocol.continual else [(t,) for t in targets]

    def plan(method: Method, seed: int, group: tuple[Target, ...]) -> Job:
        ends = range(1, len(group) + 1)
        bundle = network.bundle.hash
        keys = [key_of(bundle, method, seed, group[:end], protocol, sources, probes) for end in ends]
        return Job(method, seed, group, tuple(keys))

    jobs = [plan(method, seed, group) for group in groups for seed in range(protocol.seeds) for method in able]
    pending = [job for job in jobs if not all(file_of(out, key).exists() for key in job.keys)]
    if any(job.method.uses_sources for job in pending) and sources:
        bench = replace(bench, sources=_streams(network, sources, out, _Meter(network, [], progress)))
    meter = _Meter(network, pending, progress, probes)
    streams = _streams(network, [t for job in pending for t in job.targets], out, meter)
    tested = _streams(network, probes if pending else (), out, meter)
    for job in pending:
        run = _Run(replace(bench, seed=job.seed), job, protocol, tested, meter)
        for result in run.play([streams[t.name] for t in job.targets]):
            save(out, result)
    results = tuple(load(file_of(out, key)) for job in jobs for key in job.keys)
    return Evaluation(results, skipped, {t.name: t.left_out for t in targets if t.left_out is not None})


def _check(
    network: RecordedNetwork, targets: Sequence[Target], probes: Sequence[Target], protocol: Protocol
) -> None:
    if network.bundle.manifest.dims.classes < 2:
        raise ConfigError("a bundle with one class has nothing to be evaluated")
    for target in targets:
        if protocol.shots is not None and len(target) <= protocol.shots:
            raise ConfigError(f"{target.name}: {len(target)} images leave none after {protocol.shots} shots")
    for probe in probes:
        if probe.name not in network.modules:
            raise ConfigError(f"{probe.name}: no module has that name; there are: {', '.join(network.modules)}")


@dataclass(frozen=True)
class _Played:
    """What a job has found on one target so far."""

    order: Indices
    logits: dict[str, Logits] = field(default_factory=dict)  # by row
    kept: dict[str, float] = field(default_factory=dict)  # by module
    notes: dict[str, float] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class _Run:
    """One job."""

    bench: Bench
    job: Job
    protocol: Protocol
    probes: dict[str, TargetStream]
    meter: "_Meter"

    def play(self, streams: Sequence[TargetStream]) -> list[Result]:
        """Module after module, so that one state is in memory at a time; then the ensembles."""
        method = self.job.method
        seed = self.job.seed
        found = [_Played(arrange(s.target.labels, self.protocol.order, seed)) for s in streams]
        modules = tuple(self.bench.network.modules)
        for row in modules if method.per_module else (BLEND,):
            adapter = method.make(self.bench, row, method.config)
            for stream, played in zip(streams, found, strict=True):
                self.meter.says(f"{method.name} on {stream.target.name}, seed {seed}")
                start = perf_counter()
                before = adapter.notes
                played.logits[row] = self._follow(adapter, stream, played.order)
                played.seconds.append(perf_counter() - start)
                for key, value in adapter.notes.items():
                    played.notes[key] = played.notes.get(key, 0.0) + value - before.get(key, 0.0)
                for name in (row,) if method.per_module else modules:
                    if name in self.probes:
                        played.kept[name] = self._remembers(adapter, name)
        return [self._result(index, stream, found[index]) for index, stream in enumerate(streams)]

    def _follow(self, adapter: Adapter, stream: TargetStream, order: Indices) -> Logits:
        """Logits of the stream in its order; in a few-shot run, of what comes after the shots."""
        protocol = self.protocol
        cost = self.job.method.cost
        shots = 0 if protocol.shots is None else protocol.shots
        for batch in stream.batches(order[:shots], protocol.batch):
            adapter.step(batch)
            self.meter.advance(cost * len(batch))
        ahead = adapter.step if protocol.shots is None else adapter.predict
        found = []
        for batch in stream.batches(order[shots:], protocol.batch):
            found.append(np.asarray(ahead(batch), np.float32))
            self.meter.advance(cost * len(batch))
        return np.concatenate(found)

    def _remembers(self, adapter: Adapter, name: str) -> float:
        """Accuracy of a module, alone and with what it has learned, on its own domain."""
        stream = self.probes[name]
        right = 0
        truth = np.array(stream.target.labels)
        for batch in stream.batches(np.arange(len(truth)), self.protocol.batch):
            right += int((adapter.alone(batch, name).argmax(axis=1) == truth[batch.indices]).sum())
            self.meter.advance(self.job.method.probe_cost * len(batch))
        return right / len(truth)

    @property
    def _specialists(self) -> list[int]:
        modules = self.bench.network.modules
        return [c for c, name in enumerate(modules) if name in modules.specialists]

    def _result(self, index: int, stream: TargetStream, played: _Played) -> Result:
        assert stream.outputs is not None
        job = self.job
        size = self.protocol.batch
        target = job.targets[index]
        order = played.order[self.protocol.shots or 0 :]
        modules = self.bench.network.modules
        predicted = {JOINT if row == modules.generalist else row: _labels(v) for row, v in played.logits.items()}
        if job.method.per_module:
            logits = np.stack([played.logits[n] for n in modules.specialists]).astype(np.float64)
            predicted[ENSEMBLE] = _labels(logits.mean(axis=0))
            predicted[PROBABILITIES] = _labels(softmax(logits).mean(axis=0))
        return Result(
            key=job.keys[index],
            method=job.method.name,
            config={k: json.dumps(v) for k, v in mapping(job.method.config).items()},
            target=target.name,
            seed=job.seed,
            protocol=self.protocol,
            batches=tuple(min(size, len(order) - start) for start in range(0, len(order), size)),
            images=tuple(map(int, order)),
            truth=tuple(target.labels[i] for i in order),
            predicted=predicted,
            unadapted=_labels(stream.outputs.logits[order][:, self._specialists].mean(axis=1)),
            kept=played.kept,
            notes=played.notes,
            seconds=sum(played.seconds),
        )


def _labels(logits: Logits) -> tuple[int, ...]:
    return tuple(map(int, logits.argmax(axis=1)))


class _Meter:
    """Work in passes through the network: what is done, and what there is."""

    def __init__(
        self, network: RecordedNetwork, jobs: Sequence[Job], progress: Progress, probes: Sequence[Target] = ()
    ) -> None:
        modules = len(network.modules)
        self.progress = progress
        self.text = ""
        self.done = 0.0
        self.recorded = modules + 1.0  # and the image's decoding
        images = {t.name: len(t) for job in jobs for t in job.targets}
        own = {p.name: len(p) for p in probes if jobs}
        self.total = self.recorded * (sum(images.values()) + sum(own.values()))
        for job in jobs:
            rows = modules if job.method.per_module else 1
            self.total += job.method.cost * rows * sum(len(t) for t in job.targets)
            self.total += job.method.probe_cost * len(job.targets) * sum(own.values())

    def says(self, text: str) -> None:
        self.text = text
        self.advance(0)

    def advance(self, passes: float) -> None:
        self.done += passes
        self.total = max(self.total, self.done)
        self.progress(self.done, self.total, self.text)


def _streams(
    network: RecordedNetwork, targets: Sequence[Target], out: Path, meter: _Meter
) -> dict[str, TargetStream]:
    """Images and recorded logits of each target, once; what an earlier run left is read."""
    found: dict[str, TargetStream] = {}
    for target in targets:
        if target.name in found:
            continue
        meter.says(f"reading {target.name}")
        before = meter.done
        stream = prepare(target, network.bundle.manifest.preprocessing, out / CACHE, meter.advance)
        network.record(stream, out / CACHE, lambda count: meter.advance(count * (meter.recorded - 1)))
        meter.advance(max(0.0, before + meter.recorded * len(target) - meter.done))
        found[target.name] = stream
    return found
