"""The graphs of a bundle, opened as plans say: how long they take, and whether they give the CPU's numbers."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import repeat
from time import perf_counter, thread_time

from pluto_edge.bench.workload import images
from pluto_edge.errors import PlutoError
from pluto_edge.manifest import ADAPT, GRAPHS, Bundle
from pluto_edge.modules import LN_BIAS, LN_SCALE
from pluto_edge.preprocess import ImageBatch
from pluto_edge.runtime.engine.contract import contracts
from pluto_edge.runtime.engine.graphs import ADAPT_VALUES, FORWARD_VALUES, Graphs, lanes_of, micro_batch
from pluto_edge.runtime.engine.lanes import Lanes
from pluto_edge.runtime.engine.modules import Loaded
from pluto_edge.runtime.engine.objective import MEAN_ENTROPY
from pluto_edge.runtime.engine.plan import DEFAULT, MachinePlan
from pluto_edge.runtime.engine.providers import CPU, Providers
from pluto_edge.runtime.engine.session import Engine, Graph, Tensor
from pluto_edge.tolerances import EMBED_FP32, GRADIENT, LOGITS_FP32, relative_error

__all__ = ["Track", "Way"]

LEAST = 0.01  # seconds that one measurement takes at least: shorter calls are repeated
CHECKED = 3  # images by which another provider is compared with the CPU

Way = Callable[[], float]  # runs once, and gives the seconds for one image

# of what differs from LOGITS_FP32
_TOLERANCES = {"tokens": EMBED_FP32, "x_hat": EMBED_FP32, "ln_scale_grad": GRADIENT, "ln_bias_grad": GRADIENT}


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
        self._engines: dict[str, Engine] = {}
        self._open: dict[tuple[object, ...], _Opened] = {}
        entry = bundle.manifest.modules[0]
        engine = self._engine(DEFAULT)
        self.provider = engine.provider
        self.undecided = engine.undecided and engine.provider == CPU  # where CUDA loads, it is what is taken
        self._module = Loaded.place(bundle.load_module(entry.name), entry.role, entry.homes, engine)
        self._graphs = Graphs(bundle, engine)

    def way(self, graph: str, plan: MachinePlan) -> Way:
        """Runs a graph once on as many images as the plan has at a time; seconds an image."""
        lanes = self.lanes(graph, plan)
        opened = self._opened(graph, plan)
        inputs = self._inputs(lanes.images, opened.engine)
        times = 1
        while times < 1 << 16 and self._seconds(opened.graph, inputs, times, lanes) < LEAST:
            times *= 2
        return lambda: self._seconds(opened.graph, inputs, times, lanes) / (times * lanes.count * lanes.images)

    def lanes(self, graph: str, plan: MachinePlan) -> Lanes:
        """How images go through a graph: of `adapt` in lanes, of the others one piece after the other."""
        manifest, engine = self._bundle.manifest, self._engine(plan)
        if graph == ADAPT:
            return lanes_of(engine, plan.images_adapt or micro_batch(manifest, ADAPT_VALUES), manifest.batch)
        return Lanes(1, plan.images or micro_batch(manifest, FORWARD_VALUES), engine.threads)

    def disagreement(self, graph: str, plan: MachinePlan) -> str:
        """Empty where a graph opened as this plan says gives the numbers of the CPU; else what is wrong with it."""
        try:
            opened = self._opened(graph, plan)
            inputs = self._inputs(CHECKED, opened.engine)
            got = opened.graph(inputs)
        except PlutoError as error:
            return str(error).splitlines()[0]  # a provider's compiler may say pages
        want = self._opened(graph, DEFAULT).graph(inputs)
        for name, tensor in want.items():
            off = relative_error(got[name].numpy(), tensor.numpy())
            allowed = _TOLERANCES.get(name, LOGITS_FP32)
            if not off <= allowed:
                return f"{name} differs by {off:.0e}, tolerance {allowed:.0e}"
        return ""

    def _seconds(self, graph: Graph, inputs: Mapping[str, Tensor], times: int, lanes: Lanes) -> float:
        start = self._clock()
        deque(lanes.map(graph, repeat(inputs, times * lanes.count)), maxlen=0)
        return self._clock() - start

    def _engine(self, plan: MachinePlan) -> Engine:
        key = repr(plan)
        if key not in self._engines:
            engine = Engine.of(self._bundle.manifest.precision, self._providers, None if self.alone else 1)
            engine.follow(plan)
            self._engines[key] = engine
        return self._engines[key]

    def _opened(self, graph: str, plan: MachinePlan) -> _Opened:
        """Once for all plans that do not differ in how this graph is opened."""
        name = next(name for name, file in GRAPHS.items() if file == graph)
        threads = self.lanes(graph, plan).threads
        key = (graph, threads, plan.spinning, graph in plan.prepacked, plan.providers.get(name))
        if key not in self._open:
            engine = self._engine(plan)
            opened = engine.open(self._bundle.file(graph), self._contracts[graph], threads=threads)
            self._open[key] = _Opened(engine, opened)
        return self._open[key]

    def _inputs(self, count: int, engine: Engine) -> dict[str, Tensor]:
        prepared = ImageBatch(images(self._bundle, count), self._bundle.manifest.preprocessing)
        pixels = engine.tensor(prepared[:count])
        embedded = self._graphs.embed({"pixels": pixels})
        exported = self._module.exported
        return {
            "pixels": pixels,
            **embedded,
            **self._module.tensors,
            LN_SCALE: engine.tensor(exported.scale),
            LN_BIAS: engine.tensor(exported.bias),
            **self._graphs.objective_inputs(MEAN_ENTROPY, count),
        }
