"""The one place that makes ONNX Runtime sessions: providers chosen and checked, threads set, I/O bound."""

import base64
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pluto_edge._cpu import usable_cores
from pluto_edge._ort import onnxruntime as ort
from pluto_edge.errors import BundleError, ConfigError, ProviderError
from pluto_edge.manifest import Precision
from pluto_edge.runtime.engine.contract import Contract
from pluto_edge.runtime.engine.plan import DEFAULT, MachinePlan

__all__ = ["Engine", "Graph", "Tensor", "loads"]

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
Provider = str | tuple[str, dict[str, Any]]
Tensor = Any  # an onnxruntime.OrtValue: a tensor on the engine's device

log = logging.getLogger("pluto_edge")

# y = -x on one float, to learn whether a provider really loads
_PROBE = base64.b64decode(
    "CAg6PgoXCgF4EgF5Ggpub2RlX05lZ18wIgNOZWcSAXBaDwoBeBIKCggIARIECgIIAWIPCgF5EgoKCAgBEgQKAggBQgQKABAN"
)


class Engine:
    """Where graphs run. `providers`: None or "auto", or a name or list that is honoured or raises."""

    def __init__(
        self,
        providers: str | Sequence[Provider] | None = None,
        threads: int | None = None,
        *,
        cpu_only: str = "",
    ) -> None:
        """`cpu_only` says why these graphs run on the CPU alone; empty when they run anywhere."""
        if threads is not None and threads < 1:
            raise ConfigError(f"threads: want at least 1, or None for one per core, got {threads}")
        self.plan = DEFAULT
        self._asked_threads = threads
        self.providers = _choose(providers, cpu_only)
        self.provider = _name(self.providers[0])
        self.device = "cuda" if self.provider == CUDA else "cpu"
        log.info("running on %s", self.provider)

    @classmethod
    def of(
        cls, precision: Precision, providers: str | Sequence[Provider] | None = None, threads: int | None = None
    ) -> "Engine":
        """One that runs a bundle of this precision."""
        int8 = precision == "int8"
        return cls(providers, threads, cpu_only="an int8 bundle runs on the CPU" if int8 else "")

    @property
    def threads(self) -> int:
        """Of ONNX Runtime: what was asked for, else what the plan says, else one per core."""
        return self._asked_threads or self.plan.threads or usable_cores()

    def follow(self, plan: MachinePlan) -> None:
        """Open graphs as this plan says, from here on."""
        self.plan = plan

    def open(self, path: Path, contract: Contract | None = None) -> "Graph":
        """The graph in this file; one that does not keep its `contract` is refused."""
        if contract is not None:
            contract.check(path)
        try:
            session = ort.InferenceSession(path, self._options(path.name), providers=self.providers)
        except Exception as cause:  # onnxruntime raises a dozen types of its own
            raise BundleError(f"{path}: ONNX Runtime cannot load this graph ({cause})") from cause
        _check_honoured(self.providers, session.get_providers())
        return Graph(session, self.device, contract, path.name)

    def tensor(self, array: NDArray[np.float32]) -> Tensor:
        """An array on the engine's device; on the CPU it is shared, not copied."""
        return ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array), self.device, 0)

    def _options(self, graph: str) -> "ort.SessionOptions":
        options = ort.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.inter_op_num_threads = 1
        # Threads wait for the next operator awake, and go to sleep when the graph is done: spinning between runs
        # would take the cores from preprocessing and from the next graph.
        options.add_session_config_entry("session.intra_op.allow_spinning", str(int(self.plan.spinning)))
        options.add_session_config_entry("session.force_spinning_stop", "1")
        # Weights stay mapped from the file, where all graphs share them (docs/performance.md has the price), unless
        # a plan found that a copy in another order is worth its memory here.
        shared = graph not in self.plan.prepacked
        options.add_session_config_entry("session.disable_prepacking", str(int(shared)))
        return options


class Graph:
    """A session with bound inputs and outputs: tensors stay on the device between graphs."""

    def __init__(
        self, session: "ort.InferenceSession", device: str, contract: Contract | None = None, name: str = "a graph"
    ) -> None:
        self._session = session
        self._device = device
        self._contract = contract
        self._name = name
        self.inputs = tuple(i.name for i in session.get_inputs())
        self.outputs = tuple(o.name for o in session.get_outputs())

    def __call__(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        binding = self._session.io_binding()
        for name in self.inputs:
            binding.bind_ortvalue_input(name, inputs[name])
        for name in self.outputs:
            binding.bind_output(name, self._device)
        try:
            self._session.run_with_iobinding(binding)
        except Exception as cause:  # onnxruntime raises a dozen types of its own
            raise BundleError(f"{self._name}: ONNX Runtime cannot run this graph ({cause})") from cause
        outputs = dict(zip(self.outputs, binding.get_outputs(), strict=True))
        if self._contract is not None:
            self._check(inputs, outputs, self._contract)
        return outputs

    def _check(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor], contract: Contract) -> None:
        """ONNX Runtime only logs it when an output has another shape than the graph says."""
        (batch,) = {inputs[n].shape()[0] for n, shape in contract.inputs.items() if None in shape}
        for name, shape in contract.outputs.items():
            want = [batch if n is None else n for n in shape]
            got = list(outputs[name].shape())
            if want != got:
                raise BundleError(f"{self._name}: output {name!r} has the shape {got}, the manifest says {want}")


def loads(provider: Provider) -> str:
    """Empty when a session on `provider` really runs, else why not."""
    if _name(provider) not in ort.get_available_providers():
        return "not in this build of ONNX Runtime"
    try:
        session = ort.InferenceSession(_PROBE, providers=[provider])
        if session.get_providers()[0] != _name(provider):
            return "ONNX Runtime fell back to the CPU (are its CUDA and cuDNN libraries installed?)"
        session.run(None, {"x": np.ones(1, np.float32)})
    except Exception as cause:
        return str(cause).splitlines()[0] if str(cause) else type(cause).__name__
    return ""


def _choose(providers: str | Sequence[Provider] | None, cpu_only: str) -> list[Provider]:
    if providers is None or providers == "auto":
        return [CUDA, CPU] if not cpu_only and not loads(CUDA) else [CPU]
    wanted = [providers] if isinstance(providers, str) else list(providers)
    if not wanted:
        raise ConfigError('providers: want "auto", a name or a list of names, got an empty list')
    chosen = [_full(p) for p in wanted]
    for provider in chosen:
        if cpu_only and _name(provider) != CPU:
            raise ProviderError(f"{_name(provider)} was asked for, but {cpu_only}")
        reason = loads(provider)
        if reason:
            raise ProviderError(
                f"{_name(provider)} was asked for and does not load: {reason}. "
                f"This build has {', '.join(ort.get_available_providers())}; "
                'providers="auto" takes what works'
            )
    return chosen


def _check_honoured(wanted: Sequence[Provider], got: Sequence[str]) -> None:
    missing = [_name(p) for p in wanted if _name(p) not in got]
    if missing:
        raise ProviderError(f"{missing[0]} was asked for, but the session runs on {', '.join(got)}")


def _full(provider: Provider) -> Provider:
    """ "cpu" and "cuda" stand for ONNX Runtime's long names."""
    short = {"cpu": CPU, "cuda": CUDA}
    if isinstance(provider, str):
        return short.get(provider.lower(), provider)
    return short.get(provider[0].lower(), provider[0]), provider[1]


def _name(provider: Provider) -> str:
    return provider if isinstance(provider, str) else provider[0]
