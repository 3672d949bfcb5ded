"""Signatures for the modules of a store that was trained before there were any."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from pluto_edge._files import sha256
from pluto_edge.errors import ConfigError, StoreError
from pluto_edge.modules import Module
from pluto_edge.seen import hashes_of
from pluto_edge.store import Store
from pluto_edge.train.cache import drop_tokens, move_logits, open_work
from pluto_edge.train.data import Domain
from pluto_edge.train.home import home_of
from pluto_edge.train.jobs import Workers
from pluto_edge.train.pool import Pool
from pluto_edge.train.progress import RunProgress, Silent
from pluto_edge.train.signature import signature_of
from pluto_edge.train.trainer import embed_one
from pluto_edge.vit.backbone import load_backbone
from pluto_edge.vit.torch_vit import TorchViT


def add_signatures(
    store: Store,
    domains: Sequence[Domain],
    *,
    force: bool = False,
    workers: Workers | None = None,
    progress: RunProgress | None = None,
) -> list[str]:
    """Every module without a signature gets one (with `force` every module); gives their names.

    Nothing is written unless the images of every one of these modules are there. Weights and selector stay as they
    are. A generalist that gets one also learns how much say it leaves to each specialist at home.
    """
    workers = workers or Workers()
    progress = progress or Silent()
    if workers.threads:
        torch.set_num_threads(workers.threads)
    names = [n for n in store.names if force or store.load_module(n).signature(StoreError) is None]
    pools = {name: _pool(store, name, domains) for name in names}
    caches = {c.domain.name: c for pool in pools.values() for c in pool.caches}
    open_work(store)
    bare = [c.domain for c in caches.values() if not c.has_tokens]
    for _ in workers.each(embed_one, [(store.path, d) for d in bare], progress, "domains embedded"):
        pass
    for name, pool in pools.items():
        _check_split(store, name, pool)
    arguments = [(store.path, name, pool.domains) for name, pool in pools.items()]
    for name in workers.each(sign_one, arguments, progress, "signatures"):
        progress.say(f"{name}: done")
    if store.generalist in names:
        vit = TorchViT(load_backbone(store))
        specialists = store.specialists
        homes = {n: home_of(vit, c, store) for n, c in caches.items() if n in specialists}
        store.describe_module(store.generalist, homes=homes)
    drop_tokens(store, bare)
    return names


def sign_one(path: Path, name: str, domains: tuple[Domain, ...], progress: RunProgress) -> str:
    """One module's signature into its file; its other tensors' bytes stay, its logits in `.work/` stay valid."""
    store = Store(path)
    module = store.load_module(name)
    pool = Pool(store, domains)
    fixed = {k: v for k, v in module.tensors.items() if k not in module.dims.optional_shapes}
    params = {k: torch.from_numpy(v) for k, v in fixed.items()}
    vit = TorchViT(load_backbone(store))
    signature = signature_of(vit, params, pool.embedded("train"), pool.embedded("val"))
    before = sha256(store.module_file(name))
    store.replace_tensors(Module(name, module.dims, {**fixed, **signature.tensors}))
    move_logits(store, name, before)
    pool.forget()
    return name


def _pool(store: Store, name: str, domains: Sequence[Domain]) -> Pool:
    """The module's own domain; of the generalist, all that it learned from."""
    config = store.module_config(name)
    found = {d.name: d for d in domains}
    wanted = (name,) if config.role == "specialist" else config.domains or store.specialists
    absent = [n for n in wanted if n not in found]
    if absent:
        raise ConfigError(
            f"module {name!r}: there is no folder {absent[0]!r} among the domains ({', '.join(found)}), and a "
            "signature is made of the images that the module was trained with; nothing was written"
        )
    return Pool(store, tuple(found[n] for n in wanted))


def _check_split(store: Store, name: str, pool: Pool) -> None:
    """Where the store knows its validation images, these must be they: others may have been trained on."""
    seen = store.load_seen()
    if seen is None or name not in seen.modules:
        return
    found = hashes_of(s.path for c in pool.caches for s in c.kept.val)
    others = int(np.isin(found, seen.validation, invert=True).sum())
    if others:
        raise ConfigError(
            f"module {name!r}: {others} of {len(found)} validation images are not those of its training; give "
            "--per-class, --val-share and --seed as then. Nothing was written"
        )
