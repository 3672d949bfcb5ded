"""The page in a real browser: headless Chromium, the digits bundle, freshly drawn meter digits."""

import json
import sys
import threading
from base64 import b64decode
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pluto_edge import Runtime, Stream
from pluto_edge.observe.view import View
from tests.observe.browser import chromium, look, missing, screenshot
from tests.observe.conftest import own, port

pytestmark = [pytest.mark.browser, pytest.mark.skipif(bool(missing()), reason=missing())]

DIGITS = Path(__file__).parent.parent.parent / "examples/digits"
PATIENCE = 30.0  # seconds, on a busy machine
TOKEN = "a-token-of-some-length"


class Camera:
    """A stream that learns inside the call, its page, and a meter to look at: nothing happens between calls."""

    def __init__(self, stream: Stream, view: View) -> None:
        import meter

        self.stream, self.view, self.meter, self.rng = stream, view, meter, np.random.default_rng(0)

    def see(self, condition: str, frames: int) -> None:
        for digit in self.rng.integers(0, 10, frames):
            image = self.meter.CONDITIONS[condition](self.meter.render(self.rng, int(digit), ()), self.rng)
            self.view.show(image, self.stream(image), condition)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("chromium")) as driver:
        yield driver


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with Runtime(DIGITS / "bundle", threads=1) as runtime:
        yield runtime


@pytest.fixture
def camera(driver: Any, runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Camera]:
    """With the page open; afterwards, nothing but this server was asked and nothing was wrong on the console."""
    monkeypatch.setattr(sys, "path", [str(DIGITS), *sys.path])
    look(driver, 1280, 900)
    with (
        runtime.stream("meter", batch=16, background=False) as stream,
        View(stream, port=0, save_to=tmp_path / "state.safetensors") as view,
    ):
        forget(driver)
        driver.get(view.url)
        yield Camera(stream, view)
        assert driver.get_log("browser") == []
        assert {url.partition("?")[0] for url in requested(driver)} <= {
            view.url + path for path in ("", "state", "reset", "freeze", "resume", "save")
        }
        driver.get("about:blank")  # or it would find the server gone


def forget(driver: Any) -> None:
    driver.get_log("browser"), driver.get_log("performance")


def requested(driver: Any) -> list[str]:
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    sent = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    return [url for url in sent if not url.startswith(("data:", "about:", "chrome:"))]


def wait(condition: Callable[[], Any]) -> None:
    end = monotonic() + PATIENCE
    while not condition():
        assert monotonic() < end, "the page did not get there"
        sleep(0.05)


def text(driver: Any, selector: str) -> str:
    script = "const e = document.querySelector(arguments[0]); return e ? e.innerText.trim() : ''"
    return driver.execute_script(script, selector)


def click(driver: Any, selector: str) -> None:
    driver.find_element("css selector", selector).click()


def until_frame(driver: Any, frames: int) -> None:
    wait(lambda: text(driver, "#frames") == f"{frames:,} frames")


def weights(driver: Any) -> dict[str, float]:
    """The bars, as read."""
    script = "return [...document.querySelectorAll('#bars li')].map((e) => e.innerText.split(/\\s*\\n\\s*/))"
    return {name: float(value.rstrip(" %")) / 100 for name, value, *_ in driver.execute_script(script)}


def kinds(driver: Any) -> list[str]:
    return driver.execute_script("return [...document.querySelectorAll('#events li')].map((e) => e.dataset.kind)")


def pixels(driver: Any, canvas: str) -> np.ndarray:
    """Of a chart, [H, W, 4]."""
    script = "return document.querySelector(arguments[0]).toDataURL()"
    data = driver.execute_script(script, canvas).partition(",")[2]
    return np.asarray(Image.open(BytesIO(b64decode(data))).convert("RGBA"))


def test_before_the_first_frame(driver: Any, camera: Camera) -> None:
    wait(lambda: text(driver, "#status") == "Waiting for the first frame")
    assert text(driver, "#empty") == "No frame yet"
    assert text(driver, "#quiet").startswith("Nothing yet")


def test_weights_move_when_the_condition_changes(driver: Any, camera: Camera) -> None:
    camera.see("clear", 64)
    until_frame(driver, 64)
    assert text(driver, "#caption") == "clear"
    before, chart = weights(driver), pixels(driver, "#weights")
    camera.see("low_light", 48)
    until_frame(driver, 112)
    last = camera.stream.timeline[-1]
    said = pytest.approx(dict(zip(last.modules, last.weights, strict=True)), abs=0.006)
    wait(lambda: weights(driver) == said)
    assert text(driver, "#caption") == "low_light"
    assert weights(driver)["low_light"] > before["low_light"] + 0.3
    assert (pixels(driver, "#weights") != chart).any()
    assert text(driver, "#label") == str(last.label)
    assert "change" in kinds(driver)
    assert text(driver, "#steps") == str(camera.stream.metrics.steps)
    shown = driver.execute_script(
        "const i = document.querySelector('#picture'); return [i.naturalWidth, i.className]"
    )
    assert shown == [32, "small"]


def test_is_it_helping(driver: Any, camera: Camera) -> None:
    wait(lambda: text(driver, "#verdict") == "Not known yet.")
    camera.see("clear", 64)
    until_frame(driver, 64)
    metrics = camera.stream.metrics
    checked = f"of the last {metrics.compared} frames that were checked (every 16th is)"
    now, first = f"{metrics.misfit:.1f}", f"{metrics.misfit_first:.1f}"
    moved = f"to {metrics.leader}; distance from its training {now}, {first} when this condition began"
    wait(lambda: text(driver, "#compared") == checked and text(driver, "#moved") == moved)
    assert text(driver, "#differing") == f"{round(100 * metrics.differing)} %"
    assert metrics.misfit < 1.2 and text(driver, "#familiar") == "familiar"
    assert text(driver, "#verdict").endswith(f"What it sees is like what {metrics.leader} was trained on.")


def test_the_chart_has_a_legend_and_the_page_no_serifs(driver: Any, camera: Camera) -> None:
    camera.see("clear", 64)
    camera.see("low_light", 48)
    until_frame(driver, 112)
    legend = """return [...document.querySelectorAll('#legend li')].map(
        (e) => [e.innerText, getComputedStyle(e.firstChild).backgroundColor])"""
    shown = dict(driver.execute_script(legend))
    assert list(shown) == list(weights(driver)) and len(set(shown.values())) == len(shown)
    for chart in ("#weights", "#entropy"):
        font = driver.execute_script("return document.querySelector(arguments[0]).getContext('2d').font", chart)
        assert font.startswith("12px system-ui") and font.endswith("sans-serif")


def test_changes_are_told_in_words(driver: Any, camera: Camera) -> None:
    camera.see("clear", 64)
    camera.see("low_light", 48)
    until_frame(driver, 112)
    wait(lambda: "change" in kinds(driver))
    told = text(driver, "#events [data-kind=change] .why")
    assert "the picture looks different" in told and "deviations" not in told


def test_reset_resets_when_it_is_meant(driver: Any, camera: Camera) -> None:
    camera.see("clear", 32)
    learner = camera.stream.learner
    learned = learner.state
    assert learned.affines
    until_frame(driver, 32)
    click(driver, "#reset")
    click(driver, "#cancel")
    sleep(0.3)
    assert learner.state is learned
    click(driver, "#reset")
    click(driver, "#yes")
    wait(lambda: "reset" in kinds(driver))
    assert text(driver, "#toast") == "Reset to the exported weights."
    assert learner.state.affines == {}
    exported = learner.network.bundle.load_selector()
    for name, tensor in exported.tensors.items():
        np.testing.assert_array_equal(learner.state.selector.tensors[name], tensor)


def test_freeze_and_resume(driver: Any, camera: Camera) -> None:
    camera.see("clear", 16)
    until_frame(driver, 16)
    click(driver, "#freeze")
    wait(lambda: text(driver, "#freeze") == "Resume")
    learned = camera.stream.learner.state
    camera.see("clear", 48)
    until_frame(driver, 64)
    assert text(driver, "#status") == "Live, frozen"
    assert camera.stream.learner.state is learned
    click(driver, "#freeze")
    wait(lambda: text(driver, "#freeze") == "Freeze")
    camera.see("clear", 16)
    assert camera.stream.learner.state is not learned


def test_save_writes_the_file(driver: Any, camera: Camera, runtime: Runtime, tmp_path: Path) -> None:
    camera.see("clear", 32)
    until_frame(driver, 32)
    click(driver, "#save")
    wait(lambda: text(driver, "#toast") == f"Saved to {tmp_path / 'state.safetensors'}.")
    with runtime.stream("another") as another:
        another.restore(tmp_path / "state.safetensors")
        restored, learned = another.learner.state, camera.stream.learner.state
    assert restored.affines.keys() == learned.affines.keys()
    for name, affines in learned.affines.items():
        np.testing.assert_array_equal(restored.affines[name].scale, affines.scale)


def test_keyboard(driver: Any, camera: Camera) -> None:
    from selenium.webdriver.common.keys import Keys

    camera.see("clear", 1)
    until_frame(driver, 1)
    body = driver.find_element("css selector", "body")
    body.send_keys(Keys.TAB)
    driver.switch_to.active_element.send_keys(Keys.ENTER)
    wait(lambda: camera.stream.frozen)
    click(driver, "#reset")
    assert driver.switch_to.active_element.get_attribute("id") == "cancel"
    driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert not driver.find_element("css selector", "#confirm").is_displayed()


@pytest.mark.parametrize("width", [320, 390, 768])
def test_small_screens(driver: Any, camera: Camera, width: int) -> None:
    look(driver, width, 700)
    camera.see("clear", 40)
    until_frame(driver, 40)
    across = "return [document.documentElement.scrollWidth, document.documentElement.clientWidth, innerWidth]"
    assert set(driver.execute_script(across)) == {width}
    sizes = "return [...document.querySelectorAll('header button')].map((b) => [b.offsetWidth, b.offsetHeight])"
    assert all(w >= 44 and h >= 44 for w, h in driver.execute_script(sizes))


def contrast(a: list[int], b: list[int]) -> float:
    """As WCAG 2 defines it."""

    def luminance(colour: list[int]) -> float:
        c = np.array(colour[:3]) / 255
        return float(np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722])

    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_dark_and_light(driver: Any, camera: Camera) -> None:
    camera.see("clear", 40)
    until_frame(driver, 40)
    grounds = {}
    for scheme in ("light", "dark"):
        look(driver, 1280, 900, scheme)
        sleep(0.5)
        for selector in ("#label", "#confidence", ".metrics dt", "#events .why", "#reset", "#bars .value"):
            script = """
                const e = document.querySelector(arguments[0]), card = e.closest('.card') || e;
                const rgb = (c) => c.match(/[\\d.]+/g).map(Number);
                return [rgb(getComputedStyle(e).color), rgb(getComputedStyle(card).backgroundColor)]"""
            ink, ground = driver.execute_script(script, selector)
            assert contrast(ink, ground) >= 4.5, (scheme, selector)
            grounds[scheme] = ground
        chart = pixels(driver, "#weights")
        assert len(np.unique(chart.reshape(-1, 4), axis=0)) > 20
        assert len(screenshot(driver)) > 10_000
    assert max(grounds["dark"]) < 64 < 192 < min(grounds["light"])


def test_many_modules_share_a_colour(driver: Any, make_bundle: Any, frames: np.ndarray) -> None:
    look(driver, 1280, 900)
    with (
        Runtime(make_bundle(modules=9), threads=1) as runtime,
        runtime.stream(background=False) as stream,
        View(stream, port=0) as view,
    ):
        for frame in frames:
            view.show(frame, stream(frame))
        driver.get(view.url)
        until_frame(driver, len(frames))
        shown = weights(driver)
        driver.get("about:blank")
    assert list(shown)[-1] == "3 others"
    assert len(shown) == 7
    assert sum(shown.values()) == pytest.approx(1, abs=0.05)


def test_a_server_that_goes_and_comes(driver: Any, runtime: Runtime) -> None:
    with runtime.stream("a") as stream:
        with View(stream, port=0) as view:
            there = port(view)
            driver.get(view.url)
            wait(lambda: text(driver, "#status") == "Waiting for the first frame")
        wait(lambda: text(driver, "#status") == "Server gone, trying again")
        assert not driver.find_element("css selector", "#reset").is_enabled()
        with View(stream, port=there):
            wait(lambda: text(driver, "#status") == "Waiting for the first frame")
            driver.get("about:blank")


def test_the_token_leaves_the_address(driver: Any, runtime: Runtime) -> None:
    with runtime.stream("a") as stream, View(stream, "0.0.0.0", port=0, token=TOKEN) as view:
        local = f"http://{own(view)}/"
        driver.get(local)
        assert "open this page" in text(driver, "body")
        driver.get(f"{local}?token={TOKEN}")
        wait(lambda: text(driver, "#status") == "Waiting for the first frame")
        assert driver.current_url == local
        assert driver.execute_script("return document.cookie") == ""
        click(driver, "#freeze")
        wait(lambda: stream.frozen)
        driver.get("about:blank")


ATTACK = """<!doctype html><title>elsewhere</title><iframe name="f"></iframe>
<form method="post" target="f" action="{url}reset"></form>
<script>
  document.forms[0].submit();
  const all = ["reset", "freeze"].flatMap((p) => [
    fetch("{url}" + p, {method: "POST", mode: "no-cors"}),
    fetch("{url}" + p, {method: "POST", headers: {"X-Pluto-CSRF": "x"}}),
  ]);
  all.push(fetch("{url}state").then((r) => r.text()).then(() => { document.title = "read"; }));
  Promise.allSettled(all).then(() => { if (document.title !== "read") document.title = "tried"; });
</script>"""


def test_another_site_can_neither_read_nor_press(driver: Any, runtime: Runtime) -> None:
    with runtime.stream("a") as stream, View(stream, port=0) as view:

        class Elsewhere(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write(ATTACK.replace("{url}", view.url).encode())

            def log_message(self, *args: object) -> None:
                pass

        with ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as elsewhere:  # a spare connection holds up no other
            thread = threading.Thread(target=elsewhere.serve_forever)
            thread.start()
            try:
                driver.get(f"http://localhost:{elsewhere.server_address[1]}/")
                wait(lambda: driver.title == "tried")
            finally:
                driver.get("about:blank")
                elsewhere.shutdown()
                thread.join()
        assert not stream.frozen
        assert not stream.events
