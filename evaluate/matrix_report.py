"""A matrix for people: what is at home, what travels and what is alike, as tables and as a picture."""

from pathlib import Path
from statistics import fmean

from pluto_edge import _heat_map
from pluto_edge._files import write_bytes, write_text
from pluto_edge._schema import to_text
from pluto_edge.evaluate.matrix import MATRIX, Matrix

TABLE, PICTURE = "matrix.md", "matrix.png"
FEW = 16  # modules or domains; a table of more cannot be read


def write(matrix: Matrix, out: Path) -> None:
    """`matrix.json`, `matrix.md` and `matrix.png`; the picture first, so that what names it can be believed."""
    domains = [d.name for d in matrix.domains]
    picture = _heat_map.heat_map(matrix.names, domains, matrix.accuracy, "domain (held-out images)", "module")
    write_bytes(out / PICTURE, picture)
    write_text(out / TABLE, markdown(matrix))
    write_text(out / MATRIX, to_text(matrix))


def summary(matrix: Matrix) -> list[str]:
    """The matrix in a few sentences."""
    homes = [d.name for d in matrix.domains if d.name in matrix.names]
    images = sum(d.images for d in matrix.domains)
    said = [f"{len(matrix.modules)} modules on {images:,} held-out images of {len(matrix.domains)} domains"]
    if homes:
        best = sum(matrix.row(n)[n] == max(matrix.column(n).values()) for n in homes)
        at_home = fmean(matrix.row(n)[n] for n in homes)
        said.append(f"at home {at_home:.3f} on average; {best} of {len(homes)} domains have no better module")
    specialists = [m.name for m in matrix.modules if m.role == "specialist"]
    away = [value for name in specialists for domain, value in matrix.row(name).items() if domain != name]
    if away:
        said.append(f"specialists away from home {fmean(away):.3f}")
    if matrix.generalist is not None:
        said.append(f"{matrix.generalist} {fmean(matrix.row(matrix.generalist).values()):.3f} everywhere")
    return said


def markdown(matrix: Matrix) -> str:
    """The page: a line for every domain, and the whole table where it can be read."""
    parts = [f"# {matrix.architecture}: modules and domains", "; ".join(summary(matrix)) + ".", f"![]({PICTURE})"]
    parts.append(
        _rows(
            ["domain", "images", "own module", "best module", "generalist", "nearest to its module"], lines(matrix)
        )
    )
    if len(matrix.modules) <= FEW and len(matrix.domains) <= FEW:
        header = ["module \\ domain", *(d.name for d in matrix.domains)]
        parts.append("Accuracy of every module (rows) on every domain:")
        parts.append(_rows(header, [[n, *(f"{v:.3f}" for v in matrix.row(n).values())] for n in matrix.names]))
    note = (
        "Rows and columns of the picture are in the order of clusters of modules that say the same. Accuracies by "
        f"module and domain, and how often a module agrees with a domain's own, are in {MATRIX}."
    )
    return "\n\n".join([*parts, note]) + "\n"


def lines(matrix: Matrix) -> list[list[str]]:
    """For every domain: its images, its own module, the best one, the generalist, and whom its module is like."""
    found = []
    for domain in matrix.domains:
        column = matrix.column(domain.name)
        best = max(column, key=lambda name: (column[name], name == domain.name))
        own = f"{column[domain.name]:.3f}" if domain.name in column else ""
        joint = f"{column[matrix.generalist]:.3f}" if matrix.generalist is not None else ""
        near = matrix.nearest.get(domain.name)
        alike = f"{near.module} ({near.agreement:.2f})" if near is not None else ""
        found.append([domain.name, str(domain.images), own, f"{best} {column[best]:.3f}", joint, alike])
    return found


def _rows(header: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, ["---"] * len(header), *rows])
