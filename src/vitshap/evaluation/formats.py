"""A comparison's table as text: for a terminal, Markdown, LaTeX, CSV and JSON. ``page`` makes the HTML page."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from typing import Any

from rich.console import Group
from rich.table import Table as TerminalTable
from rich.text import Text

from vitshap.evaluation.marks import Measured
from vitshap.evaluation.result import Cell, Evaluation, Heading, Summary

DASH = "-"
LEGEND = (
    "Mean and 95 % interval over images: half of it after \N{PLUS-MINUS SIGN}, or its ends in brackets where it reaches "
    "further to one side. Bold: the interval overlaps the best method's. Grey: it overlaps that of random scores, or lies "
    "on its wrong side."
)
_LATEX = {"\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}"}
_LATEX |= {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}


def title(heading: Heading) -> str:
    """Return a column's heading, with an arrow towards better values."""
    arrow = "\N{UPWARDS ARROW}" if heading.higher_is_better else "\N{DOWNWARDS ARROW}"
    return f"{heading.metric} {arrow}" + (", other classes" if heading.classes == "others" else "")


def value_text(measured: Measured, digits: int, *, signed: bool = False) -> str:
    """Return mean and interval; the mean alone where there is no interval."""
    text = f"{measured.mean:{'+' if signed else ''}.{digits}f} {measured.interval_text(digits)}".rstrip()
    return text.replace("-", "\N{MINUS SIGN}")


def digits_of(table: Summary, column: int) -> int:
    """Return the decimals of a column: three, more where intervals would round to nothing, fewer for large numbers."""
    cells = [cells[column] for _, cells in table.rows]
    shown = [cell.measured for cell in cells if cell is not None]
    if not shown:
        return 3
    if max(abs(one.mean) for one in shown) >= 100:
        return 1
    narrowest = min(((one.high - one.low) / 2 for one in shown if one.high > one.low), default=1.0)
    return 4 if narrowest < 0.001 else 3


def count_text(cell: Cell, images: int) -> str:
    """Return the number of images of a cell, where it is not that of the table."""
    return "" if cell.images == images else f"n = {cell.images:,}"


def to_terminal(table: Summary, heading: str, width: int = 160) -> Group:
    """Return the table for a rich console: value, and below it the difference to the row that it is compared with.

    Columns that do not fit into ``width`` characters continue in a further table below.
    """
    names = max(len(row.name) for row, _ in table.rows)
    titles = [title(heading).replace(", ", "\n") for heading in table.headings]
    texts = [
        [_styled(cell, digits_of(table, number), table.images) for number, cell in enumerate(cells)]
        for _, cells in table.rows
    ]
    lines = [line for text in (*titles, *(one.plain for row in texts for one in row)) for line in text.split("\n")]
    at_once = max(1, (width - names - 4) // (max(map(len, lines), default=0) + 3))
    parts = []
    for start in range(0, len(table.headings), at_once):
        columns = range(start, min(start + at_once, len(table.headings)))
        made = TerminalTable(title=None if start else heading, title_justify="left")
        made.add_column("method", no_wrap=True)
        for number in columns:
            made.add_column(titles[number], justify="right", no_wrap=True)
        for (row, _), cells in zip(table.rows, texts, strict=True):
            made.add_row(row.name, *(cells[number] for number in columns))
        parts.append(made)
    return Group(*parts, *(Text(line) for line in (LEGEND, *_against(table), *table.notes)))


def _styled(cell: Cell | None, digits: int, images: int) -> Text:
    if cell is None:
        return Text(DASH, style="dim")
    style = " ".join(word for word, on in (("bold", cell.mark.bold), ("bright_black", cell.mark.grey)) if on)
    text = Text(value_text(cell.measured, digits), style=style)
    small = [count_text(cell, images)]
    if cell.difference is not None:
        small.append(f"\N{GREEK CAPITAL LETTER DELTA} {value_text(cell.difference, digits, signed=True)}")
    for one in filter(None, small):
        text.append(f"\n{one}", style="dim")
    return text


def to_markdown(table: Summary, heading: str) -> str:
    """Return the table as Markdown; a dagger stands for grey."""
    titles = ["method"]
    for one in table.headings:
        titles += [title(one), f"difference to {one.against}" if one.against else "difference"]
    lines = [titles, ["---", *["---:"] * (len(titles) - 1)]]
    for row, cells in table.rows:
        words = [row.name]
        for number, cell in enumerate(cells):
            words += _markdown(cell, digits_of(table, number), table.images)
        lines.append(words)
    rows = ["| " + " | ".join(word.replace("|", "\\|") for word in words) + " |" for words in lines]
    legend = LEGEND.replace("Grey:", "\N{DAGGER}:")
    return "\n".join([f"**{heading}**", "", *rows, "", *(f"{note}\n" for note in (legend, *table.notes))])


def _markdown(cell: Cell | None, digits: int, images: int) -> list[str]:
    if cell is None:
        return [DASH, DASH]
    text = value_text(cell.measured, digits)
    text = f"**{text}**" if cell.mark.bold else text
    text += " \N{DAGGER}" if cell.mark.grey else ""
    count = count_text(cell, images)
    difference = DASH if cell.difference is None else value_text(cell.difference, digits, signed=True)
    return [f"{text} ({count})" if count else text, difference]


def to_latex(table: Summary, heading: str) -> str:
    """Return two tables in LaTeX (packages booktabs and xcolor): the values, and the differences."""
    values, differences = [], []
    for row, cells in table.rows:
        name = _escaped(row.name)
        values.append([name, *(_latex(cell, digits_of(table, i)) for i, cell in enumerate(cells))])
        differences.append([name, *(_latex_difference(cell, digits_of(table, i)) for i, cell in enumerate(cells))])
    arrows = {True: r"$\uparrow$", False: r"$\downarrow$"}
    heads = [
        f"{_escaped(one.metric)} {arrows[one.higher_is_better]}"
        + (" (other classes)" if one.classes == "others" else "")
        for one in table.headings
    ]
    notes = " ".join(_escaped(note) for note in (LEGEND, *table.notes))
    first = _tabular(["Method", *heads], values, f"{_escaped(heading)}. {notes}")
    second = _tabular(["Method", *heads], differences, " ".join(_escaped(one) for one in _against(table)))
    return f"% needs \\usepackage{{booktabs}} and \\usepackage{{xcolor}}\n{first}\n{second}"


def _latex(cell: Cell | None, digits: int) -> str:
    if cell is None:
        return "--"
    text = f"{cell.measured.mean:.{digits}f} {_latex_interval(cell.measured, digits)}".rstrip()
    text = rf"\textbf{{{text}}}" if cell.mark.bold else text
    return rf"\textcolor{{gray}}{{{text}}}" if cell.mark.grey else text


def _latex_difference(cell: Cell | None, digits: int) -> str:
    if cell is None or cell.difference is None:
        return "--"
    return f"${cell.difference.mean:+.{digits}f}$ {_latex_interval(cell.difference, digits)}"


def _latex_interval(measured: Measured, digits: int) -> str:
    return measured.interval_text(digits).replace("\N{PLUS-MINUS SIGN}", r"$\pm$").replace("-", "$-$")


def _tabular(heads: list[str], rows: list[list[str]], caption: str) -> str:
    body = "\n".join(f"    {' & '.join(row)} \\\\" for row in rows)
    return (
        f"\\begin{{table}}\n  \\centering\n  \\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}\n    \\toprule\n"
        f"    {' & '.join(heads)} \\\\\n    \\midrule\n{body}\n    \\bottomrule\n  \\end{{tabular}}\n"
        f"  \\caption{{{caption}}}\n\\end{{table}}\n"
    )


def to_csv(table: Summary) -> str:
    """Return a line for each row and column of the table, with all numbers."""
    stream = io.StringIO()
    lines = records(table)
    writer = csv.DictWriter(stream, list(lines[0]) if lines else ["method"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return stream.getvalue()


def records(table: Summary) -> list[dict[str, Any]]:
    """Return a mapping for each row and column of the table."""
    found = []
    for row, cells in table.rows:
        for heading, cell in zip(table.headings, cells, strict=True):
            about = {"method": row.name, "explains": row.runs_on, "metric": heading.metric, "classes": heading.classes}
            found.append({**about, "higher_is_better": heading.higher_is_better, **_numbers(cell, heading)})
    return found


def _numbers(cell: Cell | None, heading: Heading) -> dict[str, Any]:
    names = ("mean", "low", "high", "images", "undefined", "constant", "bold", "grey")
    ends = ("difference", "difference_low", "difference_high")
    numbers: dict[str, Any] = {**dict.fromkeys(names), "against": heading.against, **dict.fromkeys(ends)}
    if cell is not None:
        shown = (*_finite(cell.measured), cell.images, cell.undefined, cell.constant, *cell.mark)
        numbers |= dict(zip(names, shown, strict=True))
        numbers |= dict(zip(ends, cell.difference or (None, None, None), strict=True))
    return numbers


def to_json(evaluation: Evaluation, table: Summary, heading: str) -> str:
    """Return the table, what was compared, and every image's values."""
    images = [
        {
            "image": name,
            "target": int(evaluation.targets[i]),
            "label": None if evaluation.labels is None else int(evaluation.labels[i]),
        }
        for i, name in enumerate(evaluation.images)
    ]
    values = [
        {
            "method": row,
            "metric": metric,
            **{part: _finite(tensors[part].tolist()) for part in ("target", "others") if part in tensors},
        }
        for (row, metric), tensors in evaluation.scores.items()
    ]
    content = {
        "title": heading,
        "about": dict(evaluation.about),
        "legend": LEGEND,
        "notes": list(table.notes),
        "table": records(table),
        "images": images,
        "values": values,
    }
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def _finite(numbers: Iterable[float]) -> list[float | None]:
    return [number if number == number else None for number in numbers]


def _against(table: Summary) -> list[str]:
    """Return sentences about what differences are taken to."""
    rows = {heading.against for heading in table.headings if heading.against}
    if not rows:
        return []
    if len(rows) == 1:
        return [
            f"\N{GREEK CAPITAL LETTER DELTA}: mean difference to {rows.pop()}, image by image, with its 95 % interval."
        ]
    listed = ", ".join(f"{title(heading)} to {heading.against}" for heading in table.headings if heading.against)
    return [f"\N{GREEK CAPITAL LETTER DELTA}: mean difference to the best method, image by image: {listed}."]


def _escaped(text: str) -> str:
    text = "".join(_LATEX.get(letter, letter) for letter in text)
    signs = {"\N{GREEK CAPITAL LETTER DELTA}": r"$\Delta$", "\N{UPWARDS ARROW}": r"$\uparrow$"}
    signs["\N{PLUS-MINUS SIGN}"] = r"$\pm$"
    for sign, command in {**signs, "\N{DOWNWARDS ARROW}": r"$\downarrow$"}.items():
        text = text.replace(sign, command)
    return text
