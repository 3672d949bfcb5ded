"""Where frames come from: a camera, a video, an address, a folder of images, an image or standard input.

`open_source("0" | "clip.mp4" | "rtsp://..." | "frames/" | "a.jpg" | "-")` gives frames one after another. It ends
with the video or the folder; a camera or an address that stops is a `SourceError`. OpenCV is needed for all but
folders and images.
"""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pluto_edge._progress import say
from pluto_edge._text import printable
from pluto_edge.errors import ConfigError, ImageError, MissingExtraError, SourceError
from pluto_edge.preprocess import IMAGE_SUFFIXES, image_files, open_image, to_rgb

__all__ = ["Frame", "Segment", "find", "is_live", "open_source", "paced", "passed_over", "public_name"]


@dataclass(frozen=True)
class Frame:
    """An HWC uint8 RGB image, with its class, the condition it was taken in and its file where they are known."""

    image: NDArray[np.uint8]
    truth: int | None = None
    condition: str = ""
    file: str = ""


@dataclass(frozen=True)
class Segment:
    """One folder's images in stream order, and their labels where the folders name classes."""

    name: str
    files: tuple[Path, ...]
    labels: tuple[int, ...] | None


def find(folder: Path, classes: Sequence[str], rng: np.random.Generator, limit: int | None = None) -> Segment:
    """A folder's images in an order that `rng` draws; labelled if all are in folders of classes."""
    if not folder.is_dir():
        what = "is a file; want the folder that it is in" if folder.exists() else "no such folder"
        hint = "; for one image: pluto predict" if folder.suffix.lower() in IMAGE_SUFFIXES else ""
        raise ConfigError(f"{folder}: {what}{hint if folder.exists() else ''}")
    files = image_files(folder)
    if not files:
        raise ConfigError(f"{folder}: holds no image ({', '.join(sorted(IMAGE_SUFFIXES))})")
    files = [files[i] for i in rng.permutation(len(files))][:limit]
    known = all(p.parent.name in classes for p in files)
    labels = tuple(classes.index(p.parent.name) for p in files) if known else None
    return Segment(folder.name, tuple(files), labels)


def open_source(
    source: str,
    classes: Sequence[str] = (),
    seed: int = 0,
    on_unreadable: Callable[[ImageError], None] | None = None,
) -> Iterator[Frame]:
    """The frames of a camera (its index), a video file, an address, a folder of images or an image; `-` is an image
    on standard input.

    A folder is read in the order of its names. Where its images are in folders named like `classes`, their truth
    is known, and `seed` shuffles them: one class after another would be no camera's stream. An image that cannot be
    read is passed over where `on_unreadable` takes the error, and raised where there is none.
    """
    path = Path(source)
    if source == "-":
        return _standard_input()
    if path.is_dir():
        return _folder(path, classes, seed, on_unreadable)
    if not is_live(source) and not path.exists():
        raise ConfigError(
            f"{source}: no such file or folder, nor a camera's index or an address (rtsp://, http://)"
        )
    if not is_live(source) and path.suffix.lower() in IMAGE_SUFFIXES:
        return _images([path], None, on_unreadable)
    return _video(source)


def passed_over(error: ImageError) -> None:
    """For `on_unreadable`: the file is named on stderr, and the others go on."""
    say(f"passed over: {printable(error)}")


def is_live(source: str) -> bool:
    """A camera or an address: its frames come when they come, and it has no end."""
    return source.isdecimal() or "://" in source or Path(source).is_char_device()


def public_name(source: str) -> str:
    """The source as it may be shown: an address without user, password, query, and settings in its path.

    A password with `/`, `?` or `#` in it ends nobody knows where: of such an address only the scheme is shown.
    """
    if source.isdecimal():
        return f"camera {source}"
    if "://" not in source:
        return printable(source)
    address = re.fullmatch(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)([^@?#]*)([?#][^@]*)?", source, re.DOTALL)
    if address is None:
        known = re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", source)
        return f"{known[0] if known else ''}…"
    scheme, authority, path, _ = address.groups()
    shown = re.sub(r"/[^/]*[=&;].*", "/…", path, flags=re.DOTALL)
    return f"{scheme}://{authority.rpartition('@')[2]}{shown}"


def paced(frames: Iterator[Frame], fps: float) -> Iterator[Frame]:
    """The same frames, no faster than `fps`."""
    start = perf_counter()
    for number, frame in enumerate(frames):
        sleep(max(0.0, start + number / fps - perf_counter()))
        yield frame


def _folder(
    folder: Path, classes: Sequence[str], seed: int, on_unreadable: Callable[[ImageError], None] | None
) -> Iterator[Frame]:
    segment = find(folder, classes, np.random.default_rng(seed))
    labels = segment.labels
    yield from _images(sorted(segment.files) if labels is None else segment.files, labels, on_unreadable)


def _images(
    files: Sequence[Path], labels: Sequence[int] | None, on_unreadable: Callable[[ImageError], None] | None
) -> Iterator[Frame]:
    read = 0
    for number, file in enumerate(files):
        try:
            image = np.asarray(open_image(file))
        except ImageError as error:
            if on_unreadable is None:
                raise
            on_unreadable(error)
            continue
        read += 1
        yield Frame(image, None if labels is None else labels[number], file=str(file))
    if not read:
        raise ImageError(f"{files[0] if len(files) == 1 else files[0].parent}: no image could be read")


def _standard_input() -> Iterator[Frame]:
    data = BytesIO(sys.stdin.buffer.read())
    try:
        with Image.open(data) as image:
            pixels = np.asarray(to_rgb(image))
    except Exception as cause:  # of whatever type: truncated, too large to be true, no image at all
        raise ImageError(f"standard input: not a readable image ({cause})") from cause
    yield Frame(pixels, file="-")


def _video(source: str) -> Iterator[Frame]:
    cv2, name, live = _opencv(), public_name(source), is_live(source)
    capture = cv2.VideoCapture(int(source) if source.isdecimal() else source)
    try:
        if not capture.isOpened():
            what = "is the camera there, free and allowed, the address right?" if live else "is it a video?"
            raise SourceError(f"{name}: OpenCV cannot open it; {what}")
        if live:
            capture.set(cv2.CAP_PROP_BUFFERSIZE, 1)  # the newest frame, not one that waited
        count = 0
        while True:
            there, image = capture.read()
            if not there:
                break
            count += 1
            yield Frame(np.ascontiguousarray(image[..., ::-1]))  # OpenCV's channels are BGR
        if live or not count:
            raise SourceError(f"{name}: {'the camera is lost' if count else 'no frame'} after {count} frames")
    finally:
        capture.release()


def _opencv() -> Any:
    try:
        import cv2
    except ImportError as cause:
        raise MissingExtraError("OpenCV", "camera") from cause
    return cv2
