"""The module store: what training writes and the exporter reads.

store/
  store.json                      StoreConfig
  backbone.safetensors            unless the backbone is a timm pretrained tag
  selector.safetensors
  seen.safetensors                which images it was made from, if that is known
  modules/<name>/                 adapter_config.json, adapter_model.safetensors, README.md
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pluto_edge._files import check_name, found, inside, read_tensors, whole_folder, write_tensors, write_text
from pluto_edge._schema import check_once, check_shares, check_version, decode, read_json, to_text
from pluto_edge.config import AdaptConfig
from pluto_edge.errors import ConfigError, StoreError
from pluto_edge.modules import Dims, Kind, Module, Role, SelectorWeights, check_module
from pluto_edge.preprocess import Preprocessing
from pluto_edge.seen import Seen, read_seen, write_seen
from pluto_edge.version import WRITER

__all__ = ["Backbone", "ModuleConfig", "Store", "StoreConfig"]

SCHEMA_VERSION = 1
MAX_CLASSES = 100_000
MODULE_FILE = "adapter_model.safetensors"

Scalar = bool | int | float | str

# What may go to `timm.create_model`: that which shapes a VisionTransformer, and nothing that names a file
OPTIONS = frozenset(
    """
    patch_size in_chans embed_dim depth num_heads mlp_ratio qkv_bias proj_bias qk_norm scale_attn_norm
    scale_mlp_norm init_values class_token reg_tokens pos_embed no_embed_class pre_norm final_norm fc_norm
    global_pool pool_include_prefix dynamic_img_size dynamic_img_pad norm_layer act_layer mlp_layer attn_layer
    drop_rate pos_drop_rate patch_drop_rate proj_drop_rate attn_drop_rate drop_path_rate
    """.split()  # noqa: SIM905
)


def check_options(names: Iterable[str]) -> None:
    """Refuses options that would make timm do more than build a ViT, such as read a pickle."""
    unknown = sorted(set(names) - OPTIONS)
    if unknown:
        raise ConfigError(f"options: {unknown[0]!r} is not allowed; want some of {', '.join(sorted(OPTIONS))}")


@dataclass(frozen=True)
class Backbone:
    """A timm VisionTransformer by name, and where its weights are.

    `options`, some of `OPTIONS`, go to `timm.create_model` (numbers, texts and booleans only). `pretrained` names
    the tag whose weights timm downloads; without it they are in `backbone.safetensors`.
    """

    architecture: str
    width: int
    depth: int
    options: dict[str, Scalar] = field(default_factory=dict)
    pretrained: str | None = None

    def __post_init__(self) -> None:
        if self.width < 1 or self.depth < 1:
            raise ConfigError(f"width and depth: want at least 1, got {self.width} and {self.depth}")
        check_options(self.options)


@dataclass(frozen=True)
class StoreConfig:
    """`store.json`. `sources` are the module names, in order; `adaptation` goes into the bundle."""

    backbone: Backbone
    preprocessing: Preprocessing
    classes: tuple[str, ...]
    kind: Kind
    size: int
    sources: tuple[str, ...] = ()
    adaptation: AdaptConfig = field(default_factory=AdaptConfig)
    writer: str = WRITER
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        if not 2 <= len(self.classes) <= MAX_CLASSES:
            raise ConfigError(f"classes: want 2 to {MAX_CLASSES:,}, got {len(self.classes)}")
        check_once(self.classes, "classes")
        check_once(self.sources, "sources")
        for name in self.sources:
            check_name(name, "sources", ConfigError)
        _ = self.dims

    @property
    def dims(self) -> Dims:
        """Sizes that every module of the store has."""
        return Dims(self.kind, self.size, self.backbone.width, self.backbone.depth, len(self.classes))


@dataclass(frozen=True)
class ModuleConfig:
    """`adapter_config.json`: enough to tell whether a module fits a store or a bundle.

    A specialist knows one domain. The generalist, if there is one, was trained on all of them together. Beside
    it a specialist may have less than all of the say on its own domain: its `homes` has the shares, by name. In a
    store without a generalist every specialist has its own share, beside the others.

    `backbone` is the one that it was made with (`Manifest.backbone`), and `parent` the digest of the module that it
    was learned from, on a device; "" where nobody knows, or there is none.
    """

    name: str
    kind: Kind
    size: int
    width: int
    depth: int
    classes: tuple[str, ...]
    architecture: str
    source: str = ""
    role: Role = "specialist"
    domains: tuple[str, ...] = ()  # that a generalist learned from
    homes: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    backbone: str = ""
    parent: str = ""
    writer: str = WRITER
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        check_name(self.name, "name", ConfigError)
        check_shares("homes", self.homes)
        _ = self.dims

    @property
    def dims(self) -> Dims:
        """Sizes of the module's tensors."""
        return Dims(self.kind, self.size, self.width, self.depth, len(self.classes))


class Store:
    """A module store on disk. Opening it checks `store.json`; tensors are read and checked when asked for."""

    def __init__(self, path: str | Path) -> None:
        self.path = found(Path(path))
        file = self.path / "store.json"
        if not file.is_file():
            raise StoreError(f"{self.path}: not a module store (there is no store.json in it)")
        data = read_json(file, StoreError)
        check_version(data, SCHEMA_VERSION, str(file), StoreError)
        self.config = decode(StoreConfig, data, file.name, StoreError)

    def __repr__(self) -> str:
        c = self.config
        return (
            f"Store({str(self.path)!r}: {c.backbone.architecture}, {c.kind} of size {c.size}, "
            f"{len(self.names)} modules, {len(c.classes)} classes)"
        )

    @classmethod
    def create(cls, path: str | Path, config: StoreConfig) -> "Store":
        """A new store with no module yet; a folder that is not empty is refused."""
        path = Path(path)
        check_vacant(path)
        path.mkdir(parents=True, exist_ok=True)
        write_text(path / "store.json", to_text(config))
        return cls(path)

    @property
    def names(self) -> tuple[str, ...]:
        """All modules that are finished, in order."""
        return self.config.sources

    @property
    def specialists(self) -> tuple[str, ...]:
        """The modules that know one domain each, in order."""
        return tuple(n for n in self.names if self.module_config(n).role == "specialist")

    @property
    def generalist(self) -> str | None:
        """The module that learned from all domains, if there is one."""
        found = [n for n in self.names if self.module_config(n).role == "generalist"]
        if len(found) > 1:
            raise StoreError(f"{self.path}: {found[0]!r} and {found[1]!r} are both generalists; want one at most")
        return found[0] if found else None

    @property
    def backbone_file(self) -> Path:
        """The backbone's weights, where they are not timm's pretrained ones."""
        return self.path / "backbone.safetensors"

    @property
    def selector_file(self) -> Path:
        """The selector's weights."""
        return self.path / "selector.safetensors"

    @property
    def seen_file(self) -> Path:
        """Which images the modules were made from."""
        return self.path / "seen.safetensors"

    def module_file(self, name: str) -> Path:
        """A module's tensors."""
        return self.path / "modules" / name / MODULE_FILE

    def set_config(self, **changes: Any) -> None:
        """Changes fields of `store.json`, in memory and on the disk."""
        self.config = replace(self.config, **changes)
        write_text(self.path / "store.json", to_text(self.config))

    def module_config(self, name: str) -> ModuleConfig:
        """A module's description, read and checked against the store's."""
        if name not in self.names:
            raise StoreError(f"{self.path}: no module {name!r}; there are: {', '.join(self.names) or 'none'}")
        found(self.path / "modules" / name)
        config = read_module_config(inside(self.path, f"modules/{name}", StoreError))
        _check_fits(config, self.config, f"{self.path}: module {name!r}")
        if config.name != name:
            raise StoreError(f"{self.path}: modules/{name} says that its name is {config.name!r}")
        return config

    def describe_module(self, name: str, **changes: Any) -> None:
        """Change the description of a module that is there; its tensors and card stay."""
        config = replace(self.module_config(name), **changes)
        write_text(self.path / "modules" / name / "adapter_config.json", to_text(config))

    def load_module(self, name: str) -> Module:
        """A module's tensors, read and checked."""
        config = self.module_config(name)
        return read_module(self.path / "modules" / name, config)

    def save_module(self, module: Module, config: ModuleConfig, card: str = "") -> None:
        """Write or replace one module, whole, and list it in `sources`."""
        self.write_module(module, config, card)
        self.list_module(module.name)

    def list_module(self, name: str) -> None:
        """Names a module in `store.json`, which makes it part of the store."""
        if name not in self.names:
            self.set_config(sources=(*self.names, name))

    def write_module(self, module: Module, config: ModuleConfig, card: str = "") -> None:
        """Write or replace one module's folder; `store.json` stays as it is (many processes may do this)."""
        check_name(module.name, "module", StoreError)
        _check_fits(config, self.config, f"module {module.name!r}")
        if module.dims != config.dims or module.name != config.name:
            raise StoreError(f"module {module.name!r}: tensors and description do not belong together")
        check_module(module, f"module {module.name!r}", StoreError)
        write_module(self.path / "modules" / module.name, module, config, card)

    def replace_tensors(self, module: Module) -> None:
        """Other tensors for a module that is there; its description and card stay."""
        if module.dims != self.module_config(module.name).dims:
            raise StoreError(f"module {module.name!r}: tensors and description do not belong together")
        check_module(module, f"module {module.name!r}", StoreError)
        write_tensors(self.module_file(module.name), module.tensors)

    def load_selector(self) -> SelectorWeights:
        """The selector's tensors, read and checked."""
        if not self.selector_file.is_file():
            raise StoreError(f"{self.path}: there is no selector.safetensors; train one with `pluto train`")
        return SelectorWeights.from_tensors(
            read_tensors(self.selector_file, StoreError),
            width=self.config.backbone.width,
            classes=len(self.config.classes),
            where=str(self.selector_file),
            error=StoreError,
        )

    def save_selector(self, weights: SelectorWeights) -> None:
        """Writes the selector in the place of the one that is there."""
        write_tensors(self.selector_file, weights.tensors)

    def load_seen(self) -> Seen | None:
        """Which images it was made from; nothing where nobody kept it."""
        return read_seen(self.seen_file, StoreError) if self.seen_file.is_file() else None

    def add_seen(self, seen: Seen) -> None:
        """Adds images to those that the modules were made from."""
        before = self.load_seen()
        write_seen(self.seen_file, seen if before is None else before | seen)


def check_vacant(path: Path) -> None:
    """Refuses a path that something is at already, so that nothing is overwritten."""
    found(path)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        what = "the folder exists and is not empty" if path.is_dir() else "it exists and is not a folder"
        raise StoreError(f"{path}: {what}")


def read_module_config(folder: Path) -> ModuleConfig:
    """The description in a module's folder."""
    file = found(folder) / "adapter_config.json"
    data = read_json(file, StoreError)
    check_version(data, SCHEMA_VERSION, str(file), StoreError)
    return decode(ModuleConfig, data, str(file), StoreError)


def read_module(folder: Path, config: ModuleConfig) -> Module:
    """The tensors in a module's folder, wherever that is, checked against its description."""
    file = found(folder) / MODULE_FILE
    module = Module(config.name, config.dims, read_tensors(file, StoreError))
    check_module(module, str(file), StoreError)
    return module


def write_module(path: Path, module: Module, config: ModuleConfig, card: str = "") -> None:
    """A module's folder, whole, wherever that is."""
    with whole_folder(path) as folder:
        write_tensors(folder / MODULE_FILE, module.tensors)
        write_text(folder / "adapter_config.json", to_text(config))
        write_text(folder / "README.md", card or f"# {module.name}\n")


def _check_fits(module: ModuleConfig, store: StoreConfig, where: str) -> None:
    if module.classes != store.classes:
        only = sorted(set(module.classes) ^ set(store.classes))
        detail = f"they differ in {only[0]!r}" if only else "the same classes in another order"
        raise StoreError(f"{where}: its classes are not the store's ({detail})")
    if module.architecture != store.backbone.architecture:
        raise StoreError(
            f"{where}: made for {module.architecture}, the store's backbone is {store.backbone.architecture}"
        )
    if module.dims != store.dims:
        raise StoreError(f"{where}: it is {module.dims}, the store holds {store.dims}")
