"""What a run computes once and keeps in `store/.work/`, so that every image is decoded once.

.work/
  tokens/<domain>             tokens of both splits, memory-mapped; deleted when the run is over
  tokens/generalist-<digest>  the same of all domains, while the generalist is trained
  features/<domain>           x̂ and labels of both splits, and which images could not be read
  logits/<module>@<domain>    one module's logits on both splits; the generalist's on validation images only
  homes/<domain>              the say of its module beside the generalist (JSON)
  <module>.<kind>             the checkpoint of a training that is under way
  without/<target>            the generalist of all other domains (`leave_out`), in a store of its own

All others are safetensors. What is found is used only if it is of the very same images: their paths, sizes and
times of change, their split, corruption and preprocessing make the digest that every file carries.
"""

import hashlib
import json
import shutil
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor

from pluto_edge._files import sha256, whole_file, write_bytes
from pluto_edge.errors import ConfigError, StoreError
from pluto_edge.store import Store
from pluto_edge.train.data import Domain, check_enough
from pluto_edge.train.features import Batch, Embedded, embed, logits
from pluto_edge.train.progress import Step, ignore
from pluto_edge.train.selector import SourceLogits
from pluto_edge.vit.torch_vit import Params, TorchViT

WORK = ".work"
PARTS = ("train", "val")
HEADER = 4096  # bytes reserved for the header of a tokens file


@dataclass(frozen=True)
class Cache:
    """The files of one domain. The selector sees `limit` images of each split, drawn at random; None is all."""

    store: Store
    domain: Domain
    limit: int | None = None

    @property
    def work(self) -> Path:
        """The folder of what is computed once."""
        return self.store.path / WORK

    @property
    def tokens_file(self) -> Path:
        """Tokens of both splits."""
        return self.work / "tokens" / f"{self.domain.name}.safetensors"

    @property
    def features_file(self) -> Path:
        """x̂ and labels of both splits."""
        return self.work / "features" / f"{self.domain.name}.safetensors"

    def logits_file(self, module: str) -> Path:
        """One module's logits on both splits."""
        return self.work / "logits" / f"{module}@{self.domain.name}.safetensors"

    @property
    def home_file(self) -> Path:
        """The say of the domain's module beside the generalist."""
        return self.work / "homes" / f"{self.domain.name}.json"

    @cached_property
    def digest(self) -> str:
        """Of the very images, their split and how they are prepared: what was computed of others is not used."""
        d = self.domain
        images = [[_stamp(s.path), s.label] for part in PARTS for s in getattr(d, part)]
        made = [d.name, d.classes, len(d.train), d.corruption, d.seed, repr(self.store.config.preprocessing)]
        return hashlib.sha256(json.dumps([made, images]).encode()).hexdigest()

    @property
    def has_tokens(self) -> bool:
        """Whether the images were embedded already."""
        return all(metadata(f).get("digest") == self.digest for f in (self.tokens_file, self.features_file))

    @property
    def unreadable(self) -> dict[str, str]:
        """Path and reason of every image that was left out."""
        return dict(json.loads(self._features("unreadable")))

    @property
    def kept(self) -> Domain:
        """The domain without the images that could not be read."""
        return _without(self.domain, self.unreadable)

    def fill(self, vit: TorchViT, step: Step = ignore) -> None:
        """Decode and embed every image, once."""
        found: dict[str, list[Batch]] = {part: [] for part in PARTS}
        for file in (self.tokens_file, self.features_file):
            file.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(self.tokens_file) as out:
            out.write(bytes(HEADER))
            for part, batch in self._embed(vit, step):
                out.write(batch.tokens.contiguous().numpy().data)
                shape = batch.tokens.shape[1:]
                found[part].append(replace(batch, tokens=torch.empty(0)))
            unreadable = {k: v for batches in found.values() for b in batches for k, v in b.unreadable.items()}
            _check_enough(self.domain, unreadable)
            out.seek(0)
            out.write(header({p: [sum(len(b.labels) for b in found[p]), *shape] for p in PARTS}, self.digest))
        tensors = {f"{p}.x_hat": torch.cat([b.x_hat for b in found[p]]) for p in PARTS}
        tensors |= {f"{p}.labels": torch.cat([b.labels for b in found[p]]) for p in PARTS}
        write_bytes(
            self.features_file, save(tensors, {"digest": self.digest, "unreadable": json.dumps(unreadable)})
        )

    def _embed(self, vit: TorchViT, step: Step) -> Iterator[tuple[str, Batch]]:
        done, total = 0, len(self.domain.train) + len(self.domain.val)
        step(done, total, "")
        for part in PARTS:
            for batch in embed(vit, self.domain, getattr(self.domain, part), self.store.config.preprocessing):
                yield part, batch
                done += len(batch.labels) + len(batch.unreadable)
                step(done, total, "")

    def embedded(self, part: str) -> Embedded:
        """One split; its tokens stay on the disk until they are used."""
        features = load_file(self.features_file)
        tokens = load_file(self.tokens_file)[part]
        return Embedded(tokens, features[f"{part}.x_hat"], features[f"{part}.labels"], self.digest)

    def absent(self, modules: Sequence[str]) -> list[str]:
        """Of these modules, those whose logits on this domain are not here, or are of other images or weights."""
        return [m for m in modules if metadata(self.logits_file(m)) != self._logits_key(m)]

    def add_logits(
        self, vit: TorchViT, modules: Sequence[str], step: Step = ignore, splits: Sequence[str] = PARTS
    ) -> None:
        """Runs these modules on the images, and keeps what they say."""
        if not modules:
            return
        parts = {part: self._drawn(self.embedded(part)) for part in splits}
        self.work.joinpath("logits").mkdir(exist_ok=True)
        done, total = 0, sum(len(data) for data in parts.values()) * len(modules)
        step(done, total, "")
        for name in modules:
            module = module_params(vit, self.store, name)
            tensors = {}
            for part, data in parts.items():
                batches = []
                for batch in logits(vit, data, module):
                    batches.append(batch)
                    done += len(batch)
                    step(done, total, f"module {name}")
                tensors[part] = torch.cat(batches)
            write_bytes(self.logits_file(name), save(tensors, self._logits_key(name)))

    def source(self, part: str, modules: Sequence[str]) -> SourceLogits:
        """What the selector learns from: x̂, these modules' logits, labels."""
        missing = self.absent(modules)
        if missing or self._features("digest") != self.digest:
            raise StoreError(
                f"{self.work}: no logits of these images of {self.domain.name}; were they trained with the same "
                "--data, --per-class, --val-share and --seed?"
            )
        stacked = torch.stack([load_file(self.logits_file(m))[part] for m in modules], dim=1)
        features = load_file(self.features_file)
        x_hat, labels = (features[f"{part}.{n}"] for n in ("x_hat", "labels"))
        index = self._draw(len(labels))
        own = modules.index(self.domain.name) if self.domain.name in modules else -1
        return SourceLogits(x_hat[index], stacked, labels[index], torch.full((len(stacked),), own))

    def _drawn(self, data: Embedded) -> Embedded:
        index = self._draw(len(data))
        return replace(data, tokens=data.tokens[index], x_hat=data.x_hat[index], labels=data.labels[index])

    def _draw(self, count: int) -> slice | Tensor:
        if self.limit is None or self.limit >= count:
            return slice(None)
        seed = zlib.crc32(self.domain.name.encode())  # corruptions of one folder: other images in each domain
        return torch.randperm(count, generator=torch.Generator().manual_seed(seed))[: self.limit]

    def _features(self, key: str) -> str:
        return metadata(self.features_file).get(key, "{}")

    def _logits_key(self, module: str) -> dict[str, str]:
        weights = self.store.module_file(module)
        key = {"digest": self.digest, "module": sha256(weights) if weights.is_file() else ""}
        return key if self.limit is None else {**key, "limit": str(self.limit)}


def module_params(vit: TorchViT, store: Store, name: str) -> Params:
    """A module's tensors for torch, with the backbone's affines where it has none of its own."""
    tensors = {k: torch.from_numpy(v) for k, v in store.load_module(name).tensors.items()}
    return {**vit.backbone_ln(), **tensors}


def open_work(store: Store) -> Path:
    """The folder, without what a killed run left half-written."""
    work = store.path / WORK
    work.mkdir(exist_ok=True)
    for left in list(work.rglob(".*")):
        if left.is_dir():
            shutil.rmtree(left)
        else:
            left.unlink(missing_ok=True)
    return work


def drop_tokens(store: Store, domains: Sequence[Domain] | None = None) -> None:
    """All of them, or those of these domains."""
    if domains is None:
        shutil.rmtree(store.path / WORK / "tokens", ignore_errors=True)
    for domain in domains or ():
        Cache(store, domain).tokens_file.unlink(missing_ok=True)


def _stamp(path: Path) -> list[Any]:
    try:
        stat = path.stat()
    except OSError as cause:
        raise ConfigError(f"{path}: the image was there a moment ago ({cause.strerror})") from cause
    return [str(path.resolve()), stat.st_size, stat.st_mtime_ns]


def _without(domain: Domain, unreadable: dict[str, str]) -> Domain:
    kept = {p: tuple(s for s in getattr(domain, p) if str(s.path) not in unreadable) for p in PARTS}
    return replace(domain, train=kept["train"], val=kept["val"])


def _check_enough(domain: Domain, unreadable: dict[str, str]) -> None:
    try:
        check_enough(_without(domain, unreadable))
    except ConfigError as cause:
        path, why = next(iter(unreadable.items()))
        raise ConfigError(f"{cause} that can be read; {path}: {why}") from cause


def move_logits(store: Store, module: str, before: str) -> None:
    """A module's file has other bytes but the same weights: logits of the file with hash `before` are kept."""
    now = sha256(store.module_file(module))
    for file in (store.path / WORK / "logits").glob(f"{module}@*.safetensors"):
        found = metadata(file)
        if found.get("module") == before:
            write_bytes(file, save(load_file(file), {**found, "module": now}))


def metadata(file: Path) -> dict[str, str]:
    """What a safetensors file says of itself; nothing where it is absent or damaged."""
    try:
        with safe_open(file, framework="pt") as opened:
            return opened.metadata() or {}
    except (OSError, SafetensorError):
        return {}


def header(shapes: dict[str, list[int]], digest: str) -> bytes:
    """A safetensors header of `HEADER` bytes for float32 tensors that follow in this order."""
    entries: dict[str, Any] = {"__metadata__": {"digest": digest}}
    start = 0
    for name, shape in shapes.items():
        end = start + 4 * torch.Size(shape).numel()
        entries[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
        start = end
    return (HEADER - 8).to_bytes(8, "little") + json.dumps(entries).encode().ljust(HEADER - 8)
