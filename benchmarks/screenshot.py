"""Make docs/view.png: the page of a stream that reads meter digits while the weather changes.

    python benchmarks/screenshot.py [--out docs/view.png] [--scheme dark] [--width 390]

Needs Chromium, its driver and selenium: tests/observe/browser.py says how to get them.
"""

from argparse import Namespace
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
from page_picture import ROOT, browser, make, parser

SCENES = ("clear", "low_light", "glare", "motion_blur", "sensor_noise", "fog")


def main() -> None:
    given = parser(__doc__, "docs/view.png")
    given.add_argument("--frames", type=int, default=300, help="of each condition (default: 300)")
    given.add_argument("--bundle", type=Path, default=ROOT / "examples/digits/bundle", help="(default: the digits)")
    make(given.parse_args(), 900, take)


def take(options: Namespace, folder: Path, driver: Any) -> bytes:
    import meter

    from pluto_edge import Runtime
    from pluto_edge.observe.view import View

    rng = np.random.default_rng(0)
    conditions = {**meter.CONDITIONS, **meter.UNSEEN}

    def see(scene: str) -> None:
        frame = conditions[scene](meter.render(rng, int(rng.integers(10))), rng)
        view.show(frame, stream(frame), scene)

    with (
        Runtime(options.bundle) as runtime,
        runtime.stream("meter", batch=32, every=64, background=False, on_change="reopen") as stream,
        View(stream, port=0, save_to=folder / "state.safetensors") as view,
    ):
        for scene in SCENES:
            for _ in range(options.frames):
                see(scene)
        driver.get(view.url)
        for _ in range(10):  # the camera goes on while the page loads
            sleep(0.1)
            see(SCENES[-1])
        return browser.screenshot(driver)


if __name__ == "__main__":
    main()
