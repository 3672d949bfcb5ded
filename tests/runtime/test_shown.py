"""How values look in a terminal and in a notebook, and what a closed runtime says."""

from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pluto_edge import Bundle, ConfigError, Prediction, Runtime
from pluto_edge.runtime.prediction_html import MOST_ROWS, prediction_html
from pluto_edge.store import Store


def prediction(count: int = 1, modules: tuple[str, ...] = ("clear", "fog")) -> Prediction:
    probabilities = np.tile(np.array([[0.125, 0.875]], np.float32), (count, 1))
    weights = np.zeros((count, len(modules)), np.float32)
    weights[:, :2] = (0.25, 0.75)
    return Prediction(
        labels=np.ones(count, np.intp),
        classes=("dog",) * count,
        probabilities=probabilities,
        logits=np.log(probabilities),
        weights=weights,
        modules=modules,
        selected=("fog", "clear"),
        entropy=np.zeros(count, np.float32),
    )


def test_a_prediction_in_a_terminal() -> None:
    one = prediction(modules=("clear", "fog", "snow"))
    assert repr(one) == "Prediction(dog 0.88; modules: fog 0.75, clear 0.25)"
    assert one.confidence == pytest.approx([0.875])
    assert repr(prediction(2)) == "Prediction(2 images: dog 0.88, dog 0.88; modules: fog 0.75, clear 0.25)"
    assert repr(prediction(9)).startswith("Prediction(9 images: dog 0.88, dog 0.88, dog 0.88, …; modules: fog")


class Texts(HTMLParser):
    """What is written in the page, and how wide each part of a bar is."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: list[str] = []
        self.widths: list[str] = []
        self.feed(page)
        assert not self.tags

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        style = dict(attrs).get("style") or ""
        self.widths += [part[6:] for part in style.split(";") if part.startswith("width:") and part.endswith("%")]

    def handle_endtag(self, tag: str) -> None:
        assert self.tags.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_a_prediction_in_a_notebook() -> None:
    shown = Texts(prediction(2)._repr_html_())
    assert shown.texts == ["class", "confidence", "modules", *["dog", "88%", "fog 0.75, clear 0.25"] * 2]
    assert shown.widths == ["75.0%", "25.0%"] * 2
    many = Texts(prediction(MOST_ROWS + 5)._repr_html_())
    assert many.texts.count("dog") == MOST_ROWS and many.texts[-1] == "and 5 more images"


def test_names_cannot_bring_html_of_their_own() -> None:
    page = prediction_html(["<script>"], [1.0], [{"' onmouseover='x": 1.0}])
    assert "<script" not in page and "' onmouseover" not in page and Texts(page).texts[3] == "<script>"


def test_what_is_opened_says_what_it_is(make_store: Callable[..., Store], make_bundle: Callable[..., Path]) -> None:
    about = "3 modules, 7 classes"
    assert repr(make_store()).endswith(f"/store': vit_tiny_patch16_224, vpt of size 4, {about})")
    bundle = Bundle(make_bundle())
    assert repr(bundle) == f"Bundle({str(bundle.path)!r}: vit_tiny_patch16_224, fp32, vpt of size 4, {about})"
    runtime = Runtime(make_bundle(), threads=1)
    assert repr(runtime).endswith(f"{about}, CPUExecutionProvider)") and runtime.bundle.path == bundle.path
    stream = runtime.stream("gate", batch=8, background=False)
    stream(np.zeros((30, 30, 3), np.uint8))
    assert repr(stream) == "Stream('gate': learning, 1 frames, a step every 8)"
    stream.frozen = True
    assert "frozen" in repr(stream)
    runtime.close()
    assert "Stream('gate': closed" in repr(stream) and repr(runtime).endswith(", closed)")


def test_a_closed_runtime_says_so(make_bundle: Callable[..., Path], frames: np.ndarray, tmp_path: Path) -> None:
    with Runtime(make_bundle(), threads=1) as runtime:
        runtime.predict(frames)
    for call in (runtime.predict, runtime.step, runtime.adapt, runtime):
        with pytest.raises(ConfigError, match="the runtime is closed; open the bundle again"):
            call(frames)
    runtime.save(tmp_path / "state")
    assert (tmp_path / "state").is_file()


def test_predictions_of_files_and_grey_images(make_bundle: Callable[..., Path], tmp_path: Path) -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (50, 61), dtype=np.uint8))
    image.save(tmp_path / "grey.png")
    runtime = Runtime(make_bundle(), threads=1)
    want = runtime.predict(image.convert("RGB")).logits
    forms = (tmp_path / "grey.png", str(tmp_path / "grey.png"), np.asarray(image), np.asarray(image)[..., None])
    with runtime.stream(background=False) as stream:
        for call in (runtime.predict, stream):
            for form in forms:
                np.testing.assert_array_equal(call(form).logits, want)
