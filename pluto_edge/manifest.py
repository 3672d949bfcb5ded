"""The bundle's description: what the exporter promises and the runtime checks.

bundle/
  manifest.json                   Manifest
  embed.onnx  forward.onnx  adapt.onnx   the graphs (docs/bundle.md has their inputs and outputs)
  weights.bin                     external data of all graphs
  modules/<name>.safetensors      one per module
  selector.safetensors
  layernorm.safetensors           the backbone's affines, for modules that come later
  seen.safetensors                which images the modules were made from, if the store knows
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Literal

from pluto_edge._files import Tensors, check_name, found, inside, read_tensors, sha256, sha256_aside
from pluto_edge._schema import check_once, check_shares, check_version, decode, read_json
from pluto_edge.config import AdaptConfig
from pluto_edge.errors import BundleError, ConfigError
from pluto_edge.modules import Dims, Module, Role, SelectorWeights, check_signature, check_tensors
from pluto_edge.preprocess import Preprocessing
from pluto_edge.version import WRITER

if TYPE_CHECKING:
    from pluto_edge.seen import Seen

__all__ = ["Bundle", "FileEntry", "Flops", "Manifest", "ModuleEntry", "ParityEntry", "Precision", "Profile"]

SCHEMA_VERSION = 2  # 1 had graphs without activations, and a gradient of the mean entropy alone
MAX_DIM = 1_000_000
MAX_BATCH = 1024
MAX_FLOPS = 10**18  # of an image: far beyond the largest ViTs, and still exact enough as a float
MANIFEST, WEIGHTS = "manifest.json", "weights.bin"
EMBED, FORWARD, ADAPT = "embed.onnx", "forward.onnx", "adapt.onnx"
GRAPHS = {"embed": EMBED, "forward": FORWARD, "adapt": ADAPT}
SELECTOR, BACKBONE_LN, SEEN = "selector.safetensors", "layernorm.safetensors", "seen.safetensors"

Precision = Literal["fp32", "fp16", "int8"]
Profile = Literal[
    "default", "portable"
]  # how graphs are written: for CPUs and CUDA, or for providers of all vendors


@dataclass(frozen=True)
class FileEntry:
    """Hash and size of a file, so that a truncated or changed one is noticed."""

    sha256: str
    size: int

    def __post_init__(self) -> None:
        if len(self.sha256) != 64 or self.size < 0:
            raise ConfigError(f"not a sha256 and a size: {self.sha256[:80]!r}, {self.size}")


@dataclass(frozen=True)
class ModuleEntry:
    """A row of the module table; `homes` is the say that specialists keep on their own domains (`ModuleConfig`)."""

    name: str
    source: str = ""
    role: Role = "specialist"
    homes: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_name(self.name, "module", ConfigError)
        check_shares("homes", self.homes)

    @property
    def file(self) -> str:
        """Where the module's tensors are, below the bundle's folder."""
        return f"modules/{self.name}.safetensors"


@dataclass(frozen=True)
class ParityEntry:
    """One comparison with torch: the largest error, its tolerance, and what both are measured in."""

    output: str
    batch: int
    error: float
    tolerance: float

    def __post_init__(self) -> None:
        if not self.tolerance > 0:
            raise ConfigError(f"tolerance: want more than 0, got {self.tolerance}")

    @property
    def passed(self) -> bool:
        """Whether the error is within its tolerance."""
        return self.error <= self.tolerance


@dataclass(frozen=True)
class Flops:
    """Operations of one image's matrix products: in `embed`, and in `forward` and `adapt` with one module."""

    embed: int
    forward: int
    adapt: int

    def __post_init__(self) -> None:
        for name in ("embed", "forward", "adapt"):
            if not 0 < getattr(self, name) <= MAX_FLOPS:
                raise ConfigError(f"{name}: want 1 to {MAX_FLOPS:,} operations, got {getattr(self, name)}")


@dataclass(frozen=True)
class Manifest:
    """`manifest.json`; `flops` is None in bundles of before they were counted.

    `batch` is how many images `embed` and `forward` take, always; None where that is open. `learn_from` is the
    first block whose LayerNorm affines have a gradient.
    """

    architecture: str
    precision: Precision
    dims: Dims
    tokens: int
    preprocessing: Preprocessing
    classes: tuple[str, ...]
    modules: tuple[ModuleEntry, ...]
    files: dict[str, FileEntry]
    adaptation: AdaptConfig
    parity: tuple[ParityEntry, ...] = ()
    flops: Flops | None = None
    profile: Profile = "default"
    batch: int | None = None
    learn_from: int = 0
    tools: dict[str, str] = field(default_factory=dict)
    writer: str = WRITER
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        if len(self.classes) != self.dims.classes:
            raise ConfigError(f"classes: {len(self.classes)} names for {self.dims.classes} classes")
        if not self.modules:
            raise ConfigError("modules: a bundle has at least one module")
        check_once(self.classes, "classes")
        check_once(self.names, "modules")
        if sum(m.role == "generalist" for m in self.modules) > 1:
            raise ConfigError("modules: there are two generalists; want one at most")
        for name in ("size", "width", "depth", "classes"):
            if getattr(self.dims, name) > MAX_DIM:
                raise ConfigError(f"dims.{name}: {getattr(self.dims, name)} is beyond {MAX_DIM:,}")
        if not 1 <= self.tokens <= MAX_DIM:
            raise ConfigError(f"tokens: want 1 to {MAX_DIM:,}, got {self.tokens}")
        if self.batch is not None and not 1 <= self.batch <= MAX_BATCH:
            raise ConfigError(f"batch: want 1 to {MAX_BATCH:,} images, or none where it is open, got {self.batch}")
        if not 0 <= self.learn_from <= self.dims.depth:
            raise ConfigError(f"learn_from: want a block from 0 to {self.dims.depth}, got {self.learn_from}")
        needed = [EMBED, FORWARD, ADAPT, WEIGHTS, SELECTOR, BACKBONE_LN, *(m.file for m in self.modules)]
        absent = [n for n in needed if n not in self.files]
        if absent:
            raise ConfigError(f"files: {absent[0]!r} is not listed")

    @property
    def names(self) -> tuple[str, ...]:
        """All modules, in the order of predictions' weights."""
        return tuple(m.name for m in self.modules)

    @property
    def specialists(self) -> tuple[str, ...]:
        """The modules that have a domain of their own."""
        return tuple(m.name for m in self.modules if m.role == "specialist")

    @property
    def backbone(self) -> str:
        """What tells the backbone from others, in whatever precision: the sha256 of its LayerNorm affines."""
        return self.files[BACKBONE_LN].sha256

    @property
    def block_tokens(self) -> int:
        """Tokens that go through the blocks: an image's, and those of a module's prompt if it has one."""
        return self.tokens + (self.dims.size if self.dims.kind == "vpt" else 0)


LARGE = 4 * 1024 * 1024  # bytes of a file whose hash takes longer than starting a thread


class Bundle:
    """A bundle on disk, with every file present and of the size (and hash) that the manifest gives.

    With `wait=False` the hashes of large files, which hold weights and nothing that runs, are computed in a thread
    meanwhile: nothing that was read is to be relied on before `wait()` has returned.
    """

    def __init__(self, path: str | Path, verify: bool = True, *, wait: bool = True) -> None:
        self.path = found(Path(path))
        file = self.path / MANIFEST
        if not file.is_file():
            raise BundleError(f"{self.path}: not a bundle (there is no {MANIFEST} in it)")
        data = read_json(file, BundleError)
        check_version(data, SCHEMA_VERSION, str(file), BundleError)
        if data["schema_version"] < SCHEMA_VERSION:
            raise BundleError(
                f"{file}: schema version {data['schema_version']}, whose graphs lack what this pluto-edge needs; "
                f"export the store again: pluto-export --modules STORE --out {self.path} --force"
            )
        self.manifest = decode(Manifest, data, file.name, BundleError)
        self._hash = sha256(file)  # now: another bundle may take this one's place while it is in use
        later = []
        for name, entry in self.manifest.files.items():
            large = not wait and entry.size >= LARGE
            self._check_file(name, entry, verify and not large)
            later += [name] if large and verify else []
        self._failed: Exception | None = None
        self._checks = Thread(target=self._check_hashes, args=(later,), daemon=True) if later else None
        if self._checks is not None:
            self._checks.start()

    def wait(self) -> None:
        """Returns when all hashes were found to be right; raises where one is not."""
        if self._checks is not None:
            self._checks.join()
        if self._failed is not None:
            raise self._failed

    def _check_hashes(self, names: Sequence[str]) -> None:
        try:
            for name in names:
                self._check_hash(name, self.manifest.files[name], sha256_aside)
        except (BundleError, OSError) as error:
            self._failed = error

    def __repr__(self) -> str:
        m = self.manifest
        return (
            f"Bundle({str(self.path)!r}: {m.architecture}, {m.precision}, {m.dims.kind} of size {m.dims.size}, "
            f"{len(m.modules)} modules, {len(m.classes)} classes)"
        )

    @property
    def hash(self) -> str:
        """What tells this bundle from every other: the sha256 of its manifest."""
        return self._hash

    def file(self, name: str) -> Path:
        """The path of a file of the bundle; a name that would lead out of its folder is refused."""
        return inside(self.path, name, BundleError)

    def load_module(self, name: str) -> Module:
        """A module's tensors, read and checked against the manifest's dims."""
        entry = next((m for m in self.manifest.modules if m.name == name), None)
        if entry is None:
            raise BundleError(f"{self.path}: no module {name!r}; there are: {', '.join(self.manifest.names)}")
        dims = self.manifest.dims
        module = Module(name, dims, read_tensors(self.file(entry.file), BundleError))
        shapes = {**dims.shapes, **dims.ln_shapes}
        check_tensors(module.tensors, shapes, entry.file, BundleError, optional=dims.optional_shapes)
        check_signature(module, entry.file, BundleError)
        return module

    def load_backbone_affines(self) -> Tensors:
        """The LayerNorm affines that a module without its own starts with."""
        tensors = read_tensors(self.file(BACKBONE_LN), BundleError)
        check_tensors(tensors, self.manifest.dims.ln_shapes, BACKBONE_LN, BundleError)
        return tensors

    def load_selector(self) -> SelectorWeights:
        """The selector's tensors, read and checked."""
        return SelectorWeights.from_tensors(
            read_tensors(self.file(SELECTOR), BundleError),
            width=self.manifest.dims.width,
            classes=self.manifest.dims.classes,
            where=SELECTOR,
            error=BundleError,
        )

    def load_seen(self) -> "Seen | None":
        """Which images the modules were made from; nothing where the bundle does not say."""
        from pluto_edge.seen import read_seen  # here alone: a device does not ask

        return read_seen(self.file(SEEN), BundleError) if SEEN in self.manifest.files else None

    def _check_file(self, name: str, entry: FileEntry, verify: bool) -> None:
        file = self.file(name)
        if not file.is_file():
            raise BundleError(f"{self.path}: {name} is missing; export or copy the bundle again")
        size = file.stat().st_size
        if size != entry.size:
            raise BundleError(
                f"{self.path}: {name} has {size:,} bytes, the manifest says {entry.size:,}; "
                "it is truncated or was changed: export or copy the bundle again"
            )
        if verify:
            self._check_hash(name, entry)

    def _check_hash(self, name: str, entry: FileEntry, digest: Callable[[Path], str] = sha256) -> None:
        if digest(self.file(name)) != entry.sha256:
            raise BundleError(f"{self.path}: {name} was changed since export (its sha256 differs)")
