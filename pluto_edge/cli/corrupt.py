"""`pluto corrupt`: write corrupted copies of images, or look at them on a contact sheet."""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from pluto_edge._progress import Lines, live
from pluto_edge.cli.parsing import add_force, add_json, check_vacant, needs, print_json
from pluto_edge.cli.train import parse_corruptions, parse_severities
from pluto_edge.errors import ConfigError
from pluto_edge.preprocess import image_files
from pluto_edge.train.corruptions import corrupt
from pluto_edge.train.data import Domain, Sample, read_image

Job = tuple[Path, str, int]  # file, corruption, severity

TILE, GAP, LABEL = 96, 4, 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "The 15 common corruptions of Hendrycks and Dietterich, five severities each, the same for the same seed.\n"
        "SOURCE is an image or a folder; folders keep their structure below OUT/<name>-<severity>/."
    )
    parser.epilog = (
        "examples:\n"
        "  pluto corrupt photo.jpg --sheet sheet.png                    # all of them, to look at\n"
        "  pluto corrupt clean/ --out domains/ --corruptions fog,snow --severities 1-5"
    )
    parser.add_argument("source", type=Path, metavar="SOURCE", help="an image, or a folder of images")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--sheet", type=Path, metavar="PNG", help="preview one image as a contact sheet")
    what.add_argument("--out", type=Path, help="write corrupted copies below this folder")
    parser.add_argument("--corruptions", default="all", metavar="LIST", help="comma-separated, or all (default)")
    parser.add_argument("--severities", default="1-5", help="for example 3, 1-5 or 1,3,5 (default: 1-5)")
    parser.add_argument("--seed", type=int, default=0, help="of everything random (default: 0)")
    add_force(parser)
    add_json(parser, "print what was written as JSON on stdout")


def run(options: argparse.Namespace) -> int:
    names, severities = parse_corruptions(options.corruptions), parse_severities(options.severities)
    files = find(options.source)
    if options.sheet is not None:
        check_vacant(options.force, options.sheet)
        sheet(files[0], names, severities, options.seed).save(options.sheet)
        _say(options, f"{files[0]}, {len(names)} corruptions x {len(severities)} severities", options.sheet)
        return 0
    root = options.source if options.source.is_dir() else options.source.parent
    jobs = [(f, n, s) for f in files for n in names for s in severities]
    check_vacant(options.force, *(options.out / f"{n}-{s}" for n in names for s in severities))
    for file, name, severity in _shown(jobs):
        domain = Domain(f"{name}-{severity}", (), (), (), (name, severity), options.seed)
        target = options.out / domain.name / file.relative_to(root).with_suffix(".png")
        target.parent.mkdir(parents=True, exist_ok=True)
        domain.read(Sample(file, 0)).save(target)
    _say(options, f"{len(jobs)} images in {len(names) * len(severities)} domains", options.out)
    return 0


def _say(options: argparse.Namespace, what: str, written: Path) -> None:
    if options.json:
        print_json({"written": str(written), "what": what})
    else:
        print(f"{written}: {what}")


def _shown(jobs: Sequence[Job]) -> Iterator[Job]:
    """The jobs one after another: with a bar in a terminal, else with a line now and then."""
    if live():
        with needs("train"):
            from tqdm import tqdm
        yield from tqdm(jobs, unit="image", leave=False)
        return
    lines = Lines()
    for number, job in enumerate(jobs):
        lines.step("corrupt", number, len(jobs))
        yield job


def find(source: Path) -> list[Path]:
    if source.is_file():
        return [source]
    files = image_files(source)
    if not files:
        raise ConfigError(f"{source}: no image and no folder of images")
    return files


def sheet(file: Path, names: Sequence[str], severities: Sequence[int], seed: int) -> Image.Image:
    """Rows are corruptions, columns severities."""
    try:
        image = np.asarray(read_image(file))
    except OSError as cause:
        raise ConfigError(f"{file}: not a readable image ({cause})") from cause
    step = TILE + GAP
    canvas = Image.new("RGB", (LABEL + step * len(severities), 24 + step * len(names)), "white")
    draw, font = ImageDraw.Draw(canvas), ImageFont.load_default(13)
    for column, severity in enumerate(severities):
        draw.text((LABEL + column * step + TILE // 2, 4), str(severity), "black", font)
    for row, name in enumerate(names):
        draw.text((6, 24 + row * step + TILE // 2 - 8), name, "black", font)
        for column, severity in enumerate(severities):
            tile = Image.fromarray(corrupt(image, name, severity, seed))
            tile.thumbnail((TILE, TILE))
            canvas.paste(tile, (LABEL + column * step, 24 + row * step))
    return canvas
