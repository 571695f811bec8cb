"""Files of a finished comparison, and the numbers that a bundle's card lists."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from vitshap import plots
from vitshap.evaluation.curves import curves
from vitshap.evaluation.formats import to_csv, to_json, to_latex, to_markdown
from vitshap.evaluation.page import to_html
from vitshap.evaluation.result import RANDOM, Evaluation
from vitshap.files import write_text

EXPLAINER = "explainer"


def write_files(
    folder: Path,
    evaluation: Evaluation,
    title: str,
    *,
    against: str | None = None,
    facts: Sequence[tuple[str, str]] = (),
) -> None:
    """Write report.html, the table as CSV, JSON, LaTeX and Markdown, curves as PNG, and what ``Evaluation.load`` reads."""
    table = evaluation.table(against=against)
    evaluation.save(folder)
    for name, text in {
        "table.csv": to_csv(table),
        "table.json": to_json(evaluation, table, title),
        "table.tex": to_latex(table, title),
        "table.md": to_markdown(table, title),
        "report.html": to_html(evaluation, table, title, facts=facts),
    }.items():
        write_text(folder / name, text)
    for one in curves(evaluation):
        figure = plots.comparison_figure([one.panel])
        plots.save(figure, folder / f"{re.sub('[^a-z0-9-]+', '-', one.name.lower())}.png")


def figures(evaluation: Evaluation) -> dict[str, float]:
    """Return the numbers of an explainer that a bundle's card lists: areas of it and of random scores."""
    rows = {row.kind: row.name for row in evaluation.rows}
    known = {metric.name for metric in evaluation.metrics}
    wanted: Mapping[str, tuple[str, str, Literal["target", "others"]]] = {
        "insertion": (EXPLAINER, "insertion", "target"),
        "deletion": (EXPLAINER, "deletion", "target"),
        "others_insertion": (EXPLAINER, "insertion", "others"),
        "random_insertion": (RANDOM, "insertion", "target"),
        "random_deletion": (RANDOM, "deletion", "target"),
    }
    found = {}
    for name, (kind, metric, classes) in wanted.items():
        result = evaluation.result(rows[kind], metric, classes) if kind in rows and metric in known else None
        if result is not None and result.undefined < len(result.values):
            found[name] = result.mean
    return found
