"""Numbers, picture and page of a recorded stream."""

import re
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from recordings import HEADER, made, write

from pluto_edge.cli import main
from pluto_edge.runtime import plot, summary
from pluto_edge.runtime.recording import Header, Recording, Row
from pluto_edge.runtime.replay import html


def test_segments_are_what_counting_by_hand_gives() -> None:
    recording = made({"clear": 30, "fog": 20, "frost": 10})
    clear, fog, frost = summary.segments(recording)
    assert [len(s.rows) for s in (clear, fog, frost)] == [30, 20, 10]
    assert [(s.condition, s.known) for s in (clear, fog, frost)] == [
        ("clear", True),
        ("fog", True),
        ("frost", False),
    ]
    assert (clear.top, fog.top, fog.weight) == ("clear", "fog", pytest.approx(0.9))
    rows = recording.rows[30:50]
    assert fog.adapted == sum(r.label == r.truth for r in rows) / 20
    assert fog.without == sum(r.plain == r.truth for r in rows) / 20
    text = summary.table(recording)
    assert re.search(r"frost +unseen +10 ", text) and re.search(r"all +60 ", text)
    assert "60 in 5.9 s, 10.0 a second, each predicted twice" in text
    assert "7 in the background, 2 gathering, 1 rolled back" in text and "median 8.0 ms, p99 20.0 ms" in text


def test_a_condition_that_returns_is_another_segment() -> None:
    rows = (*made({"clear": 5, "fog": 5}).rows, *made({"clear": 5}).rows)
    assert [s.condition for s in summary.segments(Recording(HEADER, rows, ()))] == ["clear", "fog", "clear"]


def test_rolling_accuracy_is_the_mean_of_the_last_known_frames() -> None:
    rows = made({"clear": 50}).rows
    rows = tuple(r if i % 3 else Row(r.frame, 0, r.label, 0, r.weights) for i, r in enumerate(rows))
    values = summary.rolling(rows, "label", window=7)
    for i in range(len(rows)):
        known = [r.label == r.truth for r in rows[max(0, i - 6) : i + 1] if r.truth is not None]
        assert (np.isnan(values[i]) and not known) or values[i] == pytest.approx(np.mean(known))


@pytest.mark.parametrize(
    "recording",
    [
        made({"clear": 30, "fog": 20, "frost": 10}),
        made({"": 40}, truth=False),
        made({"clear": 1}),
        made({f"c{i}": 2 for i in range(60)}),
        made({"$x_{$": 30, "<b>": 30}, header=Header(**{**vars(HEADER), "modules": ("$a", "_b", "\\frac{")})),
        Recording(HEADER, made({"fog": 5}).rows, ()),
    ],
    ids=["conditions", "no truth", "one frame", "many", "odd names", "killed"],
)
def test_every_recording_has_a_picture_and_a_page(recording: Recording) -> None:
    light, dark = plot.png(recording), plot.png(recording, dark=True)
    corners = [Image.open(BytesIO(data)).convert("RGB").getpixel((0, 0)) for data in (light, dark)]
    assert corners == [(255, 255, 255), (21, 25, 30)]
    assert Image.open(BytesIO(light)).size == (1320, 744)
    page = html(recording, light, dark)
    assert page.count("data:image/png;base64,") == 2 and "prefers-color-scheme: dark" in page


def test_the_page_is_self_contained_and_escapes_what_it_shows() -> None:
    evil = "<script>alert(1)</script>&\"'"
    header = Header(**{**vars(HEADER), "source": evil, "bundle": evil, "modules": (evil, "fog"), "writer": evil})
    page = html(made({evil: 5, "fog": 5}, header=header), b"light", b"dark")
    assert "<script" not in page and page.count("&lt;script&gt;") >= 4
    assert "fog &lt;up&gt;" in page
    assert not re.search(r"https?://|<link|@import|url\(", page)


def test_replay_writes_a_page_and_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.jsonl"
    write(made({"clear": 30, "frost": 10}), file)
    assert main(["replay", str(file)]) == 0
    text = capsys.readouterr().out
    assert re.search(r"frost +unseen +10 ", text) and "run.html" in text
    assert (tmp_path / "run.html").read_text().startswith("<!doctype html>")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run.html", "run.jsonl"]
    assert main(["replay", str(file), "--out", str(tmp_path / "a.html"), "--plot", str(tmp_path / "a.png")]) == 0
    assert Image.open(BytesIO((tmp_path / "a.png").read_bytes())).size == (1320, 744)


def test_replay_on_rubbish(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.jsonl"
    write(made({"clear": 3}), file)
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:2], "oops", *lines[2:]]) + "\n")
    for path, message in ((file, "run.jsonl, line 3: not valid JSON"), (tmp_path / "absent.jsonl", "No such file")):
        assert main(["replay", str(path)]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "run.html").exists()


@pytest.mark.parametrize("extra", [[], ["--out", "run.html"], ["--out", "x.html", "--plot", "sub/../run.html"]])
def test_replay_never_overwrites_its_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], extra: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    write(made({"clear": 3}), tmp_path / "run.html")
    before = (tmp_path / "run.html").read_bytes()
    assert main(["replay", "run.html", *extra]) == 2
    assert "that is the recording itself" in capsys.readouterr().err
    assert (tmp_path / "run.html").read_bytes() == before
    assert main(["replay", "run.html", "--out", "x", "--plot", "x"]) == 2
    assert "same file" in capsys.readouterr().err
