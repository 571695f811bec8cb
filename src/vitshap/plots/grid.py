"""Images by methods: the grid in which methods are compared by eye.

Values of different methods have different units, so by default every map has its own scale, written under it, and one
key says what the colours mean. Where a row's values do compare, ``scale="row"`` gives the row one scale and a bar.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from vitshap.plots.colours import DEFAULT, UNIT_LABELS, Look, as_map, common_limit, magnitude
from vitshap.plots.panels import (
    BAR_ROOM,
    MARGIN,
    Sheet,
    cells,
    draw_bar,
    draw_overlay,
    draw_picture,
    draw_strip,
    place,
    write_heading,
    write_title,
)
from vitshap.plots.pictures import Box, Frame, Picture, frame
from vitshap.plots.text import GREY, NOTE, TITLE, finished, fitted, height_of, width_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

Scale: TypeAlias = Literal["panel", "row"]
LABEL = 1.3
"""Widest label of a row, in inches."""
KEY_ROOM = 0.36
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
    """A row per image, the picture first, and a column per method: ``heats[image][method]`` is ``[rows, columns]``.

    None is a map that a method could not give. ``units`` is one for all methods or one per method; with
    ``scale="row"``, the maps of a row share one scale and so need one unit.
    """
    names = _units(units, len(column_titles), scale)
    rows = _rows(heats, pictures, len(column_titles), row_titles, boxes)
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
        right=BAR_ROOM if scale == "row" else MARGIN,
        top=MARGIN + height_of(title, TITLE),
        bottom=MARGIN + KEY_ROOM + height_of(words, NOTE) if scale == "panel" else MARGIN,
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
    """What the ends of a map's own scale stand for."""
    largest = magnitude([heat])
    if largest == 0:
        return "all zero" if np.isfinite(heat).any() else "no value"
    return f"±{100 * largest:.3g} points" if unit == "probability" else f"±{largest:.3g} {unit}".rstrip()


def _draw_key(figure: Figure, sheet: Sheet, words: str, look: Look, *, over_picture: bool) -> None:
    """A bar for all maps at once: its ends are each map's own largest magnitude."""
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
    if len(names) != methods or methods == 0:
        raise ValueError(f"one unit for all or one per method is expected, got {len(names)} for {methods} methods")
    if scale == "row" and len(set(names)) > 1:
        raise ValueError(f'maps in {", ".join(sorted(set(names)))} have no common scale: use scale="panel"')
    return names


def _rows(
    heats: Sequence[Sequence[NDArray[np.floating] | None]],
    pictures: Sequence[Picture] | None,
    methods: int,
    labels: Sequence[str] | None,
    boxes: Sequence[Box | None] | None,
) -> list[_Row]:
    """What each row shows, checked."""
    for what, given in (("pictures", pictures), ("row titles", labels), ("boxes", boxes)):
        if given is not None and len(given) != len(heats):
            raise ValueError(f"{len(heats)} rows of maps, but {len(given)} {what}")
    if len(heats) == 0:
        raise ValueError("there is no map to draw")
    rows = []
    for i, row in enumerate(heats):
        maps = [None if heat is None else as_map(heat) for heat in row]
        if len(maps) != methods:
            raise ValueError(f"one map per column title is expected: row {i} has {len(maps)} for {methods} titles")
        known = next((heat for heat in maps if heat is not None), np.zeros((1, 1)))
        shown = frame(None if pictures is None else pictures[i], known)
        rows.append(_Row("" if labels is None else labels[i], shown, None if boxes is None else boxes[i], maps))
    return rows
