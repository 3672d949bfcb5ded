"""The picture of the README: what PLUTO gains on PACS, domain by domain left out, from the results of `tables.py`.

    python benchmarks/tables.py pacs-still pacs-classes few-pacs-16
    python benchmarks/gain_picture.py docs/gain.png

Bars are means over orders and over the four domains, lines their 95 % intervals over images. What `tables.py` has
computed is read; what is missing is computed first.
"""

import argparse
from pathlib import Path
from typing import Any

from tables import run, tables

from pluto_edge._look import LIGHT
from pluto_edge.evaluate.summary import MethodRow
from pluto_edge.evaluate.verdict import find

PANELS = {
    "pacs-still": "a domain without a module",
    "pacs-classes": "the same, class after class",
    "few-pacs-16": "learned from 16 images, then frozen",
}
SHOWN = {  # rows of the tables, and what a reader calls them
    "uniform average": "average of the modules",
    "joint": "one adapter for everything",
    "joint neo": "… with NEO",
    "joint t3a": "… with T3A",
    "joint lame": "… with LAME",
    "pluto-no-step": "pluto-edge",
}
OURS = "pluto-no-step"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    known = tables()
    figure, panels = plt.subplots(1, len(PANELS), figsize=(11, 3.4), sharey=True, facecolor=LIGHT["card"])
    for axes, (name, title) in zip(panels, PANELS.items(), strict=True):
        results = [result for group in known[name] for result in run(group, options.threads)]
        found = {row.label: row for row in find(results).rows}
        draw(axes, title, [found[label] for label in SHOWN])
    panels[0].set_yticks(range(len(SHOWN)), list(SHOWN.values()))
    panels[0].invert_yaxis()
    figure.suptitle("PACS, each domain left out in turn: accuracy, %", x=0.01, ha="left", color=LIGHT["ink"])
    figure.tight_layout()
    figure.savefig(options.out, dpi=130, facecolor=LIGHT["card"])
    print(options.out)


def draw(axes: Any, title: str, shown: list[MethodRow]) -> None:
    """One panel: a bar a method, with its interval and its number."""
    means = [100 * row.mean for row in shown]
    colours = [LIGHT["ours"] if row.label == OURS else LIGHT["others"] for row in shown]
    low, high = zip(*(row.interval for row in shown), strict=True)
    errors = [
        [m - 100 * x for m, x in zip(means, low, strict=True)],
        [100 * x - m for m, x in zip(means, high, strict=True)],
    ]
    axes.barh(range(len(shown)), means, color=colours, xerr=errors, ecolor=LIGHT["ink"], height=0.68)
    for place, (mean, top) in enumerate(zip(means, high, strict=True)):
        axes.text(100 * top + 0.8, place, f"{mean:.1f}", va="center", fontsize=9, color=LIGHT["ink"])
    axes.set_xlim(50, 107)
    axes.set_title(title, fontsize=10, loc="left", color=LIGHT["ink"])
    axes.tick_params(colors=LIGHT["muted"], length=0, labelsize=9)
    axes.grid(axis="x", color=LIGHT["line"], zorder=0)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)


if __name__ == "__main__":
    main()
