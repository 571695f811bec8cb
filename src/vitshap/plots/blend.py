"""Maps over pictures as bitmaps, for pages that hold hundreds: no axes, no figure, milliseconds each.

The same numbers as in the figures: same colours and scale, same interpolation, same photo under the map.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from vitshap.plots.colours import DEFAULT, Look, as_map, opacities, symmetric_limit, upsampled
from vitshap.plots.pictures import OUTLINE, Box, Picture, crop_of, dimmed, frame, thumbnail

if TYPE_CHECKING:
    from numpy.typing import NDArray


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
    """The picture with the map ``[rows, columns]`` laid over it, RGB, the longer side ``max_side`` pixels.

    ``box`` says which part of the picture the map covers (default: all of it). ``stderr`` ``[rows, columns]`` draws
    values whose 95 % interval includes zero at half their opacity. ``limit`` is the value that the ends of the scale
    stand for, to be given where several maps are to be compared (default: the map's largest magnitude). Without a
    picture the map alone is drawn. NaN is left uncoloured.
    """
    heat = as_map(heat)
    limit = symmetric_limit(heat) if limit is None else _positive(limit)
    shown = frame(picture, heat)
    left, top, right, bottom = crop_of(box, shown)
    paper = _paper(shown.photo, shown.aspect, max_side, look)
    height, width = paper.shape[:2]
    # Middles of the pixels, in cells of the map: those outside of the crop lie outside of the map.
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
    """The colours of the map alone, RGBA, each cell a square of some pixels: a page lays it over a photo."""
    heat = as_map(heat)
    limit = symmetric_limit(heat) if limit is None else _positive(limit)
    times = -(-least_side // min(heat.shape))
    down, across = (np.arange(cells, dtype=np.float64) + 0.5 for cells in heat.shape)
    colours = _coloured(heat, stderr, down, across, limit, DEFAULT, True)
    return _bitmap(colours.repeat(times, axis=0).repeat(times, axis=1))


def colour_scale_png(
    width: int = 256, height: int = 16, *, vertical: bool = False, look: Look = DEFAULT
) -> Image.Image:
    """The colours as a strip for a legend: lowest value left (or below), zero in the middle, as dense as in the maps."""
    if width < 1 or height < 1:
        raise ValueError(f"a strip has at least one pixel, got {width} x {height}")
    steps = height if vertical else width
    along = (2 * np.arange(steps) + 1) / steps - 1  # middles of the pixels, in -1..1
    rgba = np.asarray(look.colormap()((along + 1) / 2), dtype=np.float64)
    colours = rgba[:, 3:] * rgba[:, :3] + (1 - rgba[:, 3:])
    strip = colours[::-1, None] if vertical else colours[None]
    return _bitmap(np.broadcast_to(strip, (height, width, 3)))


def _paper(photo: Image.Image | None, aspect: float, max_side: int, look: Look) -> NDArray[np.float64]:
    """What lies under the map: the picture, or white where there is none."""
    if photo is not None:
        return look.under(np.asarray(thumbnail(photo, max_side), dtype=np.float64) / 255)
    if max_side < 1:
        raise ValueError(f"max_side is at least 1 pixel, got {max_side}")
    height, width = (max_side, max_side / aspect) if aspect > 1 else (max_side * aspect, max_side)
    return np.ones((max(round(height), 1), max(round(width), 1), 3))


def _span(points: NDArray[np.float64], cells: int) -> slice:
    """Which of the ascending points lie in the map."""
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
    """RGBA at the points ``down`` x ``across``, measured in cells; NaN is transparent."""
    values = upsampled(heat, down, across, look.interpolation)
    shares = np.nan_to_num(values / (2 * limit) + 0.5, nan=0.5).clip(0, 1)
    rgba = np.array(look.colormap(over_picture=over_picture)(shares), dtype=np.float64)
    rgba[..., 3] *= np.isfinite(values)
    kept = opacities(heat, stderr)
    if kept is not None:
        rgba[..., 3] *= upsampled(kept, down, across, "nearest" if look.interpolation == "nearest" else "bilinear")
    return rgba


def _outline(paper: NDArray[np.float64], rows: slice, columns: slice) -> None:
    """A line around the crop, along those of its edges that lie inside of the picture."""
    height, width = paper.shape[:2]
    for row, inside in ((rows.start, rows.start > 0), (rows.stop - 1, rows.stop < height)):
        if inside:
            paper[row, columns] = OUTLINE
    for column, inside in ((columns.start, columns.start > 0), (columns.stop - 1, columns.stop < width)):
        if inside:
            paper[rows, column] = OUTLINE


def _positive(limit: float) -> float:
    if not (np.isfinite(limit) and limit > 0):
        raise ValueError(f"the limit of a scale is a positive number, got {limit}")
    return float(limit)


def _bitmap(pixels: NDArray[np.float64]) -> Image.Image:
    return Image.fromarray((pixels.clip(0, 1) * 255).round().astype(np.uint8))
