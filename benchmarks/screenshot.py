"""Make docs/view.png: the page of a stream that reads meter digits while the weather changes.

    python benchmarks/screenshot.py [--out docs/view.png] [--scheme dark] [--width 390]

Needs Chromium, its driver and selenium: tests/observe/browser.py says how to get them.
"""

import argparse
import sys
import tempfile
from io import BytesIO
from pathlib import Path
from time import sleep

import numpy as np
from PIL import Image

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "examples/digits")]

SCENES = ("clear", "low_light", "glare", "motion_blur", "sensor_noise", "fog")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "docs/view.png", help="(default: docs/view.png)")
    parser.add_argument("--scheme", choices=("light", "dark"), default="light", help="(default: light)")
    parser.add_argument("--width", type=int, default=1280, help="of the window, in pixels (default: 1280)")
    parser.add_argument("--frames", type=int, default=300, help="of each condition (default: 300)")
    parser.add_argument(
        "--bundle", type=Path, default=ROOT / "examples/digits/bundle", help="(default: the digits)"
    )
    options = parser.parse_args()
    picture = Image.open(BytesIO(take(options))).convert("RGB")
    picture.save(options.out, optimize=True)
    print(f"{options.out}: {picture.width} x {picture.height}, {options.out.stat().st_size / 1000:.0f} kB")


def take(options: argparse.Namespace) -> bytes:
    import meter

    from pluto_edge import Runtime
    from pluto_edge.observe.view import View
    from tests.observe import browser

    if browser.missing():
        sys.exit(browser.missing())
    rng = np.random.default_rng(0)
    conditions = {**meter.CONDITIONS, **meter.UNSEEN}

    def see(scene: str) -> None:
        frame = conditions[scene](meter.render(rng, int(rng.integers(10))), rng)
        view.show(frame, stream(frame), scene)

    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        Runtime(options.bundle) as runtime,
        runtime.stream("meter", batch=32, every=64, background=False, on_change="reopen") as stream,
        View(stream, port=0, save_to=Path(folder) / "state.safetensors") as view,
        browser.chromium(Path(folder) / "profile") as driver,
    ):
        for scene in SCENES:
            for _ in range(options.frames):
                see(scene)
        browser.look(driver, options.width, 900, options.scheme, scale=2 if options.width < 600 else 1)
        driver.get(view.url)
        for _ in range(10):  # the camera goes on while the page loads
            sleep(0.1)
            see(SCENES[-1])
        return browser.screenshot(driver)


if __name__ == "__main__":
    main()
