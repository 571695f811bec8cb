"""Line charts: axes that read the same in every figure, with the legend under them where it hides no curve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vitshap.plots.panels import place
from vitshap.plots.text import NOTE, TITLE, fitted

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OWN = "#c8452f"
"""What the figure is about: icefire's warm side."""
OTHERS = ("#3f6fc9", "#6b6b6b", "#3d9a8b", "#b07aa1", "#c99a2e", "#8c6d5a")
UNDER = 0.5
"""Height under the axes for ticks and the label, in inches."""
ENTRY = 0.16
"""Height of a line of the legend."""
BESIDE = 0.62
"""Width left of the axes for ticks and the label."""


def chart(figure: Figure, left: float, top: float, width: float, height: float, *, title: str, x_label: str) -> Axes:
    """Axes at a place in inches; ticks and labels lie outside of it."""
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
    """A label no longer than the axes are high."""
    axes.set_ylabel(fitted(text, height, lines=1), fontsize=TITLE, parse_math=False)


def legend_lines(names: Sequence[str], width: float) -> list[str]:
    """The entries of a legend under axes of this width, each of at most two lines."""
    return [fitted(name, width + 0.15, size=NOTE) for name in names]


def legend_height(entries: Sequence[str]) -> float:
    """Inches that fitted entries take."""
    return ENTRY * sum(entry.count("\n") + 1 for entry in entries)


def legend_under(axes: Axes, handles: Sequence[Artist], entries: Sequence[str], *, width: float, height: float) -> None:
    """The fitted entries, one under the other, under axes of this size in inches."""
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
