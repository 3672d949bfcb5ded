"""Both sides of rivals.py: a store's bundles against torch and plain sessions, a method for each group of rows."""

import compileall
import platform
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from math import log
from pathlib import Path
from time import perf_counter, sleep
from typing import Any, Self

import numpy as np
import streams
import torch
from children import Steps, third_graph, torch_memory, torch_start
from contest import (
    EVERY,
    HALF,
    PLAIN,
    RELIABLE,
    START,
    TORCH,
    TORCH_BF16,
    Agreement,
    ContestReport,
    ContestRow,
    compare,
    in_turns,
)
from contest import FORWARD as ONE_MODULE
from kept import Kept
from torch_rival import check_plain, compiled, export_plain, plain_vit, time_limit

import pluto_edge
from pluto_edge import Runtime
from pluto_edge._cpu import this_cpu
from pluto_edge._ort import onnxruntime as ort
from pluto_edge.bench import fresh, machine, tune
from pluto_edge.bench.workload import images, steady
from pluto_edge.config import AdaptConfig
from pluto_edge.errors import BundleError, ParityError
from pluto_edge.manifest import FORWARD, WEIGHTS, Bundle
from pluto_edge.preprocess import ImageBatch
from pluto_edge.runtime.engine.graphs import FORWARD_VALUES, micro_batch
from pluto_edge.runtime.engine.plan import DEFAULT, MachinePlan, PlanKey, find_plan, plan_file
from pluto_edge.runtime.engine.providers import CPU, choose, in_bfloat16
from pluto_edge.runtime.engine.session import Engine, Graph
from pluto_edge.store import Store
from pluto_edge.tolerances import TRAJECTORY_LOGITS, relative_error
from tests.reference.torch_pluto import ReliableOnly, TorchPluto

CHECKED = 4  # images on which both sides have to agree
WARM_UP = 1  # the first step does not know which module to differentiate
SMALL = 8  # the other batch whose memory is measured
STREAM_BATCH = 16  # of the two streams: the least that a step does not wait for more frames
SETTLE = 0.05  # seconds until the threads of the other side have stopped to spin
COMPILED = "torch.compile"
GROUPS = ("steps", "half", "forward", "memory", "start", "added")


def check_belongs(bundle: Bundle, store: Store) -> None:
    """A bundle of this store, and of a precision that CPUs are for."""
    manifest = bundle.manifest
    config = store.config
    same = {
        "backbone": manifest.architecture == config.backbone.architecture,
        "modules": manifest.names == store.names and manifest.dims == config.dims,
        "preprocessing": manifest.preprocessing == config.preprocessing,
        "classes": manifest.classes == config.classes,
    }
    if all(same.values()):
        pairs = [(bundle.load_module(n).tensors, store.load_module(n).tensors) for n in store.names]
        same["modules' weights"] = all(_equal(*pair) for pair in pairs)
        same["selector"] = _equal(bundle.load_selector().tensors, store.load_selector().tensors)
    wrong = [what for what, equal in same.items() if not equal]
    if wrong:
        raise BundleError(
            f"{bundle.path}: not exported from {store.path}, the {' and '.join(wrong)} differ; "
            f"export again: pluto-export --modules {store.path} --out {bundle.path}"
        )
    if manifest.precision == "fp16":
        raise BundleError(f"{bundle.path}: fp16 is for CUDA; compare fp32 and int8 bundles here")


def _equal(bundled: Any, stored: Any) -> bool:
    """The bundle has every tensor of the store (it also has the backbone's affines where a module has none)."""
    return all(name in bundled and np.array_equal(bundled[name], value) for name, value in stored.items())


@dataclass(frozen=True)
class Entrant:
    """A bundle, and where its graphs run."""

    bundle: Bundle
    providers: str = "cpu"

    @classmethod
    def parse(cls, text: str) -> Self:
        """`bundle/`, or `bundle/@openvino`."""
        path, _, providers = text.partition("@")
        return cls(Bundle(path), providers or "cpu")

    @property
    def exact(self) -> bool:
        """Whether it has to give torch's logits."""
        return self.bundle.manifest.precision == "fp32" and not self.in_bfloat16

    @property
    def in_bfloat16(self) -> bool:
        return in_bfloat16(choose(self.providers)[0])


def labels(entrants: Sequence[Entrant]) -> list[str]:
    """By precision and provider, with the folder where that is not enough."""
    short = [
        f"pluto-edge {e.bundle.manifest.precision}" + (f", {e.providers}" if e.providers != "cpu" else "")
        for e in entrants
    ]
    return [s if short.count(s) == 1 else f"{s} ({e.bundle.path})" for s, e in zip(short, entrants, strict=True)]


class InBfloat16:
    """torch's step with the products that autocast takes in bfloat16."""

    def __init__(self, pluto: TorchPluto) -> None:
        self._pluto = pluto
        self.config = pluto.config

    def step(self, frames: Any) -> dict[str, Any]:
        self._pluto.config = self.config
        with torch.autocast("cpu", torch.bfloat16):
            return self._pluto.step(frames)

    @property
    def reliable(self) -> int:
        return self._pluto.reliable


def milliseconds(call: Callable[[], object]) -> Callable[[], float]:
    def timed() -> float:
        sleep(SETTLE)
        start = perf_counter()
        call()
        return 1e3 * (perf_counter() - start)

    return timed


class Contestants:
    """A store's bundles on one side, torch on the other; each method is a group of rows."""

    def __init__(self, store: Store, entrants: Sequence[Entrant], options: Namespace, kept: Kept) -> None:
        for entrant in entrants:
            check_belongs(entrant.bundle, store)
        self.store = store
        self.options = options
        self.kept = kept
        self.ours = dict(zip(labels(entrants), entrants, strict=True))
        self.batch = options.batch
        self.threads = options.threads
        first = entrants[0].bundle
        self.piece = micro_batch(first.manifest, FORWARD_VALUES)
        torch.set_num_threads(self.threads)
        # every step the same, and what is the paper's: all modules blended, no re-centring
        self.config = replace(steady(AdaptConfig.paper()), sam="batch", top_m=None)
        self.frames = images(first, self.batch)
        self.torch = TorchPluto(store, self.config)
        self.reliable = ReliableOnly(store, self.config)
        self.rounded = InBfloat16(self.torch) if any(e.in_bfloat16 for e in entrants) else None
        self.compiled = compiled(store, self.config) if options.compile else None
        self.trouble = ""  # why torch.compile is out

    def report(self) -> ContestReport:
        started = datetime.now(UTC).isoformat(timespec="seconds")
        load = machine.load_average()
        engine = Engine("cpu", self.threads)
        peak = machine.measure_peak(engine)
        agreements = tuple(self.agreement(who, entrant) for who, entrant in self.ours.items())
        versions = {"onnxruntime": ort.__version__, "torch": torch.__version__, "timm": version("timm")}
        plans = {who: self.plan(entrant) for who, entrant in self.ours.items()}
        hashes = [(entrant.bundle.hash, entrant.providers) for entrant in self.ours.values()]
        fixed = (self.batch, self.options.repeats, self.threads, self.options.compile)
        key = [str(this_cpu()), versions, hashes, [str(plan) for plan in plans.values()], *fixed]
        groups = {
            "steps": lambda: self._steps(EVERY, self.config, {TORCH: self.torch, **self._rounded()}),
            "half": lambda: self._half(),
            "forward": lambda: self.forward(engine),
            "memory": self.memory,
            "start": self.start,
            "added": self.added,
        }
        asked = self.options.groups.split(",")
        rows = [row for name in GROUPS if name in asked for row in self.kept.rows(name, key, groups[name])]
        after = machine.measure_peak(engine)
        manifest = next(iter(self.ours.values())).bundle.manifest
        return ContestReport(
            store=str(self.store.path),
            architecture=manifest.architecture,
            modules=len(manifest.modules),
            tokens=manifest.tokens,
            batch=self.batch,
            repeats=self.options.repeats,
            threads=self.threads,
            busy=(
                *(f"before: {reason}" for reason in machine.busy(engine, load, peak)),
                *(f"after: {reason}" for reason in machine.busy(engine, None, after)),
            ),
            load=load,
            peak=peak,
            agreements=agreements,
            machine=f"{platform.system()} {platform.machine()}",
            cpu=this_cpu(),
            plans={who: str(plan) for who, plan in plans.items()},
            versions=versions,
            started=started,
            rows=tuple(rows),
        )

    def agreement(self, who: str, entrant: Entrant) -> Agreement:
        """Raises where what should be exact does not say what torch says."""
        bundle = entrant.bundle
        few = self.frames[:CHECKED]
        want = self.torch.step(few)
        with Runtime(bundle.path, entrant.providers, self.threads, config=self.config, verify=False) as runtime:
            got = runtime.step(few)
        error = relative_error(got.logits, want["logits"])
        same_top = got.selected[0] == want["top"]
        if entrant.exact and (error > TRAJECTORY_LOGITS or not same_top):
            raise ParityError(
                f"{bundle.path} and torch do not compute the same, so nothing was timed: logits differ by "
                f"{error:.1e} (tolerance {TRAJECTORY_LOGITS:.0e}), top module {got.selected[0]} and {want['top']}"
            )
        return Agreement(who, str(bundle.path), bundle.manifest.precision, error, same_top)

    def plan(self, entrant: Entrant) -> MachinePlan:
        """As `pluto tune` measures it for the CPU, once; every process that opens the bundle follows it."""
        bundle = entrant.bundle
        key = self._key(entrant)
        if self.options.tune and key.provider == CPU and not plan_file(key).exists():
            print(f"tuning {bundle.path}", file=sys.stderr, flush=True)
            tune.tune(bundle, "cpu").write(plan_file(key))
        return self._followed(entrant)

    def _followed(self, entrant: Entrant) -> MachinePlan:
        return find_plan(entrant.bundle.hash, self._key(entrant).provider)

    def _key(self, entrant: Entrant) -> PlanKey:
        engine = Engine.of(entrant.bundle.manifest.precision, entrant.providers)
        return PlanKey.of(entrant.bundle.hash, engine.provider)

    def _rounded(self) -> dict[str, "TorchPluto | InBfloat16"]:
        return {} if self.rounded is None else {TORCH_BF16: self.rounded}

    def _half(self) -> list[ContestRow]:
        half = replace(self.config, filter=True, entropy_margin=self._median_margin())
        return self._steps(HALF, half, {TORCH: self.torch, RELIABLE: self.reliable})

    def _median_margin(self) -> float:
        """The threshold, as a share of ln K, that the top module is below on half of the images."""
        self.torch.config = replace(self.config, sam=None)
        low, high = np.sort(self.torch.step(self.frames)["entropy"])[self.batch // 2 - 1 :][:2]
        return float((low + high) / 2 / log(len(self.store.config.classes)))

    def _steps(
        self, what: str, config: AdaptConfig, rivals: "dict[str, TorchPluto | InBfloat16]"
    ) -> list[ContestRow]:
        notes = {}
        for side in rivals.values():
            side.config = config
        if self.compiled is not None:
            self.compiled.config = config
            notes[COMPILED] = self._compile()
            if not self.trouble:
                rivals = {**rivals, COMPILED: self.compiled}
        with ExitStack() as stack:
            ours = {
                who: stack.enter_context(Steps(e.bundle.path, e.providers, self.threads, self.batch, config))
                for who, e in self.ours.items()
            }
            theirs = {who: milliseconds(lambda side=side: side.step(self.frames)) for who, side in rivals.items()}
            values = in_turns(what, {**ours, **theirs}, self.options.repeats, WARM_UP)
        reliable = {who: side.reliable for who, side in {**ours, **rivals}.items()}
        return compare(what, self.batch, "ms", values, reliable=reliable, notes=notes) + self._failed(what)

    def _compile(self) -> str:
        """A first step of the compiled side; says how long it took, or what went wrong."""
        assert self.compiled is not None
        start = perf_counter()
        if not self.trouble:
            print(f"torch.compile, {self.options.compile:g} s at the most", file=sys.stderr, flush=True)
            try:
                with time_limit(self.options.compile):
                    self.compiled.step(self.frames)
            except Exception as error:  # inductor wraps a compiler's errors in dozens of its own
                lines = str(error).strip().splitlines() or [type(error).__name__]
                self.trouble = f"did not work: {type(error).__name__}: {lines[0]}"
        return self.trouble or f"compiled in {perf_counter() - start:.0f} s"

    def _failed(self, what: str) -> list[ContestRow]:
        """A row that says why torch.compile is out, if it is."""
        return [ContestRow(what, self.batch, COMPILED, "ms", note=self.trouble)] if self.trouble else []

    def forward(self, engine: Engine) -> list[ContestRow]:
        """One module's logits from embedded tokens; sessions in the runtime's micro-batches."""
        what = ONE_MODULE
        module = self.torch.modules[self.store.names[0]]
        prepared = ImageBatch(self.frames, self.store.config.preprocessing)
        with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
            tokens = self.torch.vit.embed(torch.from_numpy(prepared[: self.batch]))[0]
            sides: dict[str, Callable[[], object]] = {}
            for who, entrant in self.ours.items():
                plan = self._followed(entrant)
                sides[who] = self._bundled(entrant, plan, tokens)
                if plan != DEFAULT:
                    sides[f"{who}, no plan"] = self._bundled(entrant, DEFAULT, tokens)
            parts = tokens.split(self.piece)
            sides[TORCH] = lambda: self.torch.vit.logits(tokens, module)
            sides[f"torch, {self.piece} at a time"] = lambda: [self.torch.vit.logits(t, module) for t in parts]
            if self.rounded is not None:
                sides[TORCH_BF16] = lambda: self._in_bfloat16(tokens, module)
            if self.compiled is not None and not self.trouble:
                fast = self.compiled.vit.logits
                sides[COMPILED] = lambda: fast(tokens, module)
            sides |= self._plain(engine, tokens, Path(folder) / "plain.onnx")
            timed = {who: milliseconds(call) for who, call in sides.items()}
            rows = compare(what, self.batch, "ms", in_turns(what, timed, self.options.repeats, WARM_UP))
        return rows + self._failed(what)

    def _in_bfloat16(self, tokens: torch.Tensor, module: dict[str, Any]) -> object:
        with torch.autocast("cpu", torch.bfloat16):
            return self.torch.vit.logits(tokens, module)

    def _bundled(self, entrant: Entrant, plan: MachinePlan, tokens: torch.Tensor) -> Callable[[], object]:
        bundle = entrant.bundle
        engine = Engine.of(bundle.manifest.precision, entrant.providers, self.threads)
        engine.follow(plan)
        graph = engine.open(bundle.file(FORWARD))
        tensors = bundle.load_module(self.store.names[0]).tensors
        module = {n: engine.tensor(v) for n, v in tensors.items() if n in graph.inputs}
        return self._pieces(graph, engine, tokens, module, plan.images or self.piece)

    def _plain(self, engine: Engine, tokens: torch.Tensor, file: Path) -> dict[str, Callable[[], object]]:
        """torch's own export, with the runtime's session options and with ONNX Runtime's."""
        vit, prompted = plain_vit(self.torch, tokens)
        export_plain(vit, prompted, file)
        defaults = ort.SessionOptions()
        defaults.intra_op_num_threads = self.threads
        session = ort.InferenceSession(file, defaults, providers=engine.providers[FORWARD])
        graphs = {PLAIN: engine.open(file), f"{PLAIN}, prepacked": Graph(session, engine.device)}
        for graph in graphs.values():
            check_plain(vit, graph, prompted[:CHECKED], engine.tensor(prompted[:CHECKED].numpy()))
        return {who: self._pieces(graph, engine, prompted, {}, self.piece) for who, graph in graphs.items()}

    def _pieces(
        self, graph: Graph, engine: Engine, tokens: torch.Tensor, inputs: dict[str, Any], piece: int
    ) -> Callable[[], object]:
        pieces = [{"tokens": engine.tensor(part.numpy()), **inputs} for part in tokens.split(piece)]
        return lambda: [graph(piece) for piece in pieces]

    def memory(self) -> list[ContestRow]:
        rows = []
        for batch in sorted({min(SMALL, self.batch), self.batch}):
            sides: dict[str, Callable[[], float]] = {
                who: self._peak(entrant, batch) for who, entrant in self.ours.items()
            }
            sides[TORCH] = lambda n=batch: torch_memory(self.store.path, self.threads, n, self.config) / 1e6
            what = "peak resident memory of steps, without the images"
            rows += compare(what, batch, "MB", in_turns(what, sides, 1))
        return rows

    def _peak(self, entrant: Entrant, batch: int) -> Callable[[], float]:
        path, providers = entrant.bundle.path, entrant.providers
        return lambda: (fresh.peak_memory(path, providers, self.threads, batch).step or 0) / 1e6

    def start(self) -> list[ContestRow]:
        """New processes, in turns, after one that does not count. Files were read, and ours are compiled, as they
        are where the package is installed."""
        what = START
        for package in (here := Path(pluto_edge.__file__).parent, *(p.resolve() for p in here.iterdir())):
            if package.is_dir():
                compileall.compile_dir(package, quiet=2)
        sides: dict[str, Callable[[], float]] = {who: self._start(e) for who, e in self.ours.items()}
        sides[TORCH] = lambda: torch_start(self.store.path, self.threads).total
        return compare(what, 1, "ms", in_turns(what, sides, self.options.repeats, WARM_UP))

    def _start(self, entrant: Entrant) -> Callable[[], float]:
        return lambda: fresh.cold_start(entrant.bundle.path, entrant.providers, self.threads).total

    def added(self) -> list[ContestRow]:
        """What more of the same adds to a process on the CPU provider, over the bytes of the weights."""
        rows = []
        for who, bundle in ((who, e.bundle) for who, e in self.ours.items() if self._key(e).provider == CPU):
            cameras = Namespace(bundle=str(bundle.path), cameras=2, batch=STREAM_BATCH, frames=None, fps=None)
            second = streams.child(cameras, "memory")[-1][-1]
            opened, run_once = third_graph(bundle.path, self.threads)
            values = {
                "weights file": [bundle.manifest.files[WEIGHTS].size / 1e6],
                f"second stream that learned, batches of {STREAM_BATCH}": [second],
                "gradient graph, open": [opened],
                "gradient graph, after an image": [run_once],
            }
            rows += compare(f"resident memory added, {who}", None, "MB", values)
        return rows
