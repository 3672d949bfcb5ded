"""`run_train`: labelled folders become a store.

Every domain is three jobs: its images are embedded once, its module is trained and saved whole into the store, and
all modules' logits on its images are kept for the selector. The generalist, which learns from all domains together,
is one job more. Jobs run one after another, in several processes, or on a Ray cluster, with the same results.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from pluto_edge._files import whole_folder, write_bytes, write_text
from pluto_edge.errors import ConfigError, StoreError
from pluto_edge.modules import Kind, Module, SelectorWeights
from pluto_edge.seen import Seen, hashes_of
from pluto_edge.store import Backbone, ModuleConfig, Scalar, Store, StoreConfig, check_vacant
from pluto_edge.train import report
from pluto_edge.train.cache import Cache, drop_tokens, open_work
from pluto_edge.train.data import GENERALIST, Domain
from pluto_edge.train.features import accuracy
from pluto_edge.train.home import homes_beside_others, keep_home, kept_home
from pluto_edge.train.jobs import Workers
from pluto_edge.train.module import Trained, train_module
from pluto_edge.train.pool import Pool
from pluto_edge.train.progress import RunProgress, Silent
from pluto_edge.train.recipe import Recipe, SelectorRecipe
from pluto_edge.train.selector import SelectorReport, SourceLogits, join, sizes, train_selector
from pluto_edge.train.signature import signature_of
from pluto_edge.vit.backbone import create, load_backbone, load_weights, preprocessing, read_layout
from pluto_edge.vit.torch_vit import TorchViT


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
    """What a training made; as text, the table of accuracies and how the selector does."""

    store: Path
    matrix: dict[str, dict[str, float]]  # module, domain: accuracy on the domain's validation data
    selector: SelectorReport
    skipped: tuple[str, ...]
    generalist: float | None = None  # its accuracy on all domains' validation data together

    def __str__(self) -> str:
        return f"{report.table(self.matrix)}\n\nall validation images: {report.summary(self)}"


def create_store(path: Path, choice: BackboneChoice, classes: Sequence[str], kind: Kind, size: int) -> Store:
    """A store with a backbone and no module yet."""
    check_vacant(path)
    if choice.image_size < 1:
        raise ConfigError(f"--image-size: want at least 1, got {choice.image_size}")
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
    hidden_x, hidden_l, out, _ = sizes(len(classes))
    even = SelectorWeights.uniform(
        width=layout.width, classes=len(classes), hidden_x=hidden_x, hidden_l=hidden_l, out=out
    )
    with whole_folder(path) as partial_path:
        store = Store.create(partial_path, config)
        store.save_selector(even)
        if choice.pretrained is None:
            write_bytes(store.backbone_file, save({k: v.contiguous() for k, v in vit.state_dict().items()}))
    return Store(path)


def run_train(
    store: Store,
    domains: Sequence[Domain],
    *,
    recipe: Recipe,
    selector: SelectorRecipe,
    only: Sequence[str] = (),
    generalist: bool = True,
    workers: Workers | None = None,
    progress: RunProgress | None = None,
) -> TrainReport:
    """One module per domain (of `only`) that the store does not have yet, a generalist, then the selector.

    A module that is in the store is left alone; one that was interrupted goes on from its last epoch. The
    generalist is trained if there are two domains or more, and again when one is there that it did not learn from.
    Until the selector is trained the store blends its modules evenly, so that it is usable at every moment.
    """
    workers = workers or Workers()
    progress = progress or Silent()
    if domains and domains[0].classes != store.config.classes:
        raise ConfigError(
            f"the folders' classes are not the store's: {domains[0].classes} and {store.config.classes}"
        )
    if workers.threads:
        torch.set_num_threads(workers.threads)
    missing = [d for d in domains if d.name not in store.names and (not only or d.name in only)]
    specialists = [*store.specialists, *(d.name for d in missing)]
    wanted = [d for d in domains if d.name in specialists]
    if not wanted:
        raise ConfigError(f"{store.path}: none of its modules has a folder among the domains")
    jobs: list[tuple[Domain, ...]] = [(d,) for d in missing]
    if generalist and _wants_generalist(store, specialists, wanted, progress):
        place = 0 if workers.parallel else len(jobs)  # the longest first, where others run beside it
        jobs.insert(place, tuple(wanted))
    trained = [Pool(store, j).name for j in sorted(jobs, key=len)]
    order = _Order(store, trained)
    caches = [Cache(store, d, selector.images) for d in wanted]
    bare = [c.domain for c in caches if (GENERALIST in trained or c.absent(order.names)) and not c.has_tokens]
    for _ in workers.each(embed_one, [(store.path, d) for d in bare], progress, "domains embedded"):
        pass
    store.add_seen(seen_of([c.kept for c in caches], trained))
    for name in workers.each(train_one, [(store.path, j, recipe) for j in jobs], progress, "modules trained"):
        order.list(name)
        progress.say(f"{name}: done")
    for _ in workers.each(
        logits_one, [(store.path, d, selector.images) for d in wanted], progress, "domains predicted"
    ):
        pass
    train, val = ([c.source(part, store.specialists) for c in caches] for part in ("train", "val"))
    result = train_selector(join(train), join(val), selector, partial(progress.step, "selector"))
    store.save_selector(result.weights)
    matrix = _matrix(store.specialists, wanted, val)
    everywhere = None
    if store.generalist is not None:
        its = [c.source("val", [store.generalist]) for c in caches]
        matrix |= _matrix([store.generalist], wanted, its)
        together = join(its)
        everywhere = accuracy(together.logits[:, 0], together.labels)
        store.describe_module(store.generalist, homes=_homes(store, caches))
    else:
        keep_beside_others(store, {d.name: v for d, v in zip(wanted, val, strict=True)})
    skipped = tuple(f"{path}: {why}" for c in caches for path, why in c.unreadable.items())
    done = TrainReport(store.path, matrix, result, skipped, everywhere)
    report.write(store, done)
    drop_tokens(store)
    order.forget()
    return done


def _wants_generalist(
    store: Store, specialists: Sequence[str], domains: Sequence[Domain], progress: RunProgress
) -> bool:
    """Whether to train it, on these domains; said where it is not plain."""
    if len(specialists) < 2:
        return False
    known = store.module_config(store.generalist).domains if store.generalist else ()
    new = [n for n in specialists if n not in known]
    if not new:
        return False
    absent = [n for n in specialists if n not in {d.name for d in domains}]
    if absent:
        what = f"left as it is, without {', '.join(new)}" if known else "not trained"
        progress.say(f"{GENERALIST}: {what}; it wants the images of all domains, and of {absent[0]} there are none")
        return False
    if known:
        progress.say(f"{GENERALIST}: trained anew, for it has not seen {', '.join(new)}")
    return True


def seen_of(domains: Sequence[Domain], trained: Sequence[str]) -> Seen:
    """These domains' images (of corrupted ones, the clean files) for the modules that are about to be trained."""
    train, val = (hashes_of(s.path for d in domains for s in getattr(d, part)) for part in ("train", "val"))
    return Seen(train, val, tuple(trained))


class _Order:
    """The modules' order in the store: that of the run that wanted them, the generalist last."""

    def __init__(self, store: Store, missing: Iterable[str]) -> None:
        self.store = store
        self.file = open_work(store) / "order.json"
        planned = json.loads(self.file.read_text()) if self.file.is_file() else list(store.names)
        wanted = {*store.names, *missing}
        self.plan = list(dict.fromkeys([*planned, *store.names, *missing]))
        self.plan.sort(key=lambda n: n == GENERALIST)
        self.names = [n for n in self.plan if n in wanted]
        write_text(self.file, json.dumps(self.plan))

    def list(self, name: str) -> None:
        have = {*self.store.names, name}
        self.store.set_config(sources=tuple(n for n in self.plan if n in have))

    def forget(self) -> None:
        self.file.unlink()


def embed_one(path: Path, domain: Domain, progress: RunProgress) -> str:
    """The first job of a domain: its images decoded and embedded, once."""
    store = Store(path)
    Cache(store, domain).fill(TorchViT(load_backbone(store)), partial(progress.step, f"{domain.name}: embedding"))
    return domain.name


def train_one(path: Path, domains: tuple[Domain, ...], recipe: Recipe, progress: RunProgress) -> str:
    """The second: its module, saved into the store's folder. With several domains: the generalist."""
    store = Store(path)
    pool = Pool(store, domains)
    vit = TorchViT(load_backbone(store))
    train, val = pool.embedded("train"), pool.embedded("val")
    step = partial(progress.step, f"{pool.name}: training")
    trained = train_module(vit, store.config.dims, train, val, recipe, pool.checkpoint, step)
    save_trained(store, pool, vit, trained, recipe)
    pool.checkpoint.unlink(missing_ok=True)
    pool.forget()
    return pool.name


def save_trained(store: Store, pool: Pool, vit: TorchViT, trained: Trained, recipe: Recipe) -> None:
    """Into the store's folder: the module that learned from the pool, its signature, description and card."""
    dims = store.config.dims
    kept = [c.kept for c in pool.caches]
    train, val = pool.embedded("train"), pool.embedded("val")
    metrics = {"accuracy": round(trained.accuracy, 4), "images": len(train)}
    if trained.epochs:  # it was trained here
        metrics |= {"probe": round(trained.probe, 4), "epochs": trained.epochs}
    config = ModuleConfig(
        name=pool.name,
        kind=dims.kind,
        size=dims.size,
        width=dims.width,
        depth=dims.depth,
        classes=store.config.classes,
        architecture=store.config.backbone.architecture,
        source=report.source_of(kept),
        role="specialist" if pool.single else "generalist",
        domains=() if pool.single else pool.names,
        metrics=metrics,
    )
    signature = signature_of(vit, trained.module, train, val)
    tensors = {**{k: v.numpy() for k, v in trained.module.items()}, **signature.tensors}
    store.write_module(Module(pool.name, dims, tensors), config, report.card(config, len(val), recipe))


def logits_one(path: Path, domain: Domain, limit: int | None, progress: RunProgress) -> str:
    """The last: every module's logits on it, for the selector; the generalist's for the report only.

    With them comes the say that the domain's own module has beside the generalist.
    """
    store = Store(path)
    cache = Cache(store, domain, limit)
    absent = cache.absent(store.names)
    at_home = store.generalist is not None and domain.name in store.specialists and kept_home(cache) is None
    if absent or (at_home and cache.has_tokens):
        vit = TorchViT(load_backbone(store))
        step = partial(progress.step, f"{domain.name}: logits")
        cache.add_logits(vit, [n for n in absent if n != store.generalist], step)
        if store.generalist in absent:
            cache.add_logits(vit, [store.generalist], step, ("val",))
        if at_home:
            keep_home(vit, cache)
    return domain.name


def keep_beside_others(store: Store, val: Mapping[str, SourceLogits]) -> None:
    """Into the specialists' descriptions: the say of each at home, where there is no generalist."""
    if len(store.specialists) < 2:
        return
    signatures = [store.load_module(n).signature(StoreError) for n in store.specialists]
    temperatures = [s.temperature if s else 1.0 for s in signatures]
    for name, share in homes_beside_others(val, temperatures).items():
        store.describe_module(name, homes={name: share})


def _homes(store: Store, caches: Sequence[Cache]) -> dict[str, float]:
    """Of the specialists whose images are here as these found them; of the others as it was."""
    assert store.generalist is not None
    known = store.module_config(store.generalist).homes
    found = {c.domain.name: home for c in caches if (home := kept_home(c)) is not None}
    return {n: {**known, **found}[n] for n in store.specialists if n in known or n in found}


def _matrix(
    names: Sequence[str], domains: Sequence[Domain], val: Sequence[SourceLogits]
) -> dict[str, dict[str, float]]:
    """These modules' accuracy on every domain's validation data."""
    matrix: dict[str, dict[str, float]] = {name: {} for name in names}
    for domain, data in zip(domains, val, strict=True):
        for j, name in enumerate(names):
            matrix[name][domain.name] = accuracy(data.logits[:, j], data.labels)
    return matrix


def describe(report_: TrainReport) -> str:
    """JSON for machines."""
    s = report_.selector
    data = {
        "store": str(report_.store),
        "matrix": report_.matrix,
        "generalist": report_.generalist,
        "selector": {"blend": s.blend, "uniform": s.uniform, "best_single": s.best_single, "epochs": s.epochs},
        "skipped": list(report_.skipped),
    }
    return json.dumps(data, indent=2, sort_keys=True)
