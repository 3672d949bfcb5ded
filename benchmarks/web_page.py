"""The page of `pluto web` in Chromium: its picture, and what a frame and a step cost there, in Node and in Python.

    python benchmarks/web_page.py --picture docs/web.png       # the digits bundle, a camera that plays a clip
    python benchmarks/web_page.py --bundle bundle/ --batch 16  # any bundle: what it costs

Needs Chromium, chromedriver and selenium, and npm's packages in hosts/ (`npm ci --ignore-scripts` there).
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).parent.parent
DIGITS = ROOT / "examples/digits"
HOSTS = ROOT / "hosts"
sys.path[:0] = [str(ROOT), str(DIGITS)]

STORY = ("clear", "fog", "low_light", "glare")
EACH = 130  # digits of a condition
COUNT = "document.body.dataset.frames"


def digits(each: int, seed: int = 3) -> list[NDArray[np.uint8]]:
    """Meter digits through known conditions and one that is not."""
    import meter

    rng = np.random.default_rng(seed)
    known = {**meter.CONDITIONS, **meter.UNSEEN}
    return [known[c](meter.render(rng, int(d), ()), rng) for c in STORY for d in rng.integers(0, 10, each)]


def in_chromium(
    bundle: Path, pictures: Sequence[NDArray[np.uint8]], options: argparse.Namespace
) -> tuple[float, float]:
    """Milliseconds of a frame, seconds of a step, as the page says; takes the page's picture if it is wanted."""
    from pluto_edge.observe.site import make_site
    from tests.hosts.browser import chromium, wait_for
    from tests.hosts.clip import write_clip
    from tests.hosts.conftest import served
    from tests.observe.browser import look, screenshot

    with tempfile.TemporaryDirectory() as folder:
        make_site(bundle, Path(folder) / "site", ort=HOSTS, name="Meter digits", batch=options.batch)
        write_clip(Path(folder) / "clip.y4m", pictures, hold=3)
        with (
            chromium(Path(folder) / "profile", Path(folder) / "clip.y4m") as driver,
            served(Path(folder) / "site") as url,
        ):
            look(driver, 1280, 900, scale=1.5)
            driver.get(f"{url}/index.html")
            wait_for(driver, "!document.getElementById('start').disabled")
            driver.execute_script("document.getElementById('start').click()")
            wait_for(driver, f"{COUNT} >= {options.frames}", 1800)
            if options.frames >= options.batch:
                wait_for(driver, "document.getElementById('cost').textContent !== '–'", 600)
            sleep(0.5)
            if options.picture:
                options.picture.write_bytes(screenshot(driver))
            return number(driver, "median"), number(driver, "cost")


def number(driver: Any, name: str) -> float:
    """What the page shows there; not a number before there is one."""
    shown = driver.execute_script("return document.getElementById(arguments[0]).firstChild.textContent", name)
    return float("nan") if shown == "–" else float(shown)


def in_node(bundle: Path, pictures: Sequence[NDArray[np.uint8]], batch: int) -> tuple[float, float]:
    """The same of hosts/node's command, which waits for its steps; one thread, as in the browser."""
    subprocess.run(["node", "build.mjs", "--node"], cwd=HOSTS, check=True)
    size = f"{pictures[0].shape[1]}x{pictures[0].shape[0]}"
    command = [
        "node",
        "build/cli.mjs",
        str(bundle.resolve()),
        "--size",
        size,
        "--batch",
        str(batch),
        "--threads",
        "1",
    ]
    given = b"".join(p.tobytes() for p in pictures)
    lines = subprocess.run(command, cwd=HOSTS, input=given, check=True, capture_output=True).stdout.splitlines()
    return split([json.loads(line) for line in lines])


def in_python(bundle: Path, pictures: Sequence[NDArray[np.uint8]], batch: int) -> tuple[float, float]:
    """The same of Python's stream, with one thread and steps inside of the call."""
    from pluto_edge import Runtime

    lines = []
    with Runtime(bundle, threads=1) as runtime, runtime.stream("here", batch=batch, background=False) as stream:
        for picture in pictures:
            began = perf_counter()
            stream(picture)
            lines.append({"milliseconds": 1e3 * (perf_counter() - began), "steps": stream.metrics.steps})
    return split(lines)


def split(lines: list[dict[str, Any]]) -> tuple[float, float]:
    """Median milliseconds of the frames without a step; median seconds of those with one."""
    stepped = [now["steps"] > before["steps"] for before, now in pairwise(lines)]
    plain = [line["milliseconds"] for line, step in zip(lines[1:], stepped, strict=True) if not step]
    steps = [line["milliseconds"] / 1e3 for line, step in zip(lines[1:], stepped, strict=True) if step]
    return statistics.median(plain), statistics.median(steps) if steps else float("nan")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path, default=DIGITS / "bundle", help="(default: the digits')")
    parser.add_argument("--batch", type=int, default=64, help="frames that a step learns from (default: 64)")
    parser.add_argument("--frames", type=int, default=len(STORY) * EACH - 20, help="that the page looks at")
    parser.add_argument("--picture", type=Path, help="write the page's picture here")
    options = parser.parse_args()
    pictures = digits(EACH)
    large = [
        np.asarray(p).repeat(8, axis=0).repeat(8, axis=1) for p in pictures[: options.frames]
    ]  # as the camera's
    for host, (frame, step) in {
        "Chromium": in_chromium(options.bundle, pictures, options),
        "Node": in_node(options.bundle, large, options.batch),
        "Python": in_python(options.bundle, large, options.batch),
    }.items():
        print(f"{host:10} {frame:8.1f} ms a frame, {step:7.2f} s a step of {options.batch}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
