"""The result of a measurement: a table, written to the terminal, to JSON or to Markdown.

A row is one measured thing (a method, a budget, a data set) and a column one quantity with its unit. A cell holds a value
with a standard error or an interval, or a note on why there is no value. All measurements of ``experiments`` and
``bench`` return tables and leave the formatting of numbers to them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from rich.table import Table as TerminalTable

from vitshap.files import write_text

Value: TypeAlias = float | str | None
"""Numbers, booleans and text; None: there is no value."""
EMPTY = "-"
"""Shown where there is neither a value nor a note."""


@dataclass(frozen=True)
class Cell:
    """One value and how certain it is."""

    value: Value = None
    error: float | None = None
    """Standard error of the value."""
    interval: tuple[float, float] | None = None
    """Lower and upper end of an interval around the value; the table's notes should say of which kind."""
    note: str = ""
    """Shown instead of a missing value, or after a value in parentheses."""


NOT_RUN = Cell(note="not run")


@dataclass(frozen=True)
class Column:
    """One quantity."""

    key: str
    """Name in ``Table.add`` and in JSON."""
    format: str = ""
    """Format specification of numbers, such as ``".4f"`` or ``",.0f"``; without one the column is text."""
    unit: str = ""
    title: str = ""
    """Heading without the unit; by default the key with spaces."""

    @property
    def heading(self) -> str:
        """Title and unit."""
        return (self.title or self.key.replace("_", " ")) + (f" ({self.unit})" if self.unit else "")

    def show(self, cell: Cell) -> str:
        """Format a cell: value, standard error or interval, note."""
        if cell.value is None:
            return cell.note or EMPTY
        text = self._number(cell.value)
        if cell.error is not None:
            text += f" ± {self._number(cell.error)}"
        if cell.interval is not None:
            text += " ({} to {})".format(*(self._number(bound) for bound in cell.interval))
        return f"{text} ({cell.note})" if cell.note else text

    def _number(self, value: Value) -> str:
        return str(value) if isinstance(value, str) or not self.format else format(value, self.format)


@dataclass
class Table:
    """Rows of cells under named columns."""

    title: str
    columns: Sequence[Column]
    rows: list[dict[str, Cell]] = field(default_factory=list)
    """Cells by the key of their column."""
    notes: list[str] = field(default_factory=list)
    """Sentences printed below the table."""

    def add(self, **values: Value | Cell) -> None:
        """Append a row; columns that are not given stay empty."""
        keys = [column.key for column in self.columns]
        assert values.keys() <= set(keys), f"columns are {keys}, got {list(values)}"
        cells = {key: values.get(key) for key in keys}
        self.rows.append({key: cell if isinstance(cell, Cell) else Cell(cell) for key, cell in cells.items()})

    def values(self, key: str) -> list[Any]:
        """Return the plain values of a column, row by row."""
        return [row[key].value for row in self.rows]

    def line(self, row: int = -1) -> str:
        """Format one row as a line of text, for measurements that report rows as they come."""
        first, *others = self.columns
        cells = self.rows[row]
        shown = [f"{c.heading} {c.show(cells[c.key])}" for c in others if cells[c.key] != Cell()]
        return f"{first.show(cells[first.key])}: {', '.join(shown)}"

    def to_terminal(self) -> TerminalTable:
        """Return the table for a rich console."""
        made = TerminalTable(title=self.title, title_justify="left", caption="\n".join(self.notes) or None)
        made.caption_justify = "left"
        for column in self.columns:
            made.add_column(column.heading, justify="right" if column.format else "left")
        for row in self._shown():
            made.add_row(*row)
        return made

    def to_markdown(self) -> str:
        """Return the table as Markdown: title, table, notes."""
        headings = [column.heading for column in self.columns]
        rules = ["---:" if column.format else "---" for column in self.columns]
        lines = ["| " + " | ".join(map(_escaped, row)) + " |" for row in (headings, rules, *self._shown())]
        return "\n".join([f"**{self.title}**", "", *lines, "", *(f"{note}\n" for note in self.notes)])

    def to_json(self) -> dict[str, Any]:
        """Return the table as JSON types.

        A row maps every column's key to a plain value; standard errors, intervals and notes of its cells, where there
        are any, are under ``"errors"``, ``"intervals"`` and ``"notes"``, by the same keys.
        """
        columns = [{"key": c.key, "title": c.title or c.key.replace("_", " "), "unit": c.unit} for c in self.columns]
        rows = []
        for cells in self.rows:
            row: dict[str, Any] = {key: cell.value for key, cell in cells.items()}
            for name, part in (("errors", "error"), ("intervals", "interval"), ("notes", "note")):
                found = {
                    key: getattr(cell, part) for key, cell in cells.items() if getattr(cell, part) not in (None, "")
                }
                row |= {name: found} if found else {}
            rows.append(row)
        return {"title": self.title, "columns": columns, "rows": rows, "notes": self.notes}

    def _shown(self) -> list[list[str]]:
        return [[column.show(row[column.key]) for column in self.columns] for row in self.rows]


def write_tables(path: Path | None, *tables: Table, **about: Any) -> None:
    """Write tables to a file: Markdown if its name ends with .md, else JSON with the tables and ``about``.

    Without a path nothing is written. JSON has null for numbers that are not finite.
    """
    if path is None:
        return
    if path.suffix.lower() == ".md":
        write_text(path, "\n".join(table.to_markdown() for table in tables))
        return
    content = _finite({**about, "tables": [table.to_json() for table in tables]})
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n")


def _finite(content: Any) -> Any:
    if isinstance(content, Mapping):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, Sequence) and not isinstance(content, str):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
