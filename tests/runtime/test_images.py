"""Images that are not what they should be, at every door: `predict`, `step`, a stream and `pluto run`."""

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pluto_edge import ImageError, Runtime
from pluto_edge.cli import main


def picture() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))


def encoded(image: Image.Image, kind: str = "png") -> bytes:
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


def truncated(kind: str) -> Image.Image:
    data = encoded(picture(), kind)
    return Image.open(io.BytesIO(data[: len(data) // 2]))


def closed_file() -> Image.Image:
    file = io.BytesIO(encoded(picture()))
    image = Image.open(file)
    file.close()
    return image


def closed() -> Image.Image:
    image = picture()
    image.close()
    return image


def endless() -> Image.Image:
    """A small file of very many rows, not decoded yet."""
    return Image.open(io.BytesIO(encoded(Image.new("1", (1, 1_000_001)))))


BAD: dict[str, Callable[[], Image.Image]] = {
    "truncated png": lambda: truncated("png"),
    "truncated jpeg": lambda: truncated("jpeg"),
    "closed file": closed_file,
    "closed": closed,
    "a million rows": endless,
    "mode La": lambda: Image.new("La", (8, 8)),
}


@pytest.fixture
def runtime(make_bundle: Callable[..., Path]) -> Runtime:
    return Runtime(make_bundle(), threads=1)


@pytest.mark.parametrize("case", BAD)
def test_bad_images_are_errors_and_leave_no_trace(runtime: Runtime, frames: np.ndarray, case: str) -> None:
    with runtime.stream(batch=2, background=False) as stream:
        for call in (runtime.predict, runtime.step, runtime.adapt, stream):
            with pytest.raises(ImageError, match="cannot be decoded"):
                call(BAD[case]())
        assert stream.metrics.frames == 0 and not stream.timeline
        want = runtime.predict(frames[:1]).logits
        np.testing.assert_array_equal(stream(frames[0]).logits, want)
    assert not runtime.events


def test_a_bomb_that_shows_only_when_it_is_resized(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    image = picture()
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 16)
    with runtime.stream(background=False) as stream:
        for call in (runtime.predict, stream):
            with pytest.raises(ImageError, match="DecompressionBombError"):
                call(image)


@pytest.mark.parametrize("size", [(200_000, 1), (1, 200_000)])
def test_slivers_are_predicted(runtime: Runtime, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """As whole pixels they would be gigabytes once the short side is the backbone's."""
    real = Image.Image.resize

    def resize(image: Image.Image, size: tuple[int, int], *arguments: object) -> Image.Image:
        assert size[0] * size[1] < 4e6
        return real(image, size, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Image.Image, "resize", resize)
    image = Image.new("RGB", size, (90, 120, 30))
    want = runtime.predict(Image.new("RGB", (50, 50), (90, 120, 30))).logits
    with runtime.stream(background=False) as stream:
        for call in (runtime.predict, stream):
            for form in (image, np.asarray(image)):
                np.testing.assert_allclose(call(form).logits, want, atol=1e-4)


def test_16_bit_grey_is_not_white(runtime: Runtime) -> None:
    deep = np.linspace(0, 65535, 2500).reshape(50, 50).astype(np.uint16)
    want = runtime.predict(Image.fromarray((deep / 257).round().astype(np.uint8))).logits
    with runtime.stream(background=False) as stream:
        for call in (runtime.predict, stream):
            for form in (deep, Image.fromarray(deep)):
                np.testing.assert_array_equal(call(form).logits, want)


def test_run_passes_over_what_cannot_be_read(
    make_bundle: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "class-0"
    folder.mkdir()
    for number in range(5):
        picture().save(folder / f"{number}.png")
    Image.new("L", (1, 3000)).save(folder / "sliver.png")
    Image.fromarray(np.full((20, 20), 40_000, np.uint16)).save(folder / "deep.png")
    (folder / "cut.jpg").write_bytes(encoded(picture(), "jpeg")[:500])
    (folder / "text.png").write_bytes(b"no image")
    Image.new("L", (200, 200)).save(folder / "bomb.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10_000)
    out = tmp_path / "out.jsonl"
    command = ["run", str(make_bundle()), str(tmp_path), "--batch", "3", "--compare", "--out", str(out)]
    assert main(command) == 0
    said = capsys.readouterr()
    for name in ("cut.jpg", "text.png", "bomb.png"):
        assert said.err.count(f"{name}: not a readable image") == 1  # not again for every pass
    assert len(out.read_text().splitlines()) == 7
    (total,) = [line.split() for line in said.out.splitlines() if line.startswith("all")]
    assert total[1] == "7"


def test_run_without_a_readable_image(
    make_bundle: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.png").write_bytes(b"x")
    assert main(["run", str(make_bundle()), str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "x.png: not a readable image" in said and "not one of its 1 images can be read" in said


def test_run_writes_predictions_without_learning(make_bundle: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "frames").mkdir()
    for number in range(5):
        picture().save(tmp_path / "frames" / f"{number}.png")
    out = tmp_path / "out.jsonl"
    command = ["run", str(make_bundle()), str(tmp_path / "frames"), "--predict-only", "--out", str(out)]
    assert main(command) == 0
    assert len(out.read_text().splitlines()) == 5


def test_run_on_a_file(
    make_bundle: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture().save(tmp_path / "a.png")
    assert main(["run", str(make_bundle()), str(tmp_path / "a.png")]) == 2
    assert "is a file; want the folder that it is in" in capsys.readouterr().err
