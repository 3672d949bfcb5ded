"""`pluto eval --leave-out`: a bundle as if a domain had never been. In torch: it trains generalist and selector."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pluto_edge._files import whole_folder
from pluto_edge.domains import DomainFolders, Domains, as_folders
from pluto_edge.errors import ConfigError
from pluto_edge.export.exporter import run_export
from pluto_edge.store import Store
from pluto_edge.train.api import images_of
from pluto_edge.train.data import scan_folders
from pluto_edge.train.leave_out import leave_out
from pluto_edge.train.progress import Bars, Silent
from pluto_edge.train.recipe import Recipe, SelectorRecipe


def bundle_without(
    store: Path,
    data: DomainFolders,
    domain: str,
    out: Path,
    *,
    per_class: int | None,
    epochs: int,
    patience: int,
    quiet: bool,
) -> Path:
    """`out/without-<domain>/bundle`, made once: the other domains' specialists as they are in `store`, a selector
    and a generalist of their own. `per_class`, `epochs` and `patience` are those that the store was trained with.
    """
    folder = out / f"without-{domain}"
    if not folder.exists():
        opened = Store(store)
        if domain not in opened.specialists:
            known = ", ".join(opened.specialists)
            raise ConfigError(f"--leave-out: {store} has no module {domain!r}; there are: {known}")
        ordered = replace(data, classes=opened.config.classes)
        domains = [d for d in scan_folders(ordered, per_class=per_class) if d.name in opened.specialists]
        out.mkdir(parents=True, exist_ok=True)
        with whole_folder(folder) as partial, Silent() if quiet else Bars() as progress:
            made = leave_out(
                opened,
                domains,
                domain,
                partial / "store",
                Recipe(epochs=epochs, patience=patience),
                SelectorRecipe(),
                generalist=opened.generalist is not None and len(domains) > 2,
                progress=progress,
            )
            run_export(made.path, partial / "bundle")
    return folder / "bundle"


def training_folders(store: Path, data: Domains, classes: Sequence[str] | None = None) -> DomainFolders:
    """The images where training has them, so that what it computed of them is found again."""
    names = None if isinstance(data, str | Path) else Store(store).config.classes
    return as_folders(data, images_of(store), classes, names=names)
