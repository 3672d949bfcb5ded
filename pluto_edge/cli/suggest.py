"""`pluto suggest`: which modules of a repository were made for what a camera sees."""

import argparse
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from pluto_edge import _text
from pluto_edge.cli.parsing import add_bundle, add_engine, add_json, add_modules, print_json
from pluto_edge.errors import ConfigError

if TYPE_CHECKING:
    from pluto_edge.runtime.types import Suggestions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show a bundle some frames; say whether it knows their domain, and which modules that it does not have\n"
        "were made for it. The index of the modules is searched on this machine: no image, and no statistic of\n"
        "one, is sent anywhere. Of a repository the index is fetched, and nothing else."
    )
    parser.epilog = (
        "examples:\n"
        "  pluto suggest bundle/ frames/ --modules store/modules      # a folder of images\n"
        "  pluto suggest bundle/ 0 --modules /media/stick --limit 128  # a camera's next frames\n"
        "  pluto suggest https://store.example/meter frames/ --modules https://store.example"
    )
    add_bundle(parser)
    parser.add_argument("source", metavar="SOURCE", help="a folder, a video, a camera's index or an address")
    add_modules(parser, required=True)
    parser.add_argument("--limit", type=int, default=128, metavar="N", help="frames to look at (default: 128)")
    parser.add_argument("--count", type=int, default=5, metavar="N", help="modules to name (default: 5)")
    parser.add_argument("--state", type=Path, metavar="FILE", help="go on from what was learned and saved there")
    add_engine(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from pluto_edge.observe.sources import open_source, passed_over
    from pluto_edge.repository.source import module_source
    from pluto_edge.runtime.runtime import Runtime

    for name in ("limit", "count"):
        if getattr(options, name) < 1:
            raise ConfigError(f"--{name}: want at least 1, got {getattr(options, name)}")
    modules = module_source(options.modules, options.site)
    frames = islice(open_source(options.source, on_unreadable=passed_over), options.limit)
    opened = Runtime(options.bundle, options.providers, options.threads)
    with opened as runtime, runtime.stream(background=False) as stream:
        if options.state is not None:
            stream.restore(options.state)
        for frame in frames:
            stream(frame.image)
        found = runtime.suggest(modules, stream, options.count)
    if options.json:
        print_json(found)
    else:
        print(as_text(found))
    return 0


def as_text(found: "Suggestions") -> str:
    """For people."""
    head = _text.printable(f"{'other modules are needed' if found.needed else 'no other module is needed'}: ")
    head += _text.printable(found.reason)
    if not found.modules:
        return f"{head}\nno module that fits this bundle is there"
    rows = [
        (
            m.name,
            _text.tick(m.fit >= 0.5),
            f"{m.fit:.2f}",
            f"{m.distance:.2f}",
            f"{m.evidence:.1f}",
            f"{m.ahead:.1f}",
        )
        for m in found.modules
    ]
    sizes = [_text.size(m.size) for m in found.modules]
    header = ["module", "fits", "fit", "distance", "evidence", "ahead", "size"]
    return f"{head}\n\n" + _text.table(
        header, [(*row, size) for row, size in zip(rows, sizes, strict=True)], right=(2, 3, 4, 5, 6)
    )
