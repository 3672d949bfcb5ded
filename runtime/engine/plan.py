"""`MachinePlan`: how a bundle's graphs run on one machine, and the file that `pluto tune` keeps it in.

Which of several ways to run the same graph is the fastest differs between processors, so it is measured
(`pluto_edge.bench.tune`) and kept. A plan changes no result but for the last bits of sums. It is for one CPU,
one version of ONNX Runtime and of pluto-edge, and one bundle: any other is ignored, and a log line says why.
"""

import hashlib
import logging
from dataclasses import dataclass, field, fields
from pathlib import Path

from pluto_edge._cpu import this_cpu
from pluto_edge._files import cache_folder, write_text
from pluto_edge._ort import onnxruntime as ort
from pluto_edge._schema import check_version, decode, read_json, to_text
from pluto_edge.errors import ConfigError
from pluto_edge.manifest import ADAPT, EMBED, FORWARD, GRAPHS
from pluto_edge.runtime.engine.providers import KNOWN_NAMES
from pluto_edge.version import VERSION

__all__ = ["DEFAULT", "MachinePlan", "PlanFile", "PlanKey", "Trial", "find_plan", "plan_file", "plans_folder"]

SCHEMA_VERSION = 1
MOST = 4096  # threads, and images at a time: a file that asks for more is none of ours

log = logging.getLogger("pluto_edge")


@dataclass(frozen=True)
class MachinePlan:
    """How graphs run. By itself: as they do where nothing was measured.

    Attributes:
        threads: for ONNX Runtime; None is one per core. What the caller of a runtime asks for wins over it.
        spinning: whether threads wait for the next operator of a graph awake.
        prepacked: the graphs whose weights are rearranged when they are opened: faster products for a second copy
            of the weights in memory.
        images: that go through `embed` and `forward` at a time; None goes by tokens and width.
        images_adapt: the same of the gradient graph.
        lanes: in how many lanes these go; None is as many as there are threads.
        providers: ONNX Runtime's name of the provider that a graph runs on, by the names of `GRAPHS`; the CPU where
            none is given. It is for runtimes whose caller leaves the choice open.
    """

    threads: int | None = None
    spinning: bool = True
    prepacked: tuple[str, ...] = ()
    images: int | None = None
    images_adapt: int | None = None
    lanes: int | None = None
    providers: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("threads", "images", "images_adapt", "lanes"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= MOST:
                raise ConfigError(f"{name}: want 1 to {MOST}, or nothing, got {value}")
        for graph in self.prepacked:
            if graph not in (EMBED, FORWARD, ADAPT):
                raise ConfigError(f"prepacked: want {EMBED}, {FORWARD} or {ADAPT}, got {graph!r}")
        for graph, provider in self.providers.items():
            if graph not in GRAPHS or provider not in KNOWN_NAMES:
                wanted = f"some of {', '.join(GRAPHS)}, each with one of {', '.join(KNOWN_NAMES)}"
                raise ConfigError(f"providers: want {wanted}; got {graph!r}: {provider!r}")

    def __str__(self) -> str:
        said = []
        if self.threads is not None:
            said.append(f"threads: {self.threads}")
        if not self.spinning:
            said.append("threads sleep between operators")
        if self.prepacked:
            said.append(f"prepacked: {', '.join(self.prepacked)}")
        if self.images is not None:
            said.append(f"images at a time: {self.images}")
        if self.images_adapt is not None:
            said.append(f"for gradients: {self.images_adapt}")
        if self.lanes is not None:
            said.append(f"lanes: {self.lanes}")
        said += [f"{graph} on {provider}" for graph, provider in self.providers.items()]
        return ", ".join(said) or "as without a plan"


DEFAULT = MachinePlan()


@dataclass(frozen=True)
class PlanKey:
    """What a plan is for: anything else may be another machine to the graphs."""

    cpu: str
    onnxruntime: str
    pluto_edge: str
    bundle: str
    provider: str

    @classmethod
    def of(cls, bundle: str, provider: str) -> "PlanKey":
        """For this machine. `bundle` is the bundle's hash."""
        return cls(str(this_cpu()), ort.__version__, VERSION, bundle, provider)

    def differs(self, other: "PlanKey") -> str:
        """In what, with both values; empty where they are the same."""
        pairs = ((f.name, getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
        return "; ".join(f"{name} {there!r}, not {here!r}" for name, here, there in pairs if here != there)


@dataclass(frozen=True)
class Trial:
    """One way that was measured: its time over that of what it was compared with, and whether it was taken."""

    what: str
    ratio: float
    taken: bool


@dataclass(frozen=True)
class PlanFile:
    """A plan, what it is for, and what was measured to find it; `busy` says what disturbed the measurements."""

    key: PlanKey
    plan: MachinePlan
    trials: tuple[Trial, ...] = ()
    busy: tuple[str, ...] = ()
    schema_version: int = SCHEMA_VERSION

    def write(self, path: Path) -> None:
        """Whole or not at all; folders are made."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, to_text(self))

    @classmethod
    def read(cls, path: Path) -> "PlanFile":
        """A `ConfigError` says what is wrong with the file."""
        data = read_json(path, ConfigError)
        check_version(data, SCHEMA_VERSION, str(path), ConfigError)
        return decode(cls, data, path.name, ConfigError)


def plans_folder() -> Path:
    """Where plans are kept: `$PLUTO_EDGE_CACHE/plans`, or below the user's own cache folder."""
    return cache_folder() / "plans"


def plan_file(key: PlanKey) -> Path:
    """The file of a plan with this key; those of one bundle start alike."""
    parts = "\0".join(getattr(key, f.name) for f in fields(key))
    return plans_folder() / f"{key.bundle[:16]}-{hashlib.sha256(parts.encode()).hexdigest()[:16]}.json"


def find_plan(bundle: str, provider: str, file: Path | None = None) -> MachinePlan:
    """What was measured for this bundle on this machine, in `file` or else where plans are kept.

    Without such a file, or with one that is damaged or for something else, it is the default; a log line says so.
    """
    try:
        found = _read(bundle, provider, file)
    except (ConfigError, OSError) as error:
        log.warning("%s; it is ignored, and `pluto tune` measures a new plan", error)
        return DEFAULT
    return DEFAULT if found is None else found.plan


def _read(bundle: str, provider: str, file: Path | None) -> PlanFile | None:
    folder = plans_folder()
    if file is None and not folder.is_dir():
        return None
    key = PlanKey.of(bundle, provider)
    path = file or plan_file(key)
    if file is None and not path.exists():
        if any(folder.glob(f"{bundle[:16]}-*.json")):
            log.info("the bundle has a plan for another CPU or version; `pluto tune` measures one for these")
        return None
    found = PlanFile.read(path)
    other = key.differs(found.key)
    if other:
        raise ConfigError(f"{path}: a plan for something else ({other})")
    log.info("plan in %s: %s", path, found.plan)
    return found
