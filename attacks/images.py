"""Images that no camera makes: files of every format with bytes changed, odd modes, types, shapes and sizes.

Must happen: an `ImageError` (or `NotFiniteError`), and nothing is learned; or a prediction that is finite. Memory
and time are bounded, whatever an image says of its size.
"""

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from PIL import Image

from attacks.harness import Case, Escape
from attacks.mutate import mutate_bytes
from attacks.world import check_prediction, frames, runtime
from pluto_edge import Runtime
from pluto_edge.preprocess import ImageBatch, open_image

FORMATS = ("png", "jpeg", "gif", "bmp", "webp", "tiff", "ppm")
MODES = (
    "1",
    "L",
    "P",
    "RGB",
    "RGBA",
    "CMYK",
    "YCbCr",
    "LAB",
    "HSV",
    "I",
    "F",
    "LA",
    "PA",
    "RGBa",
    "La",
    "I;16",
    "I;16B",
)
TYPES = (np.uint8, np.uint16, np.int8, np.int64, np.float16, np.float32, np.float64, np.bool_, np.complex64, object)
SIDES = (0, 1, 2, 3, 31, 32, 33, 100, 1000)
LONG = (10_000, 200_000)
PREDICTED = 0.1  # of the images that are taken: a prediction costs as much as twenty others


@contextmanager
def attack(place: Path) -> Iterator[Case]:
    """Cases that hand over images which no camera makes."""
    warnings.simplefilter("ignore")  # Pillow warns of what it refuses next
    encoded = [_encode(frames()[i], kind) for i, kind in enumerate(FORMATS)]
    with runtime() as opened:
        before = opened.learner.state

        def case(rng: Random) -> None:
            kind = rng.randrange(10)
            if kind < 6:
                images: Any = _file(rng, encoded, place / "image")
            elif kind < 8:
                images = _picture(rng)
            else:
                images = _array(rng)
            if rng.random() < 0.1:
                images = [images] * rng.randrange(3) + [rng.choice((frames()[0], None, "x", images))]
            _look(opened, images, rng.random() < PREDICTED)
            if opened.learner.state is not before:
                raise Escape("a prediction has learned")

        yield case


def _look(opened: Runtime, images: Any, predict: bool) -> None:
    batch = ImageBatch(images, opened.manifest.preprocessing)
    pixels = batch[: min(len(batch), 4)]
    if not np.isfinite(pixels).all() or pixels.shape[1:] != (3, 32, 32):
        raise Escape("pixels that are not finite, or of another shape")
    if predict and len(batch) <= 4:
        check_prediction(opened.predict(images), len(batch))


def _encode(frame: Any, kind: str) -> bytes:
    out = io.BytesIO()
    Image.fromarray(frame).save(out, kind)
    return out.getvalue()


def _file(rng: Random, encoded: list[bytes], path: Path) -> Any:
    """As `pluto run` opens it, or as a user does, who hands over what is not decoded yet."""
    data = mutate_bytes(rng, rng.choice(encoded), 6)
    if rng.random() < 0.5:
        path.write_bytes(data)
        return open_image(path)
    try:
        return Image.open(io.BytesIO(data))
    except Exception:  # the user's own affair
        return None


def _picture(rng: Random) -> Any:
    size = (rng.choice(SIDES), rng.choice(SIDES))
    if rng.random() < 0.03:
        size = rng.choice(((1, rng.choice(LONG)), (rng.choice(LONG), 1)))
    try:
        image = Image.new(rng.choice(MODES), size)
    except ValueError:  # a mode that this Pillow does not know
        return None
    if rng.random() < 0.1:
        image.close()
    return image


def _array(rng: Random) -> Any:
    shape = [rng.choice(SIDES[:-1]) for _ in range(rng.choice((0, 1, 2, 3, 3, 3, 4, 4, 5)))]
    if len(shape) == 3 and rng.random() < 0.8:
        shape[2] = rng.choice((1, 3, 3, 3, 4))
    if len(shape) == 4:
        shape = [rng.choice((0, 1, 2, 3)), *rng.choice(((32, 32, 3), (3, 32, 32), (3, 31, 32), (0, 0, 3)))]
    if np.prod(shape) > 4_000_000:
        shape = shape[:2]
    array: Any = np.zeros(shape, rng.choice(TYPES))
    if array.size and array.dtype.kind == "f":
        array.reshape(-1)[rng.randrange(array.size)] = rng.choice((np.nan, np.inf, 6e4, -1.0))
        if rng.random() < 0.3:
            array *= array.dtype.type(rng.choice((0.0, 1e4)))
    return array[::-1] if array.ndim and rng.random() < 0.2 else array
