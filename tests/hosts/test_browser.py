"""The page of `pluto web` in headless Chromium: golden vectors, a fake camera, what is kept, and who is asked."""

import json
import shutil
import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image

from pluto_edge import Runtime
from pluto_edge.observe.site import make_site
from tests.hosts.browser import PATIENCE, chromium, wait_for
from tests.hosts.clip import write_clip
from tests.hosts.conftest import DIGITS, HOSTS, served
from tests.observe.browser import look, missing, screenshot

pytestmark = [pytest.mark.browser, pytest.mark.skipif(bool(missing()), reason=missing())]

BATCH = 16
# how many steps the state in IndexedDB has behind it, as its header says
KEPT_STEPS = r"""new Promise((resolve) => {
  const opened = indexedDB.open("pluto-edge");
  opened.onsuccess = () => {
    const all = opened.result.transaction("states").objectStore("states").getAll();
    all.onsuccess = () => {
      opened.result.close();
      const text = new TextDecoder("latin1").decode(all.result[0] ?? new Uint8Array());
      resolve(Number(/steps\\":([0-9]+)/.exec(text)?.[1] ?? 0));
    };
  };
})"""


@pytest.fixture(scope="module")
def site(hosts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("web") / "site"
    make_site(DIGITS / "bundle", out, ort=hosts, name="Meter <digits>", batch=BATCH)
    return out


@pytest.fixture
def meters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(DIGITS), *sys.path])


def drawn(digits: list[int], seed: int = 4) -> list[np.ndarray]:
    import meter

    rng = np.random.default_rng(seed)
    return [meter.render(rng, digit, ()) for digit in digits]


def asked(driver: Any) -> list[str]:
    """Addresses that the browser has asked since this was last called, page and worker alike."""
    found = []
    for entry in driver.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            url = message["params"]["request"]["url"]
            found += [url] if urlsplit(url).scheme in ("http", "https", "ws", "wss") else []
    return found


def console(driver: Any) -> list[str]:
    return [entry["message"] for entry in driver.get_log("browser") if "favicon" not in entry["message"]]


def opened(driver: Any, url: str) -> None:
    driver.get(f"{url}/index.html")
    wait_for(driver, "!document.getElementById('start').disabled")


def test_golden_vectors_in_the_browser(hosts: Path, site: Path, tmp_path: Path) -> None:
    folder = tmp_path / "served"
    shutil.copytree(site / "ort", folder / "ort")
    for name in ("bundles", "cases", "cases.json"):
        (folder / "golden").mkdir(exist_ok=True)
        (folder / "golden" / name).symlink_to(HOSTS / "golden" / name)
    shutil.copyfile(hosts / "build/golden-page.js", folder / "golden.js")
    (folder / "index.html").write_text(
        '<meta charset="utf-8"><body><script type="module" src="golden.js"></script>'
    )
    with chromium(tmp_path / "profile") as driver, served(folder) as url:
        driver.get(f"{url}/index.html")
        found = json.loads(wait_for(driver, "document.body.textContent", 300))
    assert "error" not in found, found["error"]
    print(
        json.dumps({r["name"]: {k: f"{v:.0e}" for k, v in r["errors"].items()} for r in found["results"]}, indent=1)
    )
    assert not found["resizes"]["problems"] and found["resizes"]["compared"] >= 60
    problems = {result["name"]: result["problems"] for result in found["results"] if result["problems"]}
    assert not problems
    assert len(found["results"]) == len(json.loads((HOSTS / "golden/cases.json").read_text())["cases"])


@pytest.fixture
def camera(site: Path, meters: None, tmp_path: Path) -> Iterator[tuple[Any, str]]:
    """Chromium with the page open, whose camera sees digits, a tenth of a second each. No other host is asked."""
    write_clip(tmp_path / "clip.y4m", drawn([n % 10 for n in range(40)]), hold=3)
    with chromium(tmp_path / "profile", tmp_path / "clip.y4m") as driver, served(site) as url:
        look(driver, 1280, 900)
        opened(driver, url)
        yield driver, url
        assert {urlsplit(address).netloc for address in asked(driver)} == {urlsplit(url).netloc}
        assert console(driver) == []


def press(driver: Any, name: str) -> None:
    driver.execute_script("document.getElementById(arguments[0]).click()", name)


def text(driver: Any, name: str) -> str:
    return driver.execute_script("return document.getElementById(arguments[0]).textContent", name)


def test_the_camera_is_read_learned_from_and_what_was_learned_is_kept(camera: tuple[Any, str]) -> None:
    driver, url = camera
    assert text(driver, "status") == "Ready"
    press(driver, "start")
    wait_for(driver, "document.body.dataset.frames > 3")
    assert text(driver, "label") in set("0123456789")
    assert text(driver, "status") == "Live, adapting"
    weights = driver.execute_script(
        "return [...document.querySelectorAll('#bars .value')].map((v) => v.textContent)"
    )
    assert len(weights) == 7 and sum(float(w.rstrip(" %")) for w in weights) == pytest.approx(100, abs=3)
    wait_for(driver, "document.body.dataset.steps >= 1")
    assert "clear leads" in wait_for(driver, "document.querySelector('[data-kind=step] .why').textContent")
    colours = driver.execute_script(
        "const c = document.getElementById('chart');"
        "const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
        "return new Set(Array.from(new Uint32Array(d.buffer))).size"
    )
    assert colours > 2, "the chart is drawn"

    assert wait_for(driver, KEPT_STEPS) >= 1
    opened(driver, url)  # as if the browser had been closed: what was learned is taken up
    steps = int(text(driver, "steps"))
    assert steps >= 1
    assert driver.execute_script("return document.querySelector('[data-kind=restore] .why').textContent") == (
        f"{steps} steps"
    )

    press(driver, "reset")
    assert driver.execute_script("return document.getElementById('confirm').open")
    press(driver, "yes")
    wait_for(driver, "document.querySelector('[data-kind=reset]')")
    opened(driver, url)
    assert text(driver, "steps") == "0", "it is forgotten here, too"


def test_every_file_is_fetched_once(site: Path, meters: None, tmp_path: Path) -> None:
    """One weights file for three sessions; the third is opened when a gradient is first wanted."""
    import meter

    rng = np.random.default_rng(0)
    write_clip(
        tmp_path / "clip.y4m", [meter.UNSEEN["glare"](p, rng) for p in drawn([n % 10 for n in range(40)])], hold=3
    )
    paths: list[str] = []
    with chromium(tmp_path / "profile", tmp_path / "clip.y4m") as driver, served(site, paths) as url:
        opened(driver, url)
        press(driver, "start")
        wait_for(driver, "document.body.dataset.frames > 3")
        before = set(paths)
        assert {"/bundle/embed.onnx", "/bundle/forward.onnx", "/bundle/weights.bin"} <= before
        assert "/bundle/adapt.onnx" not in before
        until = monotonic() + PATIENCE
        while "/bundle/adapt.onnx" not in paths and monotonic() < until:
            sleep(0.1)
        wait_for(driver, "document.body.dataset.steps >= 3")
    assert "/bundle/adapt.onnx" in paths
    assert len(paths) == len(set(paths)), "nothing is fetched twice"
    assert not [p for p in paths if "seen" in p]


def test_it_does_not_learn_when_told_not_to(camera: tuple[Any, str]) -> None:
    driver, _ = camera
    press(driver, "adapt")
    assert text(driver, "adapt") == "Not adapting"
    press(driver, "start")
    wait_for(driver, f"document.body.dataset.frames > {2 * BATCH}")
    assert not driver.execute_script("return document.body.dataset.steps")
    press(driver, "start")
    assert text(driver, "status") == "Stopped"
    assert (
        driver.execute_script("return document.getElementById('video').srcObject.getTracks()[0].readyState")
        == "ended"
    )


def test_pictures_are_predicted_as_python_does(camera: tuple[Any, str], tmp_path: Path) -> None:
    """PNG files, so that no camera's colours are in between: class and confidence are those of Python's stream."""
    driver, _ = camera
    pictures = drawn([3, 8, 1, 0, 5], seed=9)
    files = []
    for index, picture in enumerate(pictures):
        files.append(tmp_path / f"{index}.png")
        Image.fromarray(picture).resize((90, 70), Image.Resampling.BILINEAR).save(files[-1])
    with Runtime(DIGITS / "bundle", threads=1) as runtime, runtime.stream("here", batch=BATCH) as stream:
        wanted = [stream(str(file)) for file in files]
    driver.execute_script("document.getElementById('files').hidden = false")
    from selenium.webdriver.common.by import By

    for number, (file, prediction) in enumerate(zip(files, wanted, strict=True), start=1):
        driver.find_element(By.ID, "files").send_keys(str(file))
        wait_for(driver, f"document.body.dataset.frames == {number}")
        assert text(driver, "label") == prediction.classes[0]
        sure = float(driver.execute_script("return document.getElementById('sure').style.width").rstrip("%"))
        assert sure == pytest.approx(100 * float(prediction.probabilities.max()), abs=0.05)


def test_it_fits_a_phone_and_the_night(camera: tuple[Any, str]) -> None:
    driver, _ = camera
    press(driver, "start")
    wait_for(driver, "document.body.dataset.frames > 3")
    grounds = []
    for width, scheme in ((390, "light"), (390, "dark"), (768, "dark"), (1280, "light")):
        look(driver, width, 844, scheme)
        assert driver.execute_script("return document.documentElement.scrollWidth") <= width
        grounds.append(driver.execute_script("return getComputedStyle(document.documentElement).backgroundColor"))
        image = Image.open(BytesIO(screenshot(driver)))
        assert image.width == width
    assert grounds[0] != grounds[1] == grounds[2] != grounds[3]
    assert driver.execute_script("return document.querySelector('h1').textContent") == "pluto-edge Meter <digits>"


def test_the_page_says_what_is_missing(site: Path, tmp_path: Path) -> None:
    broken = tmp_path / "site"
    shutil.copytree(site, broken)
    (broken / "bundle/modules/fog.safetensors").unlink()
    with chromium(tmp_path / "profile") as driver, served(broken) as url:
        driver.get(f"{url}/index.html")
        wait_for(driver, "document.getElementById('status').dataset.is === 'gone'")
        assert "modules/fog.safetensors: cannot be fetched (404" in text(driver, "status")
        assert driver.execute_script("return document.getElementById('start').disabled")
