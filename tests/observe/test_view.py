"""What the page of a stream is told, and what its buttons do. In a browser: test_view_browser.py."""

import json
import re
import threading
from base64 import b64decode
from functools import cached_property
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pluto_edge import ImageError, Runtime, Stream
from pluto_edge.observe import moment
from pluto_edge.observe import page as page_module
from pluto_edge.observe.moment import BUCKET, Chart, Moment
from pluto_edge.observe.view import View
from pluto_edge.runtime.types import Point
from tests.observe.conftest import ask, press


def feed(stream: Stream, view: View, frames: np.ndarray, caption: str = "") -> None:
    for frame in frames:
        view.show(frame, stream(frame), caption)


def state(view: View, query: str = "") -> dict:
    return json.loads(ask(view, f"/state{query}").body)


# What the page is told


def test_page_is_self_contained_and_named(view: View) -> None:
    page = ask(view)
    assert page.status == 200
    assert "door · pluto-edge" in page.text
    assert "{{" not in page.text
    assert not re.search(r"""(src|href)=["'](?!data:)""", page.text)
    (nonce,) = set(re.findall(r'nonce="([^"]+)"', page.text))
    policy = page.headers["Content-Security-Policy"]
    assert f"script-src 'nonce-{nonce}'" in policy
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert nonce not in ask(view).text  # a new one every time


def test_names_are_escaped(make_bundle) -> None:
    with (
        Runtime(make_bundle(), threads=1) as runtime,
        runtime.stream("<script>alert(1)</script>") as stream,
        View(stream, port=0) as view,
    ):
        assert "<script>alert" not in ask(view).text


def test_before_the_first_frame(view: View) -> None:
    said = state(view)
    assert said["now"] is None
    assert said["frame"] == 0
    assert said["points"]["frames"] == []


def test_the_newest_frame_and_its_prediction(stream: Stream, view: View, frames: np.ndarray) -> None:
    feed(stream, view, frames, "fog")
    now = state(view)["now"]
    last = stream.timeline[-1]
    kind, _, data = now["picture"].partition(",")
    assert kind == "data:image/png;base64"
    np.testing.assert_array_equal(np.asarray(Image.open(BytesIO(b64decode(data)))), frames[-1])
    assert now["label"] == stream.learner.network.bundle.manifest.classes[last.label]
    assert now["modules"] == list(last.modules)
    np.testing.assert_allclose(now["weights"], last.weights, atol=1e-4)
    assert now["caption"] == "fog"
    assert state(view, f"?have={now['number']}")["now"]["picture"] is None


def test_large_frames_are_scaled_and_jpeg(stream: Stream, view: View) -> None:
    frame = np.zeros((600, 1200, 3), np.uint8)
    view.show(frame, stream(frame))
    kind, _, data = state(view)["now"]["picture"].partition(",")
    assert kind == "data:image/jpeg;base64"
    assert Image.open(BytesIO(b64decode(data))).size == (960, 480)


def test_points_are_means_and_come_once(stream: Stream, view: View, frames: np.ndarray) -> None:
    feed(stream, view, frames)
    points, timeline = state(view)["points"], stream.timeline
    assert points["frames"] == [4, 8, 11]
    assert points["modules"] == list(timeline[0].modules)
    mean = np.mean([p.weights for p in timeline[4:8]], axis=0)
    np.testing.assert_allclose(np.array(points["weights"][1]) / 1000, mean, atol=6e-4)
    assert points["entropy"][2] == pytest.approx(np.mean([p.entropy for p in timeline[8:]]), abs=1e-4)
    later = state(view, "?since=8")["points"]
    assert later["frames"] == [11]
    assert later["weights"] == points["weights"][2:]


def test_a_full_timeline_is_few_points_also_when_modules_change() -> None:
    names = tuple(f"m{i}" for i in range(75))
    points = [
        Point(i + 1, i / 30, 0, 0.5, names[: 74 + i % 2], (1 / (74 + i % 2),) * (74 + i % 2)) for i in range(2000)
    ]
    sent = json.loads(Moment(0.0, {}, Chart().update(points), (), None).reply(0, 0))["points"]
    assert sent["modules"] == list(names)
    assert len(sent["frames"]) == 2000 // BUCKET <= 600
    assert {len(w) for w in sent["weights"]} == {75}
    assert len(json.dumps(sent)) < 300_000


def test_only_new_frames_are_averaged_again() -> None:
    """Bucket by bucket what averaging everything anew would give, also when old frames have gone."""
    points = [Point(i + 1, i / 30, 0, i / 99, ("a", "b"), (i / 99, 1 - i / 99)) for i in range(99)]
    chart = Chart()
    for start, end in ((0, 3), (0, 4), (0, 9), (0, 41), (20, 50), (32, 99)):
        window = points[start:end]
        got, want = chart.update(window), Chart().update(window)
        assert got[1:] == want[1:]  # the first one may know frames that have gone
        assert got[0].frame == want[0].frame
    assert [b.frame for b in got] == [*range(36, 97, 4), 99]


def test_pages_together_cost_one_rendering(
    stream: Stream, view: View, frames: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many ask, and however fast frames come."""
    made: list[int] = []
    real = moment.Shown.picture.func
    count = cached_property(lambda shown: made.append(shown.number) or real(shown))
    count.__set_name__(moment.Shown, "picture")
    monkeypatch.setattr(moment.Shown, "picture", count)
    monkeypatch.setattr(page_module, "REFRESH", 1e9)
    told = []
    for frame in frames:
        view.show(frame, stream(frame))
        told.append(state(view))
        told.append(state(view, f"?since={len(told) * 4}&have=0"))
    assert made == [1] and {t["now"]["picture"] for t in told} == {told[0]["now"]["picture"]}
    monkeypatch.setattr(page_module, "REFRESH", 0.0)
    assert state(view)["now"]["number"] == len(frames)
    assert made == [1, len(frames)]


def test_a_button_shows_at_once(stream: Stream, view: View, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_module, "REFRESH", 1e9)
    assert not state(view)["frozen"]
    press(view, "/freeze")
    assert state(view)["frozen"]


def test_events_and_captions(stream: Stream, view: View, frames: np.ndarray) -> None:
    feed(stream, view, frames[:4], "clear")
    feed(stream, view, frames[4:], "fog")
    said = state(view)
    assert said["captions"] == [{"frame": 1, "text": "clear"}, {"frame": 5, "text": "fog"}]
    assert [(e["kind"], e["frame"]) for e in said["events"]] == [(e.kind, e.frame) for e in stream.events]
    assert {e["frame"] for e in said["events"]} == {4, 8}
    assert {e["frame"] for e in state(view, "?since=8")["events"]} == {8}  # one more may yet come at frame 8
    assert said["metrics"]["frames"] == len(frames)
    assert {"compared", "differing", "leader", "misfit", "misfit_first"} <= said["metrics"].keys()
    assert said["rate"] > 0


@pytest.mark.parametrize("query", ["?since=-1", "?since=x", "?have=1e3", "?since=" + "9" * 40, "?since=²"])
def test_numbers_that_are_none(view: View, query: str) -> None:
    assert ask(view, f"/state{query}".replace("²", "%C2%B2")).status == 400


def test_a_frame_must_be_one(stream: Stream, view: View, frames: np.ndarray) -> None:
    prediction = stream(frames[0])
    for wrong in (frames, frames[0, :, :, 0], frames[0].astype(np.float32)):
        with pytest.raises(ImageError, match="HWC uint8"):
            view.show(wrong, prediction)


# Buttons


def test_buttons(stream: Stream, view: View, frames: np.ndarray, tmp_path: Path) -> None:
    feed(stream, view, frames)
    assert json.loads(press(view, "/save").body)["done"].startswith("Saved to")
    learned = stream.learner.state
    assert json.loads(press(view, "/reset").body)["done"].startswith("Reset")
    assert stream.learner.state.affines == {}
    assert stream.events[-1].kind == "reset"
    stream.restore(tmp_path / "state.safetensors")
    for name, tensor in learned.selector.tensors.items():
        np.testing.assert_array_equal(stream.learner.state.selector.tensors[name], tensor)
    assert press(view, "/freeze").status == 200
    assert stream.frozen and state(view)["frozen"]
    assert press(view, "/resume").status == 200
    assert not stream.frozen


def test_a_save_that_fails_says_why(stream: Stream, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with View(stream, port=0, save_to=tmp_path / "file" / "state.safetensors") as view:
        answer = press(view, "/save")
    assert answer.status == 500
    assert "file" in json.loads(answer.body)["error"]


def test_without_a_place_there_is_no_save(stream: Stream) -> None:
    with View(stream, port=0) as view:
        assert press(view, "/save").status == 404
        assert re.search(r'id="save"[^>]* hidden', ask(view).text)


def test_buttons_while_frames_come(stream: Stream, view: View, frames: np.ndarray) -> None:
    """Nothing breaks on either side, and what follows the last reset is learned from the exported state."""
    answers: list[int] = []

    def hammer() -> None:
        for path in ("/freeze", "/resume", "/reset", "/save") * 5:
            answers.append(press(view, path).status)
            answers.append(ask(view, "/state").status)

    threads = [threading.Thread(target=hammer) for _ in range(3)]
    for thread in threads:
        thread.start()
    while any(t.is_alive() for t in threads):
        feed(stream, view, frames)
    assert set(answers) == {200}
    assert stream.metrics.frames == len(stream.timeline) or len(stream.timeline) == 2000
    assert sum(e.kind == "reset" for e in stream.events) == 15
