"""The tables of docs/results.md: what runs, on which bundles, and the Markdown that comes of it.

    python benchmarks/tables.py --list
    python benchmarks/tables.py pacs-adapter --jobs 2 --threads 1
    python benchmarks/tables.py all

Bundles and folders are those that docs/results.md builds below runs/. Every (method, target, order) is a file in
runs/results/results/, written when it is there: a run that was stopped goes on, and tables share what they have
in common. Jobs are processes.
"""

import argparse
import json
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter

from tqdm import tqdm

from pluto_edge.evaluate import report
from pluto_edge.evaluate.evaluation import Evaluation, evaluate
from pluto_edge.evaluate.methods import choose
from pluto_edge.evaluate.recorded import RecordedNetwork
from pluto_edge.evaluate.results import ENSEMBLE, Protocol, Result
from pluto_edge.evaluate.summary import MethodRow
from pluto_edge.evaluate.targets import find_targets
from pluto_edge.evaluate.verdict import find
from pluto_edge.manifest import Bundle
from pluto_edge.runtime.engine.session import Engine
from pluto_edge.train.corruptions import NAMES

RUNS = Path("runs")
OUT = RUNS / "results"
TUNED = Path(__file__).with_name("tuned.json")
DIGITS = ("mnist", "mnist_m", "rendered", "svhn", "usps")
PACS = ("art_painting", "cartoon", "photo", "sketch")
CORRUPTIONS = tuple(f"{name}-5" for name in NAMES)
CONDITIONS = ("clear", "fog", "glare", "motion_blur", "rain_drops", "low_light", "sensor_noise", "frost")
KNOWN = ("clear", "colour_background", "fog", "low_light", "motion_blur", "sensor_noise")
UNSEEN = ("glare", "rain_drops", "frost")
DEVELOPMENT = (  # of CIFAR-10, in the order in which they come
    *("gaussian_noise-3", "impulse_noise-4", "defocus_blur-4", "glass_blur-3", "frost-3"),
    *("fog-3", "contrast-3", "elastic_transform-3", "pixelate-4", "jpeg_compression-4"),
)

# what costs one pass over the images
STILL = ("single", "neo", "t3a", "lame", "pluto-no-step", "zero-shot", "pluto-paper-selection")
LEARNING = ("foa", "pluto", "pluto-paper", "pluto-joint")
ENTROPY = ("tent", "eata", "sar")
TUNABLE = ("t3a", "lame", "tent", "sar", "foa")
COSTLY = ("tent", "eata", "sar", "foa")  # a gradient for every image and module, or more
PARTS = ("pluto-no-evidence", "pluto-no-prototypes", "pluto-entropy", "pluto-both")
WILD = (*STILL, "pluto", "pluto-paper", "pluto-joint")  # what is run on every kind of stream
LONG = ("single", "neo", "t3a", "zero-shot", "pluto-no-step", "pluto")
FEW_AND_ALL = tuple(f"{n}:top_m={m}" for n in ("pluto-no-step", "pluto-paper-selection") for m in (1, 5, 75))
NO_STEP_PARTS = ("pluto-no-step:weighting=selector", "pluto-no-step:prototypes=false")


@dataclass(frozen=True)
class Group:
    """One call of `evaluate`: targets that share a bundle and, in a continual run, a life."""

    bundle: Path
    data: Path
    targets: tuple[str, ...]
    methods: tuple[str, ...]
    protocol: Protocol
    limit: int | None = None
    probe: Path | None = None
    source: Path | None = None
    store: Path | None = None


def leave_one_out(name: str, data: str, targets: Sequence[str], **more) -> list[Group]:
    """A group for each target: its bundle has neither its module nor a selector that saw it."""
    return [
        Group(
            RUNS / "loo" / name / target / "bundle",
            RUNS / "data" / data,
            (target,),
            store=RUNS / "loo" / name / target / "store",
            **more,
        )
        for target in targets
    ]


def continual(
    methods: Sequence[str],
    protocol: Protocol,
    images: str = "cifar-c",
    limit: int | None = 128,
    targets: tuple[str, ...] = CORRUPTIONS,
) -> list[Group]:
    """CIFAR-10-C's corruptions one after another, with modules for four of them; a group for each method."""
    data = RUNS / "data"
    return [
        Group(
            RUNS / "bundles" / "cifar4",
            data / images,
            targets,
            (method,),
            protocol,
            limit=limit,
            probe=data / "cifar-probe",
            source=data / "cifar-source",
            store=RUNS / "stores" / "cifar4",
        )
        for method in methods
    ]


def many_modules(bundle: str) -> list[Group]:
    """75 modules and each of the fifteen corruptions: has k of them as much to say as all?"""
    methods = ("single", "neo", "t3a", *FEW_AND_ALL, *NO_STEP_PARTS)
    places = RUNS / "bundles" / bundle, RUNS / "data" / "cifar-c"
    return [Group(*places, (target,), methods, Protocol(seeds=3), limit=100) for target in CORRUPTIONS]


def tuned(family: str, *names: str) -> tuple[str, ...]:
    """With the settings that `tuned.py` chose on a family's development domains, or as published."""
    found = json.loads(TUNED.read_text()).get(family, {}) if TUNED.exists() else {}
    return tuple(found.get(name, name) for name in names)


def tables() -> dict[str, list[Group]]:
    digits = {"name": "digits", "data": "digits", "targets": DIGITS}
    pacs = {k: {"name": f"pacs-{k}", "data": "pacs", "targets": PACS} for k in ("adapter", "vpt")}
    online, once = Protocol(seeds=3), Protocol(seeds=1)
    meter = RUNS / "data" / "meter"
    camera = Path("examples/digits/bundle")
    found = {
        "digits": leave_one_out(
            **digits, methods=(*STILL, *tuned("digits", "t3a", "lame"), *LEARNING), protocol=online
        ),
        "digits-tuned": leave_one_out(
            **digits, methods=(*tuned("digits", *TUNABLE), "pluto-no-step", "pluto"), protocol=once, limit=400
        ),
        "pacs-still": leave_one_out(**pacs["adapter"], methods=STILL, protocol=Protocol(seeds=5)),
        "pacs": leave_one_out(
            **pacs["adapter"],
            methods=(*STILL, *tuned("pacs", "t3a", "lame"), "pluto"),
            protocol=online,
            limit=768,
        ),
        "pacs-costly": leave_one_out(
            **pacs["adapter"],
            methods=("single", "neo", *tuned("pacs", *COSTLY), "pluto-no-step", "pluto"),
            protocol=once,
            limit=256,
        ),
        "pacs-cotta": leave_one_out(
            **pacs["adapter"],
            methods=("single", "neo", "foa", "cotta:views=4", "pluto-no-step", "pluto"),
            protocol=once,
            limit=128,
        ),
        "pacs-vpt": leave_one_out(
            **pacs["vpt"], methods=(*STILL, *tuned("pacs", "t3a", "lame")), protocol=online, limit=384
        ),
        "pacs-classes": leave_one_out(
            **pacs["adapter"], methods=STILL, protocol=Protocol(seeds=5, order="classes")
        ),
        "digits-cotta": leave_one_out(
            **digits, methods=("single", "cotta:views=4,mirror=false", "pluto"), protocol=once, limit=128
        ),
        "ablation-digits": leave_one_out(**digits, methods=(*PARTS, "pluto", "pluto-no-step"), protocol=online),
        "ablation-pacs": leave_one_out(**pacs["adapter"], methods=PARTS, protocol=online, limit=192),
        "continual": continual((*STILL, "foa", "pluto"), Protocol(seeds=3, continual=True)),
        "continual-entropy": continual(ENTROPY, Protocol(seeds=1, continual=True)),
        # 300 batches in one life, most of them of domains without a module
        "continual-long": continual(LONG, Protocol(seeds=1, continual=True), "cifar-long", None),
        "continual-dev": continual(
            ("pluto-no-step", "pluto-align", "pluto"),
            Protocol(seeds=3, continual=True),
            "cifar-dev",
            256,
            DEVELOPMENT,
        ),
        "modules": many_modules("cifar75"),
        "modules-bare": many_modules("cifar75-bare"),
        "known-conditions": [Group(camera, meter, (t,), (*WILD, "foa"), online, limit=600) for t in KNOWN],
        "unseen-conditions": [
            Group(camera, meter, (t,), (*WILD, "foa", *ENTROPY), online, limit=600) for t in UNSEEN
        ],
        "wild-classes": [
            Group(camera, meter, (t,), WILD, Protocol(seeds=3, order="classes"), limit=600) for t in CONDITIONS
        ],
        "wild-mixed-known": [Group(camera, meter, ("+".join(KNOWN),), WILD, online, limit=1500)],
        "wild-mixed": [Group(camera, meter, ("+".join(CONDITIONS),), WILD, online, limit=2000)],
        "wild-long": [
            Group(camera, meter, CONDITIONS, (method,), Protocol(seeds=1, continual=True)) for method in WILD
        ],
    }
    for batch in (1, 2, 4, 8):
        found[f"wild-batch-{batch}"] = [
            Group(camera, meter, (t,), WILD, Protocol(batch, seeds=3), limit=300) for t in UNSEEN
        ]
    for shots in (0, 16, 64, 128):
        few = Protocol(seeds=3, shots=shots)
        found[f"few-digits-{shots}"] = leave_one_out(
            **digits, methods=(*STILL, "pluto", "pluto-joint"), protocol=few
        )
        found[f"few-pacs-{shots}"] = leave_one_out(**pacs["adapter"], methods=(*STILL, "pluto"), protocol=few)
    return found


def main() -> None:
    known = tables()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", nargs="*", help="which, or all")
    parser.add_argument("--list", action="store_true", help="what there is")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: 2)")
    parser.add_argument("--threads", type=int, default=1, help="of each (default: 1)")
    options = parser.parse_args()
    if options.list:
        print("\n".join(known))
        return
    names = list(known) if options.table == ["all"] else options.table
    for name in names:
        if name not in known:
            parser.error(f"no table {name!r}; there are: {', '.join(known)}")
    for name in names:
        start = perf_counter()
        with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
            waiting = [pool.submit(run, group, options.threads) for group in known[name]]
            results = [r for one in tqdm(waiting, name, disable=None) for r in one.result()]
        found = find(results)
        text = f"{found.verdict}\n\n{markdown(found.rows)}"
        (OUT / f"{name}.md").write_text(text)
        print(f"\n{name}: {perf_counter() - start:.0f} s, {options.jobs} processes\n\n{text}", flush=True)


def run(group: Group, threads: int) -> tuple[Result, ...]:
    bundle = Bundle(group.bundle)
    manifest = bundle.manifest
    seen = bundle.load_seen()
    own = {
        n: find_targets(folder, manifest.specialists, manifest.classes, seen=left_out) if folder else ()
        for n, folder, left_out in (("probes", group.probe, seen), ("sources", group.source, None))
    }
    targets = find_targets(group.data, group.targets, manifest.classes, group.limit, seen)
    methods = choose(group.methods, manifest.adaptation)
    network = RecordedNetwork(bundle, Engine("cpu", threads))
    found: Evaluation = evaluate(network, targets, methods, group.protocol, OUT, store=group.store, **own)
    return found.results


def markdown(table: Sequence[MethodRow]) -> str:
    """Accuracy in %, mean ± deviation over the orders; and what the modules kept, where it was looked at."""
    targets = list(table[0].cells)
    header = " | ".join(t.removesuffix("-5") for t in targets)
    lines = [f"| | {header} | average |", "|---" * (len(targets) + 2) + "|"]
    for row in table:
        cells = [report.percent(c).removesuffix(" ± 0.0") + " ↓" * bool(c.collapsed) for c in row.cells.values()]
        average = f"**{100 * row.mean:.1f}**" + f" ± {100 * row.spread:.1f}" * (row.spread >= 0.0005)
        lines.append(f"| {row.label} | {' | '.join(cells)} | {average} |")
    kept = [row for row in table if next(iter(row.cells.values())).kept is not None]
    for row in kept:
        if row.part in (ENSEMBLE, "blend"):
            values = [c.kept or 0.0 for c in row.cells.values()]
            cells = [f"{100 * v:.1f}" for v in values]
            lines.append(f"| kept: {row.label} | {' | '.join(cells)} | {100 * sum(values) / len(values):.1f} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
