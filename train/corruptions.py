"""The 15 common image corruptions of ImageNet-C and CIFAR-10-C, five severities each.

Dan Hendrycks and Thomas Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and
Perturbations", ICLR 2019. Every severity constant is the one of the authors' generators: those of ImageNet-C
for images whose short side has at least 96 pixels, those of CIFAR-10-C for smaller ones. The code is our own
and needs NumPy and Pillow only, where theirs uses OpenCV, scikit-image, SciPy and ImageMagick.

    from pluto_edge.train.corruptions import NAMES, SEVERITIES, corrupt
    foggy = corrupt(image, "fog", severity=3, seed=0)

The same image, name, severity and seed give the same bytes, with one version of NumPy and Pillow.

What differs from the authors' generators:

- frost: theirs blends in crops of five photographs; here the ice is drawn (`_ice`) and blended with the
  published weights.
- Results are rounded to 8 bits; theirs are truncated, half a grey level darker on average. Theirs
  are then stored as JPEG (ImageNet-C); here nothing is compressed that was not asked to be.
- Any size and aspect ratio. Where theirs has 224 or 32 there is the image's own size; zooms are about the
  centre of both axes; the fractal behind fog covers the long side; elastic_transform is scaled by the short
  side, so that an image of any size is bent as one of 224 (or 32) is. Every other length is in pixels.
- The random numbers: the distributions are the published ones, the draws are not.

What does not differ, though it may surprise: glass_blur copies pixels where the paper speaks of shuffling
(see `_shuffled`), and some constants make a severity milder than the one before, above all those of
elastic_transform, whose severities 1 and 2 are of another kind than 3 to 5.
"""

import io
import math
import zlib
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pluto_edge._arrays import Indices, Wide
from pluto_edge._text import did_you_mean
from pluto_edge.errors import ConfigError

__all__ = ["NAMES", "SEVERITIES", "choose_corruptions", "corrupt"]

Constants = tuple[float, ...]
Function = Callable[[Wide, Constants, np.random.Generator], Wide]

SEVERITIES = (1, 2, 3, 4, 5)
_LARGE = 96  # short side from which the constants of ImageNet-C are used
_LUMA = np.array([0.299, 0.587, 0.114])


class _Corruption(NamedTuple):
    function: Function
    imagenet: tuple[Constants, ...]
    cifar: tuple[Constants, ...]


_REGISTRY: dict[str, _Corruption] = {}


def _corruption(imagenet: Sequence[Constants], cifar: Sequence[Constants]) -> Callable[[Function], Function]:
    """Register a function under its name, with its constants for severities 1 to 5."""

    def register(function: Function) -> Function:
        _REGISTRY[function.__name__.lstrip("_")] = _Corruption(function, tuple(imagenet), tuple(cifar))
        return function

    return register


def choose_corruptions(names: Sequence[str] | Literal["all"]) -> tuple[str, ...]:
    """These corruptions, or all of them; a name that there is not is refused."""
    chosen = NAMES if names == "all" else tuple(names)
    for name in chosen:
        if name not in NAMES:
            hint = did_you_mean(name, NAMES)
            raise ConfigError(f"--corruptions: no {name!r}; there are: {', '.join(NAMES)}{hint}")
    return chosen


def corrupt(image: NDArray[np.uint8], name: str, severity: int, seed: int) -> NDArray[np.uint8]:
    """The image with one corruption: RGB, height x width x 3, uint8, in and out."""
    _check(image, name, severity, seed)
    function, imagenet, cifar = _REGISTRY[name]
    constants = (imagenet if min(image.shape[:2]) >= _LARGE else cifar)[severity - 1]
    rng = np.random.default_rng([seed, zlib.crc32(name.encode()), severity])
    return _to_uint8(function(image / 255.0, constants, rng))


def _check(image: object, name: object, severity: object, seed: object) -> None:
    if not isinstance(image, np.ndarray):
        raise ConfigError(f"image is a {type(image).__name__}; want a uint8 array, (height, width, 3)")
    if image.dtype != np.uint8:
        raise ConfigError(f"image has dtype {image.dtype}; want uint8, 0 to 255")
    if image.ndim != 3 or image.shape[2] != 3 or image.size == 0:
        raise ConfigError(f"image has shape {image.shape}; want (height, width, 3), RGB, at least one pixel")
    if not isinstance(name, str) or name not in _REGISTRY:
        raise ConfigError(f"unknown corruption {name!r}; want one of {', '.join(_REGISTRY)}")
    if not _is_int(severity) or severity not in SEVERITIES:
        raise ConfigError(f"severity is {severity!r}; want an integer from 1 to 5")
    if not _is_int(seed) or seed < 0:  # type: ignore[operator]
        raise ConfigError(f"seed is {seed!r}; want an integer, 0 or more")


def _is_int(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _to_uint8(image: Wide) -> NDArray[np.uint8]:
    return np.rint(np.clip(image, 0.0, 1.0) * 255.0).astype(np.uint8)


# Filters and warps


def _gaussian(sigma: float, radius: int) -> Wide:
    weights: Wide = np.exp(-0.5 * (np.arange(-radius, radius + 1) / sigma) ** 2)
    return weights / float(weights.sum())


def _shift_sum(image: Wide, shifts: Indices, weights: Wide, border: Literal["edge", "reflect"] = "edge") -> Wide:
    """Sum of weights[i] times the image read shifts[i] = (rows, columns) away."""
    height, width = image.shape[:2]
    reach = int(np.abs(shifts).max())
    padded = np.pad(image, [(reach, reach)] * 2 + [(0, 0)] * (image.ndim - 2), mode=border)
    total = np.zeros_like(image)
    for (down, right), weight in zip((shifts + reach).tolist(), weights.tolist(), strict=True):
        total += weight * padded[down : down + height, right : right + width]
    return total


def _blur(image: Wide, sigma: float, radius: int, border: Literal["edge", "reflect"] = "edge") -> Wide:
    weights = _gaussian(sigma, radius)
    steps = np.arange(-radius, radius + 1)
    still = np.zeros_like(steps)
    image = _shift_sum(image, np.stack([steps, still], axis=1), weights, border)
    return _shift_sum(image, np.stack([still, steps], axis=1), weights, border)


def _blur_wide(field: Wide, sigma: float) -> Wide:
    """Gaussian blur, cut at three sigma, of a field mirrored at its edges; sigma may exceed the field.

    A mirrored field is periodic, so a product of spectra is the exact sum however wide the kernel is.
    """
    radius = int(3.0 * sigma + 0.5)
    for _ in range(2):
        size = field.shape[0]
        ring = np.bincount(np.arange(-radius, radius + 1) % (2 * size), _gaussian(sigma, radius), 2 * size)
        spectrum = np.fft.rfft(np.concatenate([field, field[::-1]]), axis=0)
        field = np.fft.irfft(spectrum * np.fft.rfft(ring)[:, np.newaxis], 2 * size, axis=0)[:size].T
    return field


def _streak(image: Wide, radius: float, sigma: float, angle: float) -> Wide:
    """Motion blur as ImageMagick defines it: half a Gaussian, trailing to one side, at whole pixels."""
    steps = np.arange(2 * math.ceil(radius) + 1)
    weights = np.exp(-0.5 * (steps / sigma) ** 2)
    direction = np.array([math.sin(math.radians(angle)), math.cos(math.radians(angle))])
    shifts = np.ceil(steps[:, np.newaxis] * direction - 0.5).astype(np.intp)
    return _shift_sum(image, shifts, weights / weights.sum())


def _convolve(image: Wide, kernel: Wide) -> Wide:
    """Each channel convolved with a square kernel of odd side, the image mirrored about its edge pixels."""
    height, width = image.shape[:2]
    reach = len(kernel) // 2
    padded = np.pad(image, [(reach, reach), (reach, reach), (0, 0)], mode="reflect")
    size = padded.shape[:2]
    spectrum = np.fft.rfft2(padded, axes=(0, 1)) * np.fft.rfft2(kernel, size)[..., np.newaxis]
    full: Wide = np.fft.irfft2(spectrum, size, axes=(0, 1))
    return full[2 * reach : 2 * reach + height, 2 * reach : 2 * reach + width]


def _disk(radius: float, softness: float) -> Wide:
    """A disk of the given radius whose edge is softened by a small Gaussian.

    The square that holds it is mirrored while it is softened, as published: for radii 8 and 10, which reach
    its edges, the disk then sums to 1.01, and brightens by that.
    """
    reach = 8 if radius <= 8 else int(radius)
    steps = np.arange(-reach, reach + 1)
    disk = (steps**2 + steps[:, np.newaxis] ** 2 <= radius**2).astype(np.float64)
    disk = _blur(disk / disk.sum(), softness, 1 if radius <= 8 else 2, "reflect")
    empty = reach - min(reach, math.floor(radius) + 2)
    return disk[empty : len(disk) - empty, empty : len(disk) - empty]


def _zoom_axis(image: Wide, factor: float) -> Wide:
    """The middle of the first axis magnified, linearly interpolated, to the size it had."""
    size = len(image)
    crop = math.ceil(size / factor)
    full = round(crop * factor)
    at = np.arange(size) + (full - size) // 2
    position = at * ((crop - 1) / max(full - 1, 1)) + (size - crop) // 2
    low = np.floor(position).astype(np.intp)
    part = (position - low).reshape(-1, *[1] * (image.ndim - 1))
    below = image[low]
    zoomed: Wide = below + part * (image[np.minimum(low + 1, size - 1)] - below)
    return zoomed


def _zoom(image: Wide, factor: float) -> Wide:
    return _zoom_axis(_zoom_axis(image, factor).swapaxes(0, 1), factor).swapaxes(0, 1)


def _positions(shape: tuple[int, ...]) -> tuple[Wide, Wide]:
    grid: Wide = np.indices(shape, dtype=np.float64)
    return grid[0], grid[1]


def _fold(index: Indices, size: int, twice: int) -> Indices:
    """Index of the pixel that a mirrored border shows; the edge pixel is shown once or twice (0 or 1)."""
    period = max(2 * size - 2 + 2 * twice, 1)
    index = index % period
    return np.minimum(index, period - twice - index)


def _sample(image: Wide, rows: Wide, columns: Wide, twice: int) -> Wide:
    """The image at fractional positions, bilinear, mirrored at its borders."""
    height, width = image.shape[:2]
    top, left = np.floor(rows).astype(np.intp), np.floor(columns).astype(np.intp)
    down, right = (rows - top)[..., np.newaxis], (columns - left)[..., np.newaxis]
    upper, lower = (_fold(top + i, height, twice) * width for i in (0, 1))
    first, last = (_fold(left + i, width, twice) for i in (0, 1))
    flat = image.reshape(height * width, -1)
    above: Wide = flat[upper + first] * (1 - right) + flat[upper + last] * right
    below: Wide = flat[lower + first] * (1 - right) + flat[lower + last] * right
    return above * (1 - down) + below * down


# Textures


def _plasma(shape: tuple[int, int], decay: float, rng: np.random.Generator) -> Wide:
    """Diamond-square fractal noise, 0 to 1, cut from a periodic map whose side is a power of two.

    The published generator scales noise of amplitude a by a once more, so that an octave has the square of
    the amplitude that its decay suggests; its constants were chosen with that.
    """
    side = 1 << max(5, (max(shape) - 1).bit_length())
    field = np.zeros((side, side))
    amplitude = 100.0**2
    step = side

    def jittered(total: Wide) -> Wide:
        return total / 4 + rng.uniform(-amplitude, amplitude, total.shape)

    while step >= 2:
        half = step // 2
        corner = field[::step, ::step]
        below, right = corner + np.roll(corner, -1, 0), corner + np.roll(corner, -1, 1)
        centre = jittered(below + np.roll(below, -1, 1))
        field[half::step, half::step] = centre
        field[::step, half::step] = jittered(right + centre + np.roll(centre, 1, 0))
        field[half::step, ::step] = jittered(below + centre + np.roll(centre, 1, 1))
        step = half
        amplitude /= decay**2
    field -= field.min()
    return field[: shape[0], : shape[1]] / float(field.max())


_FEATHER = 60.0  # pixels between the stems of neighbouring ice feathers, at scale 1
_BARB = 4.0  # pixels between the barbs of a feather, at scale 1
_TINT = np.array([1.35, 1.05, 0.9])  # exponents per channel: dark ice is blue, bright ice white


def _feathers(shape: tuple[int, int], scale: float, rng: np.random.Generator) -> Wide:
    """Feathers of ice, 0 to 1: each pixel belongs to the nearest stem, and barbs lean away from the stem."""
    count = int(np.clip(shape[0] * shape[1] / (_FEATHER * scale) ** 2, 4, 32))
    rows, columns = _positions(shape)
    nearest, barb, away = np.full(shape, np.inf), np.zeros(shape), np.zeros(shape)
    for _ in range(count):
        row, column, angle = rng.uniform((0, 0, 0), (*shape, 2 * math.pi))
        along = (rows - row) * math.sin(angle) + (columns - column) * math.cos(angle)
        across = (rows - row) * math.cos(angle) - (columns - column) * math.sin(angle)
        distance = (0.4 * along) ** 2 + across**2
        closer = distance < nearest
        nearest = np.where(closer, distance, nearest)
        away = np.where(closer, across, away)
        barb = np.where(closer, along - 0.6 * np.abs(across) + rng.uniform(0, 1000), barb)
    barb = barb / max(_BARB * scale, 1.5) + 500 * (away > 0)
    index = np.floor(barb).astype(np.intp)
    table = rng.random(997)
    value = table[index % 997] + (barb - index) * (table[(index + 1) % 997] - table[index % 997])
    stem = np.exp(-np.abs(away) / (8 * scale))
    return (1 - np.abs(2 * value - 1)) * (0.55 + 0.45 * stem) + 0.3 * stem**4


def _ice(shape: tuple[int, int], scale: float, rng: np.random.Generator) -> Wide:
    """A drawn stand-in for a photograph of frost on a window: RGB, 0 to 1."""
    feathers = np.maximum(_feathers(shape, scale, rng), 0.8 * _feathers(shape, 0.5 * scale, rng))
    cover = _plasma(shape, 1.5, rng)
    rime = _plasma(shape, 1.15, rng)
    bright = 0.1 + 0.4 * cover + 0.6 * feathers * (0.4 + cover) + 0.3 * (rime - 0.5)
    ice: Wide = np.clip(bright, 0, 1)[..., np.newaxis] ** _TINT
    return ice


# The corruptions: image from 0 to 1, constants, random numbers -> image, clipped by the caller


def _each(*values: float) -> list[Constants]:
    return [(value,) for value in values]


@_corruption(imagenet=_each(0.08, 0.12, 0.18, 0.26, 0.38), cifar=_each(0.04, 0.06, 0.08, 0.09, 0.10))
def _gaussian_noise(image: Wide, c: Constants, rng: np.random.Generator) -> Wide:
    """c: standard deviation."""
    return image + rng.normal(0.0, c[0], image.shape)


@_corruption(imagenet=_each(60, 25, 12, 5, 3), cifar=_each(500, 250, 100, 75, 50))
def _shot_noise(image: Wide, c: Constants, rng: np.random.Generator) -> Wide:
    """c: photons that a white pixel receives."""
    return rng.poisson(image * c[0]) / c[0]


@_corruption(imagenet=_each(0.03, 0.06, 0.09, 0.17, 0.27), cifar=_each(0.01, 0.02, 0.03, 0.05, 0.07))
def _impulse_noise(image: Wide, c: Constants, rng: np.random.Generator) -> Wide:
    """c: fraction of values, channel by channel, that become 0 or 1."""
    hit = rng.random(image.shape) < c[0]
    return np.where(hit, rng.integers(0, 2, image.shape), image)


@_corruption(
    imagenet=[(3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)],
    cifar=[(0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)],
)
def _defocus_blur(image: Wide, c: Constants, rng: np.random.Generator) -> Wide:
    """c: radius of the disk, softness of its edge."""
    return _convolve(image, _disk(c[0], c[1]))


@_corruption(
    imagenet=[(0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)],
    cifar=[(0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)],
)
def _glass_blur(image: Wide, c: Constants, rng: np.random.Generator) -> Wide:
    """c: sigma of the blur before and after, reach of the shuffle, rounds of it."""
    sigma, reach, rounds = c[0], int(c[1]), int(c[2])
    radius = int(4.0 * sigma + 0.5)
    image = _to_uint8(_blur(image, sigma, radius)) / 255.0
    flat = image.reshape(-1, 3)
    for _ in range(rounds):
        flat = flat[_shuffled(image.shape[:2], reach, rng)]
    return _blur(flat.reshape(image.shape), sigma, radius)


def _shuffled(shape: tuple[int, int], reach: int, rng: np.random.Generator) -> Indices:
    """For every pixel, the pixel whose value it ends up with after one round of the glass.

    The published loop goes from the last pixel to the first and means to swap each with a random neighbour,
    but the two sides of its swap share memory: the pixel takes its neighbour's value and the neighbour stays.
    That loop made the published images, so that is what happens here, without the loop: a neighbour
    that was visited before has already taken its value from elsewhere. Each pixel therefore
    points at a visited neighbour's result or at an original pixel (numbered from `count` on), and doubling
    the pointers follows all chains to their originals at once.
    """
    height, width = shape
    count = height * width
    source = np.arange(count, 2 * count).reshape(shape)
    inside = (slice(reach + 1, height - reach + 1), slice(reach + 1, width - reach + 1))
    here = np.arange(count).reshape(shape)[inside]
    down, right = rng.integers(-reach, reach, (2, *here.shape))
    there = here + down * width + right
    visited = np.zeros(shape, dtype=np.bool_)
    visited[inside] = True
    earlier = visited.reshape(-1)[there] & (there > here)
    source[inside] = np.where(earlier, there, there + count)
    pointers = np.concatenate([source.reshape(-1), np.arange(count, 2 * count)])
    while (pointers[:count] < count).any():
        pointers = pointers[pointers]
    return pointers[:count] - count


@_corruption(
    imagenet=[(10, 3), (15, 5), (15, 8), (15, 12), (20, 15)],
    cifar=[(6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)],
)
def _motion_blur(image: Wide, c: Constants, rng: np.random.Generator) -> Wide:
    """c: radius, sigma."""
    return _streak(image, c[0], c[1], rng.uniform(-45, 45))


@_corruption(
    imagenet=[(1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)],
    cifar=[(1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)],
)
def _zoom_blur(image: Wide, c: Constants, rng: np.random.Generator) -> Wide:
    """c: end and step of the zoom factors."""
    factors = np.arange(1, c[0], c[1])
    total = image.copy()
    for factor in factors.tolist():
        total += _zoom(image, factor)
    return total / (len(factors) + 1)


@_corruption(
    imagenet=[
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    ],
    cifar=[
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ],
)
def _snow(image: Wide, c: Constants, rng: np.random.Generator) -> Wide:
    """c: mean and deviation of the flakes, their zoom and threshold, radius and sigma of their fall, weight
    of the image against its whitened self."""
    mean, deviation, zoom, threshold, radius, sigma, weight = c
    flakes = np.clip(_zoom(rng.normal(mean, deviation, image.shape[:2]), zoom), 0, 1)
    flakes[flakes < threshold] = 0
    flakes = _streak(flakes, radius, sigma, rng.uniform(-135, -45))
    white: Wide = np.maximum(image, (image @ _LUMA * 1.5 + 0.5)[..., np.newaxis])
    return weight * image + (1 - weight) * white + (flakes + np.rot90(flakes, 2))[..., np.newaxis]


@_corruption(
    imagenet=[(1, 0.4, 1), (0.8, 0.6, 1), (0.7, 0.7, 1), (0.65, 0.7, 1), (0.6, 0.75, 1)],
    cifar=[(1, 0.2, 0.2), (1, 0.3, 0.2), (0.9, 0.4, 0.2), (0.85, 0.4, 0.2), (0.75, 0.45, 0.2)],
)
def _frost(image: Wide, c: Constants, rng: np.random.Generator) -> Wide:
    """c: weight of the image, weight of the ice, scale of the ice.

    The ice is drawn, not photographed as in the paper; weights and scale are the published ones.
    """
    return c[0] * image + c[1] * _ice((image.shape[0], image.shape[1]), c[2], rng)


@_corruption(
    imagenet=[(1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)],
    cifar=[(0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)],
)
def _fog(image: Wide, c: Constants, rng: np.random.Generator) -> Wide:
    """c: thickness, decay of the fractal's octaves."""
    brightest = float(image.max())
    fog = c[0] * _plasma((image.shape[0], image.shape[1]), c[1], rng)[..., np.newaxis]
    return (image + fog) * brightest / (brightest + c[0])


@_corruption(imagenet=_each(0.1, 0.2, 0.3, 0.4, 0.5), cifar=_each(0.05, 0.1, 0.15, 0.2, 0.3))
def _brightness(image: Wide, c: Constants, rng: np.random.Generator) -> Wide:
    """c: what is added to V of HSV."""
    value: Wide = image.max(axis=2, keepdims=True)
    raised = np.minimum(value + c[0], 1)
    # hue and saturation stay when the channels keep their ratios; black has none, and turns grey
    return np.where(value > 0, image * (raised / np.where(value > 0, value, 1)), raised)


@_corruption(imagenet=_each(0.4, 0.3, 0.2, 0.1, 0.05), cifar=_each(0.75, 0.5, 0.4, 0.3, 0.15))
def _contrast(image: Wide, c: Constants, rng: np.random.Generator) -> Wide:
    """c: what is left of the distance to each channel's mean."""
    mean: Wide = image.mean(axis=(0, 1))
    return (image - mean) * c[0] + mean


@_corruption(
    imagenet=[
        (244 * 2, 244 * 0.7, 244 * 0.1, 224),
        (244 * 2, 244 * 0.08, 244 * 0.2, 224),
        (244 * 0.05, 244 * 0.01, 244 * 0.02, 224),
        (244 * 0.07, 244 * 0.01, 244 * 0.02, 224),
        (244 * 0.12, 244 * 0.01, 244 * 0.02, 224),
    ],
    cifar=[
        (32 * 0, 32 * 0, 32 * 0.08, 32),
        (32 * 0.05, 32 * 0.2, 32 * 0.07, 32),
        (32 * 0.08, 32 * 0.06, 32 * 0.06, 32),
        (32 * 0.1, 32 * 0.04, 32 * 0.05, 32),
        (32 * 0.1, 32 * 0.03, 32 * 0.03, 32),
    ],
)
def _elastic_transform(image: Wide, c: Constants, rng: np.random.Generator) -> Wide:
    """c: strength and smoothness of the local shifts, shift of three corners, side that these are for."""
    rows, columns = _positions(image.shape[:2])
    scale = min(image.shape[:2]) / c[3]
    image = _sample(image, *_tilted(rows, columns, c[2] * scale, rng), twice=0)
    if c[0] == 0:
        return image
    # smoothing over n times the length leaves 1/n of the noise, hence the square
    fields = rng.uniform(-1, 1, (2, *rows.shape))
    down, right = (c[0] * scale**2 * _blur_wide(field, c[1] * scale) for field in fields)
    return _sample(image, rows + down, columns + right, twice=1)


def _tilted(rows: Wide, columns: Wide, shift: float, rng: np.random.Generator) -> tuple[Wide, Wide]:
    """Positions under the affine map that shifts three corners of a square at the image's centre."""
    centre = np.array(rows.shape) // 2
    corners = centre + max(min(rows.shape) // 3, 1) * np.array([[1.0, 1.0], [-1.0, 1.0], [-1.0, -1.0]])
    shifted = np.column_stack([corners + rng.uniform(-shift, shift, (3, 2)), np.ones(3)])
    across, along, start = np.linalg.solve(shifted, corners)
    return (
        rows * across[0] + columns * along[0] + start[0],
        rows * across[1] + columns * along[1] + start[1],
    )


@_corruption(imagenet=_each(0.6, 0.5, 0.4, 0.3, 0.25), cifar=_each(0.95, 0.9, 0.85, 0.75, 0.65))
def _pixelate(image: Wide, c: Constants, rng: np.random.Generator) -> Wide:
    """c: side of the small image over that of the image."""
    height, width = image.shape[:2]
    small = (max(int(width * c[0]), 1), max(int(height * c[0]), 1))
    picture = Image.fromarray(_to_uint8(image)).resize(small, Image.Resampling.BOX)
    return np.asarray(picture.resize((width, height), Image.Resampling.BOX)) / 255.0


@_corruption(imagenet=_each(25, 18, 15, 10, 7), cifar=_each(80, 65, 58, 50, 40))
def _jpeg_compression(image: Wide, c: Constants, rng: np.random.Generator) -> Wide:
    """c: JPEG quality."""
    file = io.BytesIO()
    Image.fromarray(_to_uint8(image)).save(file, "JPEG", quality=int(c[0]))
    with Image.open(file) as picture:
        return np.asarray(picture) / 255.0


NAMES: tuple[str, ...] = tuple(_REGISTRY)
