"""`pluto web`: a bundle as a static page."""

import argparse
from pathlib import Path

from pluto_edge._text import size
from pluto_edge.cli.parsing import add_bundle, add_force, add_json, check_vacant, print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write a folder that any web server can serve: a page that runs the bundle in the browser, with camera,\n"
        "predictions and adaptation. Everything happens on the visitor's device, and nothing is uploaded; what is\n"
        "learned stays in the browser. Needs onnxruntime-web, which npm fetches where it is not installed."
    )
    parser.epilog = (
        "examples:\n"
        "  pluto web bundle/ --out site/                  # then: python -m http.server --directory site 8000\n"
        "  pluto web bundle/ --out site/ --ort node_modules   # without npm: where onnxruntime-web was installed\n"
        '  pluto web bundle/ --out site/ --batch 32 --name "Gate 3"\n'
        "\n"
        "Cameras need https:// or http://localhost. The server needs no headers of its own."
    )
    add_bundle(parser)
    parser.add_argument(
        "--out", type=Path, default=Path("site"), metavar="SITE", help="folder to write (default: site)"
    )
    parser.add_argument("--name", default="", help="the page's title (default: the bundle's folder)")
    parser.add_argument(
        "--batch", type=int, default=64, metavar="N", help="frames that a step learns from (default: 64)"
    )
    parser.add_argument(
        "--rate",
        type=float,
        default=10.0,
        metavar="FPS",
        help="frames a second that are looked at, at most (default: 10)",
    )
    parser.add_argument("--ort", type=Path, metavar="FOLDER", help="where onnxruntime-web is, as npm installs it")
    add_force(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from pluto_edge.observe.site import make_site

    check_vacant(options.force, options.out)
    written = make_site(
        options.bundle, options.out, ort=options.ort, name=options.name, batch=options.batch, rate=options.rate
    )
    if options.json:
        print_json({"site": str(options.out), "bytes": written})
    else:
        print(f"{options.out}  {size(written)}; next: python -m http.server --directory {options.out} 8000")
    return 0
