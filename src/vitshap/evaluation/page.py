"""The page of a comparison: the table, curves with bands, and what was compared, in one file that loads nothing.

Charts are SVG in the page, so that they follow its light or dark theme and stay sharp on any screen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from html import escape
from importlib.resources import files
from string import Template

import numpy as np
from numpy.typing import NDArray

from vitshap.evaluation.curves import Curves, curves
from vitshap.evaluation.formats import count_text, digits_of, value_text
from vitshap.evaluation.result import Cell, Evaluation, RowInfo, Summary
from vitshap.explaining.html import pairs_html
from vitshap.plots import SOFTWARE, Band, Panel
from vitshap.viewer.page import page_end, page_start, stylesheet

COLOURS = 10
WIDE, HIGH = 440, 280
LEFT, RIGHT, TOP, BOTTOM = 62, 8, 8, 42
"""Size of a chart and of the space around its axes."""
_MINUS = "\N{MINUS SIGN}"
_SHOWN = 32
"""Characters of a fact that are shown: the start of a hash identifies it."""


@lru_cache
def template(name: str) -> Template:
    """Return a file of this package's page."""
    return Template((files("vitshap.evaluation") / name).read_text(encoding="utf-8").strip())


def to_html(evaluation: Evaluation, table: Summary, title: str, *, facts: Sequence[tuple[str, str]] = ()) -> str:
    """Return the page; ``facts`` are further lines about what was compared."""
    drawn = curves(evaluation)
    css, skip = f"{stylesheet()}\n{template('page.css').template}", ("table", "Skip to the table")
    return template("page.html").substitute(
        start=page_start(title, title, _lead(evaluation, table), skip=skip, generator=SOFTWARE, css=css),
        warnings="".join(
            f'<p class="warning"><strong>Note:</strong> {escape(one)}</p>' for one in _warnings(evaluation)
        ),
        head=_head(table),
        body="".join(_row(number, row, cells, table) for number, (row, cells) in enumerate(table.rows)),
        against=_against(table),
        notes=_notes(evaluation, table),
        charts=_charts(evaluation, drawn) if drawn else "",
        facts=pairs_html([*facts, *_facts(evaluation)]),
        end=page_end(template("page.js").template),
    )


def _lead(evaluation: Evaluation, table: Summary) -> str:
    where = f" with {evaluation.about['where']}" if evaluation.about.get("where") else ""
    return f"{table.images:,} image{'' if table.images == 1 else 's'}{where}; explained: {_explained(evaluation)}."


def _explained(evaluation: Evaluation) -> str:
    """Return in words which output is explained: a model with one has it for every image, whatever it predicts."""
    about, target = evaluation.about, str(evaluation.about["target"])
    probability = about.get("unit") == "probability"
    if about.get("num_classes") == 1:
        names = about.get("class_names")
        kind = "probability" if probability else "output"
        return f"the {kind} of {names[0]}" if names else f"the model's one {kind}"
    predicted = "each image's predicted class" if probability else "each image's largest output"
    return {"predicted": predicted, "label": "each image's labelled class"}.get(target, f"the class {target}")


def _warnings(evaluation: Evaluation) -> list[str]:
    return [str(evaluation.about["note"])] if evaluation.about.get("note") else []


def _notes(evaluation: Evaluation, table: Summary) -> str:
    shown = [note for note in table.notes if note not in _warnings(evaluation)]
    return f'<ul class="notes">{"".join(f"<li>{escape(note)}</li>" for note in shown)}</ul>' if shown else ""


def _against(table: Summary) -> str:
    rows = list(dict.fromkeys(heading.against for heading in table.headings if heading.against))
    if not rows:
        return ""
    words = rows[0] if len(rows) == 1 else "the best method of the column"
    return f"<li>Δ mean difference to {escape(str(words))}, image by image, with its 95 % interval</li>"


def _head(table: Summary) -> str:
    """Return the headings; where other classes are measured too, with a line above that groups them."""
    own = sum(heading.classes == "target" for heading in table.headings)
    others = len(table.headings) - own
    above = ""
    if others:
        above = (
            f'<tr><td></td><th class="group" scope="colgroup" colspan="{own}">explained class</th>'
            f'<th class="group first-other" scope="colgroup" colspan="{others}">mean over all other classes</th></tr>'
        )
    cells = "".join(
        f'<th scope="col" class="{_column_class(table, number)}n"><button type="button" data-column="{number + 1}" '
        f'data-first="{"descending" if heading.higher_is_better else "ascending"}" '
        f'title="{"higher" if heading.higher_is_better else "lower"} is better; click to sort">'
        f"{escape(heading.metric)} {'↑' if heading.higher_is_better else '↓'}</button></th>"
        for number, heading in enumerate(table.headings)
    )
    return f'{above}<tr><th scope="col">method</th>{cells}</tr>'


def _column_class(table: Summary, number: int) -> str:
    first = table.headings[number].classes == "others" and table.headings[number - 1].classes == "target"
    return "first-other " if first else ""


def _row(number: int, row: RowInfo, cells: Sequence[Cell | None], table: Summary) -> str:
    mixed = len({one.runs_on for one, _ in table.rows if one.competes and one.runs_on != "itself"}) > 1
    small = f"<small>of the {row.runs_on}</small>" if mixed and row.runs_on != "itself" and row.competes else ""
    shown = "".join(_cell(cell, table, i) for i, cell in enumerate(cells))
    kind = "" if row.competes else ' class="baseline"'
    return f'<tr data-row="{number}"{kind}><th scope="row">{escape(row.name)}{small}</th>{shown}</tr>'


def _cell(cell: Cell | None, table: Summary, number: int) -> str:
    edge = _column_class(table, number)
    if cell is None:
        return f'<td class="{edge}n" aria-label="no value">&ndash;</td>'
    digits = digits_of(table, number)
    mean, _, half = value_text(cell.measured, digits).partition(" ")
    marks = "".join(f"{word} " for word, on in zip(("bold", "grey"), cell.mark, strict=True) if on)
    small = [count_text(cell, table.images)]
    if cell.difference is not None:
        small.append(f"Δ {value_text(cell.difference, digits, signed=True)}")
    below = "".join(f"<small>{escape(one)}</small>" for one in small if one)
    low, high = (f"{end:.{digits + 1}f}".replace("-", _MINUS) for end in cell.measured[1:])
    interval = f"95 % interval {low} to {high}" if cell.measured.has_interval else "no interval"
    return (
        f'<td class="{edge}{marks}n" data-value="{cell.measured.mean!r}" title="{interval}, '
        f'{cell.images:,} images"><span class="mean">{mean}</span> <span class="half">{half}</span>{below}</td>'
    )


def _facts(evaluation: Evaluation) -> list[tuple[str, str]]:
    about = evaluation.about
    names = {
        "device": "device",
        "precision": "precision of the surrogate",
        "players": "patches (players)",
        "num_classes": "outputs",
        "surrogate": "surrogate's weights (SHA-256)",
        "classifier": "classifier's weights (SHA-256)",
    }
    return [(words, str(about[name])[:_SHOWN]) for name, words in names.items() if about.get(name) is not None]


def _charts(evaluation: Evaluation, drawn: Sequence[Curves]) -> str:
    names = list(
        dict.fromkeys([*(row.name for row in evaluation.rows), *(n for one in drawn for n in one.panel.bands)])
    )
    shown = [name for name in names if any(name in one.panel.bands for one in drawn)]
    looks = _looks(names, [row.name for row in evaluation.rows if not row.competes])
    buttons = "".join(
        f'<li><button type="button" aria-pressed="true" data-row="{names.index(name)}"><svg viewBox="0 0 26 10" '
        f'aria-hidden="true"><path class="curve {looks[name][1]}" stroke="{looks[name][0]}" d="M0 5H26"/></svg>'
        f"{escape(name)}</button></li>"
        for name in shown
    )
    figures = "".join(
        f"<figure><h3>{escape(one.panel.title)}</h3>{_chart(one.panel, names, looks)}</figure>" for one in drawn
    )
    return (
        '<section class="summary" aria-label="Curves"><h2>Curves</h2><p class="lead">Mean over images, with the 95 % '
        f'interval of every point.</p><ul class="names" aria-label="Methods">{buttons}</ul>'
        f'<div class="charts">{figures}</div></section>'
    )


def _looks(names: Sequence[str], baselines: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return colour and class of every method's line."""
    looks, number = {}, 0
    for name in names:
        if name in baselines:
            looks[name] = ("var(--base)", "baseline-line" if name == baselines[0] else "dotted")
        else:
            style = ("", "dashed", "dotted")[number // COLOURS % 3]
            looks[name] = (f"var(--c{number % COLOURS})", style)
            number += 1
    return looks


def _chart(panel: Panel, names: Sequence[str], looks: dict[str, tuple[str, str]]) -> str:
    everything = list(panel.bands.values())
    places = np.concatenate([band.x for band in everything])
    ends = np.concatenate([one for band in everything for one in (band.mean - band.half, band.mean + band.half)])
    if panel.log[1]:
        ends = np.concatenate([band.mean for band in everything])
    elif panel.y_label.startswith(("probability", "accuracy")):
        ends = ends.clip(0, 1)
    x_ticks, y_ticks = (_ticks(values, log=log) for values, log in zip((places, ends), panel.log, strict=True))
    x_scale = _Scale(x_ticks, places, LEFT, WIDE - RIGHT, log=panel.log[0])
    y_scale = _Scale(y_ticks, ends, HIGH - BOTTOM, TOP, log=panel.log[1])
    lines = "".join(
        _line(name, band, names.index(name), looks[name], x_scale, y_scale) for name, band in panel.bands.items()
    )
    x_middle, y_middle = (LEFT + WIDE - RIGHT) / 2, (TOP + HIGH - BOTTOM) / 2
    ticks = "".join(
        f'<path class="axis" d="M{LEFT} {y_scale(at):.1f}H{WIDE - RIGHT}"/><text x="{LEFT - 8}" y="{y_scale(at) + 4:.1f}" '
        f'class="end">{_number(at)}</text>'
        for at in y_ticks
    ) + "".join(f'<text x="{x_scale(at):.1f}" y="{HIGH - BOTTOM + 16}">{_number(at)}</text>' for at in x_ticks)
    described = escape(f"{panel.title}: {panel.y_label} against {panel.x_label}, for {', '.join(panel.bands)}")
    return (
        f'<svg viewBox="0 0 {WIDE} {HIGH}" role="img" aria-label="{described}">{ticks}{lines}'
        f'<text x="{x_middle:.0f}" y="{HIGH - 6}">{escape(panel.x_label)}</text>'
        f'<text transform="translate(11 {y_middle:.0f}) rotate(-90)">{escape(panel.y_label)}</text>'
        "</svg>"
    )


def _line(name: str, band: Band, number: int, look: tuple[str, str], x_scale: _Scale, y_scale: _Scale) -> str:
    colour, style = look
    across = [x_scale(float(x)) for x in band.x]
    middle, low, high = (
        [y_scale(float(y)) for y in ys] for ys in (band.mean, band.mean - band.half, band.mean + band.half)
    )
    path = _path(across, middle)
    outline = f"{_path(across, high)}L{_path(across[::-1], low[::-1])[1:]}Z"
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.4"/>' for x, y in zip(across, middle, strict=True))
    return (
        f'<g class="line" data-row="{number}" fill="{colour}"><title>{escape(name)}</title>'
        f'<path class="band" d="{outline}"/>'
        f'<path class="curve {style}" stroke="{colour}" d="{path}"/>{dots if len(across) <= 16 else ""}</g>'
    )


def _path(across: Sequence[float], down: Sequence[float]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in zip(across, down, strict=True))


class _Scale:
    """Numbers to places on the page."""

    def __init__(
        self, ticks: Sequence[float], values: NDArray[np.float64], start: float, end: float, *, log: bool
    ) -> None:
        low, high = min([*ticks, float(values.min())]), max([*ticks, float(values.max())])
        self._log = log
        self._low, self._high = self._position(low), self._position(high)
        self._start, self._end = start, end

    def __call__(self, value: float) -> float:
        share = (self._position(value) - self._low) / ((self._high - self._low) or 1.0)
        return self._start + min(max(share, 0.0), 1.0) * (self._end - self._start)

    def _position(self, value: float) -> float:
        return math.log10(max(value, 1e-12)) if self._log else value


def _ticks(values: NDArray[np.float64], *, log: bool, count: int = 5) -> list[float]:
    """Return round numbers that span the values."""
    low, high = float(values.min()), float(values.max())
    if log:
        first, last = math.floor(math.log10(max(low, 1e-12))), math.ceil(math.log10(max(high, 1e-12)))
        return [10.0**power for power in range(first, max(last, first + 1) + 1)]
    if high <= low:
        low, high = low - 0.5, high + 0.5
    rough = (high - low) / count
    size = 10 ** math.floor(math.log10(rough))
    step = next(size * one for one in (1, 2, 2.5, 5, 10) if size * one >= rough)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, last + 1)]


def _number(value: float) -> str:
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.6g}"
    return text.replace("-", _MINUS)
