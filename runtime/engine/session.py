"""The one place that makes ONNX Runtime sessions: providers chosen and checked, threads set, I/O bound."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pluto_edge._cpu import usable_cores
from pluto_edge._ort import onnxruntime as ort
from pluto_edge._ort import silent
from pluto_edge.errors import BundleError, ConfigError, ProviderError
from pluto_edge.manifest import FORWARD, GRAPHS, Precision
from pluto_edge.runtime.engine.contract import Contract, sized
from pluto_edge.runtime.engine.plan import DEFAULT, MachinePlan
from pluto_edge.runtime.engine.providers import (
    CPU,
    CUDA,
    Provider,
    Providers,
    arguments,
    choose,
    described,
    for_graphs,
    name_of,
    with_settings,
)

__all__ = ["Engine", "Graph", "Tensor"]

Tensor = Any  # an onnxruntime.OrtValue: a tensor on the engine's device

log = logging.getLogger("pluto_edge")


class Engine:
    """Where graphs run.

    `providers`: None or "auto"; a name or a list that is honoured or raises; or such for each of "embed", "forward"
    and "adapt". `provider` is what predictions run on, `providers` has what each graph's file runs on. `undecided`
    says that the caller left the choice open: then a plan may decide it.
    """

    def __init__(
        self,
        providers: Providers = None,
        threads: int | None = None,
        *,
        cpu_only: str = "",
    ) -> None:
        """`cpu_only` says why these graphs run on the CPU alone; empty when they run anywhere."""
        if threads is not None and threads < 1:
            raise ConfigError(f"threads: want at least 1, or None for one per core, got {threads}")
        self.plan = DEFAULT
        self._asked_threads = threads
        self.undecided = (providers is None or providers == "auto") and not cpu_only
        self.providers = for_graphs(providers, cpu_only)
        self.provider = name_of(self.providers[FORWARD][0])
        # tensors stay on the GPU between graphs only where all graphs are there
        everywhere = all(name_of(chosen[0]) == CUDA for chosen in self.providers.values())
        self.device = "cuda" if everywhere else "cpu"
        log.info("running on %s", ", ".join(f"{described(p[0])} ({f})" for f, p in self.providers.items()))

    @classmethod
    def of(cls, precision: Precision, providers: Providers = None, threads: int | None = None) -> "Engine":
        """One that runs a bundle of this precision."""
        int8 = precision == "int8"
        return cls(providers, threads, cpu_only="an int8 bundle runs on the CPU" if int8 else "")

    @property
    def threads(self) -> int:
        """Of ONNX Runtime: what was asked for, else what the plan says, else one per core."""
        return self._asked_threads or self.plan.threads or usable_cores()

    def follow(self, plan: MachinePlan) -> None:
        """Open graphs as this plan says, from here on.

        One with other providers than the caller's, or than load here, is not followed; a log line says so.
        """
        if plan.providers and not self.undecided:
            log.info(
                "the plan is for other providers than those that were asked for (%s); it is not followed", plan
            )
            return
        try:
            planned = {GRAPHS[graph]: choose(name) for graph, name in plan.providers.items()}
        except ProviderError as error:
            log.warning("%s; the plan is not followed, and `pluto tune` measures a new one", error)
            return
        self.plan = plan
        self.providers |= planned
        self.provider = name_of(self.providers[FORWARD][0])

    def open(
        self, path: Path, contract: Contract | None = None, most: int = 1, threads: int | None = None
    ) -> "Graph":
        """The graph in this file; one that does not keep its `contract` is refused. It is given `most` images at a
        time, at most, and `threads` where it is not to have all of them."""
        if contract is not None:
            contract.check(path)
        chosen = self.providers.get(path.name, self.providers[FORWARD])
        batched = {} if contract is None else contract.batched
        threads = threads or self.threads
        providers = [with_settings(provider, threads, batched, most) for provider in chosen]
        options = self._options(path.name, threads)
        try:
            with silent():  # what it says is in what it raises
                session = ort.InferenceSession(path, options, **arguments(providers, options), enable_fallback=0)
        except Exception as cause:  # onnxruntime raises a dozen types of its own
            raise BundleError(f"{path}: ONNX Runtime cannot load this graph{_hint(chosen)} ({cause})") from cause
        operators = _operators(session)
        _check_honoured(chosen, operators, path)
        return Graph(session, self.device, contract, path.name, operators, _hint(chosen))

    def tensor(self, array: NDArray[np.float32]) -> Tensor:
        """An array on the engine's device; on the CPU it is shared, not copied."""
        return ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array), self.device, 0)

    def _options(self, graph: str, threads: int) -> "ort.SessionOptions":
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        # Threads wait for the next operator awake, and go to sleep when the graph is done: spinning between runs
        # would take the cores from preprocessing and from the next graph.
        options.add_session_config_entry("session.intra_op.allow_spinning", str(int(self.plan.spinning)))
        options.add_session_config_entry("session.force_spinning_stop", "1")
        # Weights stay mapped from the file, where all graphs share them (docs/performance.md has the price), unless
        # a plan found that a copy in another order is worth its memory here.
        shared = graph not in self.plan.prepacked
        options.add_session_config_entry("session.disable_prepacking", str(int(shared)))
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        return options


class Graph:
    """A session with bound inputs and outputs: tensors stay on the device between graphs."""

    def __init__(
        self,
        session: "ort.InferenceSession",
        device: str,
        contract: Contract | None = None,
        name: str = "a graph",
        operators: Mapping[str, int] | None = None,
        hint: str = "",
    ) -> None:
        """`operators`: how many of them each provider runs, where that is known. `hint` is what errors end with."""
        self.operators = dict(operators or {})
        self._session = session
        self._device = device
        self._contract = contract
        self._name = name
        self._hint = hint
        self.inputs = tuple(i.name for i in session.get_inputs())
        self.outputs = tuple(o.name for o in session.get_outputs())

    def __call__(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The outputs, by name. A graph of a fixed batch takes fewer images, too, with zeros for the rest."""
        contract = self._contract
        if contract is None or contract.batch is None:
            return self._run(inputs)
        (count,) = {inputs[name].shape()[0] for name in contract.batched}
        if count == contract.batch:
            return self._run(inputs)
        missing = contract.batch - count
        filled = {n: self._tensor(_with_zeros(inputs[n].numpy(), missing)) for n in contract.batched}
        outputs = self._run({**inputs, **filled})
        return {name: self._tensor(value.numpy()[:count]) for name, value in outputs.items()}

    def _tensor(self, array: NDArray[np.float32]) -> Tensor:
        """One with memory of its own: an array that a tensor shares may be gone before what was made of it."""
        tensor = ort.OrtValue.ortvalue_from_shape_and_type(array.shape, array.dtype, self._device, 0)
        tensor.update_inplace(np.ascontiguousarray(array))
        return tensor

    def _run(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        binding = self._session.io_binding()
        for name in self.inputs:
            binding.bind_ortvalue_input(name, inputs[name])
        for name in self.outputs:
            binding.bind_output(name, self._device)
        try:
            self._session.run_with_iobinding(binding)
        except Exception as cause:  # onnxruntime raises a dozen types of its own
            raise BundleError(f"{self._name}: ONNX Runtime cannot run this graph{self._hint} ({cause})") from cause
        outputs = dict(zip(self.outputs, binding.get_outputs(), strict=True))
        if self._contract is not None:
            self._check(inputs, outputs, self._contract)
        return outputs

    def _check(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor], contract: Contract) -> None:
        """ONNX Runtime only logs it when an output has another shape than the graph says."""
        (batch,) = {inputs[name].shape()[0] for name in contract.batched}
        for name, shape in contract.outputs.items():
            want = list(sized(shape, batch))
            got = list(outputs[name].shape())
            if want != got:
                raise BundleError(f"{self._name}: output {name!r} has the shape {got}, the manifest says {want}")


def _hint(chosen: Sequence[Provider]) -> str:
    name = name_of(chosen[0])
    if name in (CPU, CUDA):
        return ""
    return f" on {name}, which wants a bundle of pluto export --profile portable, or this graph on the CPU"


def _with_zeros(array: NDArray[np.float32], rows: int) -> NDArray[np.float32]:
    return np.concatenate([array, np.zeros((rows, *array.shape[1:]), array.dtype)])


def _operators(session: "ort.InferenceSession") -> dict[str, int]:
    """How many of the graph's operators each provider of the session runs."""
    found: dict[str, int] = dict.fromkeys(session.get_providers(), 0)
    for part in session.get_provider_graph_assignment_info():
        found[part.ep_name] += len(part.get_nodes())
    return found


def _check_honoured(wanted: Sequence[Provider], operators: Mapping[str, int], path: Path) -> None:
    """What was asked for is there, and the first of it has something to do."""
    for name in (name_of(p) for p in wanted):
        if name not in operators:
            raise ProviderError(f"{path}: {name} was asked for, but the session runs on {', '.join(operators)}")
    first = name_of(wanted[0])
    if not operators[first]:
        raise ProviderError(f"{path}: {first} was asked for, and takes no operator of this graph")
    log.debug("%s: %s", path.name, ", ".join(f"{n} operators on {name}" for name, n in operators.items()))
