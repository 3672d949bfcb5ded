"""Images to a normalised batch, with the backbone's own resize, crop and constants.

The same code prepares images for training and on the device. It reproduces timm's evaluation transform for
the backbone (tested against it), so that nobody has to remember mean, standard deviation or interpolation.

What `predict`, `step`, `adapt` and streams take, one of them or a list (of paths only, or of images only):

| given as | becomes RGB by |
|---|---|
| path (str or Path) | reading the file; Pillow's modes as below |
| PIL image | `convert("RGB")`: grey is repeated, a palette looked up, an alpha channel left out |
| array HW or HW1, uint8 | repeating grey |
| array HW3, uint8 | nothing: it is RGB already (OpenCV's BGR wants `frame[..., ::-1]`) |
| array HW4, uint8 | leaving the alpha channel out |
| any of these arrays in uint16, 16 bit PIL images | scaling 0 to 65535 down to 0 to 255 |

A batch is an array with one more dimension in front, NHWC with 1, 3 or 4 channels. A float array is NCHW and
already normalised, and is taken as it is.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache, cached_property
from math import floor
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pluto_edge.errors import ConfigError, ImageError

__all__ = ["ImageBatch", "Images", "OneImage", "Preprocessing"]

Pixels = NDArray[np.float32]
Bytes = NDArray[np.uint8]
OneImage = str | Path | Image.Image | NDArray[np.uint8] | NDArray[np.uint16]
Images = OneImage | NDArray[np.float32] | Sequence[OneImage]

MAX_SIDE = 4096
MAX_SCALED = 8192  # before the crop
MAX_LENGTH = 32_768  # of the longer side then: what is beyond is cut off first, and the crop would do that anyway
MAX_FILE_SIDE = 1_000_000  # of an image before it is decoded; Pillow itself bounds the product of both sides
IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm", ".pgm"}
WANTED = (
    "want a path, a PIL image or a uint8 (or uint16) array, HW, HW1, HW3 or HW4; a list of them; an NHWC batch; "
    "or an already normalised NCHW float batch"
)
CHANNELS = (1, 3, 4)  # grey, RGB, RGBA


@dataclass(frozen=True)
class Preprocessing:
    """timm's data configuration: what the backbone was trained to see."""

    size: tuple[int, int]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    interpolation: Literal["nearest", "bilinear", "bicubic", "box", "hamming", "lanczos"] = "bicubic"
    crop_pct: float = 0.875
    crop_mode: Literal["center", "squash", "border"] = "center"

    def __post_init__(self) -> None:
        if not all(1 <= side <= MAX_SIDE for side in self.size):
            raise ConfigError(f"size: want (height, width) of 1 to {MAX_SIDE} pixels, got {self.size}")
        if not all(s > 0 for s in self.std):
            raise ConfigError(f"std: want three positive numbers, got {self.std}")
        if not 0.05 <= self.crop_pct <= 1:
            raise ConfigError(f"crop_pct: want 0.05 to 1, got {self.crop_pct}")
        if not np.isfinite(self.table).all():
            raise ConfigError(f"mean and std: pixels would not be finite with mean {self.mean}, std {self.std}")
        if max(self.size) / self.crop_pct > MAX_SCALED:
            raise ConfigError(
                f"crop_pct: {self.crop_pct} of {max(self.size)} pixels: images would be larger than {MAX_SCALED}"
            )

    @cached_property
    def table(self) -> Pixels:
        """[3, 256]: the normalised value of every byte in every channel."""
        byte = np.arange(256, dtype=np.float32) / np.float32(255)
        with np.errstate(all="ignore"):  # __post_init__ looks at the result
            mean, std = (np.array(v, np.float64).astype(np.float32)[:, None] for v in (self.mean, self.std))
            return np.asarray((byte - mean) / std, np.float32)

    def __call__(self, image: Image.Image) -> Pixels:
        """One image as normalised [3, H, W]."""
        return self.normalise(self.crop(image))

    def crop(self, image: Image.Image) -> Bytes:
        """One image as [H, W, 3] bytes, resized and cropped."""
        try:
            return np.asarray(self.resize(to_rgb(image)))
        except ImageError:
            raise
        except Exception as cause:  # too little memory, or more pixels than Pillow allows
            what = f"{type(cause).__name__}: {cause}"
            raise ImageError(f"an image of {image.width} x {image.height} cannot be resized ({what})") from cause

    def normalise(self, rgb: Bytes) -> Pixels:
        """Cropped images [..., H, W, 3] as normalised [..., 3, H, W]."""
        return np.stack([self.table[c][rgb[..., c]] for c in range(3)], axis=-3)

    def resize(self, image: Image.Image) -> Image.Image:
        """Resized and cropped to `size`, as timm does for this `crop_mode`."""
        height, width = (floor(side / self.crop_pct) for side in self.size)
        if self.crop_mode == "squash":
            return _crop(self._scale(image, height, width), self.size, (0, 0, 0))
        if self.crop_mode == "border":
            ratio = max(image.height / height, image.width / width)
            scaled = self._scale(image, round(image.height / ratio), round(image.width / ratio))
            r, g, b = (min(max(round(255 * m), 0), 255) for m in self.mean)
            return _crop(scaled, self.size, (r, g, b))
        image = _shorten(image, min(image.height / height, image.width / width))
        if height == width:  # the short side becomes `height`, the other follows, rounded down
            short = min(image.size)
            return _crop(
                self._scale(image, int(height * image.height / short), int(height * image.width / short)),
                self.size,
                (0, 0, 0),
            )
        ratio = min(image.height / height, image.width / width)
        scaled = image.resize(
            (round(image.width / ratio), round(image.height / ratio)),
            Image.Resampling.BILINEAR,  # timm ignores the backbone's interpolation in this branch
        )
        return _crop(scaled, self.size, (0, 0, 0))

    def _scale(self, image: Image.Image, height: int, width: int) -> Image.Image:
        size = (max(width, 1), max(height, 1))
        return image if image.size == size else image.resize(size, Image.Resampling[self.interpolation.upper()])


def to_rgb(image: Image.Image) -> Image.Image:
    """Any image as 8 bit RGB; 16 bit grey is scaled. What cannot be decoded or converted is an ImageError."""
    try:
        _load(image)
        if image.mode == "I" or image.mode.startswith("I;16"):  # 32 bit is how 16 bit is often opened
            grey = np.asarray(image).astype(np.int64).clip(0, 65535)
            image = Image.fromarray(_to_bytes(grey))
        return image if image.mode == "RGB" else image.convert("RGB")
    except Exception as cause:  # Pillow's decoders raise what they come across
        what = f"{type(cause).__name__}: {cause}"
        raise ImageError(f"an image of mode {image.mode} cannot be decoded or converted ({what})") from cause


def _load(image: Image.Image) -> None:
    """Decode it, unless it is millions of rows long: each row costs memory, however short it is."""
    if max(image.size) > MAX_FILE_SIDE:
        raise ValueError(f"{image.width} x {image.height} pixels; a side has at most {MAX_FILE_SIDE:,}")
    image.load()


def _to_bytes(values: NDArray[np.integer]) -> Bytes:
    """0 to 65535 as 0 to 255, rounded."""
    return ((values.astype(np.uint32) * 255 + 32767) // 65535).astype(np.uint8)


def _shorten(image: Image.Image, ratio: float) -> Image.Image:
    """The middle of an image that would be longer than MAX_LENGTH once it is scaled down by `ratio`."""
    most = max(int(MAX_LENGTH * ratio), 1)
    if max(image.size) <= most:
        return image
    width, height = (side - (side - most) // 2 * 2 if side > most else side for side in image.size)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image.crop((left, top, left + width, top + height))


def _crop(image: Image.Image, size: tuple[int, int], fill: tuple[int, int, int]) -> Image.Image:
    """The centre of the image; where it is smaller than `size`, a border."""
    height, width = size
    if image.height < height or image.width < width:
        canvas = Image.new("RGB", (max(width, image.width), max(height, image.height)), fill)
        canvas.paste(image, (max(width - image.width, 0) // 2, max(height - image.height, 0) // 2))
        image = canvas
    top, left = round((image.height - height) / 2), round((image.width - width) / 2)
    return image.crop((left, top, left + width, top + height))


def image_files(folder: Path) -> list[Path]:
    """Every image below `folder`, sorted; none where there is no such folder. What is hidden is left out."""
    return sorted(
        p
        for p in folder.rglob("*")
        if p.suffix.lower() in IMAGE_SUFFIXES and all(map(visible, p.relative_to(folder).parts)) and p.is_file()
    )


def visible(name: str) -> bool:
    """Not a hidden file or folder, nor what a Mac adds to archives."""
    return not name.startswith(".") and name != "__MACOSX"


def visible_folders(folder: Path) -> list[str]:
    """Names of the folders right below it, sorted."""
    return sorted(p.name for p in folder.iterdir() if p.is_dir() and visible(p.name))


class ImageBatch:
    """Checked images of any accepted form; `batch[a:b]` is prepared when it is asked for.

    Slicing keeps memory flat: only one micro-batch of normalised pixels exists at a time.
    """

    def __init__(self, images: Images, preprocessing: Preprocessing, *, cropped: bool = False) -> None:
        """`cropped` images are a sequence of bytes [H, W, 3] in the backbone's size; they are looked at when they
        are asked for, not before."""
        self._preprocessing = preprocessing
        self._cropped = cropped
        self._items: Sequence[Any] | Pixels
        if cropped:
            self._items = cast(Sequence[Any], images)
            return
        if isinstance(images, np.ndarray):
            self._items = _array_items(images, preprocessing.size)
        elif isinstance(images, Image.Image):
            self._items = [images]
        elif isinstance(images, str | Path):
            self._items = self._read([images])
        elif isinstance(images, Sequence) and not isinstance(images, bytes):
            self._items = self._read(images) if _all_paths(images) else images
        else:
            raise ImageError(f"{WANTED}; got {type(images).__name__}")
        if len(self._items) == 0:
            raise ImageError(f"{WANTED}; got no image at all")
        if not isinstance(self._items, np.ndarray):
            for index, item in enumerate(self._items):
                _check_image(item, index)

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, part: slice) -> Pixels:
        """Normalised [n, 3, H, W]."""
        return self.take(np.arange(len(self))[part])

    def take(self, indices: NDArray[np.intp]) -> Pixels:
        """Normalised images at `indices`."""
        if isinstance(self._items, np.ndarray):
            return np.ascontiguousarray(self._items[indices], dtype=np.float32)
        items = [self._items[i] for i in indices]
        if self._cropped:
            return self._preprocessing.normalise(np.stack(items))
        return np.stack([self._preprocessing(_to_pil(item)) for item in items])

    def part(self, indices: NDArray[np.intp]) -> "ImageBatch":
        """The images at `indices`, as they are."""
        chosen = copy(self)
        items = self._items
        chosen._items = items[indices] if isinstance(items, np.ndarray) else [items[i] for i in indices]
        return chosen

    def cropped(self) -> "ImageBatch":
        """The same images as small as they get: resized and cropped, in bytes. A float batch stays as it is."""
        if isinstance(self._items, np.ndarray) or self._cropped:
            return self
        crops = [self._preprocessing.crop(_to_pil(item)) for item in self._items]
        return ImageBatch(crops, self._preprocessing, cropped=True)

    @staticmethod
    def join(parts: "Sequence[ImageBatch]") -> "ImageBatch":
        """Batches of cropped images, one after the other."""
        first = parts[0]
        if all(isinstance(p._items, np.ndarray) for p in parts):
            return ImageBatch(np.concatenate([p[:] for p in parts]), first._preprocessing)
        if not all(p._cropped for p in parts):
            raise ImageError("a stream of frames is either all images or all float batches, never both")
        return ImageBatch([item for p in parts for item in p._items], first._preprocessing, cropped=True)

    def _read(self, paths: Sequence[Any]) -> list[Bytes]:
        """Files are decoded here, once, and kept as small as they get."""
        self._cropped = True
        return [self._preprocessing.crop(open_image(Path(path))) for path in paths]


def _array_items(array: NDArray[np.generic], size: tuple[int, int]) -> Sequence[Any] | Pixels:
    if array.dtype in (np.uint8, np.uint16) and array.ndim in (2, 3, 4):
        return list(array) if array.ndim == 4 else [array]
    if not np.issubdtype(array.dtype, np.floating) or array.ndim != 4:
        raise ImageError(f"{WANTED}; got an array of {array.dtype} {list(array.shape)}")
    if array.shape[1:] != (3, *size):
        raise ImageError(
            f"a float batch is NCHW and already normalised, here [N, 3, {size[0]}, {size[1]}]; "
            f"got {list(array.shape)}"
        )
    batch = array.astype(np.float32, copy=False)
    if not np.isfinite(batch).all():
        bad = int(np.flatnonzero(~np.isfinite(batch).all(axis=(1, 2, 3)))[0])
        raise ImageError(f"image {bad} of the float batch holds NaN or infinity")
    return batch


def _check_image(item: object, index: int) -> None:
    if isinstance(item, Image.Image):
        if 0 in item.size:
            raise ImageError(f"image {index} has no pixels: {item.width} x {item.height}")
        try:
            _load(item)
            _convertible(item.mode)
        except Exception as cause:  # Pillow's decoders raise what they come across
            what = f"{type(cause).__name__}: {cause}"
            raise ImageError(f"image {index} (mode {item.mode}) cannot be decoded or converted ({what})") from cause
        return
    if not isinstance(item, np.ndarray):
        raise ImageError(f"{WANTED}; image {index} is a {type(item).__name__}")
    shaped = item.ndim == 2 or (item.ndim == 3 and item.shape[2] in CHANNELS)
    if item.dtype not in (np.uint8, np.uint16) or not shaped:
        raise ImageError(
            f"image {index}: want HW or HWC uint8 with 1, 3 or 4 channels, got {item.dtype} {list(item.shape)}"
        )
    if 0 in item.shape:
        raise ImageError(f"image {index} has no pixels: shape {list(item.shape)}")


def _all_paths(images: Sequence[object]) -> bool:
    return len(images) > 0 and all(isinstance(item, str | Path) for item in images)


def _to_pil(item: object) -> Image.Image:
    if isinstance(item, Image.Image):
        return item
    array = np.asarray(item)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[..., 0]
    return Image.fromarray(np.ascontiguousarray(_to_bytes(array) if array.dtype == np.uint16 else array))


def one_rgb(image: OneImage) -> Image.Image:
    """One image of any accepted form as 8 bit RGB; what is none is an ImageError."""
    if isinstance(image, str | Path):
        return open_image(Path(image))
    _check_image(image, 0)
    return to_rgb(_to_pil(image))


@cache
def _convertible(mode: str) -> None:
    """Raises where Pillow cannot make RGB of this mode."""
    Image.new(mode, (1, 1)).convert("RGB")


def open_image(path: Path) -> Image.Image:
    """The image in a file as 8 bit RGB; the error names the file."""
    try:
        with Image.open(path) as image:
            return to_rgb(image)
    except Exception as cause:  # of whatever type: truncated, too large to be true, no image at all
        raise ImageError(f"{path}: not a readable image ({cause})") from cause
