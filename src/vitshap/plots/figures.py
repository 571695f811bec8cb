"""The parts that figures are made of: a grid of cells measured in inches, maps, scales, line charts, and saving.

matplotlib's layout engines guess how much space a picture of fixed shape needs, and leave gaps or cut text. Here the
shapes are known beforehand, so cells, margins and the figure are added up, and each panel has exactly the shape of its
picture. A figure is saved in the format of the file's extension, completely or not at all.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vitshap._version import __version__
from vitshap.files import write_atomically
from vitshap.plots.colours import DEFAULT, Interpolation, Look, opacities, upsampled
from vitshap.plots.pictures import OUTLINE, Box, Frame, crop_of, dimmed
from vitshap.plots.text import GREY, NOTE, TITLE, fitted

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

DPI = 120
MARGIN = 0.15
GAP = 0.1
BAR = 0.13
BAR_WIDTH = 1.25
"""Width for a colour bar with the words and numbers at its ends."""
BAR_HEIGHT = 1.45
"""Least height of a colour bar beside which its words can be read."""
TALLEST = 1.5
"""Height of a panel over the width of its cell: taller pictures get narrower."""


@dataclass(frozen=True)
class Sheet:
    """A grid of cells, in inches, and the space around and between them."""

    width: float
    """Of every cell."""
    heights: Sequence[float]
    """Of the cells in each row."""
    columns: int
    above: Sequence[float]
    """Space above each row, for titles."""
    below: float = 0.0
    """Space below each row, for notes."""
    left: float = MARGIN
    right: float = MARGIN
    top: float = MARGIN
    bottom: float = MARGIN

    def figure(self) -> Figure:
        """Return an empty figure of the size of the cells and the space around them."""
        width = self.left + self.columns * (self.width + GAP) - GAP + self.right
        return empty_figure(width, self._top_of(len(self.heights)) - GAP + self.bottom)

    def panel(self, figure: Figure, row: int, column: int, aspect: float) -> Axes:
        """Add axes without ticks for a picture (``aspect`` is height over width), in the middle of its cell."""
        height = min(self.heights[row], self.width * aspect)
        width = min(self.width, height / aspect)
        left = self.left + column * (self.width + GAP) + (self.width - width) / 2
        axes = place(figure, left, self._top_of(row) + (self.heights[row] - height) / 2, width, height)
        axes.set(xticks=[], yticks=[], frame_on=False)
        return axes

    def label(self, figure: Figure, row: int, text: str) -> None:
        """Write fitted lines left of a row."""
        wide, high = figure.get_size_inches()
        middle = self._top_of(row) + self.heights[row] / 2
        where = ((self.left - 0.08) / wide, 1 - middle / high)
        figure.text(*where, text, ha="right", va="center", fontsize=TITLE, linespacing=1.15, parse_math=False)

    def bar(self, figure: Figure, first: int, last: int) -> Axes:
        """Add axes for a colour bar right of the cells, along the rows from ``first`` to ``last``."""
        left = self.left + self.columns * (self.width + GAP)
        top, bottom = self._top_of(first), self._top_of(last) + self.heights[last]
        height = min(bottom - top, 4.0)  # a longer bar is no easier to read
        return place(figure, left, (top + bottom - height) / 2, BAR, height)

    def _top_of(self, row: int) -> float:
        """Return where the cells of a row begin, from the top; for one past the last row, where it would begin."""
        above = self.above[: row + 1]
        return self.top + sum(above) + sum(self.heights[:row]) + row * (self.below + GAP)


def cells(aspects: Sequence[float], columns: int, *, lowest: float) -> tuple[float, list[float]]:
    """Return the width of all cells and the heights of the rows for pictures of these aspects."""
    width = max(3.2 - 0.25 * (columns - 1), 1.5)
    heights = [min(width * aspect, width * TALLEST) for aspect in aspects]
    needed = max(height / aspect for height, aspect in zip(heights, aspects, strict=True))
    return max(needed, 0.6 * width), [max(height, lowest) for height in heights]


def empty_figure(width: float, height: float) -> Figure:
    """Return a figure of this size in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=DPI)
    # PDF and SVG: where matplotlib merges a map and its picture into one image, it gets the transparency wrong.
    figure.suppressComposite = True
    return figure


def place(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Add axes at a place in inches from the figure's left and top."""
    wide, high = figure.get_size_inches()
    return figure.add_axes((left / wide, 1 - (top + height) / high, width / wide, height / high))


def write_title(axes: Axes, text: str) -> None:
    """Write fitted lines as a title."""
    axes.set_title(text, fontsize=TITLE, pad=4, linespacing=1.15, parse_math=False)


def write_heading(figure: Figure, text: str) -> None:
    """Write fitted lines as the title of the figure."""
    if text:
        place_down = 1 - 0.6 * MARGIN / figure.get_figheight()
        figure.suptitle(text, fontsize=TITLE, y=place_down, va="top", parse_math=False)


def write_note(figure: Figure, text: str) -> None:
    """Write fitted lines, small, along the figure's lower edge."""
    wide, high = figure.get_size_inches()
    if text:
        where = (MARGIN / wide, 0.6 * MARGIN / high)
        figure.text(*where, text, ha="left", va="bottom", fontsize=NOTE, color=GREY, linespacing=1.15)


def uncertain_note(heats: Sequence[NDArray[np.float64]], stderrs: Sequence[NDArray[np.floating] | None]) -> str:
    """Return what pale patches mean, if there are any."""
    kept = [opacities(heat, stderr) for heat, stderr in zip(heats, stderrs, strict=True)]
    pale = sum(int((one < 1).sum()) for one in kept if one is not None)
    return f"{pale} paler patch{'' if pale == 1 else 'es'}: the 95 % interval includes zero" if pale else ""


def draw_picture(axes: Axes, frame: Frame) -> None:
    """Draw the picture in coordinates of the original's pixels."""
    axes.imshow(frame.pixels(), extent=(0, frame.width, frame.height, 0))


def draw_overlay(
    axes: Axes,
    heat: NDArray[np.float64],
    frame: Frame,
    box: Box | None,
    limit: float,
    look: Look = DEFAULT,
    stderr: NDArray[np.floating] | None = None,
) -> None:
    """Draw the map over its part of the picture."""
    left, top, right, bottom = crop_of(box, frame)
    if frame.photo is not None:
        _draw_under(axes, frame, (left, top, right, bottom), look)
    kept = opacities(heat, stderr)
    if look.interpolation != "nearest":
        heat, kept = _enlarged(heat, look.interpolation), None if kept is None else _enlarged(kept, "bilinear")
    axes.imshow(
        np.ma.masked_invalid(heat),
        cmap=look.colormap(over_picture=frame.photo is not None),
        vmin=-limit,
        vmax=limit,
        interpolation="nearest",
        interpolation_stage="data",
        alpha=kept,
        extent=(left, right, bottom, top),
    )
    # The second imshow shrinks the view to the crop: set it to the whole picture.
    axes.set_xlim(0, frame.width)
    axes.set_ylim(frame.height, 0)


def _draw_under(axes: Axes, frame: Frame, crop: tuple[float, float, float, float], look: Look) -> None:
    """Draw the picture under a map; the part outside the model's crop is dimmed, the crop outlined."""
    from matplotlib.patches import Rectangle

    pixels = look.under(frame.pixels().astype(np.float64) / 255)
    left, top, right, bottom = crop
    inside = left > 0 or top > 0 or right < frame.width or bottom < frame.height
    if look.style == "default" and inside:
        down, across = pixels.shape[0] / frame.height, pixels.shape[1] / frame.width
        rows, columns = (
            slice(max(round(low * scale), 0), max(round(high * scale), 0))
            for low, high, scale in ((top, bottom, down), (left, right, across))
        )
        pixels = dimmed(pixels, rows, columns)
        axes.add_patch(Rectangle((left, top), right - left, bottom - top, fill=False, ec=str(OUTLINE), lw=0.8))
    axes.imshow((pixels.clip(0, 1) * 255).round().astype(np.uint8), extent=(0, frame.width, frame.height, 0))


def scale_ends(unit: str, limit: float, label: str = "") -> tuple[tuple[str, str], tuple[str, str]]:
    """Return the lower and the upper end of a scale, each in words and as a number with its unit."""
    thing = label or ("the output" if unit == "output" else "the class")
    words = ("lower score", "higher score") if unit == "score" else (f"lowers {thing}", f"raises {thing}")
    number = f"{100 * limit:.3g} points" if unit == "probability" else f"{limit:.3g}"
    return (words[0], f"\N{MINUS SIGN}{number}"), (words[1], f"+{number}")


def draw_strip(axes: Axes, look: Look, *, vertical: bool, over_picture: bool) -> None:
    """Draw the colours of a scale from -1 to 1, as they look on white; axes have no ticks."""
    colours = look.colormap(over_picture=over_picture)(np.linspace(0, 1, 513))
    strip = colours[:, 3:] * colours[:, :3] + (1 - colours[:, 3:])
    extent = (0.0, 1.0, -1.0, 1.0) if vertical else (-1.0, 1.0, 0.0, 1.0)
    axes.imshow(strip[:, None] if vertical else strip[None], extent=extent, aspect="auto", origin="lower")
    axes.set(xticks=[], yticks=[])


def draw_bar(
    figure: Figure, axes: Axes, limit: float, unit: str, *, label: str = "", look: Look = DEFAULT, over_picture: bool
) -> None:
    """Draw the scale of a map along vertical axes, its ends in words and numbers; ``label`` is the explained class."""
    draw_strip(axes, look, vertical=True, over_picture=over_picture)
    place = axes.get_position()
    wide, high = figure.get_size_inches()
    height = place.height * high
    lines = int((height / 2 - 0.12) / (NOTE * 1.25 / 72)) - 1
    right = place.x1 + 0.06 / wide
    for (words, number), y, side in zip(
        scale_ends(unit, limit, label), (place.y0, place.y1), ("bottom", "top"), strict=True
    ):
        text = f"{fitted(words, BAR_WIDTH - GAP - BAR - 0.12, size=NOTE, lines=max(lines, 1))}\n{number}"
        figure.text(right, y, text, ha="left", va=side, fontsize=NOTE, linespacing=1.15, parse_math=False)
    figure.text(right, (place.y0 + place.y1) / 2, "0", ha="left", va="center", fontsize=NOTE)


def _enlarged(heat: NDArray[np.float64], how: Interpolation) -> NDArray[np.float64]:
    """Return the map with at least 400 points along its longer side."""
    times = math.ceil(400 / max(heat.shape))
    down, across = ((np.arange(cells * times) + 0.5) / times for cells in heat.shape)
    return upsampled(heat, down, across, how)


OWN = "#c8452f"
"""Colour of the figure's subject: the warm side of icefire."""
OTHERS = ("#3f6fc9", "#6b6b6b", "#3d9a8b", "#b07aa1", "#c99a2e", "#8c6d5a")
UNDER = 0.5
"""Height under the axes for ticks and the label, in inches."""
ENTRY = 0.16
"""Height of a line of the legend."""
BESIDE = 0.62
"""Width left of the axes for ticks and the label."""


def chart(figure: Figure, left: float, top: float, width: float, height: float, *, title: str, x_label: str) -> Axes:
    """Add axes for a line chart at a place in inches; ticks and labels are outside."""
    axes = place(figure, left, top, width, height)
    axes.set_title(fitted(title, width), fontsize=TITLE, pad=4, parse_math=False)
    axes.set_xlabel(fitted(x_label, width, lines=1), fontsize=TITLE, parse_math=False)
    axes.tick_params(labelsize=NOTE)
    axes.yaxis.get_offset_text().set_fontsize(NOTE)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    return axes


def write_y_label(axes: Axes, text: str, height: float) -> None:
    """Write a label no longer than the axes are high."""
    axes.set_ylabel(fitted(text, height, lines=1), fontsize=TITLE, parse_math=False)


def legend_lines(names: Sequence[str], width: float) -> list[str]:
    """Return the entries of a legend under axes of this width, each of at most two lines."""
    return [fitted(name, width + 0.15, size=NOTE) for name in names]


def legend_height(entries: Sequence[str]) -> float:
    """Return the height of fitted entries in inches."""
    return ENTRY * sum(entry.count("\n") + 1 for entry in entries)


def legend_under(axes: Axes, handles: Sequence[Artist], entries: Sequence[str], *, width: float, height: float) -> None:
    """Draw a legend of fitted entries under axes of this size in inches."""
    legend = axes.legend(
        handles,
        entries,
        loc="upper left",
        bbox_to_anchor=(-0.35 / width, -UNDER / height),
        fontsize=NOTE,
        frameon=False,
        borderpad=0,
        borderaxespad=0,
        handlelength=1.6,
        labelspacing=0.35,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)


SOFTWARE = f"vitshap {__version__}"
"""Name and version in files: "Software" in PNG, "Creator" in PDF and SVG, "generator" in HTML."""
FORMATS = ("png", "jpg", "jpeg", "webp", "pdf", "svg")
_VECTOR = ("pdf", "svg")
_LOSSY = {"quality": 92}
"""A lower quality leaves halos around letters."""


def save(
    figure: Figure,
    path: str | os.PathLike[str],
    *,
    dpi: float | None = None,
    metadata: Mapping[str, str] | None = None,
) -> Path:
    """Write the figure in the format of the path's extension, and return the path; missing folders are made.

    ``dpi``: by default the figure's own, and 200 for the pictures inside PDF and SVG. ``metadata``: further text in
    PNG, PDF and SVG. An existing file is replaced only by a complete one.
    """
    path = Path(path)
    kind = path.suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        known = ", ".join(f".{one}" for one in FORMATS)
        given = f"the extension .{kind}" if kind else "no extension"
        raise ValueError(f"{path} has {given}; figures are saved as {known}")
    options: dict[str, Any] = {"dpi": dpi or (200 if kind in _VECTOR else "figure")}
    if kind in ("png", *_VECTOR):
        options["metadata"] = {"Software" if kind == "png" else "Creator": SOFTWARE, **(metadata or {})}
    if kind in ("jpg", "jpeg", "webp"):
        options["pil_kwargs"] = _LOSSY
    write_atomically(path, lambda temporary: figure.savefig(temporary, format=kind, **options))
    return path
