"""What a user has as a picture, made into pixels, and where in it a map lies.

Files and PIL images are read as the nets read them (upright, 16 bits scaled, transparency on white), so that the
picture drawn is the picture explained. Drawing never needs more than about a thousand pixels a side: large photos
are shrunk, while all coordinates stay those of the original.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from PIL import Image
from torch import Tensor

from vitshap.models.preprocess import eight_bit

if TYPE_CHECKING:
    from numpy.typing import NDArray

Picture: TypeAlias = "Image.Image | str | os.PathLike[str] | NDArray[np.generic] | Tensor"
"""An image as a user has it: PIL, a path, an array ``[H, W]`` or ``[H, W, 3]``, or a tensor ``[C, H, W]``."""
Box: TypeAlias = Sequence[float]
"""Left, top, right, bottom of the explained crop, in pixels of the picture."""

ENOUGH = 1200
"""Pixels of the longer side beyond which a panel shows no more."""
DIMMED, DIM_GREY = 0.45, 0.55
"""What the net does not see keeps this share of its brightness; the rest is a grey of this brightness."""
OUTLINE = 0.25
"""Brightness of the line around what the net sees."""


@dataclass(frozen=True, eq=False)
class Frame:
    """The frame that everything is drawn in: the original picture's, or the map's cells where there is no picture."""

    width: int
    height: int
    photo: Image.Image | None
    """RGB, whole."""

    @property
    def aspect(self) -> float:
        """Height over width."""
        return self.height / self.width

    def pixels(self) -> NDArray[np.uint8]:
        """RGB, ``[h, w, 3]``, for a panel: a large photo is shrunk."""
        if self.photo is None:
            raise ValueError("there is no picture to draw")
        large = max(self.photo.size) > ENOUGH
        return np.asarray(thumbnail(self.photo, ENOUGH) if large else self.photo)


def frame(picture: Picture | None, heat: NDArray[np.floating]) -> Frame:
    """The frame of a picture, or of a map without one."""
    if picture is None:
        return Frame(heat.shape[1], heat.shape[0], None)
    photo = _photo(picture)
    return Frame(*photo.size, photo)


def thumbnail(picture: Picture, max_side: int) -> Image.Image:
    """The picture in RGB with a longer side of ``max_side`` pixels: shrunk, or enlarged if it is smaller."""
    if max_side < 1:
        raise ValueError(f"max_side is at least 1 pixel, got {max_side}")
    photo = _photo(picture)
    scale = max_side / max(photo.size)
    width, height = (max(round(side * scale), 1) for side in photo.size)
    # The few pixels of a tiny picture are what the net saw: they stay squares.
    how = Image.Resampling.NEAREST if scale >= 3 else Image.Resampling.BICUBIC
    return photo.resize((width, height), how, reducing_gap=3.0)


def as_pixels(picture: Picture) -> NDArray[np.float64]:
    """RGB in 0..1, ``[H, W, 3]``, of any picture.

    A tensor is a net's input, normalised in a way unknown here: if it leaves 0..1, it is stretched to fit.
    """
    if isinstance(picture, Tensor):
        if picture.ndim != 3:
            raise ValueError(f"a tensor picture is [C, H, W], got {list(picture.shape)}")
        return _rgb(_to_unit_range(picture.detach().cpu().double().permute(1, 2, 0).numpy()))
    if isinstance(picture, np.ndarray):
        scale = 255 if picture.dtype == np.uint8 else 1
        return _rgb(_to_unit_range(picture.astype(np.float64) / scale))
    return np.asarray(_photo(picture), dtype=np.float64) / 255


def crop_of(box: Box | None, frame: Frame) -> tuple[float, float, float, float]:
    """Left, top, right, bottom of the map in the frame; all of it without a box or without a picture."""
    if box is None or frame.photo is None:
        return 0.0, 0.0, float(frame.width), float(frame.height)
    edges = [float(edge) for edge in box]
    if len(edges) != 4 or not all(map(math.isfinite, edges)) or edges[0] >= edges[2] or edges[1] >= edges[3]:
        raise ValueError(f"a box is (left, top, right, bottom), left < right and top < bottom; got {edges}")
    left, top, right, bottom = edges
    # A crop may reach a little over the edge (padding); one that lies elsewhere is of another picture.
    seen = max(min(right, frame.width) - max(left, 0), 0) * max(min(bottom, frame.height) - max(top, 0), 0)
    if seen < 0.5 * (right - left) * (bottom - top):
        crop = ", ".join(f"{edge:g}" for edge in edges)
        raise ValueError(
            f"the map is of the crop ({crop}), not inside this picture of {frame.width} x {frame.height} pixels: "
            "give the original image that was explained"
        )
    return left, top, right, bottom


def dimmed(pixels: NDArray[np.float64], rows: slice, columns: slice) -> NDArray[np.float64]:
    """RGB ``[H, W, 3]`` with all but these rows and columns dimmed."""
    dim = DIMMED * pixels + (1 - DIMMED) * DIM_GREY
    dim[rows, columns] = pixels[rows, columns]
    return dim


def _photo(picture: Picture) -> Image.Image:
    """The whole picture in RGB."""
    if isinstance(picture, np.ndarray | Tensor):
        return Image.fromarray((as_pixels(picture) * 255).round().astype(np.uint8))
    if isinstance(picture, str | os.PathLike):
        with Image.open(picture) as opened:
            return eight_bit(opened)
    if isinstance(picture, Image.Image):
        return eight_bit(picture)
    raise TypeError(f"a picture is a PIL image, a path, an array or a tensor; got {type(picture).__name__}")


def _to_unit_range(pixels: NDArray[np.float64]) -> NDArray[np.float64]:
    if pixels.size == 0:
        raise ValueError(f"the picture has no pixels: its shape is {list(pixels.shape)}")
    if not np.isfinite(pixels).all():
        raise ValueError("the picture has pixels that are not finite (NaN or infinity)")
    low, high = float(pixels.min()), float(pixels.max())
    if low >= 0 and high <= 1:
        return pixels
    return (pixels - low) / max(high - low, 1e-12)


def _rgb(pixels: NDArray[np.float64]) -> NDArray[np.float64]:
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    if pixels.ndim != 3 or pixels.shape[2] not in (1, 3):
        raise ValueError(f"a picture has 1 or 3 channels, got [H, W, C] = {list(pixels.shape)}")
    return np.broadcast_to(pixels, (*pixels.shape[:2], 3))
