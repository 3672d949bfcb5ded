"""`pluto predict`: what images, videos and cameras show, without learning."""

import argparse
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pluto_edge._text import printable
from pluto_edge.cli.parsing import add_bundle, add_engine, add_json, print_json
from pluto_edge.errors import ConfigError

if TYPE_CHECKING:
    from pluto_edge.runtime.types import Prediction

DIGITS = 6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Say what images show: class, confidence, and how much each module had to say. Every image is predicted\n"
        "by itself, and nothing is learned. A file that is no readable image is named and passed over."
    )
    parser.epilog = (
        "examples:\n"
        "  pluto predict bundle/ a.jpg b.jpg frames/          # images, and all images of a folder\n"
        "  pluto predict bundle/ clip.mp4 --limit 100         # a video's first frames (needs [camera])\n"
        "  pluto predict bundle/ 0                            # a camera, until Ctrl-C; also rtsp://...\n"
        "  curl -s http://camera/still.jpg | pluto predict bundle/ - --json\n"
        "\n"
        "`pluto stream` also adapts to what it sees."
    )
    add_bundle(parser)
    parser.add_argument(
        "sources",
        nargs="+",
        metavar="SOURCE",
        help="an image, a folder, a video, a camera's index, an address, or - for an image on standard input",
    )
    parser.add_argument("--limit", type=int, metavar="N", help="at most this many images or frames of each source")
    parser.add_argument("--state", type=Path, metavar="FILE", help="predict with what was learned and saved there")
    add_engine(parser)
    add_json(parser, "print a line of JSON for every image")


def run(options: argparse.Namespace) -> int:
    from pluto_edge.observe.sources import is_live, open_source, passed_over, public_name
    from pluto_edge.runtime.runtime import Runtime

    if options.limit is not None and options.limit < 1:
        raise ConfigError(f"--limit: want at least 1, got {options.limit}")
    for source in options.sources:  # better said before the first of them is predicted
        if source != "-" and not is_live(source) and not Path(source).exists():
            open_source(source)
    with Runtime(options.bundle, options.providers, options.threads) as runtime:
        if options.state is not None:
            runtime.restore(options.state)
        for source in options.sources:
            frames = open_source(source, on_unreadable=passed_over)
            for number, frame in enumerate(islice(frames, options.limit), 1):
                prediction = runtime.predict(frame.image)
                name = frame.file or public_name(source)
                if options.json:
                    print_json(facts(name, number, prediction), indent=None)
                else:
                    print(as_text(name if frame.file else f"{name} frame {number}", prediction), flush=True)
    return 0


def modules(prediction: "Prediction") -> dict[str, float]:
    """Weights of the modules that had a say, heaviest first."""
    weights = prediction.weights[0]
    return {prediction.modules[i]: float(weights[i]) for i in np.argsort(-weights, kind="stable") if weights[i] > 0}


def as_text(source: str, prediction: "Prediction") -> str:
    shares = ", ".join(f"{name} {weight:.2f}" for name, weight in modules(prediction).items() if weight >= 0.005)
    confidence = float(prediction.probabilities[0].max())
    return printable(f"{source}: {prediction.classes[0]} {confidence:.3f} ({shares})")


def facts(name: str, number: int, prediction: "Prediction") -> dict[str, object]:
    return {
        "source": name,
        "frame": number,
        "class": prediction.classes[0],
        "label": int(prediction.labels[0]),
        "confidence": round(float(prediction.probabilities[0].max()), DIGITS),
        "entropy": round(float(prediction.entropy[0]), DIGITS),
        "modules": {n: round(w, DIGITS) for n, w in modules(prediction).items()},
    }
