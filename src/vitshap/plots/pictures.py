"""Pictures as users have them, where in them a map lies, and bitmaps of maps over pictures.

Files and PIL images are read as the models read them (upright, 16 bits scaled, transparency on white), so that the
picture drawn is the picture explained. Drawing never needs more than about a thousand pixels a side: large photos
are shrunk, while all coordinates stay those of the original. Bitmaps are for pages with hundreds of maps: no axes, no
figure, milliseconds each, with the same colours, scale and interpolation as the figures.
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
from vitshap.plots.colours import DEFAULT, Look, as_map, opacities, symmetric_limit, upsampled

if TYPE_CHECKING:
    from numpy.typing import NDArray

Picture: TypeAlias = "Image.Image | str | os.PathLike[str] | NDArray[np.generic] | Tensor"
"""An image as a user has it: PIL, a path, an array ``[H, W]`` or ``[H, W, 3]``, or a tensor ``[C, H, W]``."""
Box: TypeAlias = Sequence[float]
"""Left, top, right, bottom of the explained crop, in pixels of the picture."""

ENOUGH = 1200
"""Pixels of the longer side beyond which a panel shows no more."""
DIMMED, DIM_GREY = 0.45, 0.55
"""The photo outside the model's crop keeps this share of its brightness; the rest is a grey of this brightness."""
OUTLINE = 0.25
"""Brightness of the line around the model's crop."""


@dataclass(frozen=True, eq=False)
class Frame:
    """The coordinates of a drawing: the original picture's pixels, or the map's cells without a picture."""

    width: int
    height: int
    photo: Image.Image | None
    """RGB, whole."""

    @property
    def aspect(self) -> float:
        """Height over width."""
        return self.height / self.width

    def pixels(self) -> NDArray[np.uint8]:
        """Return RGB ``[h, w, 3]`` for a panel: a large photo is shrunk."""
        assert self.photo is not None
        large = max(self.photo.size) > ENOUGH
        return np.asarray(thumbnail(self.photo, ENOUGH) if large else self.photo)


def frame(picture: Picture | None, heat: NDArray[np.floating]) -> Frame:
    """Return the frame of a picture, or of a map without one."""
    if picture is None:
        return Frame(heat.shape[1], heat.shape[0], None)
    photo = _photo(picture)
    return Frame(*photo.size, photo)


def thumbnail(picture: Picture, max_side: int) -> Image.Image:
    """Return the picture in RGB with a longer side of ``max_side`` pixels: shrunk, or enlarged if it is smaller."""
    photo = _photo(picture)
    scale = max_side / max(photo.size)
    width, height = (max(round(side * scale), 1) for side in photo.size)
    # The few pixels of a tiny picture stay squares, as the model saw them.
    how = Image.Resampling.NEAREST if scale >= 3 else Image.Resampling.BICUBIC
    return photo.resize((width, height), how, reducing_gap=3.0)


def as_pixels(picture: Picture) -> NDArray[np.float64]:
    """Return RGB in 0..1, ``[H, W, 3]``, of any picture.

    A tensor is a model's input, normalised in an unknown way: if it exceeds 0..1, it is scaled to that range.
    """
    if isinstance(picture, Tensor):
        return _rgb(_to_unit_range(picture.detach().cpu().double().permute(1, 2, 0).numpy()))
    if isinstance(picture, np.ndarray):
        scale = 255 if picture.dtype == np.uint8 else 1
        return _rgb(_to_unit_range(picture.astype(np.float64) / scale))
    return np.asarray(_photo(picture), dtype=np.float64) / 255


def crop_of(box: Box | None, frame: Frame) -> tuple[float, float, float, float]:
    """Return left, top, right, bottom of the map in the frame; the whole frame without a box or a picture."""
    if box is None or frame.photo is None:
        return 0.0, 0.0, float(frame.width), float(frame.height)
    edges = [float(edge) for edge in box]
    if len(edges) != 4 or not all(map(math.isfinite, edges)) or edges[0] >= edges[2] or edges[1] >= edges[3]:
        raise ValueError(f"a box is (left, top, right, bottom), left < right and top < bottom; got {edges}")
    left, top, right, bottom = edges
    # A crop may extend a little beyond the edge (padding); one that lies elsewhere belongs to another picture.
    seen = max(min(right, frame.width) - max(left, 0), 0) * max(min(bottom, frame.height) - max(top, 0), 0)
    if seen < 0.5 * (right - left) * (bottom - top):
        crop = ", ".join(f"{edge:g}" for edge in edges)
        raise ValueError(
            f"the map is of the crop ({crop}), not inside this picture of {frame.width} x {frame.height} pixels: "
            "give the original image that was explained"
        )
    return left, top, right, bottom


def dimmed(pixels: NDArray[np.float64], rows: slice, columns: slice) -> NDArray[np.float64]:
    """Return RGB ``[H, W, 3]`` with all but these rows and columns dimmed."""
    dim = DIMMED * pixels + (1 - DIMMED) * DIM_GREY
    dim[rows, columns] = pixels[rows, columns]
    return dim


def _photo(picture: Picture) -> Image.Image:
    """Return the whole picture in RGB."""
    if isinstance(picture, np.ndarray | Tensor):
        return Image.fromarray((as_pixels(picture) * 255).round().astype(np.uint8))
    if isinstance(picture, str | os.PathLike):
        with Image.open(picture) as opened:
            return eight_bit(opened)
    if isinstance(picture, Image.Image):
        return eight_bit(picture)
    raise TypeError(f"a picture is a PIL image, a path, an array or a tensor; got {type(picture).__name__}")


def _to_unit_range(pixels: NDArray[np.float64]) -> NDArray[np.float64]:
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


def overlay_png(
    heat: NDArray[np.floating],
    picture: Picture | None = None,
    box: Box | None = None,
    *,
    stderr: NDArray[np.floating] | None = None,
    limit: float | None = None,
    max_side: int = 448,
    look: Look = DEFAULT,
) -> Image.Image:
    """Return the picture with the map ``[rows, columns]`` over it, RGB, the longer side ``max_side`` pixels.

    ``box`` says which part of the picture the map covers (default: all of it). ``stderr`` ``[rows, columns]`` draws
    values whose 95 % interval includes zero at half their opacity. ``limit`` is the value at the ends of the scale;
    give it to compare several maps (default: the map's largest magnitude). Without a picture only the map is drawn. NaN
    is not coloured.
    """
    heat = as_map(heat)
    limit = symmetric_limit(heat) if limit is None else limit
    shown = frame(picture, heat)
    left, top, right, bottom = crop_of(box, shown)
    paper = _paper(shown.photo, shown.aspect, max_side, look)
    height, width = paper.shape[:2]
    # Centres of the pixels, in cells of the map: those outside the crop lie outside the map.
    down = ((np.arange(height) + 0.5) * shown.height / height - top) / (bottom - top) * heat.shape[0]
    across = ((np.arange(width) + 0.5) * shown.width / width - left) / (right - left) * heat.shape[1]
    rows, columns = (_span(points, cells) for points, cells in zip((down, across), heat.shape, strict=True))
    if look.style == "default":
        paper = dimmed(paper, rows, columns)
    if rows.start < rows.stop and columns.start < columns.stop:  # else the crop is smaller than a pixel
        colours = _coloured(heat, stderr, down[rows], across[columns], limit, look, shown.photo is not None)
        alpha = colours[..., 3:]
        paper[rows, columns] = alpha * colours[..., :3] + (1 - alpha) * paper[rows, columns]
        if look.style == "default":
            _outline(paper, rows, columns)
    return _bitmap(paper)


def colours_png(
    heat: NDArray[np.floating],
    *,
    stderr: NDArray[np.floating] | None = None,
    limit: float | None = None,
    least_side: int = 112,
) -> Image.Image:
    """Return the colours of the map, RGBA, each cell a square of some pixels; a page lays them over a photo."""
    heat = as_map(heat)
    limit = symmetric_limit(heat) if limit is None else limit
    times = -(-least_side // min(heat.shape))
    down, across = (np.arange(cells, dtype=np.float64) + 0.5 for cells in heat.shape)
    colours = _coloured(heat, stderr, down, across, limit, DEFAULT, True)
    return _bitmap(colours.repeat(times, axis=0).repeat(times, axis=1))


def colour_scale_png(
    width: int = 256, height: int = 16, *, vertical: bool = False, look: Look = DEFAULT
) -> Image.Image:
    """Return the colours as a strip for a legend: lowest value left (or below), zero in the middle."""
    steps = height if vertical else width
    along = (2 * np.arange(steps) + 1) / steps - 1  # middles of the pixels, in -1..1
    rgba = np.asarray(look.colormap()((along + 1) / 2), dtype=np.float64)
    colours = rgba[:, 3:] * rgba[:, :3] + (1 - rgba[:, 3:])
    strip = colours[::-1, None] if vertical else colours[None]
    return _bitmap(np.broadcast_to(strip, (height, width, 3)))


def _paper(photo: Image.Image | None, aspect: float, max_side: int, look: Look) -> NDArray[np.float64]:
    """Return what is under the map: the picture, or white without one."""
    if photo is not None:
        return look.under(np.asarray(thumbnail(photo, max_side), dtype=np.float64) / 255)
    height, width = (max_side, max_side / aspect) if aspect > 1 else (max_side * aspect, max_side)
    return np.ones((max(round(height), 1), max(round(width), 1), 3))


def _span(points: NDArray[np.float64], cells: int) -> slice:
    """Return which of the ascending points lie in the map."""
    return slice(int(np.searchsorted(points, 0)), int(np.searchsorted(points, cells)))


def _coloured(
    heat: NDArray[np.float64],
    stderr: NDArray[np.floating] | None,
    down: NDArray[np.float64],
    across: NDArray[np.float64],
    limit: float,
    look: Look,
    over_picture: bool,
) -> NDArray[np.float64]:
    """Return RGBA at the points ``down`` x ``across``, measured in cells; NaN is transparent."""
    values = upsampled(heat, down, across, look.interpolation)
    shares = np.nan_to_num(values / (2 * limit) + 0.5, nan=0.5).clip(0, 1)
    rgba = np.array(look.colormap(over_picture=over_picture)(shares), dtype=np.float64)
    rgba[..., 3] *= np.isfinite(values)
    kept = opacities(heat, stderr)
    if kept is not None:
        rgba[..., 3] *= upsampled(kept, down, across, "nearest" if look.interpolation == "nearest" else "bilinear")
    return rgba


def _outline(paper: NDArray[np.float64], rows: slice, columns: slice) -> None:
    """Draw a line around the crop, along those of its edges that lie inside the picture."""
    height, width = paper.shape[:2]
    for row, inside in ((rows.start, rows.start > 0), (rows.stop - 1, rows.stop < height)):
        if inside:
            paper[row, columns] = OUTLINE
    for column, inside in ((columns.start, columns.start > 0), (columns.stop - 1, columns.stop < width)):
        if inside:
            paper[rows, column] = OUTLINE


def _bitmap(pixels: NDArray[np.float64]) -> Image.Image:
    return Image.fromarray((pixels.clip(0, 1) * 255).round().astype(np.uint8))
