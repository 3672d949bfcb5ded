"""A clip for Chromium's fake camera: meter digits, drawn and weathered, as Y4M."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SIDE = 256  # pixels; a digit has 32, and a camera sees more of them
RATE = 30  # frames a second


def write_clip(path: Path, digits: Sequence[NDArray[np.uint8]], hold: int) -> None:
    """Each picture for `hold` frames; Chromium plays the clip again and again."""
    with path.open("wb") as file:
        file.write(f"YUV4MPEG2 W{SIDE} H{SIDE} F{RATE}:1 Ip A1:1 C420jpeg\n".encode())
        for digit in digits:
            big = np.asarray(Image.fromarray(digit).resize((SIDE, SIDE), Image.Resampling.BICUBIC))
            file.write((b"FRAME\n" + _planes(big)) * hold)


def _planes(rgb: NDArray[np.uint8]) -> bytes:
    """Y, then Cb and Cr of every second pixel in every second row, as BT.601 has them."""
    r, g, b = np.moveaxis(rgb.astype(np.float64), 2, 0)
    y = 16 + (65.481 * r + 128.553 * g + 24.966 * b) / 255
    cb = 128 + (-37.797 * r - 74.203 * g + 112.0 * b) / 255
    cr = 128 + (112.0 * r - 93.786 * g - 18.214 * b) / 255
    half = [c.reshape(SIDE // 2, 2, SIDE // 2, 2).mean(axis=(1, 3)) for c in (cb, cr)]
    return b"".join(np.rint(plane).clip(0, 255).astype(np.uint8).tobytes() for plane in (y, *half))
