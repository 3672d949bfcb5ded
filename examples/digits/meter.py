"""Meter digits and the conditions that a camera reads them in: NumPy and Pillow only, nothing of torch.

    rng = np.random.default_rng(0)
    image = render(rng, 7)                      # 32 x 32 RGB
    foggy = CONDITIONS["fog"](image, rng)

Everything is drawn from `rng`: the same generator and fonts give the same bytes. `CONDITIONS` are those that the
store in this folder has a module for, `UNSEEN` those that it has none for.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

__all__ = ["CONDITIONS", "SIZE", "UNSEEN", "find_fonts", "on_plate", "render"]

SIZE = 32
_FINE = 4  # digits are drawn this much larger, then scaled down

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float64]
Condition = Callable[[Bytes, np.random.Generator], Bytes]

FONT_FOLDERS = (
    "/usr/share/fonts",
    "/usr/local/share/fonts",
    "/Library/Fonts",
    "/System/Library/Fonts",
    "C:/Windows/Fonts",
)
FAMILIES = ("dejavusans", "dejavuserif", "liberation", "freesans", "freemono", "arial", "verdana", "roboto")


# Drawing


@lru_cache(maxsize=1)
def find_fonts() -> tuple[str, ...]:
    """The plain TrueType fonts installed here, sorted; none is fine, Pillow brings one of its own."""
    files = (f for folder in FONT_FOLDERS if Path(folder).is_dir() for f in Path(folder).rglob("*.ttf"))
    return tuple(sorted(str(f) for f in files if f.stem.lower().startswith(FAMILIES)))


def render(rng: np.random.Generator, digit: int, fonts: Sequence[str] | None = None) -> Bytes:
    """One wheel of a meter: a digit on its plate, the digits before and after it entering at the top and bottom.

    Position, size, slant, weight and colours vary, light on dark as well as dark on light; most plates have a
    bezel left and right. `fonts` are TrueType files to draw with beside Pillow's own font: None takes those that
    are installed, () none.
    """
    return on_plate(_wheel(rng, digit, find_fonts() if fonts is None else fonts), rng, bezel=rng.random() < 0.7)


def on_plate(mask: Bytes, rng: np.random.Generator, bezel: bool = False) -> Bytes:
    """A grey digit, 255 where the ink is, printed in some colour on a plate of another, unevenly lit.

    The mask may have any size; handwritten digits get onto a meter in this way.
    """
    ink = np.asarray(Image.fromarray(mask).resize((SIZE, SIZE), Image.Resampling.BICUBIC)) / 255.0
    plate, colour = _colours(rng)
    image = plate + ink[..., np.newaxis] * (colour - plate)
    if bezel:
        image = _bezel(image, rng)
    return _to_bytes(image * _lighting(rng)[..., np.newaxis])


@lru_cache(maxsize=512)
def _font(file: str | None, size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size=size) if file is None else ImageFont.truetype(file, size)


def _wheel(rng: np.random.Generator, digit: int, fonts: Sequence[str]) -> Bytes:
    """The ink of one wheel, white on black, at four times the size."""
    choices: list[str | None] = [None, *fonts]
    font = _font(choices[int(rng.integers(len(choices)))], int(rng.integers(24, 36)) * _FINE)
    side = SIZE * _FINE
    canvas = Image.new("L", (side, side))
    draw = ImageDraw.Draw(canvas)
    x, y = (side / 2 + float(rng.uniform(-3, 3)) * _FINE for _ in range(2))
    pitch = float(rng.uniform(25, 32)) * _FINE
    stroke = int(rng.integers(0, 4))
    for turn in (-1, 0, 1):
        text = str((digit + turn) % 10)
        left, top, right, bottom = draw.textbbox((0, 0), text, font=font, stroke_width=stroke)
        at = (x - (left + right) / 2, y + turn * pitch - (top + bottom) / 2)
        draw.text(at, text, fill=255, font=font, stroke_width=stroke)
    return np.asarray(canvas.rotate(float(rng.uniform(-9, 9)), Image.Resampling.BILINEAR), np.uint8)


def _colours(rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Of plate and ink: one dark, one light, both slightly tinted."""
    dark = rng.uniform(0.02, 0.22) + rng.uniform(-0.04, 0.06, 3)
    light = rng.uniform(0.72, 0.98) + rng.uniform(-0.08, 0.04, 3)
    return (dark, light) if rng.random() < 0.5 else (light, dark)


def _bezel(image: Floats, rng: np.random.Generator) -> Floats:
    """A frame of one colour at the left and right, with a thin shadow where it meets the plate."""
    colour = rng.uniform(0.1, 0.8) + rng.uniform(-0.05, 0.05, 3)
    left, right = (int(w) for w in rng.integers(0, 4, 2))
    framed = image.copy()
    framed[:, :left] = colour
    framed[:, SIZE - right :] = colour
    framed[:, left] *= 0.7
    framed[:, SIZE - right - 1] *= 0.7
    return framed


def _lighting(rng: np.random.Generator) -> Floats:
    """Light falling from one side, 0.8 to 1."""
    angle = float(rng.uniform(0, 2 * np.pi))
    shade: Floats = 0.9 + 0.1 * (np.cos(angle) * _COLUMNS + np.sin(angle) * _ROWS) / np.sqrt(2)
    return shade


# Pictures as numbers


_ROWS, _COLUMNS = np.meshgrid(np.linspace(-1, 1, SIZE), np.linspace(-1, 1, SIZE), indexing="ij")


def _to_bytes(image: Floats) -> Bytes:
    return np.rint(np.clip(image, 0, 1) * 255).astype(np.uint8)


def _to_floats(image: Bytes) -> Floats:
    return image / 255.0


def _enlarge(field: Floats) -> Floats:
    """A small field, smoothly interpolated to the size of the image."""
    grown = Image.fromarray(field.astype(np.float32)).resize((SIZE, SIZE), Image.Resampling.BICUBIC)
    return np.asarray(grown, np.float64)


def _clouds(rng: np.random.Generator, cells: Sequence[int] = (2, 4, 8)) -> Floats:
    """Smooth noise, 0 to 1: coarse shapes with finer ones on top."""
    total: Floats = sum((_enlarge(rng.normal(size=(n, n))) / n**0.5 for n in cells), np.zeros((SIZE, SIZE)))
    low, high = float(total.min()), float(total.max())
    return (total - low) / max(high - low, 1e-9)


def _shifted(image: Floats, down: int, right: int) -> Floats:
    """The image read `down` rows and `right` columns away, its edges repeated."""
    rows, columns = (np.clip(np.arange(SIZE) + s, 0, SIZE - 1) for s in (down, right))
    moved: Floats = image[rows[:, np.newaxis], columns]
    return moved


# Conditions that have a module


def clear(image: Bytes, rng: np.random.Generator) -> Bytes:
    """A good camera on a good day: the image as it is."""
    return image.copy()


def fog(image: Bytes, rng: np.random.Generator) -> Bytes:
    """Pale drifting clouds: the digit is a faint shade, fainter where the fog is thicker than elsewhere."""
    thick = rng.uniform(0.42, 0.54) + 0.2 * _clouds(rng)[..., np.newaxis]
    mist = 0.45 + 0.55 * _clouds(rng, (3, 6, 12))[..., np.newaxis] * np.array([0.97, 1.0, 1.02])
    return _to_bytes((1 - thick) * _to_floats(image) + thick * mist)


def low_light(image: Bytes, rng: np.random.Generator) -> Bytes:
    """Nearly night: a dark picture in which few photons were counted, with the grain that comes of it."""
    photons = rng.uniform(8.0, 16.0)
    counted = rng.poisson((0.12 + _to_floats(image)) * photons) / photons
    return _to_bytes(counted * rng.uniform(0.14, 0.28) + rng.normal(0, 0.012, image.shape))


def motion_blur(image: Bytes, rng: np.random.Generator) -> Bytes:
    """The meter shakes: everything is smeared along one line, a third of the picture long."""
    reach, angle = rng.uniform(3.5, 5.0), rng.uniform(0, np.pi)
    steps = np.linspace(-reach, reach, 15)
    shifts = np.rint(np.stack([steps * np.sin(angle), steps * np.cos(angle)], axis=1)).astype(int).tolist()
    source = _to_floats(image)
    return _to_bytes(np.mean([_shifted(source, down, right) for down, right in shifts], axis=0))


def sensor_noise(image: Bytes, rng: np.random.Generator) -> Bytes:
    """A hot, cheap sensor: strong coloured grain, and pixels that are dead or stuck."""
    noisy = _to_floats(image) * 0.8 + 0.1 + rng.normal(0, rng.uniform(0.11, 0.17), image.shape)
    broken = rng.random((SIZE, SIZE))
    noisy[broken < 0.04] = 0.0
    noisy[broken > 0.96] = 1.0
    return _to_bytes(noisy)


def colour_background(image: Bytes, rng: np.random.Generator) -> Bytes:
    """The digit inverts a loud, many-coloured texture, as in MNIST-M."""
    texture = np.stack([_clouds(rng, (2, 5, 11)) for _ in range(3)], axis=2)
    stripes = np.sin(rng.uniform(4, 12) * (_COLUMNS * rng.normal() + _ROWS * rng.normal()) + rng.uniform(0, 6))
    texture = 0.75 * texture + 0.25 * (0.5 + 0.5 * stripes[..., np.newaxis]) * rng.uniform(0.2, 1, 3)
    return _to_bytes(np.abs(0.75 * texture - _to_floats(image)))


# Conditions that have none


def glare(image: Bytes, rng: np.random.Generator) -> Bytes:
    """The sun in the glass: a burnt-out spot beside the middle and a pale band through it."""
    x, y = rng.uniform(-0.6, 0.6, 2)
    angle = rng.uniform(0, np.pi)
    spot = np.exp(-((_COLUMNS - x) ** 2 + (_ROWS - y) ** 2) / rng.uniform(0.08, 0.2))
    band = np.exp(-(((_COLUMNS - x) * np.sin(angle) - (_ROWS - y) * np.cos(angle)) ** 2) / 0.03)
    light = (0.15 + 0.9 * spot + 0.4 * band)[..., np.newaxis] * np.array([1.0, 0.97, 0.88])
    return _to_bytes(0.8 * _to_floats(image) + light)


def rain_drops(image: Bytes, rng: np.random.Generator) -> Bytes:
    """Drops on the glass: each a small lens that shows another piece of the picture, in a bright rim."""
    source = _to_floats(image)
    wet = source * 0.75 + 0.1
    for _ in range(int(rng.integers(6, 11))):
        x, y = rng.uniform(-1, 1, 2)
        radius = rng.uniform(0.12, 0.3)
        inside = ((_COLUMNS - x) ** 2 + ((_ROWS - y) / 1.3) ** 2) / radius**2
        lens = np.roll(source[::-1], int(rng.integers(-6, 7)), axis=1) * 0.7 + 0.2
        wet = np.where((inside < 1)[..., np.newaxis], lens, wet)
        wet = np.where(((inside > 0.7) & (inside < 1.1))[..., np.newaxis], 0.5 * wet + 0.42, wet)
    return _to_bytes(wet)


def frost(image: Bytes, rng: np.random.Generator) -> Bytes:
    """Ice on the glass: white needles growing from the border in a few directions, thin over the middle."""
    needles = np.zeros((SIZE, SIZE))
    for angle in rng.uniform(0, np.pi, 4):
        across = _COLUMNS * np.sin(angle) - _ROWS * np.cos(angle) + 0.15 * _clouds(rng)
        needles = np.maximum(needles, np.abs(np.sin(across * rng.uniform(9, 14))) ** 5 * _clouds(rng))
    edge = np.clip(np.hypot(_COLUMNS, _ROWS), 0, 1)
    ice = np.clip(0.25 + 0.75 * needles + 0.35 * edge, 0, 0.92)[..., np.newaxis]
    return _to_bytes((1 - ice) * _to_floats(image) + ice * np.array([0.86, 0.93, 1.0]))


CONDITIONS: dict[str, Condition] = {
    "clear": clear,
    "fog": fog,
    "low_light": low_light,
    "motion_blur": motion_blur,
    "sensor_noise": sensor_noise,
    "colour_background": colour_background,
}

UNSEEN: dict[str, Condition] = {"glare": glare, "rain_drops": rain_drops, "frost": frost}
