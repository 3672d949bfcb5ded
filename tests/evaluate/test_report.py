"""Rows, flags, the three files, and the command as a user types it."""

import json
import re
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Callable
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pluto_edge.cli import main
from pluto_edge.evaluate.evaluation import Evaluation
from pluto_edge.evaluate.report import html, markdown, remembered, singles
from pluto_edge.evaluate.results import ENSEMBLE, PROBABILITIES, Protocol, Result
from pluto_edge.evaluate.summary import collapse, curve, rows
from pluto_edge.evaluate.svg import bars, lines
from pluto_edge.evaluate.verdict import find
from pluto_edge.export.exporter import run_export
from pluto_edge.seen import Seen, hashes_of
from pluto_edge.store import Store


def result(method: str, target: str, seed: int, **predicted: list[int]) -> Result:
    truth = (0, 1, 0, 1)
    found = {k: tuple(v) for k, v in predicted.items()}
    return Result(
        key="k",
        method=method,
        config={},
        target=target,
        seed=seed,
        protocol=Protocol(3, 2),
        batches=(3, 1),
        images=(0, 1, 2, 3),
        truth=truth,
        predicted=found,
        unadapted=truth,
        kept={"a": 0.5},
        notes={"resets": 1},
    )


def adapted(method: str, target: str, seed: int, **predicted: list[int]) -> Result:
    """Its two ensembles say the same."""
    return result(method, target, seed, **predicted, **{PROBABILITIES: predicted["ensemble"]})


def test_best_worst_and_ensemble() -> None:
    results = [
        adapted("tent", "x", 0, a=[0, 1, 0, 1], b=[0, 0, 0, 1], ensemble=[0, 1, 0, 0]),
        adapted("tent", "x", 1, a=[0, 0, 0, 0], b=[0, 0, 0, 0], ensemble=[0, 1, 0, 1]),
        adapted("tent", "y", 0, a=[1, 0, 0, 0], b=[0, 1, 0, 1], ensemble=[0, 1, 0, 1]),
        adapted("tent", "y", 1, a=[1, 0, 0, 0], b=[0, 1, 0, 1], ensemble=[0, 0, 0, 1]),
        result("pluto", "x", 0, blend=[0, 1, 0, 1]),
        result("pluto", "x", 1, blend=[0, 1, 0, 1]),
        result("pluto", "y", 0, blend=[0, 1, 0, 1]),
        result("pluto", "y", 1, blend=[0, 1, 0, 0]),
    ]
    best, worst, ensemble, probabilities, pluto = rows(results)
    assert [r.label for r in (best, worst, ensemble, probabilities, pluto)] == [
        "tent best",
        "tent worst",
        "tent ensemble",
        "tent ensemble of probabilities",
        "pluto",
    ]
    assert [r.fair for r in (best, worst, ensemble, probabilities, pluto)] == [False, False, True, True, True]
    assert (best.cells["x"].module, best.cells["x"].mean, best.cells["x"].spread) == ("a", 0.75, 0.25)
    assert (best.cells["y"].module, best.cells["y"].mean, best.cells["y"].spread) == ("b", 1.0, 0.0)
    assert (worst.cells["x"].module, worst.cells["y"].module) == ("b", "a")
    assert ensemble.cells["x"].accuracies == (0.75, 1.0) and ensemble.cells["x"].module == ""
    assert (pluto.mean, pluto.spread) == (0.9375, 0.0625)
    assert pluto.notes == {"resets": 4}
    assert best.cells["x"].curve == (pytest.approx(5 / 6), 0.5)
    low, high = pluto.interval
    assert 0.5 < low < pluto.mean < high == 1.0 and pluto.cells["x"].interval == (1.0, 1.0)


def test_single_has_names_of_its_own() -> None:
    found = rows([adapted("single", "x", 0, a=[0] * 4, b=[0, 1, 0, 0], ensemble=[0] * 4)])
    assert singles(found) == [("a", ["50.0", "50.0"]), ("b", ["75.0", "75.0"])]
    assert remembered(found) == [("single", ["50.0", "50.0"])]
    assert [r.label for r in found] == [
        "best single, in hindsight",
        "worst single",
        "uniform average",
        "uniform average of probabilities",
    ]


@given(st.integers(1, 90), st.integers(1, 40), st.integers(0, 2**31))
def test_the_curve_adds_up(count: int, size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    truth, guess = (tuple(map(int, rng.integers(0, 3, count))) for _ in range(2))
    sizes = tuple(min(size, count - s) for s in range(0, count, size))
    images = tuple(range(count))
    found = Result("k", "m", {}, "t", 0, Protocol(size, 1), sizes, images, truth, {"blend": guess}, truth)
    total = (curve(found, "blend") * sizes).sum()
    assert total == pytest.approx(sum(a == b for a, b in zip(truth, guess, strict=True)))


def test_collapse() -> None:
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 10, 300)
    steady, plain = (np.where(rng.random(300) < 0.8, truth, rng.integers(0, 10, 300)) for _ in range(2))
    assert collapse(steady, truth, plain) == ""
    stuck = steady.copy()
    stuck[200:] = 3
    assert "one class is 100% of the last third" in collapse(stuck, truth, plain)
    worse = np.concatenate([steady[:200], rng.integers(0, 10, 100)])
    assert re.match(r"accuracy 0\.7\d in the first third, 0\.1\d in the last", collapse(worse, truth, plain))
    assert collapse(worse, truth, worse) == "", "the stream became harder"
    same = np.sort(truth)
    assert collapse(same, same, same) == "", "a stream of one class is no collapse"
    assert collapse([1] * 30, [0] * 30, [0] * 30) == "", "too short to say"


def test_a_row_is_held_against_itself_without_learning() -> None:
    """A module that is good at the classes that come first has not collapsed; one that forgot the others has."""
    truth = tuple(np.repeat(np.arange(3), 40).tolist())
    first, average = (0,) * 40 + (1,) * 20 + (2,) * 60, truth

    def of(method: str, predicted: tuple[int, ...]) -> Result:
        found = {"a": predicted, ENSEMBLE: average, PROBABILITIES: average}
        images = tuple(range(120))
        return Result("k", method, {}, "t", 0, Protocol(40, 1), (40,) * 3, images, truth, found, average)

    weak_at_the_end = (0,) * 40 + (1,) * 40 + (1,) * 40
    still, tent = of("single", weak_at_the_end), of("tent", weak_at_the_end)
    assert not any(row.cells["t"].collapsed for row in rows([still, tent]))
    assert rows([tent])[0].cells["t"].collapsed, "without `single` there is only the average to hold it against"
    forgot = of("tent", first[:80] + (0,) * 40)
    assert rows([of("single", truth), forgot])[4].cells["t"].collapsed


@given(st.integers(0, 200), st.integers(0, 2**31))
def test_what_is_right_or_never_learned_is_no_collapse(count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    truth, guess = rng.integers(0, 4, count), rng.integers(0, 4, count)
    assert collapse(truth, truth, guess) == "" == collapse(guess, truth, guess)


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [v or "" for k, v in attrs if k in ("src", "href")]


def check_page(text: str) -> None:
    """It fetches nothing, and its plots are well-formed."""
    reader = Reader()
    reader.feed(text)
    assert not reader.links and "script" not in reader.tags and "@import" not in text and "url(" not in text
    pictures = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(pictures) >= 2
    for picture in pictures:
        ET.fromstring(picture)


def test_names_are_escaped() -> None:
    evil = "<b>&'\""
    results = result("pluto", evil, 0, blend=[0, 1, 0, 1]), result(f"pluto:{evil}", evil, 0, blend=[0, 1, 0, 0])
    found = Evaluation(results, {evil: evil})
    text = html(find(results), found, [("images", evil)])
    assert "<b>&" not in text.replace("<b>images", "")
    check_page(text)
    assert "| pluto | 100.0 ± 0.0 |" in markdown(find(results), found, [])


@given(st.lists(st.tuples(st.text(), st.floats(0, 1), st.floats(0, 0.5), st.booleans()), max_size=25))
def test_bars_are_pictures(values: list[tuple[str, float, float, bool]]) -> None:
    plain = [("".join(c for c in label if c.isprintable()), *rest) for label, *rest in values]
    ET.fromstring(bars(plain))  # type: ignore[arg-type]
    ET.fromstring(lines([(label, [mean] * i) for i, (label, mean, *_) in enumerate(plain)]))


def test_curves_on_each_other_take_turns() -> None:
    together, apart = [0.9, 0.9, 0.5], [0.9, 0.9, 0.7]
    drawn = ET.fromstring(lines([("a", together), ("b", apart), ("c", together)]))
    namespace = "{http://www.w3.org/2000/svg}"
    curves = drawn[0].iter(f"{namespace}polyline")
    turns = [(c.get("stroke-dasharray"), c.get("stroke-dashoffset")) for c in curves]
    assert turns == [("6 12", "0"), ("6 6", "0"), ("6 12", "-6"), (None, None), ("6 12", "-12"), ("6 6", "-6")]


def test_axes_have_numbers() -> None:
    for picture in ET.fromstring(lines([("a", [0.62] * 40)])):
        texts = [t.text for t in picture.iter() if t.get("class") == "axis"]
        assert texts == [
            "accuracy of a batch, %, over batches",
            "60",
            "70",
            "80",
            "90",
            "100",
            "10",
            "20",
            "30",
            "40",
        ]
    for picture in ET.fromstring(bars([("a", 0.5, 0.1, True)])):
        assert [t.text for t in picture.iter() if t.get("class") == "axis"] == ["0", "25", "50", "75", "100 %"]


@pytest.fixture
def command(make_bundle: Callable[..., Path], folders: Path, tmp_path: Path) -> list[str]:
    fixed = ["--bundle", str(make_bundle("adapter")), "--data", str(folders), "--out", str(tmp_path / "out")]
    return ["eval", *fixed, "--batch", "16", "--seeds", "2", "--threads", "1", "--providers", "cpu"]


def test_the_command(
    command: list[str], tmp_path: Path, make_store: Callable[..., Store], capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["single", "neo", "tent", "cotta:views=1", "zero-shot", "pluto-no-step"]
    arguments = [*command, "--target", "noise", "--target", "other", *(a for n in names for a in ("--method", n))]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert "uniform average" in text and "tent ensemble" in text and "cotta:views=1 did not run" in text
    assert "this bundle does not say which images it was trained on" in text
    facts = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [r["part"] for r in facts["rows"][:4]] == ["best", "worst", ENSEMBLE, PROBABILITIES]
    assert len(facts["rows"][0]["cells"]["noise"]["accuracies"]) == 2
    assert facts["ours"] == "zero-shot", "the first blend, as pluto is not among them"
    rivals = [one["rival"] for one in facts["against"]]
    assert "uniform average of probabilities" in rivals and "tent best" not in rivals
    written = (tmp_path / "out" / "results.md").read_text()
    assert "| zero-shot |" in written
    page = (tmp_path / "out" / "report.html").read_text()
    check_page(page)
    assert text.splitlines()[0] == facts["verdict"] == written.splitlines()[2] and facts["verdict"] in unescape(
        page
    )
    store = make_store("adapter").path
    assert main([*arguments, "--store", str(store), "--limit", "20", "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    assert "cotta:views=1 ensemble" in (tmp_path / "out" / "results.md").read_text()


@pytest.fixture
def seen_bundle(make_store: Callable[..., Store], folders: Path, tmp_path: Path) -> Path:
    """Trained on class-0 of `other` but for one image, validated on two of class-1; domain-2 nobody knows of."""
    shutil.copytree(make_store("adapter").path, tmp_path / "store")
    first, second = (sorted((folders / "other" / f"class-{i}").iterdir()) for i in (0, 1))
    seen = Seen(hashes_of(first[1:]), hashes_of(second[:2]), ("domain-0", "domain-1"))
    Store(tmp_path / "store").add_seen(seen)
    run_export(tmp_path / "store", tmp_path / "bundle")
    return tmp_path / "bundle"


def test_what_was_trained_on_is_left_out(
    command: list[str], seen_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        *command,
        "--bundle",
        str(seen_bundle),
        "--method",
        "single",
        "--target",
        "other",
        "--target",
        "noise",
    ]
    assert main(arguments) == 0
    out, text = tmp_path / "out", capsys.readouterr().out
    lines = [
        "left out of other: 3 training images and 2 validation images",
        "left out of noise: nothing; no image was seen in training",
        "not known: which images these modules were trained on: domain-2",
    ]
    for line in lines:
        assert line in text and f"- {line}" in (out / "results.md").read_text()
        assert line.partition(": ")[2] in (out / "report.html").read_text()
    data = json.loads((out / "results.json").read_text())
    assert data["left_out"]["other"] == {"train": 3, "validation": 2, "kept": 0, "lost": []}
    assert data["facts"]["images"] == "other 19, noise 60"
    assert main([*arguments, "--limit", "19", "--quiet"]) == 0, "the limit is of what remains"
    assert json.loads((out / "results.json").read_text())["facts"]["images"] == "other 19, noise 19"


def test_no_method_can_run(command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--method", "cotta", "--quiet"]) == 2
    assert "none of the methods can run. cotta: it changes the backbone" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "more, what",
    [
        (["--batch", "0"], "batch: want at least 1"),
        (["--limit", "0"], "--limit"),
        (["--method", "tennt"], "there are: single"),
        (["--target", "moon"], "no domain 'moon'"),
        (["--data", "/nowhere"], "no such folder"),
        (["--bundle", "/nowhere"], "not a bundle"),
        (["--source", "/nowhere"], "no such folder"),
        (["--shots", "1000", "--method", "single"], "leave none"),
    ],
)
def test_rubbish(command: list[str], more: list[str], what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, *more]) == 2
    assert what in capsys.readouterr().err


def test_source_folders_are_the_modules(
    command: list[str], capsys: pytest.CaptureFixture[str], folders: Path
) -> None:
    assert main([*command, "--source", str(folders)]) == 2
    assert "no domain 'domain-0'" in capsys.readouterr().err
