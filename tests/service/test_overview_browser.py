"""The page of all cameras in a real browser: headless Chromium."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from pluto_edge.service.service import Service
from pluto_edge.service.web import Web
from tests.observe.browser import chromium, look, missing
from tests.service.conftest import Scripted, Write, camera, wait_for

pytestmark = [pytest.mark.browser, pytest.mark.skipif(bool(missing()), reason=missing())]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("chromium")) as driver:
        yield driver


@pytest.fixture
def web(driver: Any, write: Write, script: Scripted) -> Iterator[Web]:
    """With the page open; afterwards, nothing but this server was asked and nothing was wrong on the console."""
    look(driver, 1280, 900)
    service = Service(write(camera("gate"), camera("yard"), camera("attic")), script)
    with Web(service) as web, service:
        driver.get_log("browser"), driver.get_log("performance")
        driver.get(web.url)
        wait_for(lambda: len(names(driver)) == 3)
        yield web
        assert [e for e in driver.get_log("browser") if "500" not in e["message"]] == []
        assert all(url.startswith(web.url) for url in requested(driver))
        driver.get("about:blank")


def requested(driver: Any) -> list[str]:
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    sent = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    return [url for url in sent if not url.startswith(("data:", "about:", "chrome:"))]


def read(driver: Any, script: str, *arguments: object) -> Any:
    return driver.execute_script(f"return {script}", *arguments)


def names(driver: Any) -> list[str]:
    return read(driver, "[...document.querySelectorAll('.name b')].map((e) => e.innerText)")


def text(driver: Any, selector: str) -> str:
    return read(driver, "(document.querySelector(arguments[0]) || {innerText: ''}).innerText.trim()", selector)


def press(driver: Any, key: str) -> None:
    code = {"Tab": 9, "Enter": 13}[key]
    for kind in ("keyDown", "keyUp"):
        event = {"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code}
        driver.execute_cdp_cmd("Input.dispatchKeyEvent", event | ({"text": "\r"} if key == "Enter" else {}))


def test_trouble_comes_first(driver: Any, web: Web, script: Scripted) -> None:
    wait_for(lambda: names(driver) == ["attic", "gate", "yard"])
    wait_for(lambda: text(driver, "#status") == "3 of 3 cameras deliver frames")
    assert read(driver, "document.querySelectorAll('.picture img:not([hidden])').length") == 3
    script.dead.add("yard")
    wait_for(lambda: names(driver) == ["yard", "attic", "gate"])
    assert text(driver, ".camera .badge") == "Lost" and "the cable is out" in text(driver, ".camera .text")
    assert text(driver, "#status") == "2 of 3 cameras deliver frames, 1 in trouble"
    assert "Lost: the cable is out" in text(driver, "#happened")
    assert "yard Lost" in read(driver, "document.getElementById('spoken').textContent")
    script.dead.clear()
    wait_for(lambda: names(driver) == ["attic", "gate", "yard"])


def test_by_keyboard_to_a_camera_and_back(driver: Any, web: Web) -> None:
    press(driver, "Tab")
    assert read(driver, "document.activeElement.id") == "reload"
    press(driver, "Tab")
    assert read(driver, "document.activeElement.className") == "camera"
    press(driver, "Enter")
    wait_for(lambda: driver.current_url.endswith("/camera/attic/"))
    wait_for(lambda: text(driver, "#label") not in ("", "–"))
    driver.find_element("css selector", "#freeze").click()
    wait_for(lambda: text(driver, "#toast") == "Frozen: predicting without learning.")
    assert web._service.cameras["attic"].stream.frozen
    driver.find_element("css selector", ".home").click()
    wait_for(lambda: driver.current_url == web.url and len(names(driver)) == 3)
    wait_for(lambda: "Predicting, not learning." in text(driver, "#grid"))


def test_reload_by_the_button(driver: Any, web: Web, write: Write) -> None:
    write(camera("gate"), camera("roof"))
    driver.find_element("css selector", "#reload").click()
    wait_for(lambda: text(driver, "#toast") == "Reloaded: 1 cameras as before, 0 changed, 1 new, 2 gone.")
    wait_for(lambda: names(driver) == ["gate", "roof"])
    write(camera("gate"), budget=5)
    driver.find_element("css selector", "#reload").click()
    wait_for(lambda: text(driver, "#toast").startswith("Refused, everything stays as it was."))
    assert "budget: want 0.001 to 1, got 5" in text(driver, "#toast") and names(driver) == ["gate", "roof"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone(driver: Any, web: Web, scheme: str) -> None:
    look(driver, 390, 800, scheme)
    wait_for(lambda: text(driver, "#status").startswith("3 of 3"))
    assert read(driver, "document.documentElement.scrollWidth") <= 390
    assert read(driver, "document.querySelector('#reload').getBoundingClientRect().height") >= 44
    ground = read(driver, "getComputedStyle(document.documentElement).backgroundColor")
    assert ground == {"light": "rgb(245, 245, 242)", "dark": "rgb(14, 17, 20)"}[scheme]


def test_a_service_that_is_gone(driver: Any, write: Write, script: Scripted) -> None:
    service = Service(write(camera("gate")), script)
    with Web(service) as web, service:
        driver.get(web.url)
        wait_for(lambda: names(driver) == ["gate"])
    wait_for(lambda: text(driver, "#status") == "Service gone, trying again")
    assert read(driver, "document.getElementById('reload').disabled")
    driver.get("about:blank")
    driver.get_log("browser")
