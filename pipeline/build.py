"""`build`: train what is missing, export, measure, check, add and publish; stopped anywhere, it goes on from there.

work/
  store/        what `train` writes        bundle/       what `export` writes
  matrix/       what `matrix` writes       build.json    which stages were finished, and of what
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pluto_edge._files import sha256
from pluto_edge.domains import domain_folders
from pluto_edge.errors import ConfigError
from pluto_edge.evaluate.matrix import Matrix, MatrixRun, run_matrix
from pluto_edge.evaluate.matrix_report import summary
from pluto_edge.export.exporter import run_export
from pluto_edge.manifest import MANIFEST, Bundle, Precision
from pluto_edge.pipeline.record import (
    Stage,
    digest_of,
    images_digest,
    read_record,
    store_digest,
    write_record,
)
from pluto_edge.repository.layout import DEFAULT_CHANNEL, MODULE_CONFIG, ModuleRelease, release_target
from pluto_edge.repository.publisher import Published, Publisher
from pluto_edge.store import MODULE_FILE, Store
from pluto_edge.train.api import train
from pluto_edge.train.jobs import Workers
from pluto_edge.train.progress import RunProgress, Silent
from pluto_edge.version import WRITER

__all__ = ["Built", "build"]

# what `train` is told of a new store, and not of one that is there
OF_NEW_STORES = (
    "backbone",
    "weights",
    "pretrained",
    "backbone_options",
    "image_size",
    "crop_pct",
    "kind",
    "prompts",
    "bottleneck",
)


@dataclass(frozen=True)
class Built:
    """What a build did.

    Attributes:
        release: the bundle's name and version in the repository, as in `meter@3`.
        ran: the stages that had something to do, of train, export, matrix, add and publish.
        matrix: every module on every domain, and how many of the cells were computed.
        published: new versions of the repository's roles, and the signatures that are still missing.
    """

    release: str
    ran: tuple[str, ...]
    matrix: MatrixRun
    published: Published | None = None


def build(
    data: str | Path,
    work: str | Path,
    repository: str | Path,
    signers: Sequence[Any],
    *,
    name: str,
    version: str | None = None,
    channels: Sequence[str] = (DEFAULT_CHANNEL,),
    least: float | None = None,
    precision: Precision = "fp32",
    training: Mapping[str, Any] | None = None,
    workers: Workers | None = None,
    progress: RunProgress | None = None,
) -> Built:
    """Make the repository have a release with a module for every domain of `data`.

    Args:
        data: `root/<domain>/<class>/images`.
        work: where store, bundle and matrix are kept; the same folder goes on where a build was stopped.
        repository: that `pluto repo init` made.
        signers: the private keys (`pluto_edge.repository.keys.load_signers`).
        name: of the bundle.
        version: of the release; the next whole number where it is not given. Content that is released already is
            not released again.
        channels: that point at the release.
        least: a specialist whose accuracy on its own domain's held-out images is not above this is not published,
            and neither is anything else; chance, where it is not given.
        precision: of the bundle.
        training: arguments of `pluto_edge.train`, the backbone's among them.
        workers: where jobs run: here, in processes, or on Ray; of training and matrix alike.
        progress: what is told how far it is.
    """
    if least is not None and not 0 <= least < 1:
        raise ConfigError(f"--least: want a share from 0 to below 1, got {least}")
    workers = workers or Workers()
    progress = progress or Silent()
    publisher = Publisher(repository)  # what is wrong with it is said before hours of training
    run = _Run(Path(data).resolve(), Path(work).resolve(), workers, progress)
    run.work.mkdir(parents=True, exist_ok=True)
    ran = [stage for stage, did in (("train", run.train(training or {})), ("export", run.export(precision))) if did]
    found = run_matrix(
        run.bundle, run.data, run.work / "matrix", workers=workers, progress=progress, providers="cpu"
    )
    ran += ["matrix"] if found.computed else []
    check_homes(found.matrix, len(Bundle(run.bundle, verify=False).manifest.classes), least)
    release, added = _add(publisher, run, found.matrix, name, version, channels)
    ran += ["add"] if added else []
    published = None
    if publisher.roles.staged_roles():  # of this run, or of one that was stopped before it came to this
        published = publisher.publish(signers)
        ran.append("publish")
    return Built(release, tuple(ran), found, published)


@dataclass(frozen=True)
class _Run:
    """A build's folders, and the stages that write into them. A stage says whether it had anything to do."""

    data: Path
    work: Path
    workers: Workers
    progress: RunProgress

    @property
    def store(self) -> Path:
        return self.work / "store"

    @property
    def bundle(self) -> Path:
        return self.work / "bundle"

    def train(self, training: Mapping[str, Any]) -> bool:
        given = dict(training)
        made_of = digest_of(images_digest(domain_folders(self.data)), given)
        if self._is_done("train", Stage(made_of, store_digest(self.store))):
            return False
        if (self.store / "store.json").is_file():
            given = {key: value for key, value in given.items() if key not in OF_NEW_STORES}
            start = partial(train, self.data, into=self.store)
        else:
            start = partial(train, self.data, self.store)
        w = self.workers
        start(**given, jobs=w.jobs, threads=w.threads, ray=w.ray, progress=self.progress)
        self._done("train", Stage(made_of, store_digest(self.store)))
        return True

    def export(self, precision: Precision) -> bool:
        made_of = digest_of(store_digest(self.store), precision, WRITER)
        there = (self.bundle / MANIFEST).is_file()
        if there and self._is_done("export", Stage(made_of, Bundle(self.bundle, verify=False).hash)):
            return False
        self.progress.say("export: graphs, weights and modules, compared with torch")
        run_export(self.store, self.bundle, precision=precision, force=there)
        self._done("export", Stage(made_of, Bundle(self.bundle).hash))
        return True

    def _is_done(self, name: str, stage: Stage) -> bool:
        return read_record(self.work / "build.json").holds(name, stage)

    def _done(self, name: str, stage: Stage) -> None:
        file = self.work / "build.json"
        write_record(file, read_record(file).finished(name, stage))


def check_homes(matrix: Matrix, classes: int, least: float | None) -> None:
    """Every specialist is better than that at home, or a `ConfigError` names those that are not."""
    bound = 1 / classes if least is None else least
    homes = {d.name: matrix.row(d.name)[d.name] for d in matrix.domains if d.name in matrix.names}
    weak = [f"{name} {value:.3f}" for name, value in homes.items() if value <= bound]
    if weak:
        said = ", ".join(weak[:10]) + (f" and {len(weak) - 10} more" if len(weak) > 10 else "")
        what = "chance" if least is None else "--least"
        raise ConfigError(
            f"not above {what} ({bound:.3f}) on their own domains: {said}; nothing was published. Look at their "
            "images, or build without these folders in another --work"
        )


def _add(
    publisher: Publisher, run: _Run, matrix: Matrix, name: str, version: str | None, channels: Sequence[str]
) -> tuple[str, bool]:
    """Stages modules and bundle, those that are not there yet; gives the release, and whether anything was new."""
    store = Store(run.store)
    known = {m.name: m for m in publisher.modules()}
    folders = [store.path / "modules" / module for module in store.names]
    new = [folder for folder in folders if not _is_there(folder, known.get(folder.name))]
    for folder in new:
        publisher.add_module(folder)
    content = Bundle(run.bundle, verify=False).hash
    releases = [r for r in publisher.releases() if r.bundle == name]
    there = next((r.version for r in releases if r.content == content), None)
    if there is not None:
        return f"{name}@{there}", bool(new)
    version = version or _next_version(publisher, name, [r.version for r in releases])
    publisher.add_bundle(run.bundle, name, version, channels=channels, notes="; ".join(summary(matrix)))
    return f"{name}@{version}", True


def _is_there(folder: Path, module: ModuleRelease | None) -> bool:
    """Tensors and description as they are in the repository."""
    names = (MODULE_FILE, MODULE_CONFIG)
    return module is not None and all(module.files[n].sha256 == sha256(folder / n) for n in names)


def _next_version(publisher: Publisher, name: str, known: Sequence[str]) -> str:
    """The whole number after those that are there, and after those that were revoked."""
    number = 1 + max((int(v) for v in known if v.isdecimal()), default=0)
    while publisher.revocations().of(release_target(name, str(number))) is not None:
        number += 1
    return str(number)
