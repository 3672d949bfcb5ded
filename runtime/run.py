"""`pluto run`: folders of images as a stream, with the events as a table."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from pluto_edge import _text
from pluto_edge.errors import ConfigError, ImageError
from pluto_edge.preprocess import IMAGE_SUFFIXES, image_files, to_rgb
from pluto_edge.runtime import persistence
from pluto_edge.runtime.events import heading, line
from pluto_edge.runtime.runtime import Runtime


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Feed folders of images to a bundle, one folder after another, and adapt on the way. Where the folders\n"
        "below are named like classes (photo/dog/1.jpg), accuracy is shown too: without learning, with it, and\n"
        "after a reset. Labels are never used for learning."
    )
    parser.epilog = (
        "examples:\n"
        "  pluto run bundle/ frames/                          # predict and adapt, batches of 64\n"
        "  pluto run bundle/ day/ night/ day/ --compare       # the same stream with and without learning\n"
        "  pluto run bundle/ frames/ --state state.safetensors   # go on from yesterday, save at the end"
    )
    parser.add_argument("bundle", help="bundle that `pluto-export` wrote")
    parser.add_argument("folders", nargs="+", type=Path, help="folders of images, in the order of the stream")
    parser.add_argument("--batch", type=int, default=64, help="images a step (default: 64)")
    parser.add_argument("--limit", type=int, help="at most this many images of each folder")
    parser.add_argument("--seed", type=int, default=0, help="of the order within each folder (default: 0)")
    parser.add_argument("--predict-only", action="store_true", help="never learn")
    parser.add_argument("--compare", action="store_true", help="also without learning, and after a reset")
    parser.add_argument("--state", type=Path, help="restore from this file if it is there, save to it at the end")
    parser.add_argument("--providers", default="auto", help="auto, cpu or cuda (default: auto)")
    parser.add_argument("--threads", type=int, help="for ONNX Runtime (default: one per core)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write every prediction as a line of JSON")


@dataclass(frozen=True)
class Segment:
    """One folder's images in stream order, and their labels where the folders name classes."""

    name: str
    files: tuple[Path, ...]
    labels: tuple[int, ...] | None


def run(options: argparse.Namespace) -> int:
    if options.batch < 1:
        raise ConfigError(f"--batch: want at least 1, got {options.batch}")
    runtime = Runtime(options.bundle, options.providers, options.threads)
    rng = np.random.default_rng(options.seed)
    segments = [find(folder, runtime.classes, rng, options.limit) for folder in options.folders]
    if options.state is not None and persistence.saved(options.state):
        runtime.restore(options.state)
    print(f"{runtime}\n")
    columns: dict[str, list[float | None]] = {}
    if options.compare or options.predict_only:
        columns["no learning"] = [play(runtime, s, options.batch, learn=False) for s in segments]
    if not options.predict_only:
        print(heading())
        columns["learning"] = [
            play(runtime, s, options.batch, learn=True, show=True, out=options.out) for s in segments
        ]
        if options.state is not None:
            runtime.save(options.state)
    if options.compare and not options.predict_only:
        runtime.reset()
        columns["after reset"] = [play(runtime, s, options.batch, learn=False) for s in segments]
    print(summary(segments, columns))
    return 0


def find(folder: Path, classes: Sequence[str], rng: np.random.Generator, limit: int | None = None) -> Segment:
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder")
    files = image_files(folder)
    if not files:
        raise ConfigError(f"{folder}: holds no image ({', '.join(sorted(IMAGE_SUFFIXES))})")
    files = [files[i] for i in rng.permutation(len(files))][:limit]
    known = all(p.parent.name in classes for p in files)
    labels = tuple(classes.index(p.parent.name) for p in files) if known else None
    return Segment(folder.name, tuple(files), labels)


def play(
    runtime: Runtime, segment: Segment, batch: int, *, learn: bool, show: bool = False, out: Path | None = None
) -> float | None:
    """Accuracy of the segment, predicted batch after batch (before each batch's learning acts)."""
    right = 0
    for start in range(0, len(segment.files), batch):
        part = slice(start, start + batch)
        images = [open_image(path) for path in segment.files[part]]
        prediction = runtime.step(images) if learn else runtime.predict(images)
        if show:
            print(line(runtime.events[-1]), flush=True)
        if out is not None:
            rows = zip(segment.files[part], prediction.classes, prediction.entropy, strict=True)
            with out.open("a", encoding="utf-8") as file:
                for path, name, entropy in rows:
                    file.write(json.dumps({"file": str(path), "class": name, "entropy": float(entropy)}) + "\n")
        if segment.labels is not None:
            right += int((prediction.labels == np.array(segment.labels[part])).sum())
    return right / len(segment.files) if segment.labels is not None else None


def summary(segments: Sequence[Segment], columns: dict[str, list[float | None]]) -> str:
    def cell(value: float | None) -> str:
        return "-" if value is None else f"{value:.3f}"

    rows = [
        (s.name, str(len(s.files)), *(cell(column[i]) for column in columns.values()))
        for i, s in enumerate(segments)
    ]
    total = sum(len(s.files) for s in segments)
    means = []
    for column in columns.values():
        known = [v * len(s.files) for v, s in zip(column, segments, strict=True) if v is not None]
        means.append(cell(sum(known) / total if len(known) == len(segments) else None))
    rows.append(("all", str(total), *means))
    return "\n" + _text.table(("accuracy", "images", *columns), rows, right=range(1, len(columns) + 2))


def open_image(path: Path) -> Image.Image:
    try:
        with Image.open(path) as image:
            return to_rgb(image)
    except Exception as cause:  # of whatever type: truncated, too large to be true, no image at all
        raise ImageError(f"{path}: not a readable image ({cause})") from cause
