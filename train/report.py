"""What training leaves for people: model cards, the matrix of accuracies as a table and as a picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pluto_edge import _heat_map, _text
from pluto_edge._files import write_bytes, write_text
from pluto_edge.store import ModuleConfig, Store
from pluto_edge.train.data import Domain
from pluto_edge.train.recipe import Recipe

if TYPE_CHECKING:
    from pluto_edge.train.trainer import TrainReport

Matrix = dict[str, dict[str, float]]


def source_of(domains: Sequence[Domain]) -> str:
    """What a module learned from, in a few words for its card."""
    count = sum(len(d.train) for d in domains)
    if len(domains) > 1:
        return f"{count} images of {len(domains)} domains together"
    (domain,) = domains
    if domain.corruption is None:
        return f"{count} images of {domain.name}"
    name, severity = domain.corruption
    return f"{count} images with {name}, severity {severity}"


def card(config: ModuleConfig, validation: int, recipe: Recipe) -> str:
    """A model card; `validation` is the number of validation images."""
    m = config.metrics
    whose = "all domains'" if config.role == "generalist" else "its own domain's"
    rows = {"source": config.source}
    if config.domains:
        rows["domains"] = ", ".join(config.domains)
    rows |= {
        "classes": ", ".join(config.classes),
        "training images": f"{m['images']:.0f}",
        "validation images": str(validation),
        "validation accuracy": f"{m['accuracy']:.3f}",
    }
    if "epochs" in m:  # absent where the weights were trained elsewhere
        rows["validation accuracy"] += f", the best of {m['epochs']:.0f} epochs"
        rows["of the linear probe it starts from"] = f"{m['probe']:.3f}"
        rows["recipe"] = f"batch {recipe.batch}, at most {recipe.epochs} epochs, seed {recipe.seed}"
    rows["written by"] = config.writer
    lines = "\n".join(f"| {key} | {value} |" for key, value in rows.items())
    kind = "An adapter" if config.kind == "adapter" else f"A {config.kind}"
    return f"""# {config.name}

{kind} module of size {config.size} for {config.architecture}: {config.dims.parameters:,} parameters.

| | |
|---|---|
{lines}

It was chosen by its accuracy on {whose} validation images; how it does on every domain is in the store's README.
"""


def table(matrix: Matrix) -> str:
    """Accuracies of every module on every domain, for a terminal."""
    domains = list(next(iter(matrix.values())))
    rows = [(name, *(f"{row[d]:.3f}" for d in domains)) for name, row in matrix.items()]
    return _text.table(("module \\ domain", *domains), rows, right=range(1, len(domains) + 1))


def summary(report: "TrainReport") -> str:
    """The accuracies on all validation images together, in one line."""
    s = report.selector
    found = {"selector's blend": s.blend, "uniform average": s.uniform, "best single module": s.best_single}
    if report.generalist is not None:
        found["generalist"] = report.generalist
    return ", ".join(f"{name} {value:.3f}" for name, value in found.items())


def write(store: Store, report: "TrainReport") -> None:
    """`README.md` and `accuracy.png` in the store."""
    note = f"\n{len(report.skipped)} unreadable images were left out.\n" if report.skipped else ""
    text = f"""# {store.path.resolve().name}: {len(store.names)} modules of {store.config.backbone.architecture}

Accuracy of every module on every domain's validation images:

```
{table(report.matrix)}
```

![accuracy of every module on every domain](accuracy.png)

On all validation images together: {summary(report)}.
{note}"""
    write_text(store.path / "README.md", text)
    heat_map(report.matrix, store.path / "accuracy.png")


def heat_map(matrix: Matrix, path: Path) -> None:
    """The same table as a picture."""
    modules, domains = list(matrix), list(next(iter(matrix.values())))
    values = [[matrix[m][d] for d in domains] for m in modules]
    write_bytes(path, _heat_map.heat_map(modules, domains, values, "domain (validation images)", "module"))
