"""Preprocessing is timm's evaluation transform, bit for bit but for the last rounding."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import pluto_edge.vit.torchvision_shim  # noqa: F401  isort: skip
from timm.data import create_transform

from pluto_edge.errors import ConfigError, ImageError
from pluto_edge.preprocess import ImageBatch, Preprocessing

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(st.integers(1, 90), st.integers(1, 90)),
    st.sampled_from([(32, 32), (28, 28), (24, 40)]),
    st.sampled_from(["bicubic", "bilinear"]),
    st.sampled_from([0.875, 0.9, 0.95, 1.0]),
    st.sampled_from(["center", "squash", "border"]),
)
def test_equals_timm(
    image_size: tuple[int, int], size: tuple[int, int], interpolation: str, crop_pct: float, crop_mode: str
) -> None:
    image = picture(*image_size)
    if max(image_size) / min(image_size) > 20:
        return  # timm's own rounding reaches size 0 on such slivers
    ours = Preprocessing(size, MEAN, STD, interpolation, crop_pct, crop_mode)  # type: ignore[arg-type]
    theirs = create_transform(
        (3, *size), interpolation=interpolation, mean=MEAN, std=STD, crop_pct=crop_pct, crop_mode=crop_mode
    )
    np.testing.assert_allclose(ours(image), theirs(image).numpy(), atol=1e-6)


P = Preprocessing((20, 16), MEAN, STD)


def test_every_form_gives_the_same_pixels() -> None:
    image = picture(30, 33)
    array = np.asarray(image)
    want = P(image)[None]
    for form in (image, array, [image], [array], (array,), array[None]):
        batch = ImageBatch(form, P)
        assert len(batch) == 1
        np.testing.assert_array_equal(batch[0:1], want)
    np.testing.assert_array_equal(ImageBatch(want, P)[0:1], want)
    np.testing.assert_array_equal(ImageBatch(want.astype(np.float64), P)[0:1], want)


def test_other_modes_become_rgb() -> None:
    grey = picture(30, 30).convert("L")
    np.testing.assert_array_equal(ImageBatch(grey, P)[0:1], ImageBatch(grey.convert("RGB"), P)[0:1])


def test_images_as_people_have_them(tmp_path: Path) -> None:
    """The table in the module's docstring, row by row."""
    rgb, grey = picture(30, 33), picture(30, 33).convert("L")
    clear = rgb.copy()
    clear.putalpha(Image.fromarray(np.arange(30 * 33, dtype=np.uint8).reshape(33, 30)))
    rgb.save(tmp_path / "rgb.png")
    grey.save(tmp_path / "grey.png")
    clear.save(tmp_path / "clear.png")
    flat, deep = np.asarray(grey), np.asarray(grey).astype(np.uint16) * 257
    forms: list[tuple[Any, Image.Image]] = [
        (tmp_path / "rgb.png", rgb),
        (str(tmp_path / "rgb.png"), rgb),
        ([str(tmp_path / "rgb.png")], rgb),
        (tmp_path / "grey.png", grey.convert("RGB")),
        (tmp_path / "clear.png", rgb),
        (clear, rgb),
        (np.asarray(clear), rgb),
        (np.asarray(clear)[None], rgb),
        (flat, grey.convert("RGB")),
        (flat[..., None], grey.convert("RGB")),
        (flat[None, ..., None], grey.convert("RGB")),
        ([flat], grey.convert("RGB")),
        (deep[..., None], grey.convert("RGB")),
        (np.asarray(clear).astype(np.uint16) * 257, rgb),
    ]
    for form, same in forms:
        batch = ImageBatch(form, P)
        assert len(batch) == 1
        np.testing.assert_array_equal(batch[0:1], P(same)[None])
        np.testing.assert_array_equal(batch.cropped()[0:1], P(same)[None])


def test_files_are_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [tmp_path / f"{n}.png" for n in range(3)]
    for n, file in enumerate(files):
        picture(30 + n, 33).save(file)
    batch = ImageBatch(files, P)
    for file in files:
        file.unlink()
    assert batch[0:2].shape == (2, 3, 20, 16) and len(batch.part(np.array([2]))) == 1


def test_mixed_sizes_and_slices() -> None:
    batch = ImageBatch([picture(30, 33), np.asarray(picture(64, 20)), picture(1, 1)], P)  # type: ignore[list-item]
    assert len(batch) == 3
    assert batch[0:2].shape == (2, 3, 20, 16)
    assert batch[2:9].shape == (1, 3, 20, 16)


nan = np.zeros((2, 3, 20, 16), np.float32)
nan[1, 0, 0, 0] = np.nan


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ([], "no image at all"),
        (np.zeros((0, 8, 8, 3), np.uint8), "no image at all"),
        (np.zeros((0, 3, 20, 16), np.float32), "no image at all"),
        (None, "got NoneType"),
        (b"photo.jpg", "got bytes"),
        ("photo.jpg", r"photo\.jpg: not a readable image"),
        ([Path("photo.jpg")], r"photo\.jpg: not a readable image"),
        ([np.zeros((8, 8, 3), np.uint8), "photo.jpg"], "image 1 is a str"),
        ([b"photo.jpg"], "image 0 is a bytes"),
        (np.zeros(8, np.uint8), r"got an array of uint8 \[8\]"),
        (np.zeros((8, 8, 2), np.uint8), r"1, 3 or 4 channels, got uint8 \[8, 8, 2\]"),
        (np.zeros((2, 8, 8, 5), np.uint8), r"got uint8 \[8, 8, 5\]"),
        (np.zeros((8, 8, 3), np.float32), r"got an array of float32 \[8, 8, 3\]"),
        (np.zeros((8, 8, 3), np.int64), "got an array of int64"),
        (np.zeros((1, 3, 8, 8), np.float32), r"NCHW.*\[N, 3, 20, 16\].*got \[1, 3, 8, 8\]"),
        (np.zeros((1, 20, 16, 3), np.float32), "NCHW"),
        (nan, "image 1 of the float batch holds NaN"),
        ([np.zeros((0, 8, 3), np.uint8)], "no pixels"),
        ([np.zeros((8, 8, 3), np.uint8), np.zeros((8, 8), np.int8)], "image 1: want HW or HWC uint8"),
        ({"a": 1}, "got dict"),
    ],
)
def test_bad_images(images: object, message: str) -> None:
    with pytest.raises(ImageError, match=message):
        ImageBatch(images, P)  # type: ignore[arg-type]


# files and modes


def encoded(kind: str = "png", cut: int = 0) -> io.BytesIO:
    file = io.BytesIO()
    picture(64, 64).save(file, kind)
    return io.BytesIO(file.getvalue()[: len(file.getvalue()) - cut])


@pytest.mark.parametrize("kind", ["png", "jpeg", "bmp", "webp", "gif", "tiff"])
def test_truncated_files(kind: str) -> None:
    whole = len(encoded(kind).getvalue())
    for cut in (whole // 2, whole // 3):
        try:
            image = Image.open(encoded(kind, cut))
        except Exception:
            continue  # not even opened
        with pytest.raises(ImageError, match=r"image 1 .*cannot be decoded"):
            ImageBatch([picture(8, 8), image], P)
        with pytest.raises(ImageError, match="cannot be decoded"):
            P(Image.open(encoded(kind, cut)))


def test_closed_images() -> None:
    image, loaded = Image.open(encoded()), picture(8, 8)
    image.close()
    loaded.close()
    for closed in (image, loaded):
        with pytest.raises(ImageError, match="cannot be decoded"):
            ImageBatch(closed, P)


def test_a_mode_that_is_not_known() -> None:
    with pytest.raises(ImageError, match="mode La"):
        ImageBatch(Image.new("La", (8, 8)), P)
    with pytest.raises(ImageError, match="mode La"):
        P(Image.new("La", (8, 8)))


@pytest.mark.parametrize("shape", [(1, 200_000), (200_000, 1)])
@pytest.mark.parametrize("mode", ["center", "squash", "border"])
@pytest.mark.parametrize("size", [(224, 224), (224, 192)])
def test_slivers_take_little_memory(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int], mode: str, size: tuple[int, int]
) -> None:
    p = Preprocessing(size, MEAN, STD, crop_mode=mode)  # type: ignore[arg-type]
    real, made = Image.Image.resize, [0]

    def resize(image: Image.Image, size: tuple[int, int], *arguments: Any) -> Image.Image:
        made.append(size[0] * size[1])
        assert made[-1] < 20e6
        return real(image, size, *arguments)

    monkeypatch.setattr(Image.Image, "resize", resize)
    pixels = ImageBatch(np.full((*shape, 3), 128, np.uint8), p)[0:1]
    assert pixels.shape == (1, 3, *size) and np.isfinite(pixels).all() and len(made) == 2


def test_slivers_show_their_middle() -> None:
    frame = np.zeros((1, 200_000, 3), np.uint8)
    frame[:, 90_000:110_000] = 200
    assert (ImageBatch(frame, P)[0:1] == P(Image.new("RGB", (20, 20), (200, 200, 200)))).all()


def test_16_bit_grey_is_scaled() -> None:
    deep = np.linspace(0, 65535, 30 * 30).reshape(30, 30).astype(np.uint16)
    grey = Image.fromarray((deep / 257).round().astype(np.uint8))
    want = ImageBatch(grey, P)[0:1]
    wide = Image.fromarray(deep.astype(np.int32))
    big = Image.frombytes("I;16B", (30, 30), deep.astype(">u2").tobytes())
    assert wide.mode == "I" and Image.fromarray(deep).mode == "I;16"
    for form in (Image.fromarray(deep), wide, big, deep, [deep], np.stack([deep] * 3, axis=-1)):
        np.testing.assert_array_equal(ImageBatch(form, P)[0:1], want)  # type: ignore[arg-type]
    file = io.BytesIO()
    Image.fromarray(deep).save(file, "png")
    np.testing.assert_array_equal(ImageBatch(Image.open(file), P)[0:1], want)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size": (0, 16)}, "size"),
        ({"size": (20, 10**9)}, "size"),
        ({"std": (0.0, 1.0, 1.0)}, "std"),
        ({"crop_pct": 0.0}, "crop_pct"),
    ],
)
def test_bad_preprocessing(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Preprocessing(**{"size": (20, 16), "mean": MEAN, "std": STD, **change})  # type: ignore[arg-type]
