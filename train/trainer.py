"""`run_train`: labelled folders become a store.

Every domain is a job of its own: its images are embedded once, its module trained, saved whole into the store,
and all modules' logits on its images are kept for the selector. Jobs run one after another, in several
processes, or on a Ray cluster, with the same results.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save

from pluto_edge._files import write_bytes
from pluto_edge.errors import ConfigError, MissingExtraError
from pluto_edge.export.backbone import create, load_backbone, load_weights, preprocessing, read_layout
from pluto_edge.export.torch_vit import Params, TorchViT
from pluto_edge.modules import Kind, Module, SelectorWeights
from pluto_edge.store import Backbone, ModuleConfig, Scalar, Store, StoreConfig
from pluto_edge.train import report
from pluto_edge.train.data import Domain, readable
from pluto_edge.train.features import accuracy, embed, logits
from pluto_edge.train.module import Recipe, train_module
from pluto_edge.train.selector import SelectorRecipe, SelectorReport, SourceLogits, join, sizes, train_selector

WORK = ".work"

Say = Callable[[str, str], object]  # stage or domain, message


@dataclass(frozen=True)
class BackboneChoice:
    """Which ViT, and where its weights come from: a safetensors file, or timm's pretrained tag."""

    architecture: str
    image_size: int
    weights: Path | None = None
    pretrained: str | None = None
    crop_pct: float = 1.0
    options: dict[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainReport:
    store: Path
    matrix: dict[str, dict[str, float]]  # module, domain: accuracy on the domain's validation data
    selector: SelectorReport
    skipped: tuple[str, ...]


def create_store(path: Path, choice: BackboneChoice, classes: Sequence[str], kind: Kind, size: int) -> Store:
    """A store with a backbone and no module yet."""
    if choice.weights is None and choice.pretrained is None:
        raise ConfigError("the backbone needs weights: --weights FILE.safetensors, or --pretrained TAG of timm")
    image = (choice.image_size, choice.image_size)
    vit: Any = create(choice.architecture, image, choice.options, choice.pretrained)
    patch = vit.patch_embed.patch_size
    if any(s % p for s, p in zip(image, patch, strict=True)):
        raise ConfigError(f"--image-size {choice.image_size} is not a multiple of the patches of {tuple(patch)}")
    if choice.weights is not None:
        load_weights(vit, choice.weights)
    layout = read_layout(vit)
    config = StoreConfig(
        backbone=Backbone(choice.architecture, layout.width, layout.depth, choice.options, choice.pretrained),
        preprocessing=replace(preprocessing(vit, image), crop_pct=choice.crop_pct),
        classes=tuple(classes),
        kind=kind,
        size=size,
    )
    store = Store.create(path, config)
    hidden_x, hidden_l, out, _ = sizes(len(classes))
    store.save_selector(
        SelectorWeights.uniform(
            width=layout.width, classes=len(classes), hidden_x=hidden_x, hidden_l=hidden_l, out=out
        )
    )
    if choice.pretrained is None:
        write_bytes(store.backbone_file, save({k: v.contiguous() for k, v in vit.state_dict().items()}))
    return store


def run_train(
    store: Store,
    domains: Sequence[Domain],
    *,
    recipe: Recipe,
    selector: SelectorRecipe,
    only: Sequence[str] = (),
    jobs: int = 1,
    ray: bool = False,
    say: Say = lambda who, what: None,
) -> TrainReport:
    """One module per domain (of `only`) that the store does not have yet, then the selector over all of them.

    A module that is in the store is left alone; one that was interrupted goes on from its last epoch. Until the
    selector is trained the store blends its modules evenly, so that it is usable at every moment.
    """
    if domains and domains[0].classes != store.config.classes:
        raise ConfigError(
            f"the folders' classes are not the store's: {domains[0].classes} and {store.config.classes}"
        )
    skipped: list[str] = []
    checked = []
    for domain in domains:
        good, problems = readable(domain)
        checked.append(good)
        skipped += problems
    (store.path / WORK).mkdir(exist_ok=True)
    missing = [d for d in checked if d.name not in store.names and (not only or d.name in only)]
    for name in _each(train_one, [(store.path, d, recipe) for d in missing], jobs, ray, say):
        store.list_module(name)
        say(name, "done")
    known = [d for d in checked if d.name in store.names]
    if not known:
        raise ConfigError(f"{store.path}: none of its modules has a folder among the domains")
    for _ in _each(cache_logits, [(store.path, d) for d in known], jobs, ray, say):
        pass
    train, val = ([cached_logits(store, d, part) for d in known] for part in ("train", "val"))
    result = train_selector(join(train), join(val), selector, on_epoch=lambda m: say("selector", m))
    store.save_selector(result.weights)
    matrix = _matrix(store, known, val)
    report.write(store, matrix, result, skipped)
    return TrainReport(store.path, matrix, result, tuple(skipped))


def train_one(path: Path, domain: Domain, recipe: Recipe, say: Say = lambda who, what: None) -> str:
    """The job of one domain: its module, saved into the store's folder."""
    store = Store(path)
    vit, dims = TorchViT(load_backbone(store)), store.config.dims
    say(domain.name, f"embedding {len(domain.train) + len(domain.val)} images")
    train, val = (embed(vit, domain, part, store.config.preprocessing) for part in (domain.train, domain.val))
    checkpoint = path / WORK / f"{domain.name}.{dims.kind}.safetensors"
    trained = train_module(vit, dims, train, val, recipe, checkpoint, lambda m: say(domain.name, m))
    config = ModuleConfig(
        name=domain.name,
        kind=dims.kind,
        size=dims.size,
        width=dims.width,
        depth=dims.depth,
        classes=domain.classes,
        architecture=store.config.backbone.architecture,
        source=report.source_of(domain),
        metrics={"accuracy": round(trained.accuracy, 4), "epochs": trained.epochs, "images": len(domain.train)},
    )
    tensors = {k: v.numpy() for k, v in trained.module.items()}
    store.write_module(Module(domain.name, dims, tensors), config, report.card(config, domain, recipe))
    checkpoint.unlink(missing_ok=True)
    return domain.name


def cache_logits(path: Path, domain: Domain, say: Say = lambda who, what: None) -> str:
    """x̂ and every module's logits on one domain; what is cached already is not computed again."""
    store = Store(path)
    absent = [n for n in store.names if not _file(store, domain, n).is_file()]
    if not absent:
        return domain.name
    vit = TorchViT(load_backbone(store))
    parts = {
        part: embed(vit, domain, getattr(domain, part), store.config.preprocessing) for part in ("train", "val")
    }
    for name in absent:
        say(domain.name, f"logits of {name}")
        module = module_params(vit, store, name)
        tensors = {f"{p}.logits": logits(vit, data, module) for p, data in parts.items()}
        for p, data in parts.items():
            tensors |= {f"{p}.x_hat": data.x_hat, f"{p}.labels": data.labels}
        write_bytes(_file(store, domain, name), save(tensors))
    return domain.name


def module_params(vit: TorchViT, store: Store, name: str) -> Params:
    tensors = {k: torch.from_numpy(v) for k, v in store.load_module(name).tensors.items()}
    return {**vit.backbone_ln(), **tensors}


def cached_logits(store: Store, domain: Domain, part: str, names: Sequence[str] | None = None) -> SourceLogits:
    loaded = [load_file(_file(store, domain, n)) for n in names or store.names]
    stacked = torch.stack([t[f"{part}.logits"] for t in loaded], dim=1)
    return SourceLogits(loaded[0][f"{part}.x_hat"], stacked, loaded[0][f"{part}.labels"])


def _matrix(store: Store, domains: Sequence[Domain], val: Sequence[SourceLogits]) -> dict[str, dict[str, float]]:
    """Every module's accuracy on every domain's validation data."""
    matrix: dict[str, dict[str, float]] = {name: {} for name in store.names}
    for domain, data in zip(domains, val, strict=True):
        for j, name in enumerate(store.names):
            matrix[name][domain.name] = accuracy(data.logits[:, j], data.labels)
    return matrix


def _file(store: Store, domain: Domain, module: str) -> Path:
    return store.path / WORK / f"{module}@{domain.name}.safetensors"


def _each(
    job: Callable[..., str], arguments: Sequence[tuple[object, ...]], jobs: int, ray: bool, say: Say
) -> Iterator[str]:
    """Run `job` for every tuple of arguments: here, in processes, or on Ray; gives names as they finish."""
    if ray:
        yield from _on_ray(job, arguments)
    elif jobs > 1 and len(arguments) > 1:
        threads = max(1, torch.get_num_threads() // jobs)
        with ProcessPoolExecutor(jobs, get_context("spawn"), torch.set_num_threads, (threads,)) as pool:
            futures = [pool.submit(job, *a) for a in arguments]
            yield from (f.result() for f in futures)
    else:
        for a in arguments:
            yield job(*a, say)


def _on_ray(job: Callable[..., str], arguments: Sequence[tuple[object, ...]]) -> Iterator[str]:
    try:
        import ray
    except ImportError as cause:
        raise MissingExtraError("ray", "ray") from cause
    if not ray.is_initialized():
        try:
            ray.init(address="auto")
        except ConnectionError as cause:
            raise ConfigError("--ray: no Ray cluster found; start one with `ray start --head`") from cause
    remote = ray.remote(job)
    pending = [remote.remote(*a) for a in arguments]
    while pending:
        done, pending = ray.wait(pending, num_returns=1)
        yield ray.get(done[0])


def describe(report_: TrainReport) -> str:
    """JSON for machines."""
    s = report_.selector
    data = {
        "store": str(report_.store),
        "matrix": report_.matrix,
        "selector": {"blend": s.blend, "uniform": s.uniform, "best_single": s.best_single, "epochs": s.epochs},
        "skipped": list(report_.skipped),
    }
    return json.dumps(data, indent=2, sort_keys=True)
