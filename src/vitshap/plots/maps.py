"""One map, or one map per class of the same picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from vitshap.plots.colours import OVERLAY_ALPHA, as_map, common_limit, symmetric_limit
from vitshap.plots.panels import (
    BAR_HEIGHT,
    BAR_ROOM,
    MARGIN,
    Sheet,
    cells,
    draw_bar,
    draw_overlay,
    draw_picture,
    write_heading,
    write_title,
)
from vitshap.plots.pictures import Box, Picture, frame
from vitshap.plots.text import TITLE, fitted, height_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

MAPS_A_ROW = 5


def heatmap(
    heat: NDArray[np.floating],
    picture: Picture | None = None,
    *,
    box: Box | None = None,
    unit: str = "score",
    title: str = "",
    overlay_alpha: float = OVERLAY_ALPHA,
) -> Figure:
    """One map ``[rows, columns]`` over its picture, with a colour bar in the unit of the values.

    ``box`` says which part of the picture the map covers (default: all of it). NaN is left uncoloured.
    """
    heat = as_map(heat)
    shown = frame(picture, heat)
    width, heights = cells([shown.aspect], 1, lowest=BAR_HEIGHT)
    title = fitted(title, width)
    sheet = Sheet(width, heights, 1, [height_of(title, TITLE)], right=BAR_ROOM)
    figure = sheet.figure()
    axes = sheet.panel(figure, 0, 0, shown.aspect)
    drawn = draw_overlay(axes, heat, shown, box, symmetric_limit(heat), overlay_alpha)
    write_title(axes, title)
    draw_bar(figure, drawn, sheet.bar(figure, 0, 0), unit)
    return figure


def class_row(
    heats: Sequence[NDArray[np.floating]],
    picture: Picture | None = None,
    *,
    titles: Sequence[str],
    box: Box | None = None,
    unit: str = "score",
    title: str = "",
    overlay_alpha: float = OVERLAY_ALPHA,
) -> Figure:
    """The picture, then one map ``[rows, columns]`` per class, all on one scale so that classes compare.

    More than five maps go into several rows of equal length beside the picture.
    """
    if len(heats) == 0 or len(heats) != len(titles):
        raise ValueError(f"one title per map is expected, got {len(titles)} titles for {len(heats)} maps")
    maps = [as_map(heat) for heat in heats]
    shown = frame(picture, maps[0])
    rows = math.ceil(len(maps) / MAPS_A_ROW)
    across = math.ceil(len(maps) / rows)
    first = 0 if shown.photo is None else 1  # the column of the first map
    width, heights = cells([shown.aspect] * rows, first + across, lowest=BAR_HEIGHT / rows)
    names = [fitted(name, width, lines=3) for name in titles]
    title = fitted(title, width if first else across * width)

    above = [max(height_of(name, TITLE) for name in names[row * across :][:across]) for row in range(rows)]
    above[0] = max(above[0], height_of(title, TITLE)) if first else above[0]
    heading = 0.0 if first else height_of(title, TITLE)
    sheet = Sheet(width, heights, first + across, above, right=BAR_ROOM, top=MARGIN + heading)
    figure = sheet.figure()
    if first:
        panel = sheet.panel(figure, 0, 0, shown.aspect)
        draw_picture(panel, shown)
        write_title(panel, title)
    else:
        write_heading(figure, title)
    limit = common_limit(maps)
    for i, (heat, name) in enumerate(zip(maps, names, strict=True)):
        panel = sheet.panel(figure, i // across, first + i % across, shown.aspect)
        drawn = draw_overlay(panel, heat, shown, box, limit, overlay_alpha)
        write_title(panel, name)
    draw_bar(figure, drawn, sheet.bar(figure, 0, rows - 1), unit)
    return figure
