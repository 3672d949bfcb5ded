"""A page in Chromium as a picture: what screenshot.py and serve_page.py have in common."""

import argparse
import sys
import tempfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "digits"))
sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.observe import browser

ROOT = Path(__file__).parents[1]
Take = Callable[[argparse.Namespace, Path, Any], bytes]


def parser(description: str | None, out: str) -> argparse.ArgumentParser:
    """The options of every picture: where it goes, and the window that it shows."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--out", type=Path, default=ROOT / out, help=f"(default: {out})")
    made.add_argument("--scheme", choices=("light", "dark"), default="light", help="(default: light)")
    made.add_argument("--width", type=int, default=1280, help="of the window, in pixels (default: 1280)")
    return made


def make(options: argparse.Namespace, height: int, take: Take) -> None:
    """Write what `take` gives, which has a folder and a browser whose window is as high as this."""
    if browser.missing():
        sys.exit(browser.missing())
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        browser.chromium(Path(folder) / "profile") as driver,
    ):
        browser.look(driver, options.width, height, options.scheme, scale=2 if options.width < 600 else 1)
        picture = Image.open(BytesIO(take(options, Path(folder), driver))).convert("RGB")
    picture.save(options.out, optimize=True)
    print(f"{options.out}: {picture.width} x {picture.height}, {options.out.stat().st_size / 1000:.0f} kB")
