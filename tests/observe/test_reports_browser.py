"""The reports of eval and replay in a real browser: what is asserted here was also looked at."""

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pluto_edge._look import DARK, LIGHT
from pluto_edge.evaluate.evaluation import Evaluation
from pluto_edge.evaluate.report import html
from pluto_edge.evaluate.results import PROBABILITIES, Protocol, Result
from pluto_edge.evaluate.verdict import find
from pluto_edge.observe.report import page
from tests.observe.browser import chromium, look, missing
from tests.observe.recordings import RIVALS, made

pytestmark = [pytest.mark.browser, pytest.mark.skipif(bool(missing()), reason=missing())]

SCREENS = [(1280, "light"), (768, "dark"), (390, "light"), (390, "dark")]


def evaluated() -> str:
    """Fifteen methods on two targets; two of them always say the same."""
    rng, results = np.random.default_rng(0), []
    truth = tuple(map(int, rng.integers(0, 5, 600)))
    names = ["pluto", "pluto-same", *(f"tent:steps={i}, learning_rate=0.00{i}" for i in range(13))]
    for target in ("fog", "a target with a rather long name"):
        for number, name in enumerate(names):
            draw = np.random.default_rng(max(number, 1))
            said = tuple(int(t) if draw.random() < 0.8 else int(draw.integers(5)) for t in truth)
            parts = (
                {"blend": said} if name.startswith("pluto") else {"a": said, "ensemble": said, PROBABILITIES: said}
            )
            protocol, images = Protocol(30, 1), tuple(range(600))
            results.append(Result("k", name, {}, target, 0, protocol, (30,) * 20, images, truth, parts, truth))
    return html(find(results), Evaluation(tuple(results), {}), [("images", "1,200")])


def replayed() -> str:
    return page([made({f"condition_{i}": 30 for i in range(19)}, header=RIVALS, rivals=True)])


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("chromium")) as driver:
        yield driver


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder: Path = tmp_path_factory.mktemp("pages")
    found = {}
    for name, text in (("eval", evaluated()), ("replay", replayed())):
        (folder / f"{name}.html").write_text(text)
        found[name] = (folder / f"{name}.html").as_uri()
    return found


@pytest.mark.parametrize("report", ["eval", "replay"])
@pytest.mark.parametrize("width, scheme", SCREENS)
def test_every_screen(driver: Any, pages: dict[str, str], report: str, width: int, scheme: str) -> None:
    look(driver, width, 800, scheme)
    driver.get(pages[report])
    across = "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    assert driver.execute_script(across) == [width, width]
    colours = """
        const of = (e, what) => '#' + getComputedStyle(e)[what].match(/\\d+/g).slice(0, 3)
            .map((n) => Number(n).toString(16).padStart(2, '0')).join('');
        const card = document.querySelector('.card'), html = document.documentElement;
        return [of(html, 'backgroundColor'), of(card, 'backgroundColor'), of(card, 'color')]"""
    theme = DARK if scheme == "dark" else LIGHT
    assert driver.execute_script(colours) == [theme["ground"], theme["card"], theme["ink"]]
    verdict = driver.execute_script("return document.querySelector('.verdict').getBoundingClientRect().bottom")
    assert verdict < 400, "it is seen before anything else"
    assert driver.get_log("browser") == []


@pytest.mark.parametrize("width", [1280, 768, 390])
def test_no_label_of_a_chart_touches_another(driver: Any, pages: dict[str, str], width: int) -> None:
    look(driver, width, 800)
    driver.get(pages["eval"])
    script = """
        const edges = (e) => { const b = e.getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom]; };
        const shown = [...document.querySelectorAll('svg')].filter((s) => s.getBoundingClientRect().width);
        return shown.map((s) => {
            const scale = s.getBoundingClientRect().width / s.viewBox.baseVal.width;
            const size = (t) => parseFloat(getComputedStyle(t).fontSize) * scale;
            return [edges(s), [...s.querySelectorAll('text')].map((t) => [...edges(t), size(t)])];
        })"""
    charts = driver.execute_script(script)
    assert len(charts) == 3
    for (left, top, right, bottom), texts in charts:
        assert len(texts) > 10
        for a in texts:
            assert left - 1 <= a[0] and top - 1 <= a[1] and a[2] <= right + 1 and a[3] <= bottom + 1
            assert a[4] >= 11, "it can be read"
        for a, b in combinations(texts, 2):
            apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] + 3 or b[3] <= a[1] + 3  # boxes have air inside
            assert apart, (a, b)


def test_the_picture_of_a_replay_fits_the_screen(driver: Any, pages: dict[str, str]) -> None:
    found = {}
    for width, scheme in [*SCREENS, (1280, "dark")]:
        look(driver, width, 800, scheme)
        driver.get(pages["replay"])
        script = "const i = document.querySelector('img'); return [i.currentSrc.length, i.naturalWidth]"
        found[width, scheme] = driver.execute_script(script)
    assert found[1280, "light"][1] == found[1280, "dark"][1] == 1320
    assert found[768, "dark"] == found[390, "dark"] and found[390, "dark"][1] == 720
    assert len({length for length, _ in found.values()}) == 4
