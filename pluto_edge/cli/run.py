"""`pluto run`: folders of images as a stream, with the events as a table."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from pluto_edge import _text
from pluto_edge.cli.parsing import add_bundle, add_engine, add_force, add_json, check_vacant, print_json
from pluto_edge.errors import ConfigError, ImageError
from pluto_edge.observe.events import heading, line
from pluto_edge.observe.sources import Segment, find, passed_over
from pluto_edge.preprocess import open_image
from pluto_edge.runtime import persistence
from pluto_edge.runtime.runtime import Runtime
from pluto_edge.runtime.types import Prediction


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Feed folders of images to a bundle in batches, one folder after another, and adapt on the way: Algorithm\n"
        "1 of the paper. `pluto stream` takes frames one by one, `pluto predict` never learns. Where the folders\n"
        "below are named like classes (photo/dog/1.jpg), accuracy is shown too: without learning, with it, and\n"
        "after a reset. Labels are never used for learning."
    )
    parser.epilog = (
        "examples:\n"
        "  pluto run bundle/ frames/                          # predict and adapt, batches of 64\n"
        "  pluto run bundle/ day/ night/ day/ --compare       # the same stream with and without learning\n"
        "  pluto run bundle/ frames/ --state state.safetensors   # go on from yesterday, save at the end\n"
        "  pluto run bundle/ frames/ --out today.jsonl --append  # predictions behind those that are there"
    )
    add_bundle(parser)
    parser.add_argument(
        "folders", nargs="+", type=Path, metavar="FOLDER", help="folders of images, in the order of the stream"
    )
    parser.add_argument("--batch", type=int, default=64, help="images a step (default: 64)")
    parser.add_argument("--limit", type=int, help="at most this many images of each folder")
    parser.add_argument("--seed", type=int, default=0, help="of the order within each folder (default: 0)")
    parser.add_argument("--predict-only", action="store_true", help="never learn")
    parser.add_argument("--compare", action="store_true", help="also without learning, and after a reset")
    parser.add_argument("--state", type=Path, help="restore from this file if it is there, save to it at the end")
    add_engine(parser)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write every prediction as a line of JSON")
    there = parser.add_mutually_exclusive_group()
    there.add_argument("--append", action="store_true", help="write behind the lines that --out has already")
    add_force(there)
    add_json(parser, "print the accuracies as JSON on stdout, and no table")


def run(options: argparse.Namespace) -> int:
    if options.batch < 1:
        raise ConfigError(f"--batch: want at least 1, got {options.batch}")
    if not options.append:
        check_vacant(options.force, options.out)
    runtime = Runtime(options.bundle, options.providers, options.threads)
    rng = np.random.default_rng(options.seed)
    segments = [find(folder, runtime.classes, rng, options.limit) for folder in options.folders]
    if options.state is not None and persistence.saved(options.state):
        runtime.restore(options.state)
    if not options.json:
        print(f"{_text.printable(runtime)}\n")
    if options.out is not None and options.force:
        options.out.unlink(missing_ok=True)
    player = Player(runtime, options.batch, quiet=options.json)
    columns: dict[str, list[Played]] = {}
    if options.predict_only:
        columns["no learning"] = [player.play(s, learn=False, out=options.out) for s in segments]
    elif options.compare:
        columns["no learning"] = [player.play(s, learn=False) for s in segments]
    if not options.predict_only:
        if not options.json:
            print(heading())
        columns["learning"] = [player.play(s, learn=True, out=options.out) for s in segments]
        if options.state is not None:
            runtime.save(options.state)
    if options.compare and not options.predict_only:
        runtime.reset()
        columns["after reset"] = [player.play(s, learn=False) for s in segments]
    if options.json:
        print_json(facts(segments, columns))
    else:
        print(summary(segments, columns))
    return 0


class Played(NamedTuple):
    """Of one folder: how many images could be read, and the share of right predictions where labels are known."""

    images: int
    accuracy: float | None


class Player:
    """Feeds segments to a runtime, batch after batch. A file that cannot be read is passed over, and named once."""

    def __init__(self, runtime: Runtime, batch: int, quiet: bool = False) -> None:
        self._runtime, self._batch, self._quiet = runtime, batch, quiet
        self._unreadable: set[Path] = set()

    def play(self, segment: Segment, *, learn: bool, out: Path | None = None) -> Played:
        """Every prediction is made before its batch's learning acts, and goes to `out` as a line of JSON."""
        right = count = 0
        for start in range(0, len(segment.files), self._batch):
            read = self._read(segment, start)
            if not read:
                continue
            images = list(read.values())
            prediction = self._runtime.step(images) if learn else self._runtime.predict(images)
            count += len(images)
            if learn and not self._quiet:
                print(line(self._runtime.events[-1]), flush=True)
            if out is not None:
                _write(out, [segment.files[i] for i in read], prediction)
            if segment.labels is not None:
                right += int((prediction.labels == np.array(segment.labels)[list(read)]).sum())
        if not count:
            raise ImageError(f"{segment.name}: not one of its {len(segment.files)} images can be read")
        return Played(count, right / count if segment.labels is not None else None)

    def _read(self, segment: Segment, start: int) -> dict[int, Image.Image]:
        """The images of one batch, by where they are in the segment."""
        read = {}
        for index, path in enumerate(segment.files[start : start + self._batch], start):
            try:
                read[index] = open_image(path)
            except ImageError as error:
                if path not in self._unreadable:
                    passed_over(error)
                self._unreadable.add(path)
        return read


def _write(out: Path, files: Sequence[Path], prediction: Prediction) -> None:
    with out.open("a", encoding="utf-8") as file:
        for path, name, entropy in zip(files, prediction.classes, prediction.entropy, strict=True):
            file.write(json.dumps({"file": str(path), "class": name, "entropy": float(entropy)}) + "\n")


def facts(segments: Sequence[Segment], columns: dict[str, list[Played]]) -> dict[str, object]:
    """For every folder the images that were read, and by column the accuracy; null where no label is known."""
    folders = [
        {
            "folder": segment.name,
            "images": next(iter(columns.values()))[i].images,
            "accuracy": {name: column[i].accuracy for name, column in columns.items()},
        }
        for i, segment in enumerate(segments)
    ]
    return {"folders": folders}


def summary(segments: Sequence[Segment], columns: dict[str, list[Played]]) -> str:
    def cell(value: float | None) -> str:
        return "-" if value is None else f"{value:.3f}"

    counts = [played.images for played in next(iter(columns.values()))]
    rows = [
        (s.name, str(count), *(cell(column[i].accuracy) for column in columns.values()))
        for i, (s, count) in enumerate(zip(segments, counts, strict=True))
    ]
    means = []
    for column in columns.values():
        known = [p.accuracy * p.images for p in column if p.accuracy is not None]
        means.append(cell(sum(known) / sum(counts) if len(known) == len(column) else None))
    rows.append(("all", str(sum(counts)), *means))
    return "\n" + _text.table(("accuracy", "images", *columns), rows, right=range(1, len(columns) + 2))
