"""The documentation site builds strictly, and asks nobody but itself for anything."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.observe.browser import chromium, look, missing

ROOT = Path(__file__).parent.parent.parent
MOST_WIDTHS = (1280, 390)
FETCHED = {"script": "src", "link": "href", "img": "src", "source": "srcset", "iframe": "src", "use": "href"}


class Fetched(HTMLParser):
    """What a browser would get by itself, without a click."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag == "link" and found.get("rel") in ("canonical", "next", "prev"):
            return
        if tag in FETCHED and found.get(FETCHED[tag]):
            self.addresses.append(str(found[FETCHED[tag]]))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    pytest.importorskip("material", reason='mkdocs-material is not installed (pip install -e ".[docs]")')
    out = tmp_path_factory.mktemp("site") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(out)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert built.returncode == 0, built.stderr
    yield out


def test_nothing_comes_from_another_host(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        text = page.read_text()
        reader = Fetched()
        reader.feed(text)
        assert reader.addresses
        assert not [a for a in reader.addresses if re.match(r"(https?:)?//", a)], page
        assert 'class="mermaid"' not in text, "it would be drawn by a script from elsewhere"
    for style in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", style.read_text()), style


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    import pluto_edge

    text = (site / "api.html").read_text()
    assert not [n for n in pluto_edge.__all__ if n != "__version__" and not re.search(rf'id="[\w.]*\.{n}"', text)]


def test_every_page_is_in_the_navigation(site: Path) -> None:
    text = (site / "index.html").read_text()
    left_out = [
        p for p in site.rglob("*.html") if p.name != "404.html" and p.relative_to(site).as_posix() not in text
    ]
    assert not left_out


@pytest.mark.browser
@pytest.mark.skipif(bool(missing()), reason=missing())
def test_in_a_browser(site: Path, tmp_path: Path) -> None:
    with chromium(tmp_path) as driver:
        for scheme in ("light", "dark"):
            for width in MOST_WIDTHS:
                look(driver, width, 800, scheme)
                for name in ("index", "concepts", "tutorial"):
                    driver.get((site / f"{name}.html").as_uri())
                    across = "return [document.documentElement.scrollWidth, innerWidth]"
                    assert driver.execute_script(across) == [width, width], name
                    ground = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
                    assert (max(map(int, re.findall(r"\d+", ground)[:3])) < 64) == (scheme == "dark")
                    loaded = "return [...document.images].every((i) => i.complete && i.naturalWidth)"
                    assert driver.execute_script(loaded), name
        messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
        asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
        assert asked and not [url for url in asked if url.startswith("http")]
