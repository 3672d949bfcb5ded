"""`pluto_edge.train`: what `pluto train` does, from Python. Torch is imported when it is called."""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pluto_edge._text import did_you_mean
from pluto_edge.domains import DomainFolders, Domains, as_folders, domain_folders
from pluto_edge.errors import ConfigError
from pluto_edge.modules import Kind
from pluto_edge.store import Scalar, Store, check_vacant
from pluto_edge.train.corruptions import choose_corruptions
from pluto_edge.train.data import Domain, corrupted, scan_folders
from pluto_edge.train.recipe import Precision, Recipe, SelectorRecipe

if TYPE_CHECKING:
    from pluto_edge.train.progress import RunProgress
    from pluto_edge.train.trainer import BackboneChoice, TrainReport

__all__ = ["Choice", "images_of", "train"]

KIND: Kind = "adapter"
SIZES: dict[Kind, int] = {"vpt": 10, "adapter": 8}
IMAGE_SIZE = 224


def train(
    data: Domains,
    out: str | Path | None = None,
    *,
    into: str | Path | None = None,
    classes: Sequence[str] | None = None,
    only: Sequence[str] = (),
    generalist: bool = True,
    backbone: str | None = None,
    weights: str | Path | None = None,
    pretrained: str | None = None,
    backbone_options: Mapping[str, Scalar] | None = None,
    image_size: int | None = None,
    crop_pct: float | None = None,
    kind: Kind | None = None,
    prompts: int | None = None,
    bottleneck: int | None = None,
    epochs: int = Recipe.epochs,
    batch: int = Recipe.batch,
    lr: float | None = Recipe.lr,
    head_lr: float = Recipe.head_lr,
    weight_decay: float = Recipe.weight_decay,
    warmup: float = Recipe.warmup,
    smoothing: float = Recipe.smoothing,
    patch_drop: float = Recipe.patch_drop,
    patience: int = Recipe.patience,
    seed: int = Recipe.seed,
    precision: Precision = Recipe.precision,
    per_class: int | None = None,
    val_share: float = 0.2,
    withhold: float = SelectorRecipe.withhold,
    temperature: float | None = SelectorRecipe.temperature,
    selector_images: int | None = SelectorRecipe.images,
    corruptions: Sequence[str] | Literal["all"] = (),
    severities: Sequence[int] = (1, 2, 3, 4, 5),
    jobs: int = 1,
    threads: int | None = None,
    ray: bool = False,
    quiet: bool = False,
    progress: "RunProgress | None" = None,
) -> "TrainReport":
    """Train a module for every domain, a generalist of all of them, and a selector over them.

    The arguments are those of `pluto train`; errors name them as the command does. A run that was stopped goes on
    where it was with the same arguments and `into` instead of `out`, without those of the backbone.

    Args:
        data: a folder `root/<domain>/<class>/images`, or for every domain a folder of classes or a dataset of
            (image, label): torchvision's, Hugging Face's, a list, a generator (`pluto_edge/domains.py`). Datasets
            are written into the store's `.work/images` once.
        out: the new store.
        into: a store to add to, or to go on with, in the place of `out`.
        classes: names of the classes by number, where a dataset does not have them.
        only: train these domains, and leave the others as they are.
        generalist: also train a module of all domains together.
        backbone: timm's name of a VisionTransformer.
        weights: a safetensors file with its weights, or
        pretrained: timm's tag of pretrained weights.
        backbone_options: what timm builds it with, for instance `{"depth": 6}`.
        image_size: a multiple of the patch size; 224 where it is not given.
        crop_pct: share of an image that the crop keeps; 1 where it is not given.
        kind: `adapter` (the default) or `vpt`.
        prompts: tokens of a `vpt` module.
        bottleneck: of an `adapter` module.
        epochs: at most.
        batch: images a batch.
        lr: learning rate for 256 images a batch; None is 0.08 for prompts and 0.004 for adapters.
        head_lr: that of the heads.
        weight_decay: of AdamW; prompts get a hundredth.
        warmup: share of the epochs in which the rate rises.
        smoothing: of the labels.
        patch_drop: share of the patches that is left out at random.
        patience: epochs without a better validation before it stops.
        seed: of everything that is random.
        precision: of training passes, `fp32` or `bf16`.
        per_class: at most so many training images a class.
        val_share: what is held out where the data has no validation split.
        withhold: share of the selector's lessons without an image's own module.
        temperature: divides the selector's dot product when its training starts.
        selector_images: of each domain, that the selector learns from; None is all.
        corruptions: make domains of one clean domain with these corruptions, or with `"all"`.
        severities: of the corruptions, 1 to 5.
        jobs: domains that are trained at the same time, in processes.
        threads: of torch, for each job.
        ray: spread the domains over the Ray cluster that is found.
        quiet: show no progress.
        progress: what is told of it, in the place of the terminal.
    """
    from pluto_edge.train.jobs import Workers
    from pluto_edge.train.progress import Bars, Silent
    from pluto_edge.train.trainer import BackboneChoice, run_train

    recipe = Recipe(
        epochs=epochs,
        batch=batch,
        lr=lr,
        head_lr=head_lr,
        weight_decay=weight_decay,
        warmup=warmup,
        smoothing=smoothing,
        patch_drop=patch_drop,
        patience=patience,
        seed=seed,
        precision=precision,
    )
    selector = SelectorRecipe(withhold=withhold, temperature=temperature, images=selector_images, seed=seed)
    workers = Workers(jobs, threads, ray)
    chosen = Choice(
        data=data,
        classes=classes,
        only=tuple(only),
        val_share=val_share,
        per_class=per_class,
        seed=seed,
        corruptions=choose_corruptions(corruptions),
        severities=tuple(severities),
    )
    chosen.check_only()
    if (out is None) == (into is None):
        raise ConfigError("give the store as out, where it is new, or as into, to add to it: one of the two")
    if into is not None:
        given = {
            "backbone": backbone,
            "weights": weights,
            "pretrained": pretrained,
            "backbone_options": backbone_options,
            "image_size": image_size,
            "crop_pct": crop_pct,
            "kind": kind,
            "prompts": prompts,
            "bottleneck": bottleneck,
        }
        store, domains = _add_to(Path(into), chosen, [name for name, value in given.items() if value is not None])
    else:
        assert out is not None
        if backbone is None:
            raise ConfigError("--backbone: which timm ViT? For example vit_small_patch16_224")
        if weights is not None and pretrained is not None:
            raise ConfigError("--weights and --pretrained: one of the two")
        vit = BackboneChoice(
            architecture=backbone,
            image_size=IMAGE_SIZE if image_size is None else image_size,
            weights=None if weights is None else Path(weights),
            pretrained=pretrained,
            crop_pct=1.0 if crop_pct is None else crop_pct,
            options=dict(backbone_options or {}),
        )
        store, domains = _create(Path(out), chosen, vit, *_kind_and_size(kind, prompts, bottleneck))
    try:
        with Silent() if quiet or progress else Bars() as shown:
            return run_train(
                store,
                domains,
                recipe=recipe,
                selector=selector,
                only=only,
                generalist=generalist,
                workers=workers,
                progress=progress or shown,
            )
    except ConfigError:
        if out is not None and not Store(store.path).names:  # nothing was made of these settings
            shutil.rmtree(store.path)
        raise


@dataclass(frozen=True)
class Choice:
    """Which domains to train on, as `train` was asked."""

    data: Domains
    classes: Sequence[str] | None = None
    only: tuple[str, ...] = ()
    val_share: float = 0.2
    per_class: int | None = None
    seed: int = 0
    corruptions: tuple[str, ...] = ()
    severities: tuple[int, ...] = (1, 2, 3, 4, 5)

    def __post_init__(self) -> None:
        if not 0 < self.val_share < 1:
            raise ConfigError(f"--val-share: want more than 0 and less than 1, got {self.val_share}")
        if self.per_class is not None and self.per_class < 1:
            raise ConfigError(f"--per-class: want at least 1, got {self.per_class}")
        if not self.severities or not all(s in range(1, 6) for s in self.severities):
            raise ConfigError(f"--severities: want 1 to 5, got {self.severities}")

    def check_only(self) -> None:
        """Before any image is read."""
        names: list[str] = []
        if self.corruptions:
            names = [f"{name}-{severity}" for name in self.corruptions for severity in self.severities]
        elif isinstance(self.data, str | Path):
            names = list(domain_folders(Path(self.data)))
        elif isinstance(self.data, Mapping):
            names = list(self.data)
        for name in self.only:
            if name not in names:
                hint = did_you_mean(name, names)
                raise ConfigError(f"--only: no domain {name!r}; there are: {', '.join(names)}{hint}")

    def domains(self, found: DomainFolders) -> list[Domain]:
        """Of these folders, with their images split and, where it was asked, corrupted."""
        bound = None if self.corruptions else self.per_class  # each corruption draws its own
        domains = scan_folders(found, val_share=self.val_share, per_class=bound, seed=self.seed)
        if self.corruptions:
            if len(domains) != 1:
                where = f" folder in {self.data}" if isinstance(self.data, str | Path) else ""
                raise ConfigError(f"--corruptions wants one clean domain{where}, found {len(domains)}")
            domains = corrupted(domains[0], self.corruptions, self.severities, self.seed, self.per_class)
        return domains


def _add_to(path: Path, chosen: Choice, of_backbone: Sequence[str]) -> tuple[Store, list[Domain]]:
    for name in of_backbone:
        raise ConfigError(f"--{name.replace('_', '-')}: with --into it is the store's own")
    store = Store(path)
    known = store.config.classes
    found = as_folders(chosen.data, images_of(store.path), chosen.classes, names=known)
    if isinstance(chosen.data, str | Path):
        domains = chosen.domains(found)
        if set(domains[0].classes) != set(known) or domains[0].classes == known:
            return store, domains  # where the classes are others, training says so
    return store, chosen.domains(replace(found, classes=known))


def _create(
    path: Path, chosen: Choice, backbone: "BackboneChoice", kind: Kind, size: int
) -> tuple[Store, list[Domain]]:
    """The store needs the classes, which datasets may show only when they are read: so they are written beside it
    first, and moved into it."""
    from pluto_edge.train.trainer import create_store

    check_vacant(path)
    if isinstance(chosen.data, str | Path):
        domains = chosen.domains(as_folders(chosen.data, images_of(path), chosen.classes))
        return create_store(path, backbone, domains[0].classes, kind, size), domains
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.images-") as beside:
        staged = Path(beside) / "images"
        found = as_folders(chosen.data, staged, chosen.classes)
        store = create_store(path, backbone, chosen.domains(found)[0].classes, kind, size)
        if staged.is_dir():
            images_of(path).parent.mkdir()
            staged.rename(images_of(path))
            moved = {n: images_of(path) / n if f.parent == staged else f for n, f in found.folders.items()}
            found = replace(found, folders=moved)
    return store, chosen.domains(found)


def images_of(store: Path) -> Path:
    """Where the images of datasets that are no folders are kept, below the folder of the store."""
    from pluto_edge.train.cache import WORK

    return store / WORK / "images"


def _kind_and_size(kind: Kind | None, prompts: int | None, bottleneck: int | None) -> tuple[Kind, int]:
    kind = kind or KIND
    if kind not in SIZES:
        raise ConfigError(f"--kind: want {' or '.join(SIZES)}, got {kind!r}")
    sizes = {"prompts": prompts, "bottleneck": bottleneck}
    own, other = ("prompts", "bottleneck") if kind == "vpt" else ("bottleneck", "prompts")
    if sizes[other] is not None:
        raise ConfigError(f"--{other}: modules of kind {kind} have none; give --{own}")
    size = sizes[own]
    return kind, SIZES[kind] if size is None else size
