"""Chromium with a camera that plays a clip."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from tests.observe.browser import FLAGS

PATIENCE = 90.0  # seconds, on a busy machine
CAMERA = ("--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream")


@contextmanager
def chromium(profile: Path, clip: Path | None = None) -> Iterator[Any]:
    """A browser with this profile, its console and network recorded; `clip` is what its camera sees."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    flags = ["--headless=new", *FLAGS[1:], f"--user-data-dir={profile}"]
    flags += ["--no-sandbox"] if os.getuid() == 0 else []
    flags += [*CAMERA, f"--use-file-for-fake-video-capture={clip}"] if clip else []
    for flag in flags:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, Service(shutil.which("chromedriver")))
    driver.set_script_timeout(PATIENCE)
    try:
        yield driver
    finally:
        driver.quit()


def wait_for(driver: Any, script: str, patience: float = PATIENCE) -> Any:
    """What the script gives, once that is something."""
    until = monotonic() + patience
    while monotonic() < until:
        found = driver.execute_script(f"return ({script})")
        if found:
            return found
        sleep(0.1)
    told = driver.execute_script("return document.body.innerText")
    raise AssertionError(f"nothing after {patience:.0f} s: {script}\n{told[:2000]}")
