"""`run_matrix`: every module of a bundle on every domain's held-out images. Needs no torch.

What is missing is computed, a domain a job, on the workers that training uses; a module or a domain that was added
costs its own cells only, and a run that was stopped, or lost a node, goes on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pluto_edge._schema import check_version, decode, read_json
from pluto_edge.domains import Domains, as_folders
from pluto_edge.errors import ConfigError, MissingExtraError
from pluto_edge.evaluate.cells import (
    backbone_digest,
    cell_file,
    cell_key,
    fill_column,
    module_digest,
    read_cell,
)
from pluto_edge.evaluate.likeness import Predicted, Shares, agreement, cluster_order, likeness
from pluto_edge.evaluate.targets import LeftOut, Target, find_targets
from pluto_edge.manifest import Bundle, Manifest
from pluto_edge.modules import Role
from pluto_edge.train.jobs import Workers
from pluto_edge.train.progress import RunProgress, Silent
from pluto_edge.version import WRITER

__all__ = ["Matrix", "MatrixDomain", "MatrixModule", "MatrixRun", "Nearest", "read_matrix", "run_matrix"]

SCHEMA_VERSION = 1
MATRIX = "matrix.json"
IMAGES = "images"  # below the folder: datasets that are no folders
DIGITS = 4  # of accuracies and agreements


@dataclass(frozen=True)
class MatrixModule:
    """A row: a module and the sha256 of its file."""

    name: str
    role: Role
    sha256: str


@dataclass(frozen=True)
class MatrixDomain:
    """A column: a domain, how many of its images were looked at, and which were left out as seen in training."""

    name: str
    images: int
    digest: str
    left_out: LeftOut | None = None


@dataclass(frozen=True)
class Nearest:
    """The module that most often says the same, and the share of images, every domain counting alike, of which it
    does."""

    module: str
    agreement: float


@dataclass(frozen=True)
class Matrix:
    """`matrix.json`: rows are modules, columns domains, both in an order that puts together what is alike.

    Attributes:
        bundle: hash of the bundle's manifest.
        backbone: digest of what the modules share; matrices with the same one can be compared.
        accuracy: of a module on a domain's images.
        agreement: how often it says the same as the domain's own module; None where the domain has none.
        nearest: for every module the one that is most like it; none for a module that agrees with no other.
    """

    bundle: str
    backbone: str
    architecture: str
    modules: tuple[MatrixModule, ...]
    domains: tuple[MatrixDomain, ...]
    accuracy: tuple[tuple[float, ...], ...]
    agreement: tuple[tuple[float | None, ...], ...]
    nearest: dict[str, Nearest] = field(default_factory=dict)
    writer: str = WRITER
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        for name in ("accuracy", "agreement"):
            rows = getattr(self, name)
            if len(rows) != len(self.modules) or any(len(row) != len(self.domains) for row in rows):
                raise ConfigError(f"{name}: want {len(self.modules)} rows of {len(self.domains)} values")

    @property
    def names(self) -> tuple[str, ...]:
        """The modules', from the first row to the last."""
        return tuple(m.name for m in self.modules)

    @property
    def generalist(self) -> str | None:
        """The module of all domains, if there is one."""
        return next((m.name for m in self.modules if m.role == "generalist"), None)

    def row(self, module: str) -> dict[str, float]:
        """A module's accuracy by domain."""
        values = self.accuracy[self.names.index(module)]
        return {d.name: value for d, value in zip(self.domains, values, strict=True)}

    def column(self, domain: str) -> dict[str, float]:
        """All modules' accuracy on a domain."""
        place = [d.name for d in self.domains].index(domain)
        return {name: row[place] for name, row in zip(self.names, self.accuracy, strict=True)}


@dataclass(frozen=True)
class MatrixRun:
    """A matrix, the folder that it is in, and how many of its cells had to be computed."""

    matrix: Matrix
    out: Path
    computed: int
    found: int


def run_matrix(
    bundle: str | Path,
    data: Domains,
    out: str | Path = "matrix",
    *,
    target: str | Sequence[str] = (),
    classes: Sequence[str] | None = None,
    limit: int | None = None,
    providers: str = "auto",
    workers: Workers | None = None,
    force: bool = True,
    progress: RunProgress | None = None,
) -> MatrixRun:
    """Every module on every domain; writes `matrix.json`, `matrix.md` and `matrix.png` into `out`.

    Args:
        bundle: that `export` wrote.
        data: a folder `root/<domain>/<class>/images`, or for every domain a folder of classes or a dataset.
        out: where the matrix is written, and where its cells are kept.
        target: domains of `data`; all where there is none.
        classes: names of a dataset's classes by number, where it does not have them; else they are the bundle's.
        limit: at most so many images of each domain.
        providers: of ONNX Runtime, `auto`, `cpu` or `cuda`.
        workers: where domains are looked at: here one by one, in processes, or on Ray.
        force: overwrite the matrix of another backbone in `out`; the command does so only when it is asked to.
        progress: what is told how far it is.
    """
    from pluto_edge.evaluate import matrix_report  # which is about a Matrix

    if limit is not None and limit < 1:
        raise ConfigError(f"--limit: want at least 1, got {limit}")
    _check_extra()
    workers = workers or Workers()
    progress = progress or Silent()
    out = Path(out).resolve()  # jobs on other machines have other working directories
    opened = Bundle(Path(bundle).resolve())
    manifest = opened.manifest
    folders = as_folders(data, out / IMAGES, classes, names=manifest.classes).folders
    resolved = {name: folder.resolve() for name, folder in folders.items()}
    names = (target,) if isinstance(target, str) else tuple(target)
    targets = find_targets(resolved, names, manifest.classes, limit, opened.load_seen())
    if not force:
        _check_same(out, manifest)
    missing = {t.name: _missing(out, manifest, t) for t in targets}
    fixed = (out, providers, workers.share)
    jobs = [(opened.path, opened.hash, missing[t.name], t, *fixed) for t in targets if missing[t.name]]
    jobs.sort(key=lambda job: len(job[3]) * len(job[2]), reverse=True)  # the longest first
    out.mkdir(parents=True, exist_ok=True)
    for _ in workers.each(fill_column, jobs, progress, "domains of the matrix"):
        pass
    matrix = _assemble(opened, targets, out)
    matrix_report.write(matrix, out)
    computed = sum(map(len, missing.values()))
    return MatrixRun(matrix, out, computed, len(targets) * len(manifest.names) - computed)


def read_matrix(path: Path) -> Matrix:
    """A `matrix.json`; a damaged one is a `ConfigError`."""
    data = read_json(path, ConfigError)
    check_version(data, SCHEMA_VERSION, str(path), ConfigError)
    return decode(Matrix, data, path.name, ConfigError)


def _check_extra() -> None:
    """What draws and orders a matrix is here; better asked before hours of work than after them."""
    try:
        import matplotlib.figure  # noqa: F401
        import scipy.cluster.hierarchy  # noqa: F401
    except ImportError as cause:
        raise MissingExtraError((cause.name or "matplotlib").partition(".")[0], "matrix") from cause


def _check_same(out: Path, manifest: Manifest) -> None:
    file = out / MATRIX
    if file.exists() and read_matrix(file).backbone != backbone_digest(manifest):
        raise ConfigError(
            f"{file}: is the matrix of another backbone's modules; overwrite it with --force, or give another --out"
        )


def _missing(out: Path, manifest: Manifest, target: Target) -> tuple[str, ...]:
    """The modules that have no cell of this target."""
    return tuple(n for n in manifest.names if not cell_file(out, manifest, n, target).exists())


def _assemble(bundle: Bundle, targets: Sequence[Target], out: Path) -> Matrix:
    manifest = bundle.manifest
    said = {t.name: _predicted(out, manifest, t) for t in targets}
    alike = likeness(list(said.values()))
    rows = _row_order(manifest, alike)
    names = [manifest.names[i] for i in rows]
    accuracy = {t.name: (said[t.name] == np.array(t.labels)).mean(axis=1)[rows] for t in targets}
    columns = _column_order(names, accuracy)
    by_name = {t.name: t for t in targets}
    modules = {m.name: MatrixModule(m.name, m.role, module_digest(manifest, m.name)) for m in manifest.modules}
    own = {n: agreement(said[n], said[n][manifest.names.index(n)])[rows] for n in columns if n in manifest.names}
    return Matrix(
        bundle=bundle.hash,
        backbone=backbone_digest(manifest),
        architecture=manifest.architecture,
        modules=tuple(modules[n] for n in names),
        domains=tuple(MatrixDomain(n, len(by_name[n]), by_name[n].digest, by_name[n].left_out) for n in columns),
        accuracy=tuple(tuple(_share(accuracy[n][i]) for n in columns) for i in range(len(rows))),
        agreement=tuple(tuple(_share(own[n][i]) if n in own else None for n in columns) for i in range(len(rows))),
        nearest=_nearest(manifest.names, alike),
    )


def _share(value: float) -> float:
    return round(float(value), DIGITS)


def _predicted(out: Path, manifest: Manifest, target: Target) -> Predicted:
    rows = []
    for name in manifest.names:
        file = cell_file(out, manifest, name, target)
        rows.append(read_cell(file, target, cell_key(manifest, name, target)).predicted)
    return np.array(rows)


def _row_order(manifest: Manifest, alike: Shares) -> list[int]:
    """Specialists clustered by what they say, with neighbours as alike as the clusters allow; a generalist last."""
    places = [i for i, name in enumerate(manifest.names) if name in manifest.specialists]
    others = [i for i in range(len(manifest.names)) if i not in places]
    return [*(places[i] for i in cluster_order(alike[np.ix_(places, places)])), *others]


def _column_order(names: Sequence[str], accuracy: Mapping[str, Shares]) -> list[str]:
    """Domains of a module in the modules' order, then the others, in that of the modules that do best there."""
    homes = [name for name in names if name in accuracy]
    others = [name for name in accuracy if name not in homes]
    return [*homes, *sorted(others, key=lambda name: (int(accuracy[name].argmax()), name))]


def _nearest(names: Sequence[str], alike: Shares) -> dict[str, Nearest]:
    if len(names) < 2:
        return {}
    others = alike - 2 * np.eye(len(names))  # nobody is their own neighbour
    best = others.argmax(axis=1)
    found = {name: Nearest(names[best[i]], _share(alike[i, best[i]])) for i, name in enumerate(names)}
    return {name: near for name, near in found.items() if near.agreement > 0}
