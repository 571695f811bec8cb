"""Figures of maps: one map, one map per class of a picture, and a grid of images by methods.

In the grid, values of different methods have different units, so by default every map has its own scale, written under
it, and one key explains the colours. Where a row's values are comparable, ``scale="row"`` gives the row one scale and a
colour bar.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from vitshap.plots.colours import DEFAULT, UNIT_LABELS, Look, as_map, common_limit, magnitude, symmetric_limit
from vitshap.plots.figures import (
    BAR_HEIGHT,
    BAR_WIDTH,
    MARGIN,
    Sheet,
    cells,
    draw_bar,
    draw_overlay,
    draw_picture,
    draw_strip,
    place,
    uncertain_note,
    write_heading,
    write_note,
    write_title,
)
from vitshap.plots.pictures import Box, Frame, Picture, frame
from vitshap.plots.text import GREY, NOTE, TITLE, finished, fitted, height_of, width_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
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
    """Draw one map ``[rows, columns]`` over its picture, with a colour bar in the unit of the values.

    ``box`` says which part of the picture the map covers (default: all of it). NaN is not coloured. ``label`` is
    the name of the explained class in the legend. With ``stderr`` ``[rows, columns]``, values whose 95 % interval
    includes zero are drawn at half their opacity.
    """
    heat = as_map(heat)
    shown = frame(picture, heat)
    width, heights = cells([shown.aspect], 1, lowest=BAR_HEIGHT)
    title = fitted(title, width)
    note = fitted(uncertain_note([heat], [stderr]), width + BAR_WIDTH - MARGIN, size=NOTE)
    bottom = MARGIN + height_of(note, NOTE)
    sheet = Sheet(width, heights, 1, [height_of(title, TITLE)], right=BAR_WIDTH, bottom=bottom)
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
    """Draw the picture, then one map ``[rows, columns]`` per class, all on one scale so that classes can be compared.

    More than five maps go into several rows of equal length beside the picture. ``stderrs`` are standard errors, one
    array ``[rows, columns]`` per map.
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
    errors = [None] * len(maps) if stderrs is None else list(stderrs)
    note = fitted(uncertain_note(maps, errors), across * width, size=NOTE)
    bottom = MARGIN + height_of(note, NOTE)
    sheet = Sheet(width, heights, first + across, above, right=BAR_WIDTH, top=MARGIN + heading, bottom=bottom)
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


Scale: TypeAlias = Literal["panel", "row"]
LABEL = 1.3
"""Widest label of a row, in inches."""
KEY_HEIGHT = 0.36
"""Height of the key without the words under it."""


@dataclass(frozen=True, eq=False)
class _Row:
    label: str
    frame: Frame
    box: Box | None
    maps: list[NDArray[np.float64] | None]

    @property
    def limit(self) -> float:
        return common_limit([heat for heat in self.maps if heat is not None])


def method_grid(
    heats: Sequence[Sequence[NDArray[np.floating] | None]],
    pictures: Sequence[Picture] | None = None,
    *,
    column_titles: Sequence[str],
    row_titles: Sequence[str] | None = None,
    boxes: Sequence[Box | None] | None = None,
    units: str | Sequence[str] = "score",
    scale: Scale = "panel",
    title: str = "",
    look: Look = DEFAULT,
) -> Figure:
    """Draw a row per image, the picture first, and a column per method: ``heats[image][method]`` is ``[rows, columns]``.

    None is a map that a method could not compute. ``units`` is one for all methods or one per method; with
    ``scale="row"``, the maps of a row share one scale and so need one unit.
    """
    names = _units(units, len(column_titles), scale)
    rows = _rows(heats, pictures, row_titles, boxes)
    first = 0 if pictures is None else 1
    columns = first + len(column_titles)
    width, heights = cells([row.frame.aspect for row in rows], columns, lowest=0.95 if scale == "row" else 0.4)
    heads = [fitted(text, width, lines=3) for text in ["image", *column_titles][1 - first :]]
    labels = [fitted(row.label, LABEL, lines=_lines(height)) for row, height in zip(rows, heights, strict=True)]
    written = max((width_of(line, TITLE) for label in labels for line in label.split("\n")), default=0.0)
    across = columns * width
    title = fitted(title, across)
    words = _key_words(names, across) if scale == "panel" else ""
    sheet = Sheet(
        width,
        heights,
        columns,
        above=[max(height_of(head, TITLE) for head in heads), *[0.0] * (len(rows) - 1)],
        below=height_of("one line", NOTE) if scale == "panel" else 0.0,
        left=MARGIN + (written + 0.1 if written else 0.0),
        right=BAR_WIDTH if scale == "row" else MARGIN,
        top=MARGIN + height_of(title, TITLE),
        bottom=MARGIN + KEY_HEIGHT + height_of(words, NOTE) if scale == "panel" else MARGIN,
    )
    figure = sheet.figure()
    write_heading(figure, title)
    for i, row in enumerate(rows):
        panels = [sheet.panel(figure, i, column, row.frame.aspect) for column in range(columns)]
        sheet.label(figure, i, labels[i])
        _draw_row(figure, sheet, i, row, panels, names, scale, look)
        if i == 0:
            for panel, head in zip(panels, heads, strict=True):
                write_title(panel, head)
    if scale == "panel":
        _draw_key(figure, sheet, words, look, over_picture=bool(first))
    return finished(figure)


def _draw_row(
    figure: Figure,
    sheet: Sheet,
    number: int,
    row: _Row,
    panels: list[Axes],
    units: list[str],
    scale: Scale,
    look: Look,
) -> None:
    if row.frame.photo is not None:
        draw_picture(panels[0], row.frame)
    for panel, heat, unit in zip(panels[-len(row.maps) :], row.maps, units, strict=True):
        if heat is None:
            panel.text(0.5, 0.5, "none", ha="center", va="center", fontsize=NOTE, color=GREY, transform=panel.transAxes)
            continue
        limit = row.limit if scale == "row" else common_limit([heat])
        draw_overlay(panel, heat, row.frame, row.box, limit, look)
        if scale == "panel":
            note = _note(heat, unit if len(set(units)) > 1 or unit == "probability" else "")
            panel.set_xlabel(
                fitted(note, sheet.width, size=NOTE, lines=1), fontsize=NOTE, color=GREY, labelpad=2, parse_math=False
            )
    if scale == "row" and any(heat is not None for heat in row.maps):
        bar = sheet.bar(figure, number, number)
        draw_bar(figure, bar, row.limit, units[0], look=look, over_picture=row.frame.photo is not None)


def _note(heat: NDArray[np.float64], unit: str) -> str:
    """Return the value at the ends of a map's own scale."""
    largest = magnitude([heat])
    if largest == 0:
        return "all zero" if np.isfinite(heat).any() else "no value"
    return f"±{100 * largest:.3g} points" if unit == "probability" else f"±{largest:.3g} {unit}".rstrip()


def _draw_key(figure: Figure, sheet: Sheet, words: str, look: Look, *, over_picture: bool) -> None:
    """Draw one colour bar for all maps: its ends are each map's own largest magnitude."""
    wide, high = figure.get_size_inches()
    length = min(2.2, 0.7 * (wide - sheet.left - sheet.right))
    middle = (sheet.left + wide - sheet.right) / 2
    axes = place(figure, middle - length / 2, high - sheet.bottom + 0.12, length, 0.1)
    draw_strip(axes, look, vertical=False, over_picture=over_picture)
    axes.set_xticks([-1, 0, 1], ["\N{MINUS SIGN}max", "0", "+max"], fontsize=NOTE)
    axes.tick_params(length=2, pad=2)
    axes.set_xlabel(words, fontsize=NOTE, labelpad=2, parse_math=False)


def _key_words(units: list[str], inches: float) -> str:
    same = UNIT_LABELS.get(units[0], units[0]) + "; " if len(set(units)) == 1 else ""
    ends = "" if "score" in units else "left lowers the class, right raises it; "
    return fitted(f"{same}{ends}max: the largest magnitude in a map, written under it", inches, size=NOTE, lines=4)


def _lines(height: float) -> int:
    return int(min(max((height - 0.07) / (TITLE * 1.25 / 72), 1), 5))


def _units(units: str | Sequence[str], methods: int, scale: Scale) -> list[str]:
    if scale not in ("panel", "row"):
        raise ValueError(f'scale is "panel" or "row", got {scale!r}')
    names = [units] * methods if isinstance(units, str) else list(units)
    if scale == "row" and len(set(names)) > 1:
        raise ValueError(f'maps in {", ".join(sorted(set(names)))} have no common scale: use scale="panel"')
    return names


def _rows(
    heats: Sequence[Sequence[NDArray[np.floating] | None]],
    pictures: Sequence[Picture] | None,
    labels: Sequence[str] | None,
    boxes: Sequence[Box | None] | None,
) -> list[_Row]:
    """Return what each row shows."""
    nothing = [None] * len(heats)
    rows = []
    for row, picture, label, box in zip(
        heats, nothing if pictures is None else pictures, labels or nothing, boxes or nothing, strict=True
    ):
        maps = [None if heat is None else as_map(heat) for heat in row]
        known = next((heat for heat in maps if heat is not None), np.zeros((1, 1)))
        rows.append(_Row(label or "", frame(picture, known), box, maps))
    return rows
