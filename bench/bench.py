"""What a bundle costs on this machine: its parts, predictions and steps, as batches and modules grow."""

import platform
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from time import perf_counter

import numpy as np

from pluto_edge._cpu import Cpu, this_cpu
from pluto_edge._ort import onnxruntime as ort
from pluto_edge.bench import fresh, machine
from pluto_edge.bench.workload import images, open_runtime
from pluto_edge.errors import ConfigError
from pluto_edge.manifest import FORWARD, Bundle, Flops, Precision
from pluto_edge.modules import LN_BIAS, LN_SCALE, Dims
from pluto_edge.preprocess import ImageBatch
from pluto_edge.runtime.algorithm import selector
from pluto_edge.runtime.engine.lanes import Lanes
from pluto_edge.runtime.engine.network import Network
from pluto_edge.runtime.engine.objective import MEAN_ENTROPY
from pluto_edge.runtime.engine.plan import MachinePlan, find_plan
from pluto_edge.runtime.engine.providers import described
from pluto_edge.runtime.engine.session import Engine, Graph, Tensor
from pluto_edge.version import WRITER

__all__ = ["Cell", "Part", "Plan", "Report", "Size", "Timing", "bench", "measure"]

SCHEMA_VERSION = 1
WARM_UP = 2  # the first step does not know which module to differentiate, the second does
STARTS = 3


@dataclass(frozen=True)
class Plan:
    """What is measured, and how often.

    Attributes:
        batches: images in a call, ascending.
        modules: how many of the bundle's modules there are, ascending. All of them are blended; of the most, each
            smaller number, too.
        repeats: measurements of one thing, after the warm-up.
        seconds: after these one thing is not measured again, once it was `at_least` times; None is no limit.
    """

    batches: tuple[int, ...]
    modules: tuple[int, ...]
    repeats: int = 7
    seconds: float | None = None
    at_least: int = 3

    def __post_init__(self) -> None:
        for name in ("batches", "modules"):
            values = getattr(self, name)
            if not values or min(values) < 1 or list(values) != sorted(set(values)):
                raise ConfigError(f"{name}: want ascending numbers from 1 on, got {values}")
        if self.repeats < 1:
            raise ConfigError(f"repeats: want at least 1, got {self.repeats}")

    @property
    def batch(self) -> int:
        """The one at which the number of modules varies."""
        return self.batches[len(self.batches) // 2]

    @property
    def sizes(self) -> "tuple[Size, ...]":
        """Each of batch, modules and blended modules grows while the other two stay."""
        most = self.modules[-1]
        by_batch = [Size(b, most, most) for b in self.batches]
        by_modules = [Size(self.batch, n, n) for n in self.modules]
        by_blended = [Size(self.batch, most, m) for m in self.modules]
        return tuple(dict.fromkeys(by_batch + by_modules + by_blended))


@dataclass(frozen=True)
class Size:
    """Of a prediction or step: its images, the modules, and how many of them are blended."""

    batch: int
    modules: int
    top_m: int


@dataclass(frozen=True)
class Timing:
    """Median milliseconds, and the range that the middle half of the measurements lies in, as its width."""

    median: float
    spread: float
    runs: int


@dataclass(frozen=True)
class Part:
    """One part at one batch; `gflops` a second and `share` of the peak for graphs whose operations are known."""

    name: str
    batch: int
    time: Timing
    gflops: float | None = None
    share: float | None = None


@dataclass(frozen=True)
class Cell:
    """Predictions and steps of one size."""

    size: Size
    predict: Timing
    step: Timing

    @property
    def images_a_second(self) -> float:
        """How many images a second predictions of this size manage."""
        return 1e3 * self.size.batch / self.predict.median


@dataclass(frozen=True)
class Report:
    """All that was measured, and what it was measured on.

    `busy` says why times are not to be trusted; `flops` is None where the bundle does not say; `plan` is what was
    measured, `followed` how `pluto tune` found the graphs to run fastest here.
    """

    bundle: str
    bundle_sha256: str
    architecture: str
    precision: Precision
    dims: Dims
    tokens: int
    image: tuple[int, int]
    provider: str
    operators: dict[str, dict[str, int]]
    threads: int
    cpu: Cpu
    followed: MachinePlan
    plan: Plan
    busy: tuple[str, ...]
    load: float | None
    peak: machine.Peak
    flops: Flops | None
    starts: tuple[fresh.Start, ...]
    memory: fresh.Memory
    parts: tuple[Part, ...]
    cells: tuple[Cell, ...]
    machine: str = field(default_factory=lambda: f"{platform.system()} {platform.machine()}")
    onnxruntime: str = ort.__version__
    started: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    writer: str = WRITER
    schema_version: int = SCHEMA_VERSION

    @property
    def growth(self) -> dict[str, tuple[Cell, ...]]:
        """Cells by what grows from one to the next."""
        batch, most = self.plan.batch, self.plan.modules[-1]
        return {
            "batch": tuple(c for c in self.cells if c.size.modules == c.size.top_m == most),
            "modules": tuple(c for c in self._sorted if c.size.batch == batch and c.size.modules == c.size.top_m),
            "blended": tuple(c for c in self._sorted if c.size.batch == batch and c.size.modules == most),
        }

    @property
    def _sorted(self) -> list[Cell]:
        return sorted(self.cells, key=lambda c: (c.size.modules, c.size.top_m))


def bench(
    bundle: Bundle,
    plan: Plan,
    providers: str = "auto",
    threads: int | None = None,
    on_stage: Callable[[str], None] = lambda stage: None,
) -> Report:
    """Measure everything in `plan`; `on_stage` is told what comes next."""
    manifest = bundle.manifest
    load = machine.load_average()
    if plan.modules[-1] > len(manifest.modules):
        raise ConfigError(f"modules: the bundle has {len(manifest.modules)}, {plan.modules[-1]} were asked for")
    engine = Engine.of(manifest.precision, providers, threads)
    engine.follow(find_plan(bundle.hash, engine.provider))  # as a runtime does
    on_stage("peak of matrix products")
    peak = machine.measure_peak(engine)
    busy = machine.busy(engine, load, peak)
    for reason in busy:
        on_stage(f"the machine is busy: {reason}")
    on_stage("start and memory, in processes of their own")
    starts = [fresh.cold_start(bundle.path, providers, threads) for _ in range(STARTS)]
    memory = fresh.peak_memory(bundle.path, providers, threads, plan.batches[-1])
    parts: list[Part] = []
    workbench = Workbench(bundle, engine, plan, peak)
    for batch in plan.batches:
        on_stage(f"parts: batch {batch}")
        parts += workbench.parts(batch)
    cells = []
    for size in plan.sizes:
        on_stage(f"predictions and steps: batch {size.batch}, modules {size.modules}, blended {size.top_m}")
        cells.append(measure_cell(bundle, size, plan, providers, threads))
    return Report(
        bundle=str(bundle.path),
        bundle_sha256=bundle.hash,
        architecture=manifest.architecture,
        precision=manifest.precision,
        dims=manifest.dims,
        tokens=manifest.tokens,
        image=manifest.preprocessing.size,
        provider=described(engine.providers[FORWARD][0]),
        operators=workbench.operators,
        threads=engine.threads,
        cpu=this_cpu(),
        followed=engine.plan,
        plan=plan,
        busy=busy,
        load=load,
        peak=peak,
        flops=manifest.flops,
        starts=tuple(starts),
        memory=memory,
        parts=tuple(parts),
        cells=tuple(cells),
    )


def measure(call: Callable[[], object], plan: Plan) -> Timing:
    """`call`, again and again, after a warm-up."""
    for _ in range(WARM_UP):
        call()
    times: list[float] = []
    while len(times) < plan.repeats:
        if plan.seconds is not None and len(times) >= plan.at_least and sum(times) > plan.seconds:
            break
        start = perf_counter()
        call()
        times.append(perf_counter() - start)
    low, median, high = np.percentile(times, (25, 50, 75))
    return Timing(1e3 * float(median), 1e3 * float(high - low), len(times))


def measure_cell(bundle: Bundle, size: Size, plan: Plan, providers: str, threads: int | None) -> Cell:
    """Predictions and steps of one size, each measured on a runtime of its own."""
    frames = images(bundle, size.batch)
    with open_runtime(bundle, providers, threads, size.modules, size.top_m) as runtime:
        predict = measure(lambda: runtime.predict(frames), plan)
        return Cell(size, predict, measure(lambda: runtime.step(frames), plan))


class Workbench:
    """A bundle's graphs and selector one by one, in the micro-batches that the runtime cuts a batch into."""

    def __init__(self, bundle: Bundle, engine: Engine, plan: Plan, peak: machine.Peak) -> None:
        self._bundle = bundle
        self._engine = engine
        self._plan = plan
        self._peak = peak
        self._network = Network(bundle, engine)
        module = next(iter(self._network.modules.values()))
        self._module: dict[str, Tensor] = {
            **module.tensors,
            LN_SCALE: engine.tensor(module.exported.scale),
            LN_BIAS: engine.tensor(module.exported.bias),
        }

    @property
    def operators(self) -> dict[str, dict[str, int]]:
        """How many operators of each graph every provider runs."""
        graphs = self._network.graphs
        adapt = graphs.adapt(graphs.lanes(graphs.micro_batch_adapt))
        found = {"embed": graphs.embed, "forward": graphs.forward, "adapt": adapt}
        return {name: graph.operators for name, graph in found.items()}

    def parts(self, batch: int) -> list[Part]:
        """What a prediction and a step are made of, each for `batch` images; graphs with one module."""
        prepared = ImageBatch(images(self._bundle, batch), self._bundle.manifest.preprocessing)
        names = self._bundle.manifest.names[: self._plan.modules[-1]]
        network, graphs = self._network, self._network.graphs
        passed = network.run(prepared, {}, names)

        def prepare() -> None:
            for size in micro_batches(batch, graphs.micro_batch):
                _ = prepared[:size]

        def select() -> None:
            selector.select(selector.weights(network.selector, passed.x_hat, passed.logits), None)

        known = self._bundle.manifest.flops
        counts: dict[str, int] = {} if known is None else asdict(known)
        peak = self._peak
        graph_peak = peak.int8 if self._bundle.manifest.precision == "int8" and peak.int8 else peak.fp32
        one_by_one, gradients = Lanes(1, graphs.micro_batch, self._engine.threads), graphs.lanes(batch)
        embed = self._graph(graphs.embed, prepared, one_by_one, embedded=False)
        forward = self._graph(graphs.forward, prepared, one_by_one)
        adapt = self._graph(graphs.adapt(gradients), prepared, gradients)
        return [
            self._part("prepare", batch, prepare),
            self._part("embed", batch, embed, counts.get("embed"), peak.fp32),
            self._part("forward", batch, forward, counts.get("forward"), graph_peak),
            self._part("adapt", batch, adapt, counts.get("adapt"), graph_peak),
            self._part("selector", batch, select),
        ]

    def _graph(
        self, graph: Graph, prepared: ImageBatch, lanes: Lanes, *, embedded: bool = True
    ) -> Callable[[], None]:
        """Runs `graph` on all micro-batches; the tensors that it takes are on the device before."""
        sizes = micro_batches(len(prepared), lanes.images)
        inputs: dict[int, Mapping[str, Tensor]] = {}
        for size in set(sizes):
            pixels = {"pixels": self._engine.tensor(prepared[:size])}
            if embedded:
                objective = self._network.graphs.objective_inputs(MEAN_ENTROPY, size)
                inputs[size] = {**self._network.graphs.embed(pixels), **self._module, **objective}
            else:
                inputs[size] = pixels

        def call() -> None:
            deque(lanes.map(graph, (inputs[size] for size in sizes)), maxlen=0)

        return call

    def _part(
        self, name: str, batch: int, call: Callable[[], None], count: int | None = None, peak: float = 0.0
    ) -> Part:
        time = measure(call, self._plan)
        if count is None:
            return Part(name, batch, time)
        gflops = 1e-6 * count * batch / time.median
        return Part(name, batch, time, gflops, gflops / peak)


def micro_batches(batch: int, step: int) -> list[int]:
    """Sizes of the pieces that a batch is cut into."""
    return [min(step, batch - start) for start in range(0, batch, step)]
