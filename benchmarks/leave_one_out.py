"""Bundles that leave a domain out: modules, generalist *and selector* of the others only.

    pluto train --data pacs/ --out store/ --per-class 70 ...      # leaves store/.work/ with every module's logits
    python benchmarks/leave_one_out.py store/ --data pacs/ --per-class 70 --out bundles/ --epochs 6 --patience 2
    pluto eval --bundle bundles/photo/bundle --data pacs/ --target photo

For each target: bundles/<target>/store and bundles/<target>/bundle. What is there already is left alone. Each
target has a generalist of its own, trained on the other domains; it is kept in store/.work/without/, and a training
that was stopped goes on. `--withhold 0 --temperature 1 --no-generalist` is the paper's.
"""

import argparse
from pathlib import Path

from pluto_edge._files import whole_folder
from pluto_edge.cli.train import add_recipe_arguments, read_recipe
from pluto_edge.export.exporter import run_export
from pluto_edge.store import Store
from pluto_edge.train.data import scan
from pluto_edge.train.jobs import Workers
from pluto_edge.train.leave_out import leave_out, train_generalists
from pluto_edge.train.progress import Bars
from pluto_edge.train.recipe import SelectorRecipe


def main() -> None:
    options = parse()
    store = Store(options.store)
    domains = [
        d
        for d in scan(options.data, val_share=options.val_share, per_class=options.per_class, seed=options.seed)
        if d.name in store.specialists
    ]
    targets = options.only or [d.name for d in domains]
    targets = [t for t in targets if not (options.out / t).exists()]
    recipe = read_recipe(options)
    selector = SelectorRecipe(withhold=options.withhold, temperature=options.temperature)
    workers = Workers(options.jobs, options.threads)
    given = {t: options.generalists / f"{t}.safetensors" for t in targets} if options.generalists else {}
    generalist = options.generalist and len(domains) > 2
    with Bars() as progress:
        if generalist:  # all at once, so that --jobs has something to do
            train_generalists(store, domains, targets, recipe, weights=given, workers=workers, progress=progress)
        for target in targets:
            folder = options.out / target
            with whole_folder(folder) as partial:
                without = leave_out(
                    store,
                    domains,
                    target,
                    partial / "store",
                    recipe,
                    selector,
                    generalist=generalist,
                    weights=given.get(target),
                    workers=workers,
                    progress=progress,
                )
                run_export(without.path, partial / "bundle")
            print(f"{folder}: {', '.join(without.names)}", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", action="append", metavar="TARGET", help="this target only (may be repeated)")
    parser.add_argument("--withhold", type=float, default=SelectorRecipe.withhold)
    parser.add_argument("--temperature", type=float, default=SelectorRecipe.temperature)
    parser.add_argument("--no-generalist", dest="generalist", action="store_false", help="specialists only")
    parser.add_argument(
        "--generalists",
        type=Path,
        metavar="FOLDER",
        help="take trained generalists from FOLDER/<target>.safetensors instead of training them",
    )
    add_recipe_arguments(parser.add_argument_group("the generalists' recipe, as given to pluto train"))
    parser.add_argument("--jobs", type=int, default=1, help="generalists trained at the same time")
    parser.add_argument("--threads", type=int, help="of torch, for each job")
    return parser.parse_args()


if __name__ == "__main__":
    main()
