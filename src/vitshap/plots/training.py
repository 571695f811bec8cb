"""How a training went, from the records that the loop writes: one dictionary per epoch."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

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
from vitshap.plots.panels import MARGIN, empty_figure, write_heading
from vitshap.plots.text import TITLE, finished, fitted, height_of

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

LOG = "log.jsonl"
LOSSES = {"train_loss": "training", "loss": "validation", "uniform_loss": "every player the same value (validation)"}
SCORES = ("accuracy", "kappa")
COLOURS = {"train_loss": OTHERS[0], "loss": OWN, "uniform_loss": "#222222"}
SELECTING = ("accuracy", "loss")
"""What chooses the best epoch unless told, the first that was measured."""
WIDE, HIGH = 4.2, 2.8
LOG_RANGE = 20.0
"""Losses that span more than this factor are drawn on a logarithmic scale."""

Series: TypeAlias = "Mapping[str, NDArray[np.float64]]"


def training_curves(
    log: Sequence[Mapping[str, float]] | str | os.PathLike[str], *, select: str | None = None, title: str = ""
) -> Figure:
    """Losses by epoch and, beside them, losses of other kinds, accuracy and kappa; the best epoch is marked.

    ``log``: the records, or a path to ``log.jsonl`` or to the folder with it. ``select``: the metric that chooses the
    best epoch (default: accuracy, else the validation loss); one whose name ends in "loss" is best where it is small.
    """
    series = _series(log)
    epochs = series.pop("epoch")
    best = _best(epochs, series, select)
    other_losses = [name for name in series if name.endswith("loss") and name not in LOSSES]
    scores = [name for name in series if name in (*SCORES, select) and not name.endswith("loss")]
    kinds = {"loss": [name for name in series if name in LOSSES], "other loss": other_losses, "score": scores}
    charts = {kind: {name: series[name] for name in names} for kind, names in kinds.items() if names}
    if not charts:
        raise ValueError(f"the log holds no loss and no {' or '.join(SCORES)}, only {', '.join(series) or 'epochs'}")
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
    """Draw one chart; returns what the legend names."""
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
    """A logarithmic scale, with plain numbers, where the range asks for it."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    values = values[np.isfinite(values)]
    if values.size == 0 or values.min() <= 0 or values.max() / values.min() <= LOG_RANGE:
        return
    axes.set_yscale("log")
    near = values.max() / values.min() < 1e3  # with few powers of ten, numbers between them are wanted
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
    """The best epoch, the first among equals as in the loop; None where nothing was validated."""
    if select is not None and select not in series:
        raise ValueError(f"{select!r} was not measured; measured: {', '.join(series)}")
    name = select or next((one for one in SELECTING if one in series), None)
    if name is None or not np.isfinite(series[name]).any():
        return None
    worth = -series[name] if name.endswith("loss") else series[name]
    at = int(np.nanargmax(np.where(np.isfinite(worth), worth, np.nan)))
    return _Best(name, float(epochs[at]), float(series[name][at]))


def _series(log: Sequence[Mapping[str, float]] | str | os.PathLike[str]) -> dict[str, NDArray[np.float64]]:
    """One array per measured quantity, NaN where a record lacks it; ``epoch`` always, ``step`` never."""
    records = _read(Path(log)) if isinstance(log, str | os.PathLike) else list(log)
    if not records:
        raise ValueError("the log has no record: not one epoch was finished")
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
            record = json.loads(line)
        except ValueError as error:
            raise ValueError(f"line {number} of {path} is not JSON: {line[:60]!r}") from error
        if not isinstance(record, dict):
            raise ValueError(f"line {number} of {path} is not a record of an epoch: {line[:60]!r}")
        records.append(record)
    return records
