"""Make docs/serve.png: the page of `pluto serve` with cameras that read meter digits in different weather.

    python benchmarks/serve_page.py [--out docs/serve.png] [--scheme dark] [--width 390]

One camera is lost, one sees what no module was trained on. Needs Chromium, its driver and selenium:
tests/observe/browser.py says how to get them.
"""

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
from page_picture import ROOT, browser, make, parser

CAMERAS = {
    "meter-1": "clear",
    "meter-2": "fog",
    "meter-3": "low_light",
    "meter-4": "glare",
    "meter-5": "motion_blur",
    "meter-6": "sensor_noise",
    "meter-7": "",
    "meter-8": "colour_background",
    "meter-9": "frost",
}
RATE = 20.0  # frames a second
LOST: set[str] = set()  # cameras that do not come back


def main() -> None:
    given = parser(__doc__, "docs/serve.png")
    given.add_argument("--seconds", type=float, default=40, help="that the cameras run before (default: 40)")
    make(given.parse_args(), 700, take)


def take(options: Namespace, folder: Path, driver: Any) -> bytes:
    from pluto_edge.service.service import Service
    from pluto_edge.service.web import Web

    file = folder / "serve.toml"
    file.write_text(configuration())
    service = Service(file, simulated)
    with Web(service) as web, service:
        end = monotonic() + options.seconds
        while monotonic() < end:
            service.watch()
            sleep(0.5)
        driver.get(web.url)
        sleep(3)
        return browser.screenshot(driver)


def configuration() -> str:
    """All cameras over the digits bundle, a step every 64 frames."""
    head = f'bundle = "{ROOT / "examples/digits/bundle"}"\nstate = "state"\npage = "127.0.0.1:0"\nthreads = 1\n'
    return head + "".join(
        f'[[camera]]\nname = "{name}"\nsource = "rtsp://192.0.2.1/{name}"\nfps = {RATE}\nbatch = 32\nevery = 64\n'
        for name in CAMERAS
    )


def simulated(config, classes: tuple[str, ...]) -> Iterator:  # type: ignore[no-untyped-def, type-arg]
    """A camera in clear weather, then in its own; one of them is lost."""
    import meter

    from pluto_edge.errors import SourceError
    from pluto_edge.observe.sources import Frame

    rng = np.random.default_rng(int(config.name[-1]))
    conditions = {**meter.CONDITIONS, **meter.UNSEEN}
    for number in range(1_000_000):
        scene = CAMERAS[config.name] if number > 100 else "clear"
        if not scene or config.name in LOST:
            LOST.add(config.name)
            raise SourceError(f"{config.source}: the camera is lost after {number} frames")
        yield Frame(conditions[scene](meter.render(rng, int(rng.integers(10))), rng))
        sleep(1 / RATE)


if __name__ == "__main__":
    main()
