"""The pictures of docs/architecture.md: the parts of the code, and who imports whom.

    python benchmarks/import_graph.py             # docs/imports.svg, from the imports of this tree
    python benchmarks/import_graph.py --before    # docs/imports_before.svg, from a commit with a flat runtime/

A part is a folder or a module. Parts stand in the order of the layers, the users at the top. An import that goes
down is an arc on the right, in the colour of the part that imports; one that goes up is red and on the left.
Everything may import the shared modules at the bottom, so arcs that end there are left out.
"""

import argparse
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path

from source_tree import ROOT, SourceTree, at_commit

DOCS = ROOT / "docs"
BEFORE = "c72db3e"  # the last commit in which runtime/ was one flat folder


@dataclass(frozen=True)
class Part:
    """A box of the picture: one module, or the modules of a package that have no box of their own."""

    name: str
    where: str
    purpose: str
    colour: str


# from the top layer to the bottom
PARTS = (
    Part("cli", "pluto_edge.cli", "the pluto command", "#7b5ea7"),
    Part("pluto_edge", "pluto_edge.__init__", "the names that users import", "#b07aa1"),
    Part("service", "pluto_edge.service", "many cameras as a service", "#e15759"),
    Part("pipeline", "pluto_edge.pipeline", "folders to a published repository", "#8c6d31"),
    Part("evaluate", "pluto_edge.evaluate", "bundle and folders to who wins", "#4e79a7"),
    Part("bench", "pluto_edge.bench", "what a bundle costs", "#76b7b2"),
    Part("fleet", "pluto_edge.fleet", "bundles on trial, what was learned carried over and offered", "#ff9da7"),
    Part("observe", "pluto_edge.observe", "streams watched and recorded", "#59a14f"),
    Part("runtime", "pluto_edge.runtime.runtime", "Runtime", "#9c755f"),
    Part("runtime/stream", "pluto_edge.runtime.stream", "frames one at a time", "#edc948"),
    Part("runtime: learner", "pluto_edge.runtime", "steps as transactions, and their files", "#f28e2b"),
    Part("runtime/algorithm", "pluto_edge.runtime.algorithm", "the method, in numpy", "#d37295"),
    Part("runtime/engine", "pluto_edge.runtime.engine", "the graphs on a device", "#86bcb6"),
    Part("runtime: types", "pluto_edge.runtime.types", "plain values", "#bab0ac"),
    Part("repository", "pluto_edge.repository", "bundles and modules published, and fetched", "#8cd17d"),
    Part("export", "pluto_edge.export", "store to bundle", "#499894"),
    Part("train", "pluto_edge.train", "folders to store", "#79706e"),
    Part("vit", "pluto_edge.vit", "the frozen backbone in torch", "#a0cbe8"),
    Part("shared", "pluto_edge", "what all parts share", "#d7b5a6"),
)
ORDER = [part.name for part in PARTS]

# where the modules of the flat runtime/ live today
MOVED = {
    "cli": "bench_cli doctor replay run",
    "bench": "bench bench_plot flops fresh machine workload",
    "observe": "events moment plot recording rivals server sources summary terminal view",
    "runtime": "runtime",
    "runtime/stream": "background budget canary changes stream",
    "runtime: learner": "guard learner persistence",
    "runtime/algorithm": "algorithm alignment beyond continuity evidence prototypes selector state",
    "runtime/engine": "contract forks gate network objective onnx_bytes session timing",
    "runtime: types": "prediction",
}
THEN = {f"pluto_edge.runtime.{stem}": part for part, stems in MOVED.items() for stem in stems.split()}
HTML = "pluto_edge.runtime.prediction_html"  # how a value shows itself is a part of the values
THEN["pluto_edge.cli"] = "cli"  # which was one module

WIDTH = 470
LEFT, TOP, GAP = 190, 52, 16
LINE, CHARACTERS = 15, 74
LANE = 15  # between one arc and the next
RED = "#d62728"


def part_of(module: str) -> str:
    """The part that a module is in today: its own, or its folder's."""
    own = {"pluto_edge": "pluto_edge.__init__", HTML: "pluto_edge.runtime.types"}.get(module, module)
    for name in (own, module.rpartition(".")[0]):
        for part in PARTS:
            if part.where == name:
                return part.name
    raise ValueError(
        f"{module} is in no part of the picture: add its folder to PARTS in benchmarks/import_graph.py"
    )


def members(tree: SourceTree, then: Mapping[str, str]) -> dict[str, list[str]]:
    """Part to modules. `then` has the part of modules that live elsewhere today.

    The empty `__init__` of a folder is left out; that of pluto_edge is the part that users import.
    """
    found: dict[str, list[str]] = {name: [] for name in ORDER}
    for module, file in tree.files.items():
        if file.name != "__init__.py" or module in ("pluto_edge", "pluto_edge.cli"):
            found[then.get(module) or part_of(module)].append(module)
    return found


def edges(tree: SourceTree, parts: Mapping[str, list[str]]) -> list[tuple[str, str]]:
    """From part to part that it imports, in the order of the layers.

    What imports `pluto_edge` is on its way to a module in it: the names of users are for users.
    """
    home = {module: part for part, modules in parts.items() for module in modules}
    found = {(home[m], home[n]) for m in home for n in tree.own(m) & home.keys() - {"pluto_edge"}}
    kept = [(a, b) for a, b in found if a != b and b != "shared"]
    return sorted(kept, key=lambda edge: (ORDER.index(edge[0]), ORDER.index(edge[1])))


def goes_up(edge: tuple[str, str]) -> bool:
    """Whether a part imports one of a higher layer."""
    return ORDER.index(edge[1]) < ORDER.index(edge[0])


def draw(tree: SourceTree, title: str, then: Mapping[str, str]) -> str:
    """The picture as SVG; `then` as for `members`."""
    parts = members(tree, then)
    place: dict[str, tuple[float, float]] = {}  # part to the y of its box and its height
    boxes = []
    y = float(TOP)
    for part in PARTS:
        lines = textwrap.wrap(", ".join(_file(tree, m) for m in sorted(parts[part.name])), CHARACTERS) or [
            "no file yet"
        ]
        height = 30 + LINE * len(lines)
        place[part.name] = (y, height)
        boxes += _box(part, lines, y, height)
        if then and part.name in MOVED:
            boxes.append(_note("in runtime/", y + 18))
        y += height + GAP
    arcs, right = _arcs(edges(tree, parts), place)
    width, height = round(right + 20), round(y + 4)
    style = "text{font-family:DejaVu Sans,Verdana,sans-serif;fill:#222}.f{font-size:11px;fill:#555}"
    style += ".n{font-size:13px;font-weight:bold}.t{font-size:15px;font-weight:bold}.a{fill:none;stroke-width:1.8}"
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}>',
        f"<title>{escape(title)}</title>",
        f"<style>{style}</style>",
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<text class="t" x="{LEFT}" y="24">{escape(title)}</text>',
        f'<text class="f" x="{LEFT + WIDTH + 8}" y="42">imports, downwards</text>',
        f'<text class="f" x="{LEFT - 8}" y="42" text-anchor="end" style="fill:{RED}">imports, upwards</text>',
    ]
    return "\n".join([*head, *arcs, *boxes, "</svg>"]) + "\n"


def _file(tree: SourceTree, module: str) -> str:
    file = tree.files[module]
    return "__init__" if file.name == "__init__.py" else file.stem


def _box(part: Part, lines: list[str], y: float, height: float) -> list[str]:
    text = f'{escape(part.name)} <tspan class="f" font-weight="normal">{escape(part.purpose)}</tspan>'
    return [
        f'<rect x="{LEFT}" y="{y:g}" width="{WIDTH}" height="{height}" rx="4" fill="#f7f7f7" stroke="#999"/>',
        f'<rect x="{LEFT}" y="{y:g}" width="7" height="{height}" rx="2" fill="{part.colour}"/>',
        f'<text class="n" x="{LEFT + 16}" y="{y + 18:g}">{text}</text>',
        *(
            f'<text class="f" x="{LEFT + 16}" y="{y + 34 + LINE * i:g}">{escape(line)}</text>'
            for i, line in enumerate(lines)
        ),
    ]


def _note(text: str, y: float) -> str:
    return f'<text class="f" x="{LEFT + WIDTH - 10}" y="{y:g}" text-anchor="end">{escape(text)}</text>'


def _arcs(found: list[tuple[str, str]], place: Mapping[str, tuple[float, float]]) -> tuple[list[str], float]:
    """Every edge in a lane of its own, short ones inside; and how far right they reach."""
    ends: dict[tuple[str, bool], list[tuple[str, str]]] = {}
    for edge in found:
        for name in edge:
            ends.setdefault((name, goes_up(edge)), []).append(edge)
    colour = {part.name: part.colour for part in PARTS}
    drawn = []
    right = float(LEFT + WIDTH)
    lanes: dict[bool, list[list[tuple[float, float]]]] = {
        True: [],
        False: [],
    }  # what is taken of each, on each side
    for edge in sorted(found, key=lambda e: abs(ORDER.index(e[1]) - ORDER.index(e[0]))):
        up = goes_up(edge)
        y1, y2 = (_port(name, edge, ends[name, up], place[name]) for name in edge)
        lane = _lane(lanes[up], min(y1, y2), max(y1, y2))
        sign, start = (-1, LEFT) if up else (1, LEFT + WIDTH)
        turn = start + sign * (26 + LANE * lane)
        right = max(right, turn)
        shade = RED if up else colour[edge[0]]
        bend = -8 if up else 8
        path = f"M{start} {y1:g}H{turn - sign * 8:g}q{sign * 8} 0 {sign * 8} {bend}V{y2 - bend:g}"
        path += f"q0 {bend} {-sign * 8} {bend}H{start + sign * 9}"
        drawn.append(f'<path class="a" d="{path}" stroke="{shade}"><title>{" imports ".join(edge)}</title></path>')
        tip = f"M{start + sign} {y2:g}l{sign * 9} -4v8z"
        drawn.append(f'<path d="{tip}" fill="{shade}"/>')
    return drawn, right


def _port(name: str, edge: tuple[str, str], on: list[tuple[str, str]], box: tuple[float, float]) -> float:
    """Where on its box an arc ends: first what comes in, then what goes out."""
    order = sorted(on, key=lambda e: (e[0] == name, -ORDER.index(e[0]), -ORDER.index(e[1])))
    y, height = box
    return round(y + height * (order.index(edge) + 1) / (len(order) + 1), 1)


def _lane(lanes: list[list[tuple[float, float]]], low: float, high: float) -> int:
    """The innermost lane that is free from `low` to `high`; it is taken then."""
    for index, taken in enumerate(lanes):
        if all(high + 6 < a or b + 6 < low for a, b in taken):
            taken.append((low, high))
            return index
    lanes.append([(low, high)])
    return len(lanes) - 1


def picture() -> str:
    """docs/imports.svg, as it should be."""
    return draw(SourceTree(ROOT), "Who imports whom", {})


def main() -> None:
    """Write one of the two pictures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--before", action="store_true", help=f"the picture of commit {BEFORE}, which is history")
    file: Path
    if parser.parse_args().before:
        with at_commit(BEFORE) as tree:
            text = draw(tree, "Before: who imported whom", THEN)
        file = DOCS / "imports_before.svg"
    else:
        text, file = picture(), DOCS / "imports.svg"
    file.write_text(text)
    print(file.relative_to(ROOT))


if __name__ == "__main__":
    main()
