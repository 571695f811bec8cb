"""One map, or one map per class of the same picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from vitshap.plots.colours import DEFAULT, Look, as_map, common_limit, symmetric_limit
from vitshap.plots.panels import (
    BAR_HEIGHT,
    BAR_ROOM,
    MARGIN,
    Sheet,
    cells,
    draw_bar,
    draw_overlay,
    draw_picture,
    uncertain_note,
    write_heading,
    write_note,
    write_title,
)
from vitshap.plots.pictures import Box, Picture, frame
from vitshap.plots.text import NOTE, TITLE, finished, fitted, height_of

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
    label: str = "",
    stderr: NDArray[np.floating] | None = None,
    look: Look = DEFAULT,
) -> Figure:
    """One map ``[rows, columns]`` over its picture, with a colour bar in the unit of the values.

    ``box`` says which part of the picture the map covers (default: all of it). NaN is left uncoloured. ``label`` is
    what the legend calls the explained class. Where ``stderr`` ``[rows, columns]`` is given, a value whose 95 %
    interval includes zero is drawn at half its opacity.
    """
    heat = as_map(heat)
    shown = frame(picture, heat)
    width, heights = cells([shown.aspect], 1, lowest=BAR_HEIGHT)
    title = fitted(title, width)
    note = fitted(uncertain_note([heat], [stderr]), width + BAR_ROOM - MARGIN, size=NOTE)
    bottom = MARGIN + height_of(note, NOTE)
    sheet = Sheet(width, heights, 1, [height_of(title, TITLE)], right=BAR_ROOM, bottom=bottom)
    figure = sheet.figure()
    write_note(figure, note)
    axes = sheet.panel(figure, 0, 0, shown.aspect)
    limit = symmetric_limit(heat)
    draw_overlay(axes, heat, shown, box, limit, look, stderr)
    write_title(axes, title)
    bar = sheet.bar(figure, 0, 0)
    draw_bar(figure, bar, limit, unit, label=label, look=look, over_picture=shown.photo is not None)
    return finished(figure)


def class_row(
    heats: Sequence[NDArray[np.floating]],
    picture: Picture | None = None,
    *,
    titles: Sequence[str],
    box: Box | None = None,
    unit: str = "score",
    title: str = "",
    stderrs: Sequence[NDArray[np.floating] | None] | None = None,
    look: Look = DEFAULT,
) -> Figure:
    """The picture, then one map ``[rows, columns]`` per class, all on one scale so that classes compare.

    More than five maps go into several rows of equal length beside the picture. ``stderrs`` are standard errors, one
    array ``[rows, columns]`` per map.
    """
    if len(heats) == 0 or len(heats) != len(titles):
        raise ValueError(f"one title per map is expected, got {len(titles)} titles for {len(heats)} maps")
    if stderrs is not None and len(stderrs) != len(heats):
        raise ValueError(f"{len(stderrs)} maps of standard errors were given for {len(heats)} maps")
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
    errors = [None] * len(maps) if stderrs is None else list(stderrs)
    note = fitted(uncertain_note(maps, errors), across * width, size=NOTE)
    bottom = MARGIN + height_of(note, NOTE)
    sheet = Sheet(width, heights, first + across, above, right=BAR_ROOM, top=MARGIN + heading, bottom=bottom)
    figure = sheet.figure()
    write_note(figure, note)
    if first:
        panel = sheet.panel(figure, 0, 0, shown.aspect)
        draw_picture(panel, shown)
        write_title(panel, title)
    else:
        write_heading(figure, title)
    limit = common_limit(maps)
    for i, (heat, name) in enumerate(zip(maps, names, strict=True)):
        panel = sheet.panel(figure, i // across, first + i % across, shown.aspect)
        draw_overlay(panel, heat, shown, box, limit, look, errors[i])
        write_title(panel, name)
    draw_bar(figure, sheet.bar(figure, 0, rows - 1), limit, unit, look=look, over_picture=bool(first))
    return finished(figure)
