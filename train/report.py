"""What training leaves for people: model cards, the matrix of accuracies as a table and as a picture."""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from pluto_edge import _text
from pluto_edge._files import write_bytes, write_text
from pluto_edge.store import ModuleConfig, Store
from pluto_edge.train.data import Domain
from pluto_edge.train.module import Recipe

if TYPE_CHECKING:
    from pluto_edge.train.selector import SelectorReport

Matrix = dict[str, dict[str, float]]


def source_of(domain: Domain) -> str:
    if domain.corruption is None:
        return f"{len(domain.train)} images of {domain.name}"
    name, severity = domain.corruption
    return f"{len(domain.train)} images with {name}, severity {severity}"


def card(config: ModuleConfig, domain: Domain, recipe: Recipe) -> str:
    """A model card."""
    return f"""# {config.name}

A {config.kind} module of size {config.size} for {config.architecture}: {config.dims.parameters:,} parameters.

| | |
|---|---|
| source | {config.source} |
| classes | {", ".join(config.classes)} |
| training images | {len(domain.train)} |
| validation images | {len(domain.val)} |
| validation accuracy | {config.metrics["accuracy"]:.3f}, the best of {config.metrics["epochs"]:.0f} epochs |
| of the linear probe it starts from | {config.metrics["probe"]:.3f} |
| recipe | batch {recipe.batch}, at most {recipe.epochs} epochs, seed {recipe.seed} |
| written by | {config.writer} |

It was chosen by its accuracy on its own domain's validation images; how it does on the other domains is in the
store's README.
"""


def table(matrix: Matrix) -> str:
    domains = list(next(iter(matrix.values())))
    rows = [(name, *(f"{row[d]:.3f}" for d in domains)) for name, row in matrix.items()]
    return _text.table(("module \\ domain", *domains), rows, right=range(1, len(domains) + 1))


def write(store: Store, matrix: Matrix, selector: "SelectorReport", skipped: Sequence[str]) -> None:
    """`README.md` and `accuracy.png` in the store."""
    note = f"\n{len(skipped)} unreadable images were left out.\n" if skipped else ""
    text = f"""# {store.path.resolve().name}: {len(store.names)} modules of {store.config.backbone.architecture}

Accuracy of every module on every domain's validation images:

```
{table(matrix)}
```

![accuracy of every module on every domain](accuracy.png)

On all validation images together: the selector's blend {selector.blend:.3f}, the uniform average
{selector.uniform:.3f}, the best single module {selector.best_single:.3f}.
{note}"""
    write_text(store.path / "README.md", text)
    heat_map(matrix, store.path / "accuracy.png")


def heat_map(matrix: Matrix, path: Path) -> None:
    from matplotlib.figure import Figure

    modules, domains = list(matrix), list(next(iter(matrix.values())))
    values = [[matrix[m][d] for d in domains] for m in modules]
    figure = Figure(figsize=(2.6 + 0.62 * len(domains), 1.8 + 0.42 * len(modules)), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(values, cmap="viridis", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(domains)), domains, rotation=45, ha="right")
    axes.set_yticks(range(len(modules)), modules)
    axes.set_xlabel("domain (validation images)")
    axes.set_ylabel("module")
    if len(domains) <= 24:
        for i, row in enumerate(values):
            for j, value in enumerate(row):
                colour = "white" if value < 0.6 else "black"
                axes.text(j, i, f"{value:.2f}", ha="center", va="center", color=colour, fontsize=8)
    figure.colorbar(image, ax=axes, label="accuracy")
    picture = BytesIO()
    figure.savefig(picture, format="png", dpi=120)
    write_bytes(path, picture.getvalue())
