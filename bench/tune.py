"""`tune`: measures which way of running a bundle's graphs is the fastest here, in seconds.

Every choice is a duel: the way that is used without a plan, and others, take turns on the same images. Another
way is taken only where it is clearly faster (`MARGIN`, in most rounds), so that noise changes nothing. At the end
the whole plan has to win against none, or it is dropped.

Where the caller leaves the choice open, every installed provider that gives the CPU's numbers is among the ways.

On a busy machine times say nothing of threads, nor of providers that have their own: there they stay as they are,
and all else is measured with one thread, by its processor time.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pluto_edge._cpu import usable_cores
from pluto_edge.bench import machine
from pluto_edge.bench.track import Track, Way
from pluto_edge.errors import ConfigError
from pluto_edge.manifest import ADAPT, FORWARD, GRAPHS, Bundle
from pluto_edge.runtime.engine.graphs import ADAPT_VALUES, FORWARD_VALUES, MOST_IMAGES, micro_batch
from pluto_edge.runtime.engine.plan import DEFAULT, MachinePlan, PlanFile, PlanKey, Trial
from pluto_edge.runtime.engine.providers import CPU, KNOWN_NAMES, Providers, loads, there
from pluto_edge.runtime.engine.session import Engine

__all__ = ["MARGIN", "ROUNDS", "choose", "tune"]

ROUNDS = 5
MARGIN = 0.03  # of the time: less than this is not told from noise, and changes nothing
MOST_ROUNDS = 0.7  # in so many of which the winner has to be ahead
HOPELESS, AFTER = 1.1, 3  # a way that takes this much longer is not measured again after so many rounds

log = logging.getLogger("pluto_edge")


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
        on_stage(f"the machine is busy, so threads and providers stay as they are: {reason}")
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
    for name, graph in GRAPHS.items() if track.alone and track.undecided else ():
        duel(f"{graph}, provider", graph, _providers(name, plan, track))
    for graph in () if lean else (FORWARD, ADAPT):
        if any(GRAPHS[name] == graph for name in plan.providers):
            continue  # how weights are kept there is not ours to say
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
    duel(f"{ADAPT}, lanes", ADAPT, {"one for each thread": plan, **_lanes(plan, track)})
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


def _lanes(plan: MachinePlan, track: Track) -> dict[str, MachinePlan]:
    """One piece after the other instead of side by side, where there is such a choice."""
    return {"1": replace(plan, lanes=1)} if track.lanes(ADAPT, plan).count > 1 else {}


def _providers(name: str, plan: MachinePlan, track: Track) -> dict[str, MachinePlan]:
    """The CPU first, then every other that loads here, opens this graph and gives the CPU's numbers."""
    ways = {CPU: plan}
    for provider in there():
        if provider == CPU or provider not in KNOWN_NAMES or loads(provider):
            continue
        other = replace(plan, providers={**plan.providers, name: provider})
        reason = track.disagreement(GRAPHS[name], other)
        if reason:
            log.warning("%s is not tried on %s: %s", GRAPHS[name], provider, reason)
        else:
            ways[provider] = other
    return ways


def _sizes(usual: int) -> list[int]:
    """The usual number first; half, less than half again, and twice as many."""
    return list(dict.fromkeys([usual, max(usual // 2, 1), max(3 * usual // 4, 1), min(2 * usual, MOST_IMAGES)]))


def _whole(
    plan: MachinePlan, track: "Track", rounds: int, on_stage: Callable[[str], None]
) -> tuple[MachinePlan, tuple[Trial, ...]]:
    """The plan if no graph is slower with it than without, and one is faster; else without."""
    found: list[Trial] = []
    if plan == DEFAULT:
        return plan, ()
    moved = [GRAPHS[name] for name in plan.providers]
    for graph in dict.fromkeys((FORWARD, ADAPT, *moved)):
        on_stage(f"{graph}, the whole plan")
        _, trials = choose("none", {"none": track.way(graph, DEFAULT), "plan": track.way(graph, plan)}, rounds)
        found += [replace(t, what=f"{graph}: the whole plan") for t in trials]
    slower = max(t.ratio for t in found) > 1 + MARGIN or min(t.ratio for t in found) > 1 - MARGIN
    kept = DEFAULT if slower else plan
    return kept, tuple(replace(t, taken=not slower) for t in found)
