"""Pictures and maps in a grid of cells whose sizes are known in inches.

An engine that lays out figures guesses how much room a picture of fixed shape needs, and leaves gaps or cuts text.
Here the shapes are known beforehand, so cells, margins and the figure are added up, and each panel has exactly the shape
of its picture.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vitshap.plots.colours import IMAGE_ALPHA, UNIT_LABELS, palette, upsampled
from vitshap.plots.pictures import Box, Frame, crop_of
from vitshap.plots.text import NOTE, TITLE, fitted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage
    from numpy.typing import NDArray

DPI = 120
MARGIN = 0.15
GAP = 0.1
BAR = 0.13
BAR_ROOM = 1.0
"""Width for a colour bar with its numbers and its label."""
BAR_HEIGHT = 1.45
"""Least height along which a colour bar's label can be read."""
TALLEST = 1.5
"""Height of a panel over the width of its cell: taller pictures get narrower."""


@dataclass(frozen=True)
class Sheet:
    """A grid of cells, in inches, and the room around and between them."""

    width: float
    """Of every cell."""
    heights: Sequence[float]
    """Of the cells in each row."""
    columns: int
    above: Sequence[float]
    """Room over each row, for titles."""
    below: float = 0.0
    """Room under each row, for notes."""
    left: float = MARGIN
    right: float = MARGIN
    top: float = MARGIN
    bottom: float = MARGIN

    def figure(self) -> Figure:
        """An empty figure that holds the cells and the room around them."""
        width = self.left + self.columns * (self.width + GAP) - GAP + self.right
        return empty_figure(width, self._top_of(len(self.heights)) - GAP + self.bottom)

    def panel(self, figure: Figure, row: int, column: int, aspect: float) -> Axes:
        """Axes without ticks for a picture (``aspect`` is height over width), in the middle of its cell."""
        height = min(self.heights[row], self.width * aspect)
        width = min(self.width, height / aspect)
        left = self.left + column * (self.width + GAP) + (self.width - width) / 2
        axes = place(figure, left, self._top_of(row) + (self.heights[row] - height) / 2, width, height)
        axes.set(xticks=[], yticks=[], frame_on=False)
        return axes

    def label(self, figure: Figure, row: int, text: str) -> None:
        """Lines fitted before, written left of a row."""
        wide, high = figure.get_size_inches()
        middle = self._top_of(row) + self.heights[row] / 2
        where = ((self.left - 0.08) / wide, 1 - middle / high)
        figure.text(*where, text, ha="right", va="center", fontsize=TITLE, linespacing=1.15, parse_math=False)

    def bar(self, figure: Figure, first: int, last: int) -> Axes:
        """Axes for a colour bar right of the cells, along the rows from ``first`` to ``last``."""
        left = self.left + self.columns * (self.width + GAP)
        top, bottom = self._top_of(first), self._top_of(last) + self.heights[last]
        height = min(bottom - top, 4.0)  # a longer bar says nothing more
        return place(figure, left, (top + bottom - height) / 2, BAR, height)

    def _top_of(self, row: int) -> float:
        """Where the cells of a row begin, from the figure's top; one past the last row: where one would begin."""
        above = self.above[: row + 1]
        return self.top + sum(above) + sum(self.heights[:row]) + row * (self.below + GAP)


def cells(aspects: Sequence[float], columns: int, *, lowest: float) -> tuple[float, list[float]]:
    """Width of all cells and heights of the rows for pictures of these aspects; the more columns, the smaller."""
    width = max(3.2 - 0.25 * (columns - 1), 1.5)
    heights = [min(width * aspect, width * TALLEST) for aspect in aspects]
    needed = max(height / aspect for height, aspect in zip(heights, aspects, strict=True))
    return max(needed, 0.6 * width), [max(height, lowest) for height in heights]


def empty_figure(width: float, height: float) -> Figure:
    """A figure of so many inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=DPI)
    # PDF and SVG: where matplotlib merges a map and its picture into one image, it gets the transparency wrong.
    figure.suppressComposite = True
    return figure


def place(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Axes at a place in inches from the figure's left and top."""
    wide, high = figure.get_size_inches()
    return figure.add_axes((left / wide, 1 - (top + height) / high, width / wide, height / high))


def write_title(axes: Axes, text: str) -> None:
    """A title of lines that were fitted before."""
    axes.set_title(text, fontsize=TITLE, pad=4, linespacing=1.15, parse_math=False)


def write_heading(figure: Figure, text: str) -> None:
    """A title for the whole figure, of lines that were fitted before."""
    if text:
        place_down = 1 - 0.6 * MARGIN / figure.get_figheight()
        figure.suptitle(text, fontsize=TITLE, y=place_down, va="top", parse_math=False)


def draw_picture(axes: Axes, frame: Frame, alpha: float = 1.0) -> None:
    """The picture, in coordinates of its own pixels whatever was shrunk."""
    axes.imshow(frame.pixels(), alpha=alpha, extent=(0, frame.width, frame.height, 0))


def draw_overlay(
    axes: Axes, heat: NDArray[np.float64], frame: Frame, box: Box | None, limit: float, overlay_alpha: float
) -> AxesImage:
    """The map over the part of the picture that it is of."""
    left, top, right, bottom = crop_of(box, frame)
    if frame.photo is not None:
        draw_picture(axes, frame, IMAGE_ALPHA)
    smooth = "bilinear"
    if np.isnan(heat).any():  # matplotlib lets a missing cell erase half of each neighbour
        heat, smooth = _enlarged(heat), "nearest"
    drawn = axes.imshow(
        np.ma.masked_invalid(heat),
        cmap=palette(),
        vmin=-limit,
        vmax=limit,
        interpolation=smooth,
        interpolation_stage="data",
        alpha=1.0 if frame.photo is None else overlay_alpha,
        extent=(left, right, bottom, top),
    )
    # The second imshow would shrink the view to the crop: the frame is the whole picture's.
    axes.set_xlim(0, frame.width)
    axes.set_ylim(frame.height, 0)
    return drawn


def draw_bar(figure: Figure, drawn: ScalarMappable, axes: Axes, unit: str) -> None:
    """The scale of a map, with the unit of its values."""
    from matplotlib.ticker import MaxNLocator

    height = axes.get_position().height * figure.get_size_inches()[1]
    ticks = MaxNLocator(nbins=max(2, min(8, int(height / 0.3))), symmetric=True)
    bar = figure.colorbar(drawn, cax=axes, ticks=ticks)
    bar.set_label(fitted(UNIT_LABELS.get(unit, unit), height), fontsize=TITLE, parse_math=False)
    bar.ax.tick_params(labelsize=NOTE)
    bar.ax.yaxis.get_offset_text().set_fontsize(NOTE)
    bar.ax.yaxis.set_offset_position("left")  # over the bar, not over the panel's title


def _enlarged(heat: NDArray[np.float64]) -> NDArray[np.float64]:
    """The map with at least 400 points along its longer side."""
    times = math.ceil(400 / max(heat.shape))
    down, across = ((np.arange(cells * times) + 0.5) / times for cells in heat.shape)
    return upsampled(heat, down, across)
