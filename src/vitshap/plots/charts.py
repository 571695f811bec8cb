"""Line charts: insertion and deletion curves beside their map, and the course of a training."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from vitshap.plots.colours import DEFAULT, Look, as_map, symmetric_limit
from vitshap.plots.figures import (
    BAR,
    BAR_HEIGHT,
    BAR_WIDTH,
    BESIDE,
    GAP,
    MARGIN,
    OTHERS,
    OWN,
    UNDER,
    chart,
    draw_bar,
    draw_overlay,
    draw_picture,
    empty_figure,
    legend_height,
    legend_lines,
    legend_under,
    place,
    write_heading,
    write_title,
    write_y_label,
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
        """The mean of evenly spaced points, as in the metrics; the trapezoidal rule for others."""
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
    """Draw the picture, the map over it, and both curves; ``compare`` adds curves of others: name to (insertion, deletion).

    ``label`` is the name of the explained class in the legend.
    """
    heat = as_map(heat)
    shown = frame(picture, heat)
    both = [_named_curves(name, insertion, deletion)]
    both += [_named_curves(other, *pair) for other, pair in (compare or {}).items()]
    entries = [legend_lines([f"area {curves[i].area_text}, {named}" for named, *curves in both], CHART) for i in (0, 1)]
    wide, high = _panel_size(shown)
    cell = max(wide, 0.7 * CHART)  # space for the titles of narrow pictures
    title, picture_title = fitted(title, cell), fitted(picture_title, cell)
    head = MARGIN + max(height_of(text, TITLE) for text in (title, picture_title, "Insertion"))
    panels = 1 if shown.photo is None else 2
    charts = MARGIN + panels * (cell + GAP) + BAR_WIDTH + BESIDE - 0.1
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

    limits = _value_limits([line for _, *curves in both for line in curves], value_label)
    for i, kind in enumerate(("insertion", "deletion")):
        lines = [curves[i] for _, *curves in both]
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
    """Return width and height of the picture, about as large as a chart."""
    high = min(max(CHART * shown.aspect, 0.02), 1.4 * CHART)
    return min(high / shown.aspect, CHART), high


def _named_curves(name: str, insertion: CurvePoints, deletion: CurvePoints) -> tuple[str, _Line, _Line]:
    return name, _line(insertion, f"insertion of {name}"), _line(deletion, f"deletion of {name}")


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
    shares = np.asarray(pair[0], dtype=np.float64)[known]
    if not ((shares >= 0) & (shares <= 1)).all() or (np.diff(shares) <= 0).any():
        raise ValueError(f"the shares of the {what} ascend within 0..1")
    return _Line(shares, values)


def _value_limits(lines: list[_Line], value_label: str) -> tuple[float, float]:
    """Return one range for both charts: 0 to 1 for probabilities, narrower if all of them are small."""
    low, high = (float(f([f(line.values) for line in lines])) for f in (np.min, np.max))
    if value_label == "probability" and low >= 0 and high <= 1:
        return 0.0, 1.02 if high > 0.5 else max(high * 1.08, 1e-9)
    edge = 0.05 * (high - low) or 0.5
    return low - edge, high + edge


LOG = "log.jsonl"
LOSSES = {"train_loss": "training", "loss": "validation", "uniform_loss": "every player the same value (validation)"}
SCORES = ("accuracy", "kappa")
COLOURS = {"train_loss": OTHERS[0], "loss": OWN, "uniform_loss": "#222222"}
SELECTING = ("accuracy", "loss")
"""Metrics that select the best epoch by default: the first of them that was measured."""
WIDE, HIGH = 4.2, 2.8
LOG_RANGE = 20.0
"""Losses that span more than this factor are drawn on a logarithmic scale."""

Series: TypeAlias = "Mapping[str, NDArray[np.float64]]"


def training_curves(
    log: Sequence[Mapping[str, float]] | str | os.PathLike[str], *, select: str | None = None, title: str = ""
) -> Figure:
    """Draw losses by epoch and, beside them, losses of other kinds, accuracy and kappa; mark the best epoch.

    ``log``: the records, or a path to ``log.jsonl`` or to the folder with it. ``select``: the metric that selects the
    best epoch (default: accuracy, else the validation loss); small is best if its name ends in "loss".
    """
    series = _series(log)
    epochs = series.pop("epoch")
    other_losses = [name for name in series if name.endswith("loss") and name not in LOSSES]
    scores = [name for name in series if name in (*SCORES, select) and not name.endswith("loss")]
    kinds = {"loss": [name for name in series if name in LOSSES], "other loss": other_losses, "score": scores}
    charts = {kind: {name: series[name] for name in names} for kind, names in kinds.items() if names}
    if not charts:
        raise ValueError(f"the log holds no loss and no {' or '.join(SCORES)}, only {', '.join(series) or 'epochs'}")
    best = _best(epochs, series, select)
    entries = [_entries(lines, best) for lines in charts.values()]
    title = fitted(title, len(charts) * WIDE)
    top = MARGIN + 0.1 + height_of(title, TITLE)
    under = UNDER + max(map(legend_height, entries))
    figure = empty_figure(len(charts) * (BESIDE + WIDE) + 2 * MARGIN, top + HIGH + under + MARGIN)
    write_heading(figure, title)
    for i, (kind, lines) in enumerate(charts.items()):
        axes = chart(figure, MARGIN + BESIDE + i * (WIDE + BESIDE), top, WIDE, HIGH, title="", x_label="epoch")
        handles = _draw(axes, epochs, lines, best)
        legend_under(axes, handles, entries[i], width=WIDE, height=HIGH)
        write_y_label(axes, kind if len(lines) > 1 or kind == "loss" else next(iter(lines)), HIGH)
    return finished(figure)


def _draw(axes: Axes, epochs: NDArray[np.float64], lines: Series, best: _Best | None) -> list[Artist]:
    """Draw one chart; return the lines that the legend names."""
    from matplotlib.ticker import MaxNLocator

    handles: list[Artist] = []
    for i, (name, values) in enumerate(lines.items()):
        colour = COLOURS.get(name, OTHERS[i % len(OTHERS)])
        if name == "uniform_loss" and len(epochs) == 1:  # through one point there is no line
            handles.append(axes.axhline(values[0], color=colour, linestyle="--", linewidth=1.2))
            continue
        dashed = name == "uniform_loss"
        style, width = ("--", 1.2) if dashed else ("-", 1.5)
        marker = "o" if len(epochs) <= 30 and not dashed else ""
        handles += axes.plot(epochs, values, style, color=colour, linewidth=width, marker=marker, markersize=2.5)
    if best is not None:
        handles.append(axes.axvline(best.epoch, color="#999999", linewidth=1.0, linestyle=":"))
        if best.name in lines:
            axes.plot(best.epoch, best.value, "o", markersize=9, markerfacecolor="none", markeredgecolor="#222222")
    _scale(axes, np.concatenate(list(lines.values())))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    if len(epochs) == 1:
        axes.set_xlim(epochs[0] - 1, epochs[0] + 1)
        axes.set_xticks(epochs)
    return handles


def _scale(axes: Axes, values: NDArray[np.float64]) -> None:
    """Use a logarithmic scale, with plain numbers, if the range is wide."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    values = values[np.isfinite(values)]
    if values.size == 0 or values.min() <= 0 or values.max() / values.min() <= LOG_RANGE:
        return
    axes.set_yscale("log")
    near = values.max() / values.min() < 1e3  # with few powers of ten, label numbers between them
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if near else (1,)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _entries(lines: Series, best: _Best | None) -> list[str]:
    names = [LOSSES.get(name, name) for name in lines]
    if best is not None:
        by = "validation loss" if best.name == "loss" else best.name
        names.append(f"epoch {best.epoch:g}, the best by {by}: {best.value:.4g}")
    return legend_lines(names, WIDE)


class _Best(NamedTuple):
    name: str
    epoch: float
    value: float


def _best(epochs: NDArray[np.float64], series: Series, select: str | None) -> _Best | None:
    """Return the best epoch, the first of equal ones as in training; None if nothing was validated."""
    name = select or next((one for one in SELECTING if one in series), None)
    if name is None or not np.isfinite(series[name]).any():
        return None
    score = -series[name] if name.endswith("loss") else series[name]
    at = int(np.nanargmax(np.where(np.isfinite(score), score, np.nan)))
    return _Best(name, float(epochs[at]), float(series[name][at]))


def _series(log: Sequence[Mapping[str, float]] | str | os.PathLike[str]) -> dict[str, NDArray[np.float64]]:
    """Return an array per measured quantity, NaN if a record has no value; ``epoch`` always, ``step`` never."""
    records = _read(Path(log)) if isinstance(log, str | os.PathLike) else list(log)
    measured = dict.fromkeys(name for record in records for name in record if name not in ("epoch", "step"))
    series = {"epoch": np.array([record.get("epoch", i) for i, record in enumerate(records)], dtype=np.float64)}
    for name in [*(name for name in LOSSES if name in measured), *(name for name in measured if name not in LOSSES)]:
        series[name] = np.array([record.get(name, np.nan) for record in records], dtype=np.float64)
    return series


def _read(path: Path) -> list[Mapping[str, float]]:
    path = path / LOG if path.is_dir() else path
    records: list[Mapping[str, float]] = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            records.append(dict(json.loads(line)))
        except (TypeError, ValueError) as error:
            raise ValueError(f"line {number} of {path} is not the JSON record of an epoch: {line[:60]!r}") from error
    return records
