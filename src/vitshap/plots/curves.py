"""A map beside what it is worth: the probability while patches are inserted, and deleted, in its order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from vitshap.plots.colours import DEFAULT, Look, as_map, symmetric_limit
from vitshap.plots.lines import (
    BESIDE,
    OTHERS,
    OWN,
    UNDER,
    chart,
    legend_height,
    legend_lines,
    legend_under,
    write_y_label,
)
from vitshap.plots.panels import (
    BAR,
    BAR_HEIGHT,
    BAR_ROOM,
    GAP,
    MARGIN,
    draw_bar,
    draw_overlay,
    draw_picture,
    empty_figure,
    place,
    write_title,
)
from vitshap.plots.pictures import Box, Frame, Picture, frame
from vitshap.plots.text import TITLE, finished, fitted, height_of

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

CurvePoints: TypeAlias = "NDArray[np.floating] | tuple[NDArray[np.floating], NDArray[np.floating]]"
"""Values ``[n]`` at evenly spaced shares of the patches from 0 to 1, or a pair (shares, values); NaN is left out."""

CHART = 2.3
"""Inches of a chart's sides."""


class _Line(NamedTuple):
    shares: NDArray[np.float64]
    values: NDArray[np.float64]

    @property
    def area(self) -> float:
        """The plain mean of evenly spaced points, as the metrics take it; by trapezoids where they are not."""
        steps = np.diff(self.shares)
        if steps.size == 0 or np.allclose(steps, steps.mean()):
            return float(self.values.mean())
        return float((steps * (self.values[1:] + self.values[:-1]) / 2).sum() / steps.sum())

    @property
    def area_text(self) -> str:
        return f"{self.area:.3f}" if self.area == 0 or abs(self.area) >= 0.01 else f"{self.area:.3g}"


def curves_figure(
    heat: NDArray[np.floating],
    picture: Picture | None,
    insertion: CurvePoints,
    deletion: CurvePoints,
    *,
    box: Box | None = None,
    unit: str = "score",
    title: str = "",
    picture_title: str = "",
    name: str = "this map",
    compare: Mapping[str, tuple[CurvePoints, CurvePoints]] | None = None,
    value_label: str = "probability",
    label: str = "",
    look: Look = DEFAULT,
) -> Figure:
    """The picture, the map over it, and both curves; ``compare`` adds curves of others, as name: (insertion, deletion).

    ``label`` is what the legend calls the explained class.
    """
    heat = as_map(heat)
    shown = frame(picture, heat)
    both = _lines({name: (insertion, deletion)}) | _lines(compare or {})
    if compare and name in compare:
        raise ValueError(f"{name!r} is the name of the map itself: give the comparison another")
    entries = [
        legend_lines([f"area {pair[i].area_text}, {label}" for label, pair in both.items()], CHART) for i in (0, 1)
    ]
    wide, high = _panel_size(shown)
    cell = max(wide, 0.7 * CHART)  # room for the titles of narrow pictures
    title, picture_title = fitted(title, cell), fitted(picture_title, cell)
    head = MARGIN + max(height_of(text, TITLE) for text in (title, picture_title, "Insertion"))
    panels = 1 if shown.photo is None else 2
    charts = MARGIN + panels * (cell + GAP) + BAR_ROOM + BESIDE - 0.1
    under = UNDER + max(map(legend_height, entries))
    figure = empty_figure(charts + 2 * CHART + BESIDE + MARGIN, head + max(high, CHART + under) + MARGIN)

    band = max(high, BAR_HEIGHT)  # the picture and its bar share their middle
    lefts = [MARGIN + i * (cell + GAP) + (cell - wide) / 2 for i in range(panels)]
    axes = [place(figure, left, head + (band - high) / 2, wide, high) for left in lefts]
    for panel in axes:
        panel.set(xticks=[], yticks=[], frame_on=False)
    if shown.photo is not None:
        draw_picture(axes[0], shown)
        write_title(axes[0], picture_title)
    limit = symmetric_limit(heat)
    draw_overlay(axes[-1], heat, shown, box, limit, look)
    write_title(axes[-1], title)
    bar = place(figure, MARGIN + panels * (cell + GAP), head, BAR, band)
    draw_bar(figure, bar, limit, unit, label=label, look=look, over_picture=shown.photo is not None)

    limits = _value_limits([line for pair in both.values() for line in pair], value_label)
    for i, kind in enumerate(("insertion", "deletion")):
        lines = [pair[i] for pair in both.values()]
        panel = _draw_chart(figure, charts + i * (CHART + BESIDE), head, kind, lines, entries[i])
        panel.set_ylim(*limits)
        if i == 0:
            write_y_label(panel, value_label, CHART)
    return finished(figure)


def _draw_chart(
    figure: Figure, left: float, top: float, kind: str, lines: Sequence[_Line], entries: Sequence[str]
) -> Axes:
    better = "higher" if kind == "insertion" else "lower"
    title, x_label = f"{kind.capitalize()} ({better} is better)", f"share of patches {kind[:-3]}ed"
    axes = chart(figure, left, top, CHART, CHART, title=title, x_label=x_label)
    handles: list[Artist] = []
    for i, line in enumerate(lines):
        own = i == 0
        colour = OWN if own else OTHERS[(i - 1) % len(OTHERS)]
        style = "-" if own else ("--", "-.", ":")[(i - 1) % 3]
        marker = "o" if len(line.values) == 1 else ""
        width = 1.8 if own else 1.3
        handles += axes.plot(*line, color=colour, linestyle=style, marker=marker, linewidth=width, zorder=2 + own)
        if own:
            axes.fill_between(*line, color=colour, alpha=0.12, linewidth=0)
    axes.set_xlim(0, 1)
    legend_under(axes, handles, entries, width=CHART, height=CHART)
    return axes


def _panel_size(shown: Frame) -> tuple[float, float]:
    """Width and height of the picture, about as large as a chart."""
    high = min(max(CHART * shown.aspect, 0.02), 1.4 * CHART)
    return min(high / shown.aspect, CHART), high


def _lines(curves: Mapping[str, tuple[CurvePoints, CurvePoints]]) -> dict[str, tuple[_Line, _Line]]:
    return {
        name: (_line(insertion, f"insertion of {name}"), _line(deletion, f"deletion of {name}"))
        for name, (insertion, deletion) in curves.items()
    }


def _line(points: CurvePoints, what: str) -> _Line:
    pair = points if isinstance(points, tuple) else (None, points)
    values = np.asarray(pair[1], dtype=np.float64)
    known = np.isfinite(values)
    if values.ndim != 1 or not known.any():
        raise ValueError(
            f"the {what} is a curve of values [n], got shape {list(values.shape)} with {known.sum()} finite"
        )
    values = values[known]
    if pair[0] is None:
        return _Line(np.linspace(0, 1, len(values)), values)
    shares = np.asarray(pair[0], dtype=np.float64)
    if shares.shape != known.shape:
        raise ValueError(f"the {what} has {len(known)} values at shares of shape {list(shares.shape)}")
    shares = shares[known]
    if not ((shares >= 0) & (shares <= 1)).all() or (np.diff(shares) <= 0).any():
        raise ValueError(f"the shares of the {what} ascend within 0..1")
    return _Line(shares, values)


def _value_limits(lines: list[_Line], value_label: str) -> tuple[float, float]:
    """One range for both charts: 0 to 1 for probabilities, narrower where all of them are small."""
    low, high = (float(f([f(line.values) for line in lines])) for f in (np.min, np.max))
    if value_label == "probability" and low >= 0 and high <= 1:
        return 0.0, 1.02 if high > 0.5 else max(high * 1.08, 1e-9)
    edge = 0.05 * (high - low) or 0.5
    return low - edge, high + edge
