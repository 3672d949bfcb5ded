"""`run_export`: a store becomes a bundle, whole or not at all."""

import platform
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import onnx_ir as ir

from pluto_edge._files import found, sha256, whole_folder, write_tensors, write_text
from pluto_edge._schema import to_text
from pluto_edge.errors import BackboneError, BundleError, ConfigError, ParityError, StoreError
from pluto_edge.export import kernels, portable
from pluto_edge.export.flops import count_flops
from pluto_edge.export.graph import GraphBuilder, WeightsFile
from pluto_edge.export.parity import compare
from pluto_edge.export.quantize import quantize_dynamic
from pluto_edge.export.vit_graph import build_adapt, build_embed, build_forward
from pluto_edge.manifest import (
    ADAPT,
    BACKBONE_LN,
    EMBED,
    FORWARD,
    GRAPHS,
    MANIFEST,
    MAX_BATCH,
    SEEN,
    SELECTOR,
    WEIGHTS,
    FileEntry,
    Manifest,
    ModuleEntry,
    ParityEntry,
    Precision,
    Profile,
)
from pluto_edge.modules import Dims, Module
from pluto_edge.seen import write_seen
from pluto_edge.store import Store
from pluto_edge.version import WRITER
from pluto_edge.vit.backbone import load_backbone
from pluto_edge.vit.torch_vit import TorchViT

STAGES = ("backbone", "graphs", "kernels", "modules", "parity", "hashes")

_TOOLS = ("torch", "timm", "onnx", "onnx-ir", "onnxscript", "onnxruntime", "onnxruntime-gpu", "numpy")


@dataclass(frozen=True)
class ExportReport:
    """What an export wrote, how long each stage took, and whether CUDA has all kernels.

    `providers` is for a portable bundle: for every provider and graph what, by its published rules, keeps it from
    taking the graph.
    """

    path: Path
    manifest: Manifest
    seconds: dict[str, float]
    cuda: str
    providers: dict[str, dict[str, list[str]]]

    @property
    def bytes(self) -> int:
        """Size of the whole bundle."""
        return sum(f.size for f in self.manifest.files.values())


def run_export(
    store: str | Path,
    out: str | Path = "bundle",
    *,
    precision: Precision = "fp32",
    profile: Profile = "default",
    batch: int | None = None,
    learn_from: int = 0,
    force: bool = False,
    on_stage: Callable[[str], None] = lambda stage: None,
) -> ExportReport:
    """Compile `store` into the bundle `out`; nothing is left at `out` when anything goes wrong.

    Every graph is compared with torch before the bundle is kept; a mismatch is a `ParityError`.

    Args:
        store: a module store, as `train` writes it.
        out: the bundle's folder. One that is there already is replaced only with `force`, and only if it is
            a bundle.
        precision: `fp32`; `fp16` for CUDA; `int8` for CPU.
        profile: `default` for CPUs and CUDA; `portable` for providers of other vendors (docs/bundle.md).
        batch: a portable bundle's `embed` and `forward` take exactly so many images, as CoreML, QNN and graph
            capture of WebGPU want it; None leaves it open.
        learn_from: the first block whose LayerNorm affines learn. Gradients end there: steps cost less. 0 is all.
        force: replace a bundle that is there.
        on_stage: called with each of `STAGES` when it starts.
    """
    _check_profile(profile, precision, batch)
    source = Store(store)
    out = Path(out)
    _check_target(out, force)
    if not source.names:
        raise StoreError(f"{source.path}: the store holds no module")
    depth = source.config.dims.depth
    if not 0 <= learn_from <= depth:
        raise ConfigError(f"learn_from: want a block from 0 to {depth}, got {learn_from}")
    clock = _Clock(on_stage)
    with whole_folder(out) as folder, tempfile.TemporaryDirectory() as scratch:
        clock.start("backbone")
        vit = TorchViT(load_backbone(source))
        dims = source.config.dims
        size = source.config.preprocessing.size
        clock.start("graphs")
        metadata = {
            "pluto_edge.writer": WRITER,
            "pluto_edge.backbone": source.config.backbone.architecture,
            "pluto_edge.kind": dims.kind,
            "pluto_edge.profile": profile,
        }
        form = Form(precision, profile == "portable", batch, learn_from)
        plain = _write_graphs(folder, Path(scratch), vit, dims, form, metadata)
        clock.start("kernels")
        cuda = _check_kernels(folder, precision)
        providers = portable.whole(folder, GRAPHS) if profile == "portable" else {}
        clock.start("modules")
        checked = _write_modules(folder, source, vit)
        clock.start("parity")
        parity = tuple(compare(folder, plain, vit, checked, size, precision, batch, learn_from))
        _check_parity(parity)
        clock.start("hashes")
        manifest = Manifest(
            architecture=source.config.backbone.architecture,
            precision=precision,
            dims=dims,
            tokens=vit.layout.tokens,
            preprocessing=source.config.preprocessing,
            classes=source.config.classes,
            modules=tuple(_entry(source, name) for name in source.names),
            files=_hash_files(folder),
            adaptation=source.config.adaptation,
            parity=parity,
            flops=count_flops(vit.vit, dims, learn_from),
            profile=profile,
            batch=batch,
            learn_from=learn_from,
            tools=_tools(),
        )
        write_text(folder / MANIFEST, to_text(manifest))
    return ExportReport(out, manifest, clock.stop(), cuda, providers)


class _Clock:
    def __init__(self, on_stage: Callable[[str], None]) -> None:
        self._on_stage = on_stage
        self._seconds = dict[str, float]()
        self._stage = ""
        self._since = perf_counter()

    def start(self, stage: str) -> None:
        self.stop()
        self._stage = stage
        self._since = perf_counter()
        self._on_stage(stage)

    def stop(self) -> dict[str, float]:
        if self._stage:
            self._seconds[self._stage] = perf_counter() - self._since
        return self._seconds


def _check_target(out: Path, force: bool) -> None:
    if not found(out).exists():
        return
    if not out.is_dir() or (any(out.iterdir()) and not (out / MANIFEST).is_file()):
        raise BundleError(f"{out}: exists and is not a bundle; choose another --out")
    if any(out.iterdir()) and not force:
        raise BundleError(f"{out}: there is a bundle already; replace it with --force")


def _check_profile(profile: Profile, precision: Precision, batch: int | None) -> None:
    if profile == "portable" and precision == "int8":
        raise ConfigError("a portable bundle is fp32 or fp16: these int8 graphs run on ONNX Runtime's CPU provider")
    if batch is not None and profile != "portable":
        raise ConfigError(f"batch: {batch} images, always, are for profile 'portable', not {profile!r}")
    if batch is not None and not 1 <= batch <= MAX_BATCH:
        raise ConfigError(f"batch: want 1 to {MAX_BATCH:,} images, got {batch}")


class Form(NamedTuple):
    """How graphs are written."""

    precision: Precision
    portable: bool
    batch: int | None
    learn_from: int


def _write_graphs(
    folder: Path, scratch: Path, vit: TorchViT, dims: Dims, form: Form, metadata: dict[str, str]
) -> Path:
    """Gives the gradient graph as it is before quantization; for int8 that is in `scratch`.

    The gradient's batch stays open: images that only fill up a batch would be part of its sum.
    """
    precision, plain_operators, batch, learn_from = form
    int8 = precision == "int8"
    dtype = ir.DataType.FLOAT16 if precision == "fp16" else ir.DataType.FLOAT
    plain = scratch if int8 else folder
    with WeightsFile(folder / WEIGHTS) as weights:
        embed = GraphBuilder("embed", weights, dtype, portable=plain_operators, batch=batch)
        build_embed(embed, vit.vit)
        embed.save(folder / EMBED, metadata)
        with WeightsFile(scratch / WEIGHTS) as own:
            used = own if int8 else weights
            forward = GraphBuilder("forward", used, dtype, portable=plain_operators, batch=batch)
            build_forward(forward, vit.vit, dims, int8=int8)
            forward.save(plain / FORWARD, metadata)
            adapt = GraphBuilder("adapt", used, portable=plain_operators)  # gradients are never fp16
            build_adapt(adapt, vit.vit, dims, int8=int8, learn_from=learn_from)
            adapt.save(plain / ADAPT, metadata)
        for name in (FORWARD, ADAPT) if int8 else ():
            quantize_dynamic(plain / name, folder / name, weights, metadata)
    return plain / ADAPT


def _check_kernels(folder: Path, precision: Precision) -> str:
    if precision == "int8":
        return "int8 runs on CPU only"
    problems = [p for name in (EMBED, FORWARD, ADAPT) for p in kernels.without_cuda_kernel(folder / name)]
    if problems:
        raise BackboneError("on CUDA these would run on the CPU: " + "; ".join(problems))
    return f"a CUDA kernel for every operator (ONNX Runtime {kernels.table()['commit'][:10]})"


def _write_modules(folder: Path, store: Store, vit: TorchViT) -> list[Module]:
    """Copy modules, selector and the seen images into the bundle; give back the few modules that parity uses."""
    (folder / "modules").mkdir()
    start = {k: v.numpy() for k, v in vit.backbone_ln().items()}
    checked = []
    for index, name in enumerate(store.names):
        module = store.load_module(name)
        signature = module.signature(StoreError)
        own = signature.tensors if signature is not None else {}  # in half precision, as in the store
        write_tensors(folder / "modules" / f"{name}.safetensors", {**start, **module.tensors, **own})
        if index < 3:
            checked.append(module)
    write_tensors(folder / SELECTOR, store.load_selector().tensors)
    write_tensors(folder / BACKBONE_LN, start)
    seen = store.load_seen()
    if seen is not None:
        write_seen(folder / SEEN, seen)
    return checked


def _check_parity(parity: tuple[ParityEntry, ...]) -> None:
    failed = [e for e in parity if not e.passed]
    if failed:
        lines = "; ".join(
            f"{e.output} at batch {e.batch}: {e.error:.1e}, tolerance {e.tolerance:.0e}" for e in failed
        )
        raise ParityError(f"the graphs do not agree with torch, so no bundle was written: {lines}", parity)


def _entry(store: Store, name: str) -> ModuleEntry:
    config = store.module_config(name)
    return ModuleEntry(
        name=name, source=config.source, role=config.role, homes=config.homes, metrics=config.metrics
    )


def _hash_files(folder: Path) -> dict[str, FileEntry]:
    paths = sorted(p for p in folder.rglob("*") if p.is_file())
    return {p.relative_to(folder).as_posix(): FileEntry(sha256(p), p.stat().st_size) for p in paths}


def _tools() -> dict[str, str]:
    tools = {"python": platform.python_version()}
    for name in _TOOLS:
        try:
            tools[name] = version(name)
        except PackageNotFoundError:
            continue
    return tools
