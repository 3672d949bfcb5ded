"""`tune`: measures which way of running a bundle's graphs is the fastest here, in seconds.

Every choice is a duel: the way that is used without a plan, and others, take turns on the same images. Another
way is taken only where it is clearly faster (`MARGIN`, in most rounds), so that noise changes nothing. At the end
the whole plan has to win against none, or it is dropped.

On a busy machine times say nothing of threads: there they stay as they are, and all else is measured with one
thread, by its processor time.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter, thread_time

import numpy as np
from numpy.typing import NDArray

from pluto_edge._cpu import usable_cores
from pluto_edge.bench import machine
from pluto_edge.bench.workload import images
from pluto_edge.errors import ConfigError
from pluto_edge.manifest import ADAPT, FORWARD, Bundle
from pluto_edge.modules import LN_BIAS, LN_SCALE
from pluto_edge.preprocess import ImageBatch
from pluto_edge.runtime.engine.contract import contracts
from pluto_edge.runtime.engine.graphs import ADAPT_VALUES, FORWARD_VALUES, MOST_IMAGES, Graphs, micro_batch
from pluto_edge.runtime.engine.modules import Loaded
from pluto_edge.runtime.engine.objective import MEAN_ENTROPY
from pluto_edge.runtime.engine.plan import DEFAULT, MachinePlan, PlanFile, PlanKey, Trial
from pluto_edge.runtime.engine.providers import Providers
from pluto_edge.runtime.engine.session import Engine, Graph, Tensor

__all__ = ["MARGIN", "ROUNDS", "choose", "tune"]

ROUNDS = 5
MARGIN = 0.03  # of the time: less than this is not told from noise, and changes nothing
MOST_ROUNDS = 0.7  # in so many of which the winner has to be ahead
HOPELESS, AFTER = 1.1, 3  # a way that takes this much longer is not measured again after so many rounds
LEAST = 0.01  # seconds that one measurement takes at least: shorter calls are repeated

Way = Callable[[], float]  # runs once, and gives the seconds for one image


def choose(first: str, ways: Mapping[str, Way], rounds: int) -> tuple[str, tuple[Trial, ...]]:
    """The name of the fastest way, which is `first` unless another is clearly faster; and every other's trial."""
    for way in ways.values():
        way()
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    running = list(ways)
    for number in range(rounds):
        for name in running if number % 2 == 0 else reversed(running):  # nobody always comes after the same one
            seconds[name].append(ways[name]())
        if number + 1 == AFTER:
            running = [n for n in running if n == first or np.median(_over(seconds, n, first)) < HOPELESS]
    ratios = {name: _over(seconds, name, first) for name in ways if name != first}
    medians = {name: float(np.median(r)) for name, r in ratios.items()}
    clear = [n for n, r in ratios.items() if medians[n] <= 1 - MARGIN and np.mean(r < 1) >= MOST_ROUNDS]
    best = min(clear, key=lambda name: medians[name], default=first)
    return best, tuple(Trial(name, ratio, name == best) for name, ratio in medians.items())


def _over(seconds: Mapping[str, Sequence[float]], name: str, first: str) -> NDArray[np.float64]:
    """Round by round, the seconds of a way over those of the first."""
    took = np.array(seconds[name])
    return np.asarray(took / np.array(seconds[first])[: len(took)])


def tune(
    bundle: Bundle,
    providers: Providers = None,
    *,
    rounds: int = ROUNDS,
    lean: bool = False,
    on_stage: Callable[[str], None] = lambda stage: None,
) -> PlanFile:
    """Measure how this bundle runs fastest on this machine.

    Args:
        bundle: what is to run.
        providers: as a `Runtime` takes them.
        rounds: of every duel.
        lean: no second copy of weights in memory, however fast it would make the graphs.
        on_stage: called with what is measured next.
    """
    if rounds < 3:
        raise ConfigError(f"rounds: want at least 3, got {rounds}")
    on_stage("is the machine idle?")
    reasons = _busy(bundle, providers)
    for reason in reasons:
        on_stage(f"the machine is busy, so threads stay as they are: {reason}")
    track = Track(bundle, providers, alone=not reasons)
    trials: list[Trial] = []
    plan = DEFAULT

    def duel(what: str, graph: str, ways: Mapping[str, MachinePlan]) -> None:
        nonlocal plan
        if len(ways) > 1:
            on_stage(what)
            first = next(iter(ways))
            best, tried = choose(first, {name: track.way(graph, way) for name, way in ways.items()}, rounds)
            trials.extend(replace(t, what=f"{what}: {t.what}") for t in tried)
            plan = ways[best]

    duel("threads", FORWARD, _threads(plan) if track.alone else {})
    for graph in () if lean else (FORWARD, ADAPT):
        packed = replace(plan, prepacked=(*plan.prepacked, graph))
        duel(f"{graph}, weights", graph, {"shared": plan, "prepacked": packed})
    images_forward = micro_batch(bundle.manifest, FORWARD_VALUES)
    duel(
        f"{FORWARD}, images at a time",
        FORWARD,
        {str(n): replace(plan, images=None if n == images_forward else n) for n in _sizes(images_forward)},
    )
    images_adapt = micro_batch(bundle.manifest, ADAPT_VALUES)
    duel(
        f"{ADAPT}, images at a time",
        ADAPT,
        {str(n): replace(plan, images_adapt=None if n == images_adapt else n) for n in _sizes(images_adapt)},
    )
    plan, last = _whole(plan, track, rounds, on_stage)
    return PlanFile(PlanKey.of(bundle.hash, track.provider), plan, (*trials, *last), reasons)


def _busy(bundle: Bundle, providers: Providers) -> tuple[str, ...]:
    load = machine.load_average()
    engine = Engine.of(bundle.manifest.precision, providers)
    return machine.busy(engine, load, machine.measure_peak(engine))


def _threads(plan: MachinePlan) -> dict[str, MachinePlan]:
    """Half of the cores where there are several: two that share one core's units may be slower than one."""
    cores = usable_cores()
    ways = {"one per core": plan}
    if cores > 1:
        ways["one per core, asleep between operators"] = replace(plan, spinning=False)
        ways[f"half as many ({cores // 2})"] = replace(plan, threads=cores // 2)
    return ways


def _sizes(usual: int) -> list[int]:
    """The usual number first; half, less than half again, and twice as many."""
    return list(dict.fromkeys([usual, max(usual // 2, 1), max(3 * usual // 4, 1), min(2 * usual, MOST_IMAGES)]))


def _whole(
    plan: MachinePlan, track: "Track", rounds: int, on_stage: Callable[[str], None]
) -> tuple[MachinePlan, tuple[Trial, ...]]:
    """The plan if both graphs are faster with it than without; else without."""
    found: list[Trial] = []
    if plan == DEFAULT:
        return plan, ()
    for graph in (FORWARD, ADAPT):
        on_stage(f"{graph}, the whole plan")
        _, trials = choose("none", {"none": track.way(graph, DEFAULT), "plan": track.way(graph, plan)}, rounds)
        found += [replace(t, what=f"{graph}: the whole plan") for t in trials]
    slower = max(t.ratio for t in found) > 1 + MARGIN or min(t.ratio for t in found) > 1 - MARGIN
    kept = DEFAULT if slower else plan
    return kept, tuple(replace(t, taken=not slower) for t in found)


@dataclass(frozen=True)
class _Opened:
    engine: Engine
    graph: Graph


class Track:
    """A bundle's graphs, opened as plans say, on the same images and the first module.

    Where it is not `alone` on the machine, they run with one thread, whose processor time counts.
    """

    def __init__(self, bundle: Bundle, providers: Providers, *, alone: bool) -> None:
        self.alone = alone
        self._clock = perf_counter if alone else thread_time
        self._bundle = bundle
        self._providers = providers
        self._contracts = contracts(bundle.manifest)
        self._open: dict[tuple[object, ...], _Opened] = {}
        entry = bundle.manifest.modules[0]
        engine = self._engine(DEFAULT)
        self.provider = engine.provider
        self._module = Loaded.place(bundle.load_module(entry.name), entry.role, entry.homes, engine)
        self._graphs = Graphs(bundle, engine)

    def way(self, graph: str, plan: MachinePlan) -> Way:
        """Runs a graph once on as many images as the plan has at a time; seconds an image."""
        opened = self._opened(graph, plan)
        usual = ADAPT_VALUES if graph == ADAPT else FORWARD_VALUES
        asked = plan.images_adapt if graph == ADAPT else plan.images
        count = asked or micro_batch(self._bundle.manifest, usual)
        inputs = self._inputs(count, opened.engine)
        times = 1
        while times < 1 << 16 and self._seconds(opened.graph, inputs, times) < LEAST:
            times *= 2
        return lambda: self._seconds(opened.graph, inputs, times) / (times * count)

    def _seconds(self, graph: Graph, inputs: Mapping[str, Tensor], times: int) -> float:
        start = self._clock()
        for _ in range(times):
            graph(inputs)
        return self._clock() - start

    def _engine(self, plan: MachinePlan) -> Engine:
        engine = Engine.of(self._bundle.manifest.precision, self._providers, None if self.alone else 1)
        engine.follow(plan)
        return engine

    def _opened(self, graph: str, plan: MachinePlan) -> _Opened:
        """Once for all plans that do not differ in how this graph is opened."""
        key = (graph, plan.threads, plan.spinning, graph in plan.prepacked)
        if key not in self._open:
            engine = self._engine(plan)
            opened = engine.open(self._bundle.file(graph), self._contracts[graph])
            self._open[key] = _Opened(engine, opened)
        return self._open[key]

    def _inputs(self, count: int, engine: Engine) -> dict[str, Tensor]:
        prepared = ImageBatch(images(self._bundle, count), self._bundle.manifest.preprocessing)
        embedded = self._graphs.embed({"pixels": engine.tensor(prepared[:count])})
        exported = self._module.exported
        return {
            **embedded,
            **self._module.tensors,
            LN_SCALE: engine.tensor(exported.scale),
            LN_BIAS: engine.tensor(exported.bias),
            **self._graphs.objective_inputs(MEAN_ENTROPY, count),
        }
