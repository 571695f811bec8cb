"""Maps over pictures as bitmaps, for pages that hold hundreds: no axes, no figure, milliseconds each.

The same numbers as in the figures: same palette and scale, same interpolation, same alphas over white paper.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from vitshap.plots.colours import IMAGE_ALPHA, OVERLAY_ALPHA, as_map, palette, symmetric_limit, upsampled
from vitshap.plots.pictures import Box, Picture, crop_of, frame, thumbnail

if TYPE_CHECKING:
    from numpy.typing import NDArray


def overlay_png(
    heat: NDArray[np.floating],
    picture: Picture | None = None,
    box: Box | None = None,
    *,
    limit: float | None = None,
    max_side: int = 448,
    overlay_alpha: float = OVERLAY_ALPHA,
) -> Image.Image:
    """The picture with the map ``[rows, columns]`` laid over it, RGB, the longer side ``max_side`` pixels.

    ``box`` says which part of the picture the map covers (default: all of it). ``limit`` is the value that the
    ends of the scale stand for, to be given where several maps are to be compared (default: the map's largest
    magnitude). Without a picture the map alone is drawn. NaN is left uncoloured.
    """
    heat = as_map(heat)
    limit = symmetric_limit(heat) if limit is None else _positive(limit)
    shown = frame(picture, heat)
    left, top, right, bottom = crop_of(box, shown)
    paper = _paper(shown.photo, shown.aspect, max_side)
    height, width = paper.shape[:2]
    # Middles of the pixels, in cells of the map: those outside of the crop lie outside of the map.
    down = ((np.arange(height) + 0.5) * shown.height / height - top) / (bottom - top) * heat.shape[0]
    across = ((np.arange(width) + 0.5) * shown.width / width - left) / (right - left) * heat.shape[1]
    rows, columns = (_span(points, cells) for points, cells in zip((down, across), heat.shape, strict=True))
    if rows.start < rows.stop and columns.start < columns.stop:  # else the crop is smaller than a pixel
        values = upsampled(heat, down[rows], across[columns])
        alpha = np.where(np.isfinite(values), 1.0 if shown.photo is None else overlay_alpha, 0.0)[..., None]
        paper[rows, columns] = alpha * _coloured(values, limit) + (1 - alpha) * paper[rows, columns]
    return _bitmap(paper)


def colour_scale_png(
    width: int = 256, height: int = 16, *, vertical: bool = False, overlay_alpha: float = OVERLAY_ALPHA
) -> Image.Image:
    """The palette as a strip for a legend: lowest value left (or below), zero in the middle, as dense as in the maps."""
    if width < 1 or height < 1:
        raise ValueError(f"a strip has at least one pixel, got {width} x {height}")
    steps = height if vertical else width
    along = (2 * np.arange(steps) + 1) / steps - 1  # middles of the pixels, in -1..1
    colours = overlay_alpha * _coloured(along, 1.0) + (1 - overlay_alpha)
    strip = colours[::-1, None] if vertical else colours[None]
    return _bitmap(np.broadcast_to(strip, (height, width, 3)))


def _paper(photo: Image.Image | None, aspect: float, max_side: int) -> NDArray[np.float64]:
    """What lies under the map: the picture, faint on white, or white alone."""
    if photo is not None:
        pixels = np.asarray(thumbnail(photo, max_side), dtype=np.float64) / 255
        faint: NDArray[np.float64] = IMAGE_ALPHA * pixels + (1 - IMAGE_ALPHA)
        return faint
    if max_side < 1:
        raise ValueError(f"max_side is at least 1 pixel, got {max_side}")
    height, width = (max_side, max_side / aspect) if aspect > 1 else (max_side * aspect, max_side)
    return np.ones((max(round(height), 1), max(round(width), 1), 3))


def _span(points: NDArray[np.float64], cells: int) -> slice:
    """Which of the ascending points lie in the map."""
    return slice(int(np.searchsorted(points, 0)), int(np.searchsorted(points, cells)))


def _coloured(values: NDArray[np.float64], limit: float) -> NDArray[np.float64]:
    """RGB of the values; NaN has some colour, which nobody sees."""
    shares = np.nan_to_num(values / (2 * limit) + 0.5, nan=0.5).clip(0, 1)
    return np.asarray(palette()(shares), dtype=np.float64)[..., :3]


def _positive(limit: float) -> float:
    if not (np.isfinite(limit) and limit > 0):
        raise ValueError(f"the limit of a scale is a positive number, got {limit}")
    return float(limit)


def _bitmap(pixels: NDArray[np.float64]) -> Image.Image:
    return Image.fromarray((pixels.clip(0, 1) * 255).round().astype(np.uint8))
