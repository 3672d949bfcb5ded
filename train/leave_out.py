"""A store as if one of its domains had never been: what a method is measured with on a domain without a module.

    store = Store("store/")
    domains = scan(Path("photos/"), per_class=70)  # as given to `pluto train`
    left = leave_out(store, domains, "fog", Path("without-fog/"), Recipe(), SelectorRecipe())

Modules of the other domains are taken as they are. The selector is trained on their cached logits, which
`pluto train` left in `store/.work/`, and the generalist on the other domains' images; it is kept in
`store/.work/without/`, so that nothing is trained twice.
"""

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from pluto_edge._files import sha256, whole_folder, write_text
from pluto_edge.errors import ConfigError, StoreError
from pluto_edge.modules import Dims, check_tensors
from pluto_edge.seen import write_seen
from pluto_edge.store import Store, check_vacant
from pluto_edge.train.cache import WORK, Cache, drop_tokens
from pluto_edge.train.data import GENERALIST, Domain
from pluto_edge.train.features import accuracy, logits
from pluto_edge.train.home import home_of
from pluto_edge.train.jobs import Workers
from pluto_edge.train.module import Trained, train_module
from pluto_edge.train.pool import Pool
from pluto_edge.train.progress import RunProgress, Silent
from pluto_edge.train.recipe import Recipe, SelectorRecipe
from pluto_edge.train.selector import join, train_selector
from pluto_edge.train.trainer import embed_one, keep_beside_others, save_trained, seen_of
from pluto_edge.vit.backbone import load_backbone
from pluto_edge.vit.torch_vit import Params, TorchViT

KEY = "key.json"


def leave_out(
    store: Store,
    domains: Sequence[Domain],
    target: str,
    out: Path,
    recipe: Recipe,
    selector_recipe: SelectorRecipe,
    *,
    generalist: bool = True,
    weights: Path | None = None,
    workers: Workers | None = None,
    progress: RunProgress | None = None,
) -> Store:
    """The store without `target`, as the new folder `out`.

    Args:
        domains: the folders of all domains of the store, split as for `pluto train`; the target's is not looked at.
        recipe: the generalist's.
        generalist: False for specialists and selector only.
        weights: a trained generalist's tensors (safetensors), which then is not trained.
    """
    progress = progress or Silent()
    check_vacant(out)
    sources = others(store, domains, target)
    names = [n for n in store.specialists if n != target]
    with_generalist = generalist and len(sources) > 1
    if with_generalist:
        given = {} if weights is None else {target: weights}
        train_generalists(store, domains, [target], recipe, weights=given, workers=workers, progress=progress)
    caches = [Cache(store, d, selector_recipe.images) for d in sources]
    train, val = ([c.source(part, names) for c in caches] for part in ("train", "val"))
    selector = train_selector(
        join(train), join(val), selector_recipe, partial(progress.step, f"selector without {target}")
    )
    progress.say(
        f"without {target}, on the sources' validation images: blend {selector.blend:.3f}, uniform average "
        f"{selector.uniform:.3f}, best single module {selector.best_single:.3f}"
    )
    with whole_folder(out) as folder:
        made = Store.create(folder, replace(store.config, sources=tuple(names)))
        if store.backbone_file.is_file():
            _link(store.backbone_file, made.backbone_file)
        for name in names:
            _link_module(store, made, name)
        if with_generalist:
            _link_module(Store(_place(store, target)), made, GENERALIST)
            made.list_module(GENERALIST)
        else:
            keep_beside_others(made, dict(zip(names, val, strict=True)))
        made.save_selector(selector.weights)
        known = store.load_seen()
        sure = [n for n in names if known is not None and n in known.modules]
        new = [GENERALIST] if with_generalist else []
        write_seen(made.seen_file, seen_of([c.kept for c in caches], [*sure, *new]))
    return Store(out)


def train_generalists(
    store: Store,
    domains: Sequence[Domain],
    targets: Sequence[str],
    recipe: Recipe,
    *,
    weights: dict[str, Path] | None = None,
    workers: Workers | None = None,
    progress: RunProgress | None = None,
) -> None:
    """For each target the generalist of all others, as `leave_out` wants it; several at a time with `workers`.

    Those that are there already are left alone. `weights` are files of trained generalists, by target.
    """
    workers = workers or Workers()
    progress = progress or Silent()
    weights = weights or {}
    if workers.threads:
        torch.set_num_threads(workers.threads)
    jobs = []
    for target in targets:
        pool = Pool(store, tuple(others(store, domains, target)))
        given = weights.get(target)
        if given is not None:
            read_weights(given, store.config.dims)
        if _key_of(_place(store, target)) != _key(pool, recipe, given):
            jobs.append((store.path, pool.domains, target, recipe, given))
    caches = {d.name: Cache(store, d) for _, pooled, *_ in jobs for d in pooled}
    bare = [c.domain for c in caches.values() if not c.has_tokens]
    (store.path / WORK).mkdir(exist_ok=True)
    for _ in workers.each(embed_one, [(store.path, d) for d in bare], progress, "domains embedded"):
        pass
    for target in workers.each(generalist_one, jobs, progress, "generalists trained"):
        progress.say(f"{GENERALIST} without {target}: done")
    drop_tokens(store, bare)


def generalist_one(
    path: Path, domains: tuple[Domain, ...], target: str, recipe: Recipe, given: Path | None, progress: RunProgress
) -> str:
    """A job: the generalist of these domains, whole, in a store of its own below `.work/without/`."""
    store = Store(path)
    pool = Pool(store, domains)
    vit = TorchViT(load_backbone(store))
    place = _place(store, target)
    for cache in pool.caches:
        if not cache.has_tokens:
            cache.fill(vit)
    train, val = pool.embedded("train"), pool.embedded("val")
    checkpoint = place.with_name(f"{target}.{store.config.kind}.safetensors")
    checkpoint.parent.mkdir(exist_ok=True)
    if given is None:
        step = partial(progress.step, f"{GENERALIST} without {target}: training")
        trained = train_module(vit, store.config.dims, train, val, recipe, checkpoint, step)
    else:
        module = read_weights(given, store.config.dims)
        found = torch.cat(list(logits(vit, val, {**vit.backbone_ln(), **module})))
        trained = Trained(module, accuracy(found, val.labels), epochs=0, probe=0.0)
    with whole_folder(place) as folder:
        own = Store.create(folder, replace(store.config, sources=()))
        save_trained(own, pool, vit, trained, recipe)
        own.list_module(pool.name)
        own.describe_module(pool.name, homes={c.domain.name: home_of(vit, c, own) for c in pool.caches})
        write_text(folder / KEY, json.dumps(_key(pool, recipe, given)))
    checkpoint.unlink(missing_ok=True)
    pool.forget()
    return target


def others(store: Store, domains: Sequence[Domain], target: str) -> list[Domain]:
    """The domains of the store's specialists but the target's, in the store's order."""
    specialists = store.specialists
    found = {d.name: d for d in domains}
    if target not in specialists:
        raise StoreError(f"{store.path}: no module of a domain {target!r}; there are: {', '.join(specialists)}")
    names = [n for n in specialists if n != target]
    if not names:
        raise StoreError(f"{store.path}: {target!r} is its only domain; without it nothing is left")
    absent = [n for n in names if n not in found]
    if absent:
        raise ConfigError(
            f"module {absent[0]!r}: its domain's folder is not among those given ({', '.join(found)})"
        )
    return [found[n] for n in names]


def read_weights(file: Path, dims: Dims) -> Params:
    """A trained module's tensors, of the right names and shapes."""
    try:
        tensors: Params = load_file(file)
    except (OSError, SafetensorError) as cause:
        raise ConfigError(f"{file}: not a file of a trained module's tensors ({cause})") from cause
    module = {k: tensors[k].float() for k in tensors if k not in dims.optional_shapes}
    check_tensors({k: v.numpy() for k, v in module.items()}, dims.shapes, str(file), ConfigError)
    return module


def _place(store: Store, target: str) -> Path:
    return store.path / WORK / "without" / target


def _key(pool: Pool, recipe: Recipe, given: Path | None) -> dict[str, str]:
    """What a kept generalist was made of."""
    made = repr(recipe) if given is None else sha256(given)
    specialists = {name: sha256(pool.store.module_file(name)) for name in pool.names}
    return {"images": pool.digest, "made": made, "specialists": json.dumps(specialists, sort_keys=True)}


def _key_of(folder: Path) -> dict[str, str] | None:
    try:
        found: dict[str, str] = json.loads((folder / KEY).read_text())
    except (OSError, ValueError):
        return None
    return found


def _link_module(store: Store, to: Store, name: str) -> None:
    shutil.copytree(store.path / "modules" / name, to.path / "modules" / name, copy_function=_link)


def _link(source: str | Path, to: str | Path) -> None:
    """Files of a store are replaced whole, never changed: two stores may share one."""
    try:
        os.link(source, to)
    except OSError:  # another disk, or one without links
        shutil.copy2(source, to)
