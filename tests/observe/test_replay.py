"""Numbers, picture and page of a recorded stream."""

import re
from dataclasses import replace
from io import BytesIO
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pluto_edge import Event
from pluto_edge.cli import main
from pluto_edge.errors import RecordingError
from pluto_edge.observe import plot, summary
from pluto_edge.observe.recording import Header, Recording, Row
from pluto_edge.observe.report import html
from pluto_edge.observe.words import explain
from tests.observe.recordings import HEADER, RIVALS, made, write

SIZE = (1320, 864)


def test_segments_are_what_counting_by_hand_gives() -> None:
    recording = made({"clear": 30, "fog": 20, "frost": 10})
    clear, fog, frost = summary.segments([recording])
    assert [s.frames for s in (clear, fog, frost)] == [30, 20, 10]
    assert [(s.condition, s.known) for s in (clear, fog, frost)] == [
        ("clear", True),
        ("fog", True),
        ("frost", False),
    ]
    assert (clear.top, fog.top, fog.weight) == ("clear", "fog", pytest.approx(0.9))
    rows = recording.rows[30:50]
    assert fog.accuracies["adapted"] == sum(r.label == r.truth for r in rows) / 20
    assert fog.accuracies["without"] == sum(r.plain == r.truth for r in rows) / 20
    text = summary.table([recording])
    assert re.search(r"frost +unseen +10 ", text) and re.search(r"all +60 ", text)
    assert "60 in 5.9 s, 10.0 a second, each predicted twice" in text
    assert "7 in the background, 2 gathering, 1 rolled back" in text and "median 8.0 ms, p99 20.0 ms" in text


def test_rivals_are_what_counting_by_hand_gives() -> None:
    recording = made({"clear": 30, "fog": 20, "frost": 10}, header=RIVALS, rivals=True)
    rows = recording.rows
    said = summary.answers(recording)
    assert list(said) == ["shipped", "generalist", "average", "without", "adapted", "oracle"]
    assert said["shipped"] == [r.alone["clear"] for r in rows]
    assert said["generalist"] == [r.alone["general"] for r in rows]
    assert said["average"] == [r.average for r in rows]
    frost = rows[50:]
    right = {n: sum(r.alone[n] == r.truth for r in frost) for n in RIVALS.modules}
    best = max(sorted(right), key=lambda n: right[n])
    own = ["clear"] * 30 + ["fog"] * 20 + [best] * 10
    assert said["oracle"] == [r.alone[n] for r, n in zip(rows, own, strict=True)]
    assert summary.segments([recording])[2].accuracies["oracle"] == right[best] / 10
    text = summary.table([recording])
    assert re.search("frames  +clear +generalist +average +without +adapted +oracle +leans on +right module", text)
    assert "each also by every module alone" in text


def test_without_labels_there_is_entropy_instead_of_accuracy() -> None:
    text = summary.table([made({"": 40}, truth=False)])
    assert re.match(r"condition +frames +leans on +entropy\n", text) and re.search(
        r"\(not known\) +40 +clear 0.80 +0.50", text
    )
    assert "predicted twice" not in text and "every module alone" not in text


def test_who_leads_counts_from_the_16th_frame_of_a_known_condition() -> None:
    recording = made({"clear": 20, "fog": 20, "frost": 20})
    rows = list(recording.rows)
    for i in (*range(15), 17):
        rows[i] = replace(rows[i], weights={"clear": 0.1, "fog": 0.9})
    clear, fog, frost = summary.segments([replace(recording, rows=tuple(rows))])
    assert (clear.leads, fog.leads, frost.leads) == (4 / 5, 1.0, None)
    assert summary.segments([made({"clear": 15})])[0].leads is None


def test_several_runs_are_a_mean_with_its_deviation() -> None:
    story = {"clear": 30, "fog": 20}
    runs = [made(story, header=RIVALS, rivals=True, seed=seed) for seed in range(3)]
    fog = summary.segments(runs)[1]
    each = [summary.segments([r])[1].accuracies["adapted"] for r in runs]
    assert fog.frames == 60 and (fog.start, fog.end) == (31, 50)
    assert fog.accuracies["adapted"] == pytest.approx(np.mean(each))
    assert fog.deviation == pytest.approx(np.std(each, ddof=1))
    assert summary.segments(runs[:1])[1].deviation is None
    text = summary.table(runs)
    assert re.search(rf"fog +60 .* {np.mean(each):.3f} ±{np.std(each, ddof=1):.3f} ", text)
    assert (
        "150 (the last of 180) in 3 runs, 14.7 s, 10.0 a second" in text
        and "21 in the background, 6 gathering" in text
    )
    cut = replace(runs[1], rows=runs[1].rows[:25])  # stopped early
    assert summary.segments([cut, runs[0]])[1] == summary.segments(runs[:1])[1]
    for shown in (runs, [cut, runs[0]]):
        assert Image.open(BytesIO(plot.png(shown))).size == SIZE
    with pytest.raises(RecordingError, match="not of one story"):
        summary.segments([runs[0], made({"fog": 10})])


def test_paired_gain() -> None:
    runs = [made({"clear": 30}, header=RIVALS, rivals=True, seed=seed) for seed in range(2)]
    found = summary.paired(runs, "adapted", "shipped")
    assert found is not None
    rows = [r for run in runs for r in run.rows]
    assert found.better == sum(r.label == r.truth != r.alone["clear"] for r in rows)
    assert found.worse == sum(r.alone["clear"] == r.truth != r.label for r in rows)
    assert found.gain == pytest.approx((found.better - found.worse) / 60)
    assert summary.paired([made({"clear": 30})], "adapted", "shipped") is None
    assert summary.paired([made({"": 30}, truth=False)], "adapted", "without") is None


def test_a_condition_that_returns_is_another_segment() -> None:
    rows = (*made({"clear": 5, "fog": 5}).rows, *made({"clear": 5}).rows)
    assert [s.condition for s in summary.segments([Recording(HEADER, rows, ())])] == ["clear", "fog", "clear"]


def test_rolling_accuracy_is_the_mean_of_the_last_known_frames() -> None:
    rows = made({"clear": 50}).rows
    rows = tuple(r if i % 3 else Row(r.frame, 0, r.label, 0, r.weights) for i, r in enumerate(rows))
    values = summary.rolling(summary.hits(rows, [r.label for r in rows]), window=7)
    for i in range(len(rows)):
        known = [r.label == r.truth for r in rows[max(0, i - 6) : i + 1] if r.truth is not None]
        assert (np.isnan(values[i]) and not known) or values[i] == pytest.approx(np.mean(known))


@pytest.mark.parametrize(
    "recording",
    [
        made({"clear": 30, "fog": 20, "frost": 10}),
        made({"": 40}, truth=False),
        made({"clear": 200, "fog": 200, "frost": 100}, header=RIVALS, rivals=True),
        made({"clear": 1}),
        made({f"c{i}": 2 for i in range(60)}),
        made({"$x_{$": 30, "<b>": 30}, header=Header(**{**vars(HEADER), "modules": ("$a", "_b", "\\frac{")})),
        Recording(HEADER, made({"fog": 5}).rows, ()),
    ],
    ids=["conditions", "no truth", "rivals", "one frame", "many", "odd names", "killed"],
)
def test_every_recording_has_a_picture_and_a_page(recording: Recording) -> None:
    light, dark = plot.png([recording]), plot.png([recording], dark=True)
    corners = [Image.open(BytesIO(data)).convert("RGB").getpixel((0, 0)) for data in (light, dark)]
    assert corners == [(255, 255, 255), (21, 25, 30)]
    assert Image.open(BytesIO(light)).size == SIZE
    page = html([recording], light, dark, *(plot.png([recording], d, phone=True) for d in (False, True)))
    assert page.count("data:image/png;base64,") == 4 and page.count("(prefers-color-scheme: dark)") == 3


@pytest.mark.parametrize("phone", [False, True])
def test_labels_of_conditions_thin_out(monkeypatch: pytest.MonkeyPatch, phone: bool) -> None:
    """Nineteen conditions have no room for nineteen names; those that are left out leave the others alone."""
    from matplotlib.figure import Figure

    figures: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (figures.append(self), save(self, *a, **k)))
    for count in (3, 19):
        plot.png([made({f"condition_{i}": 30 for i in range(count)})], phone=phone)
        upper = figures.pop().axes[0]
        names = [t for t in upper.texts if t.get_text().startswith("condition") and t.get_visible()]
        boxes = [t.get_window_extent() for t in names]
        assert all(a.x1 < b.x0 for a, b in pairwise(boxes))
        assert len(names) == count if count == 3 else 3 <= len(names) < count


def test_no_curve_hides_another() -> None:
    """Each is thinner than those behind it, or has gaps."""
    styles = list(plot._lines({}, RIVALS, plot.LIGHT).values())
    for behind, before in pairwise(styles):
        assert before["lw"] < behind["lw"] or "ls" in before


def test_the_verdict_comes_first() -> None:
    run = made({"clear": 30, "fog": 20}, header=RIVALS, rivals=True)
    said = summary.verdict([run])
    accuracies = summary.whole([run]).accuracies
    rivals = {n: v for n, v in accuracies.items() if n not in ("adapted", "oracle")}
    assert said.startswith(f"Adapting was right on {accuracies['adapted']:.1%} of the frames: ")
    assert f"{100 * (accuracies['adapted'] - max(rivals.values())):.1f} points better than" in said
    assert f"({max(rivals.values()):.1%})" in said
    page = html([run], b"", b"", b"", b"")
    assert page.index(said[:40]) < page.index("<picture>") < page.index("<table>")
    assert "no labels" in summary.verdict([made({"": 40}, truth=False)])
    alone = replace(run, rows=tuple(Row(r.frame, 0, r.label, 0, r.weights, r.truth) for r in run.rows))
    assert "nothing else was recorded" in summary.verdict([alone])
    assert summary.verdict([run, made({"clear": 30}, header=RIVALS, rivals=True, seed=1)]).endswith("it was ahead.")


def test_events_in_words() -> None:
    def of(reason: str) -> str:
        return explain(Event("change", 1, reason))

    assert of("entropy 0.10 to 0.45, fog 0.05 to 0.80, looks 0.7 deviations away") == (
        "it is less sure than before, fog has more say (5%, now 80%), the picture looks different"
    )
    assert of("entropy 0.45 to 0.10") == "it is surer than before"
    assert of("asked for, by hand") == "asked for, by hand"
    assert explain(Event("rollback", 1, "logits are not finite")) == "logits are not finite"


def test_the_page_is_self_contained_and_escapes_what_it_shows() -> None:
    evil = "<script>alert(1)</script>&\"'"
    header = Header(**{**vars(HEADER), "source": evil, "bundle": evil, "modules": (evil, "fog"), "writer": evil})
    page = html([made({evil: 5, "fog": 5}, header=header)], b"light", b"dark", b"light", b"dark")
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
    assert Image.open(BytesIO((tmp_path / "a.png").read_bytes())).size == SIZE
    write(made({"clear": 30, "frost": 10}, seed=1), tmp_path / "again.jsonl")
    assert main(["replay", str(file), str(tmp_path / "again.jsonl"), "--force"]) == 0
    assert "80 (the last of 120) in 2 runs" in capsys.readouterr().out


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
