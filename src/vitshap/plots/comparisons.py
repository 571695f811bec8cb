"""Charts with intervals: a mean curve with a band for each method, and single values with their ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from vitshap.plots.colours import UNCERTAIN
from vitshap.plots.figures import (
    BESIDE,
    MARGIN,
    OTHERS,
    OWN,
    UNDER,
    chart,
    empty_figure,
    legend_height,
    legend_lines,
    legend_under,
    write_heading,
    write_y_label,
)
from vitshap.plots.text import NOTE, TITLE, finished, fitted, height_of

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

WIDE, HIGH = 3.6, 2.6
"""Inches of a chart."""
LABELS = 1.2
"""Inches for the names beside a chart of values."""
COLOURS = (OWN, *OTHERS)
STYLES = ("-", "--", "-.", ":")


class Band(NamedTuple):
    """A mean curve: places, means, and half-widths of their intervals, ``[n]`` each."""

    x: NDArray[np.float64]
    mean: NDArray[np.float64]
    half: NDArray[np.float64]


@dataclass(frozen=True)
class Panel:
    """One chart: curves by the names of their methods."""

    title: str
    x_label: str
    y_label: str
    bands: Mapping[str, Band]
    baselines: Sequence[str] = ()
    """Names that are drawn in grey: random scores, reference values."""
    log: tuple[bool, bool] = (False, False)
    """Whether the horizontal and the vertical axis are logarithmic."""


def average_curves(insertion: Mapping[str, Band], deletion: Mapping[str, Band], *, title: str = "") -> Figure:
    """Draw mean insertion and deletion curves over the share of patches."""
    label = "probability"
    return comparison_figure(
        [
            Panel("Insertion (higher is better)", "share of patches inserted", label, insertion, ("random",)),
            Panel("Deletion (lower is better)", "share of patches deleted", label, deletion, ("random",)),
        ],
        title=title,
    )


def sensitivity_curves(bands: Mapping[str, Band], *, title: str = "") -> Figure:
    """Draw sensitivity-n, a correlation, against the subset size n."""
    panel = Panel("Sensitivity-n", "patches in a subset, n", "correlation", bands, ("random",))
    return comparison_figure([panel], title=title)


def roar_curves(inserted: Mapping[str, Band], deleted: Mapping[str, Band], *, title: str = "") -> Figure:
    """Draw the accuracy of ROAR against the number of patches that were inserted, and that were deleted."""
    panels = [
        Panel(f"ROAR, {name}", f"patches {name}", "accuracy", bands, ("random",))
        for name, bands in (("inserted", inserted), ("deleted", deleted))
    ]
    return comparison_figure(panels, title=title)


def removal_curves(divergence: Mapping[str, Band], accuracy: Mapping[str, Band], *, title: str = "") -> Figure:
    """Draw how ways to withhold patches do: divergence from the full prediction, and accuracy, by patches kept."""
    panels = [
        Panel("Distance from the prediction of the whole image", "patches kept", "KL divergence", divergence),
        Panel("Accuracy", "patches kept", "accuracy", accuracy),
    ]
    return comparison_figure(panels, title=title)


def error_curves(bands: Mapping[str, Band], *, title: str = "", y_label: str = "distance") -> Figure:
    """Draw the distance from reference values against evaluations per image, on logarithmic axes."""
    return comparison_figure([Panel("Error", "evaluations per image", y_label, bands, log=(True, True))], title=title)


def comparison_figure(panels: Sequence[Panel], *, title: str = "") -> Figure:
    """Draw charts side by side, each with its legend."""
    if not panels or not all(panel.bands for panel in panels):
        raise ValueError("there is nothing to draw: a chart needs at least one curve")
    panels = [
        replace(panel, bands={name: _checked(name, band) for name, band in panel.bands.items()}) for panel in panels
    ]
    entries = [legend_lines(list(panel.bands), WIDE) for panel in panels]
    title = fitted(title, len(panels) * WIDE)
    top = MARGIN + 0.1 + height_of(title, TITLE) + height_of(panels[0].title, TITLE)
    under = UNDER + max(map(legend_height, entries))
    figure = empty_figure(len(panels) * (BESIDE + WIDE) + 2 * MARGIN, top + HIGH + under + MARGIN)
    write_heading(figure, title)
    for i, panel in enumerate(panels):
        left = MARGIN + BESIDE + i * (WIDE + BESIDE)
        axes = chart(figure, left, top, WIDE, HIGH, title=panel.title, x_label=panel.x_label)
        handles = _draw(axes, panel)
        legend_under(axes, handles, entries[i], width=WIDE, height=HIGH)
        write_y_label(axes, panel.y_label, HIGH)
    return finished(figure)


def interval_figure(
    names: Sequence[str],
    values: NDArray[np.floating],
    low: NDArray[np.floating],
    high: NDArray[np.floating],
    *,
    title: str = "",
    x_label: str = "value",
) -> Figure:
    """Draw values ``[n]`` as points with the lines of their intervals, the first at the top; those that include zero are
    pale."""
    values, low, high = (np.asarray(one, dtype=np.float64) for one in (values, low, high))
    if not len(names) or not len(names) == len(values) == len(low) == len(high):
        raise ValueError(
            f"{len(names)} names need as many values and ends of intervals, at least one; got {len(values)}"
        )
    if not np.isfinite([values, low, high]).all() or (low > values).any() or (values > high).any():
        raise ValueError("every value is finite and lies between the ends of its interval")
    title, rows = fitted(title, WIDE), np.arange(len(names))
    top, height = MARGIN + 0.1 + height_of(title, TITLE), max(0.24 * len(names), 0.5)
    figure = empty_figure(LABELS + WIDE + 2 * MARGIN, top + height + UNDER + MARGIN)
    axes = chart(figure, MARGIN + LABELS, top, WIDE, height, title=title, x_label=x_label)
    for row in rows:
        alpha = UNCERTAIN if low[row] <= 0 <= high[row] else 1.0
        axes.plot([low[row], high[row]], [row, row], color=OWN, linewidth=1.6, alpha=alpha)
        axes.plot(values[row], row, "o", color=OWN, markersize=4, alpha=alpha)
    axes.axvline(0, color="#555555", linewidth=0.8)
    axes.set_yticks(rows, [fitted(name, LABELS - 0.1, lines=1, size=NOTE) for name in names], parse_math=False)
    axes.set_ylim(len(names) - 0.5, -0.5)
    return finished(figure)


def _draw(axes: Axes, panel: Panel) -> list[Artist]:
    from matplotlib.ticker import LogLocator, NullLocator

    handles: list[Artist] = []
    number = 0
    for name, (x, mean, half) in panel.bands.items():
        if name in panel.baselines:
            colour, style = "#555555", ":"
        else:
            colour, style = COLOURS[number % len(COLOURS)], STYLES[number // len(COLOURS) % len(STYLES)]
            number += 1
        marker = "o" if len(x) <= 16 else ""
        handles += axes.plot(x, mean, color=colour, linestyle=style, linewidth=1.5, marker=marker, markersize=3)
        axes.fill_between(x, mean - half, mean + half, color=colour, alpha=0.15, linewidth=0)
    axes.set(**{name: "log" for name, on in zip(("xscale", "yscale"), panel.log, strict=True) if on})
    if panel.log[0]:
        _mark(axes, np.unique(np.concatenate([band.x for band in panel.bands.values()])))
    if panel.log[1]:
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_locator(NullLocator())
    return handles


def _mark(axes: Axes, places: NDArray[np.float64]) -> None:
    """Write the measured places at a logarithmic axis, as far as they do not overlap."""
    from matplotlib.ticker import NullLocator

    shown: list[float] = []
    for place in places[::-1]:
        if not shown or shown[-1] / place >= (places[-1] / places[0]) ** (1 / 10):
            shown.append(float(place))
    axes.set_xticks(shown, [_thousands(place) for place in shown])
    axes.xaxis.set_minor_locator(NullLocator())


def _thousands(number: float) -> str:
    """Write a number in few characters: 512, 1.2k, 16k."""
    if number < 1000:
        return f"{number:g}"
    return f"{number / 1000:.{0 if number >= 10_000 else 1}f}".removesuffix(".0") + "k"


def _checked(name: str, band: Band) -> Band:
    x, mean, half = (np.asarray(one, dtype=np.float64) for one in band)
    if not (x.ndim == 1 and len(x) and x.shape == mean.shape == half.shape):
        shapes = ", ".join(str(list(np.shape(one))) for one in band)
        raise ValueError(f"the curve of {name} has places, means and half-widths of equal length, got {shapes}")
    if not np.isfinite([x, mean, half]).all() or (half < 0).any():
        raise ValueError(f"the curve of {name} has numbers that are not finite, or negative half-widths")
    return Band(x, mean, half)
