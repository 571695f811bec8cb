"""What stands in the cells of tables: the results of a panel, which methods were run, numbers as text, bold and grey."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from vitshap.evaluation.marks import Mark, Measured, mark
from vitshap.reproduce.paper import METHODS, Number
from vitshap.reproduce.specifications import OURS, Panel, panel_steps
from vitshap.reproduce.store import Result, Store

NOT_RUN = "not run"
ROWS = {
    **METHODS,
    "vit-shapley": "ViT Shapley (the paper's procedure)",
    OURS: "vitshap (default procedure)",
    "kernelshap-original": "KernelSHAP",
    "kernelshap": "kernelshap (ours)",
    "refine-tokens": "refine (ours), without an explainer",
    "refine-explainer": "refine (ours), with vitshap's explainer",
    "truth": "truth (kernelshap, independent)",
}
ARROWS = {"deletion": "\N{DOWNWARDS ARROW}"}
LEGEND = (
    "Mean ± half of the 95 % interval, or [its ends] where it reaches further to one side. Bold: the interval overlaps "
    "that of the best method that was run. † (insertion and deletion): it overlaps random's, or lies on its wrong side."
)


def finished_parts(store: Store, setting: str, step: str) -> dict[str, Result]:
    """Return the results of those steps of a panel that have finished."""
    found = {name: store.find(setting, name) for name in panel_steps(step)}
    return {name: result for name, result in found.items() if result is not None}


def joined(parts: Mapping[str, Result]) -> Result | None:
    """Return the result of a panel: that of its step, or the rows of all steps in which methods were evaluated."""
    first = next(iter(parts.values()), None)
    if first is None or len(parts) == 1:
        return first
    values: dict[str, Any] = {}
    for part in parts.values():
        for classes, found in part.values.items():
            whole = values.setdefault(classes, {"images": found["images"], "metrics": {}, "curves": {}})
            for kind in ("metrics", "curves"):
                for metric, rows in found[kind].items():
                    whole[kind].setdefault(metric, {}).update(rows)
    return Result(first.folder, {**first.record, "values": values})


def rows_of(result: Result | None) -> set[str]:
    """Return the methods that were evaluated, whether or not they have a number for every class."""
    parts = () if result is None else result.values.values()
    return {row for part in parts for rows in part.get("metrics", {}).values() for row in rows}


def has_number(row: str, panel: Panel, metric: str) -> bool:
    """Whether a row has a number: attention methods have none for non-target classes, but for one class of MURA; random
    none for faithfulness; the masked classifier has one explainer."""
    if row == OURS and panel.step == "evaluate-masked":
        return False
    if row.startswith("attention-") and panel.classes == "non-target":
        return panel.step.endswith("abnormal")
    return not (row == "random" and metric.startswith("faithfulness"))


def marks_of(cells: Mapping[str, Mapping[str, float]], metric: str) -> dict[str, Mark]:
    """Return bold and grey of a column, from its numbers."""
    measured = {row: _measured(one) for row, one in cells.items() if one["mean"] is not None}
    random = measured.pop("random", None)
    measured.pop("truth", None)
    if metric.startswith("faithfulness"):
        random = None
    found = mark(list(measured.values()), random, higher_is_better=metric != "deletion")
    return dict(zip(measured, found, strict=True))


def _measured(cell: Mapping[str, Any]) -> Measured:
    """Return a stored mean with its interval, whose ends are NaN where there is none."""
    ends = (math.nan if cell[end] is None else cell[end] for end in ("low", "high"))
    return Measured(cell["mean"], *ends)


def own_text(cell: Mapping[str, Any] | None, marked: Mark | None, *, run: bool, expected: bool) -> str:
    """Return one of our numbers as text: bold, with a dagger for grey, "not run", or a dash where none is expected."""
    if not expected:
        return "-"
    if cell is None or cell["mean"] is None:
        return "undefined" if run else NOT_RUN
    text = f"{cell['mean']:.3f}" + ("" if cell["low"] is None else f" {_measured(cell).interval_text(3)}")
    if marked is not None and marked.bold:
        text = f"**{text}**"
    return f"{text} †" if marked is not None and marked.grey else text


def printed_text(number: Number | None, *, digits: int = 3) -> str:
    """Return one of the paper's numbers as text, with its own bold and grey; a dash where it has none."""
    if number is None:
        return "-"
    text = f"{number.mean:,.{digits}f}" + ("" if number.interval is None else f" ± {number.interval:.3f}")
    text = f"**{text}**" if number.bold else text
    return f"{text} †" if number.grey else text
