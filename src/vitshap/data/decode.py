"""From a file of any kind to eight-bit pixels, upright, in one or three channels.

Whatever cannot be read raises one error that names the file and why, so that those who read many files can skip it and
count.
"""

from __future__ import annotations

import os
import struct
import zlib
from os import PathLike

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitshap.models.preprocess import eight_bit

READ_ERRORS = (
    OSError,
    ValueError,
    SyntaxError,
    EOFError,
    IndexError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
    Image.DecompressionBombWarning,  # where warnings are errors
)
"""What damaged files lead Pillow to, also in somebody's own data set."""


class UnreadableImage(ValueError):
    """An image that cannot be decoded: which, and why."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


def read_image(path: str | PathLike[str], *, channels: int = 3) -> Image.Image:
    """The image of a file, upright, in mode L (1 channel) or RGB (3)."""
    if channels not in (1, 3):
        raise ValueError(f"images are read with 1 or 3 channels, got {channels}")
    try:
        if os.path.exists(path) and not os.path.isfile(path):  # a pipe that nobody writes to never ends
            raise OSError(f"{os.fspath(path)} is not a regular file")
        with Image.open(path) as image:
            image.load()
            return eight_bit(image, channels=channels)
    except Exception as error:  # Pillow's plugins raise whatever a damaged file leads them to
        raise UnreadableImage(str(path), f"{type(error).__name__}: {error}") from error


def as_tensor(image: Image.Image) -> Tensor:
    """Pixels of an L or RGB image, uint8 ``[C, H, W]``."""
    pixels = np.array(image, dtype=np.uint8)  # [H, W] or [H, W, C]
    # numpy copies in this thread: torch would wake all of its own for every image, and threads that decode side by side
    # would wait for each other.
    return torch.from_numpy(pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1)))


def as_picture(pixels: Tensor) -> Image.Image:
    """The L or RGB image of uint8 pixels ``[C, H, W]``."""
    array = pixels.cpu().numpy()
    return Image.fromarray(array[0] if len(array) == 1 else np.ascontiguousarray(array.transpose(1, 2, 0)))
