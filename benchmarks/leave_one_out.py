"""Bundles that leave a domain out: modules *and selector* of the others only.

    pluto train --data pacs/ --out store/ --per-class 70 ...      # leaves store/.work/ with every module's logits
    python benchmarks/leave_one_out.py store/ --data pacs/ --per-class 70 --out bundles/
    pluto eval --bundle bundles/photo/bundle --data pacs/ --target photo

For each target: bundles/<target>/store and bundles/<target>/bundle. What is there already is left alone.
`--withhold 0 --temperature 1` is the paper's initialisation of the selector.
"""

import argparse
import os
import shutil
from dataclasses import replace
from pathlib import Path

from pluto_edge._files import whole_folder
from pluto_edge.export.exporter import run_export
from pluto_edge.store import Store
from pluto_edge.train.cache import Cache
from pluto_edge.train.data import Domain, scan
from pluto_edge.train.selector import SelectorRecipe, compare, join, train_selector


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--per-class", type=int, help="as given to pluto train")
    parser.add_argument("--withhold", type=float, default=SelectorRecipe.withhold)
    parser.add_argument("--temperature", type=float, default=SelectorRecipe.temperature)
    options = parser.parse_args()
    store = Store(options.store)
    domains = [d for d in scan(options.data, per_class=options.per_class) if d.name in store.names]
    recipe = SelectorRecipe(withhold=options.withhold, temperature=options.temperature)
    for target in domains:
        folder = options.out / target.name
        if not folder.exists():
            with whole_folder(folder) as partial:
                without = leave_out(store, target, domains, recipe, partial / "store")
                run_export(without.path, partial / "bundle")
            print(f"{folder}: {', '.join(without.names)}", flush=True)


def leave_out(store: Store, target: Domain, domains: list[Domain], recipe: SelectorRecipe, out: Path) -> Store:
    """The store as if the target had never been: the other modules' bytes, a selector of their own."""
    sources = [d for d in domains if d != target]
    names = [n for n in store.names if n != target.name]
    train, val = (join([Cache(store, d).source(part, names) for d in sources]) for part in ("train", "val"))
    selector = train_selector(train, val, recipe).weights
    blended, uniform, single = compare(selector, val)
    print(f"without {target.name}, on the sources: blend {blended:.3f}, average {uniform:.3f}, best {single:.3f}")
    made = Store.create(out, replace(store.config, sources=tuple(names)))
    os.link(store.backbone_file, made.backbone_file)
    for name in names:
        shutil.copytree(store.path / "modules" / name, out / "modules" / name)
    made.save_selector(selector)
    return made


if __name__ == "__main__":
    main()
