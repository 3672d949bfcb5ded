"""`pluto_edge.evaluate`: what `pluto eval` does, from Python. ONNX Runtime is imported when it is called."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pluto_edge.domains import DomainFolders, Domains, as_folders
from pluto_edge.errors import ConfigError
from pluto_edge.manifest import Bundle

if TYPE_CHECKING:
    from pluto_edge.evaluate.evaluation import Evaluation
    from pluto_edge.evaluate.targets import Order
    from pluto_edge.evaluate.verdict import Findings

__all__ = ["EvaluationReport", "evaluate"]

IMAGES = "images"  # in the cache of `out`: datasets that are no folders


@dataclass(frozen=True)
class EvaluationReport:
    """What was found, and where it is written.

    Attributes:
        out: the folder with results.json, results.md and report.html.
        bundle: what was evaluated; with `leave_out` the one that was made.
        findings: the verdict, a row of accuracies for every method, and the comparison with each rival.
        evaluation: every single result, the methods that could not run, and the images that were left out.
    """

    out: Path
    bundle: Bundle
    findings: "Findings"
    evaluation: "Evaluation"

    @property
    def verdict(self) -> str:
        """Who won, and how surely, in a sentence or two."""
        return self.findings.verdict

    def __str__(self) -> str:
        return self.verdict

    def _repr_markdown_(self) -> str:
        """What notebooks show."""
        return (self.out / "results.md").read_text(encoding="utf-8")


def evaluate(
    bundle: str | Path | None,
    data: Domains,
    *,
    target: str | Sequence[str] = (),
    method: str | Sequence[str] = (),
    out: str | Path = "evaluation",
    classes: Sequence[str] | None = None,
    batch: int = 64,
    seeds: int = 3,
    shots: int | None = None,
    limit: int | None = None,
    order: "Order" = "shuffled",
    continual: bool = False,
    store: str | Path | None = None,
    leave_out: str | None = None,
    per_class: int | None = None,
    epochs: int = 20,
    patience: int = 4,
    source: Domains | None = None,
    probe: Domains | None = None,
    providers: str = "auto",
    threads: int | None = None,
    force: bool = True,
    quiet: bool = True,
    progress: Callable[[float, float, str], None] = lambda done, total, text: None,
) -> EvaluationReport:
    """Compare methods on a bundle and labelled images; labels are used to count, never to learn.

    The arguments are those of `pluto eval`; errors name them as the command does. Every result is kept in `out`:
    the same call goes on where it was stopped. Images that the modules were trained on are left out.

    Args:
        bundle: that `export` wrote; None with `leave_out`, which makes one.
        data: a folder `root/<domain>/<class>/images`, or for every domain a folder of classes or a dataset of
            (image, label): torchvision's, Hugging Face's, a list, a generator (`pluto_edge/domains.py`).
        target: domains of `data` to evaluate on, `a+b` for two of them mixed; all where there is none.
        method: what to compare, as `name` or `name:setting=value,...`; everything where there is none.
        out: folder for results and reports.
        classes: names of a dataset's classes by number, where it does not have them; else they are the bundle's.
        batch: images a batch.
        seeds: orders of each stream.
        shots: learn from so many images, then predict the others, frozen; None learns all the time.
        limit: at most so many images of each target.
        order: of each stream, `shuffled` or class after class, `classes`.
        continual: take what was learned on a target to the next.
        store: of the bundle; CoTTA and `leave_out` need it, and torch.
        leave_out: evaluate on this domain with a bundle that never saw it, made from `store`.
        per_class: with `leave_out`, as it was given to `train`.
        epochs: of the generalist that `leave_out` trains, at most.
        patience: epochs without a better validation before that training stops.
        source: images of the modules' own domains, by the modules' names, for EATA.
        probe: images of the modules' own domains, to see what the modules still know after each target.
        providers: of ONNX Runtime, `auto`, `cpu` or `cuda`.
        threads: for ONNX Runtime; None is one per core.
        force: overwrite the report of another comparison in `out`; the command does so only when it is asked to.
        quiet: show no progress of what `leave_out` trains.
        progress: called with what is done, what there is to do, and what is going on.
    """
    from pluto_edge.evaluate import report
    from pluto_edge.evaluate.evaluation import CACHE
    from pluto_edge.evaluate.evaluation import evaluate as run_methods
    from pluto_edge.evaluate.methods import choose
    from pluto_edge.evaluate.recorded import RecordedNetwork
    from pluto_edge.evaluate.results import Protocol
    from pluto_edge.evaluate.targets import find_targets
    from pluto_edge.runtime.engine.session import Engine

    out = Path(out)
    protocol = Protocol(batch, seeds, shots, order, continual)
    targets = _several(target)
    if limit is not None and limit < 1:
        raise ConfigError(f"--limit: want at least 1, got {limit}")
    if leave_out is not None:
        if bundle is not None:
            raise ConfigError(f"--leave-out: makes a bundle of its own; leave {bundle} out")
        if store is None:
            raise ConfigError("--leave-out: give the store that the domain is left out of with --store")
        if targets not in ((), (leave_out,)):
            raise ConfigError(f"--leave-out {leave_out}: it is the target; leave --target out")
        targets = (leave_out,)
        from pluto_edge.evaluate.without import bundle_without, training_folders

        found = training_folders(Path(store), data, classes)
        bundle = bundle_without(
            Path(store), found, leave_out, out, per_class=per_class, epochs=epochs, patience=patience, quiet=quiet
        )
        store = bundle.parent / "store"
    opened = Bundle(_given(bundle))
    manifest = opened.manifest
    methods = choose(_several(method), manifest.adaptation)
    seen = opened.load_seen()

    def folders(domains: Domains, name: str) -> DomainFolders:
        return as_folders(domains, out / CACHE / IMAGES / name, classes, names=manifest.classes)

    if leave_out is None:
        found = folders(data, "data")
    chosen = find_targets(found.folders, targets, manifest.classes, limit, seen)
    own = {
        name: find_targets(folders(given, name).folders, manifest.specialists, manifest.classes, seen=left_out)
        for name, given, left_out in (("sources", source, None), ("probes", probe, seen))
        if given is not None
    }
    if not force:
        report.check_same(out, protocol, opened, [t.name for t in chosen])
    network = RecordedNetwork(opened, Engine.of(manifest.precision, providers, threads))
    evaluation = run_methods(
        network,
        chosen,
        methods,
        protocol,
        out,
        sources=own.get("sources", ()),
        probes=own.get("probes", ()),
        store=None if store is None else Path(store),
        progress=progress,
    )
    return EvaluationReport(out, opened, report.write(evaluation, protocol, opened, out), evaluation)


def _given(bundle: str | Path | None) -> str | Path:
    if bundle is None:
        raise ConfigError("--bundle: give one, or the domain to leave out")
    return bundle


def _several(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)
