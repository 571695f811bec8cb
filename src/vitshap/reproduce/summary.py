"""Which method is best at what on ImageNette, and at which cost: the summary of the results pages.

``data`` is the folder of stored results, by profile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vitshap.experiments.tables import Column, Table
from vitshap.reproduce.cells import (
    ARROWS,
    LEGEND,
    NOT_RUN,
    ROWS,
    finished_parts,
    has_number,
    joined,
    marks_of,
    own_text,
    printed_text,
    rows_of,
)
from vitshap.reproduce.paper import METHODS, printed
from vitshap.reproduce.profiles import PROFILES, Setting
from vitshap.reproduce.sources import EARLIER_TRAINING, of_earlier_training
from vitshap.reproduce.specifications import (
    ALL_METHODS,
    BOTH,
    EXPLAINERS,
    FAITHFULNESS,
    METRICS,
    Panel,
    evaluated_step,
)
from vitshap.reproduce.store import Result, Store

PARTS = [(classes, metric) for classes in BOTH for metric in METRICS]
"""Columns of the summary."""


def best_methods(data: Path, *profiles: str) -> Table:
    """Return which method is best at what on ImageNette, in some profiles and in the paper."""
    columns = [Column("measure"), *(Column(name, title=f"profile `{name}`") for name in profiles)]
    table = Table("The best on ImageNette", [*columns, Column("paper", title="paper, ViT-Tiny")])
    for classes, metric in PARTS:
        theirs = [
            METHODS[row]
            for row in METHODS
            if (one := printed("table-7", row, metric, data="imagenette", classes=classes)) and one.bold
        ]
        here = {name: _best_text(_main(data, name)[2], classes, metric) for name in profiles}
        table.add(measure=f"{metric}, {classes} classes", paper=", ".join(theirs), **here)
    fastest = {}
    for name in profiles:
        setting, store, _ = _main(data, name)
        times = store.find(setting.name, "timing")
        rows = {} if times is None else {row: one["milliseconds"] for row, one in times.values["rows"].items()}
        first = min(rows, key=lambda row: rows[row], default=None)
        fastest[name] = NOT_RUN if first is None else f"{ROWS[first]} {rows[first]:,.1f} ms"
    table.add(measure="time per image", paper="not printed", **fastest)
    table.notes.append(
        "The best mean, and the methods whose 95 % interval overlaps that of the best. In brackets: images. A profile in "
        "which our default explainer has not been evaluated has no best."
    )
    for name in profiles:
        table.notes += [f"`{name}`: {limit}" for limit in _limits(data, name)]
    return table


def _limits(data: Path, profile: str) -> Iterator[str]:
    """Yield what the best methods of a profile were not compared with, or not on the same networks."""
    setting, store, evaluated = _main(data, profile)
    if not evaluated:
        return
    missing = [ROWS[row] for row in EXPLAINERS if row not in rows_of(joined(evaluated))]
    if missing:
        yield f"without {' and '.join(missing)}, not evaluated yet."
    earlier = [name for name, one in evaluated.items() if of_earlier_training(store, setting, name, one)]
    if earlier:
        yield f"methods of {', '.join(earlier)} were {EARLIER_TRAINING}."


def all_numbers(data: Path, profile: str) -> Table:
    """Return all numbers of all methods on ImageNette, with time and training."""
    setting, store, evaluated = _main(data, profile)
    main, times = joined(evaluated), store.find(setting.name, "timing")
    columns = [Column("method")]
    for classes, metric in PARTS:
        title = f"{metric} {ARROWS.get(metric, chr(0x2191))}" + ("" if classes == "target" else ", non-target")
        columns += [Column(f"{classes} {metric}", title=title), Column(f"{classes} {metric} paper", title="paper")]
    columns += [Column("milliseconds", title="ms per image"), Column("training", title="training, minutes")]
    found: Mapping[str, Any] = {} if main is None else main.values
    images = f" ({found['target']['images']:,} images)" if found else ""
    table = Table(f"ImageNette{images}, {setting.note}; the paper's ViT-Tiny beside it (table 7)", columns)
    table.notes += [LEGEND, FAITHFULNESS]
    marks = {part: marks_of(found.get(part[0], {}).get("metrics", {}).get(part[1], {}), part[1]) for part in PARTS}
    for row in ALL_METHODS:
        cells = {"method": ROWS[row]}
        for classes, metric in PARTS:
            panel = Panel("imagenette", "vit-tiny", "evaluate-main", classes)
            own = found.get(classes, {}).get("metrics", {}).get(metric, {}).get(row)
            cells[f"{classes} {metric}"] = own_text(
                own, marks[classes, metric].get(row), run=row in rows_of(main), expected=has_number(row, panel, metric)
            )
            number = printed("table-7", row, metric, data="imagenette", classes=classes)
            cells[f"{classes} {metric} paper"] = printed_text(number)
        spent = None if times is None else times.values["rows"].get(row)
        cells["milliseconds"] = NOT_RUN if times is None else "-" if spent is None else f"{spent['milliseconds']:,.1f}"
        cells["training"] = _training(store, setting.name, row)
        table.add(**cells)
    for name, result in evaluated.items():
        if of_earlier_training(store, setting, name, result):
            rows = ", ".join(ROWS[row] for row in ALL_METHODS if row in rows_of(result))
            table.notes.append(f"{rows}: {EARLIER_TRAINING} ({result.record['date']}).")
    if setting.explained_others is not None:
        table.notes.append(f"Non-target: {setting.explained_others} of each image's other classes; the paper: all.")
    trained = store.find(setting.name, "train-surrogate")
    on = "" if trained is None else f", on {trained.record['hardware']}"
    table.notes.append(
        f"Time per image: for all classes. Training: of surrogate and explainer together{on}, partly beside other steps."
    )
    return table


def _main(data: Path, profile: str) -> tuple[Setting, Store, dict[str, Result]]:
    """Return the setting of ImageNette in a profile, its store, and its finished evaluations."""
    setting = PROFILES[profile].setting("imagenette", "vit-tiny")
    assert setting is not None
    store = Store(data / profile)
    return setting, store, finished_parts(store, setting.name, "evaluate-main")


def _best_text(parts: Mapping[str, Result], classes: str, metric: str) -> str:
    """Return the best method with its mean, and which others overlap it."""
    main, needed = joined(parts), {evaluated_step("main", part) for part in ("rivals", "train-explainer-default")}
    if main is None or not needed <= set(parts):
        return NOT_RUN
    cells = main.values[classes]["metrics"][metric]
    marks = marks_of(cells, metric)
    overlapping = [row for row, one in marks.items() if one.bold]
    best = (min if metric == "deletion" else max)(overlapping, key=lambda row: cells[row]["mean"])
    others = [ROWS[row] for row in overlapping if row != best]
    text = f"{ROWS[best]} {cells[best]['mean']:.3f} ({main.values[classes]['images']:,})"
    if len(others) > 3:
        return f"{text}; {len(others)} of {len(marks) - 1} others overlap"
    return "; ".join([text, *([f"{', '.join(others)} overlap{'s' if len(others) == 1 else ''}"] if others else [])])


def _training(store: Store, setting: str, row: str) -> str:
    """Return the minutes of training that a method needs: surrogate and explainer."""
    steps = {"vit-shapley": "train-explainer-paper", "vitshap": "train-explainer-default"}
    if row not in steps:
        return "0"
    results = [store.find(setting, name) for name in ("train-surrogate", steps[row])]
    if any(one is None for one in results):
        return NOT_RUN
    return f"{sum(one.record['seconds'] for one in results if one is not None) / 60:.1f}"
