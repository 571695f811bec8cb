"""The pages ``docs/results``: every table and figure from committed results, beside the paper's numbers.

``docs/results/data/PROFILE/SETTING/STEP/result.json`` are the results as their steps left them, without weights and
pictures. All text of the pages is made here, so that a test can compare the two. Maps over photos of data sets are not
committed.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vitshap.experiments.tables import Column, Table
from vitshap.files import read_json, write_text
from vitshap.reproduce.cells import (
    ARROWS,
    LEGEND,
    NOT_RUN,
    ROWS,
    finished_parts,
    joined,
    marks_of,
    own_text,
    printed_text,
    was_run,
)
from vitshap.reproduce.paper import METHODS, printed
from vitshap.reproduce.profiles import PROFILES, Profile, Scale
from vitshap.reproduce.runner import tasks_of
from vitshap.reproduce.specifications import (
    ALL_METHODS,
    EVALUATED_PARTS,
    METRICS,
    SPECIFICATIONS,
    Specification,
    evaluated_step,
)
from vitshap.reproduce.store import RESULT, Store
from vitshap.reproduce.views import View, Viewer
from vitshap.training.recipes.clock import duration

PUBLISHED = "small"
"""The profile whose results are on the main pages."""
BRIEF = "cpu"
"""The profile whose results have a page of their own."""
DATA, IMAGES = "data", "images"
INTRODUCTION = """# Results

Every table and figure of the paper, made by `vitshap reproduce`, beside the paper's own numbers. This page and those of the
[tables](tables.md) and [figures](figures.md) are generated from the stored results of each step
(`docs/results/data`), and a test compares them.

What a number means:

- **reproduced here**: made with the paper's data, model and settings;
- **reduced scale**: made with the same code and specification, but with a smaller model or other data, as said beside it;
- **not run**: the command exists, and has not been run for this page.

What differs from the paper, and why: [differences](../differences.md). The same on two CPU cores, with short trainings and
few images: [on a CPU](cpu.md).
"""
WHY_NOT_RUN = (
    "They need more time on a GPU than there was. ViT-Small and ViT-Large (tables 8 and 9, figure 11) belong to the "
    "profile `full`: no weights of theirs could be had."
)
BRIEF_INTRODUCTION = """# On a CPU

What `vitshap reproduce --profile cpu` gives on two CPU cores: the steps of the [other pages](index.md), with trainings so
short that their effect is far from exhausted, and with the first few of the images that are named below, so that intervals
are wide. All numbers are of **reduced scale**. Tables and figures of which nothing was run are left out.

"""


def collect(out: Path, docs: Path, profile: Profile) -> None:
    """Copy the results of finished steps, without weights and pictures, to the pages' data.

    ``ValueError`` if one was made by another profile: all of them stand on its page.
    """
    for path in sorted(out.glob(f"*/*/{RESULT}")):
        made = read_json(path).get("profile")
        if made != profile.name:
            raise ValueError(f"{path} was made with --profile {made}, not with {profile.name}")
        place = docs / DATA / profile.name / path.relative_to(out)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, place)


def write_pages(docs: Path, *, pictures: bool = True) -> list[Path]:
    """Write all pages into ``docs``, and draw their charts; return the pages."""
    written = []
    for name, text in pages(docs).items():
        write_text(docs / name, text)
        written.append(docs / name)
    if pictures:
        for name in (PUBLISHED, BRIEF):
            for view in _views(docs, name):
                view.draw(docs / _images(name))
    return written


def pages(docs: Path) -> dict[str, str]:
    """Return the text of every page by its file name, from the data in ``docs``."""
    views, brief = (list(_views(docs, name)) for name in (PUBLISHED, BRIEF))
    sections = {view.specification.id: _section(view, PUBLISHED) for view in views}
    tables = [sections[view.specification.id] for view in views if _is_table(view)]
    figures = [sections[view.specification.id] for view in views if not _is_table(view)]
    on_cpu = [_section(view, BRIEF) for view in brief if view.filled]
    return {
        "index.md": "\n".join([INTRODUCTION, *_glance(docs, PUBLISHED), *_not_run(docs), *_status(views, brief)]),
        "tables.md": "\n".join(["# Tables\n", LEGEND, "", *tables]),
        "figures.md": "\n".join(["# Figures\n", *figures]),
        "cpu.md": "\n".join([BRIEF_INTRODUCTION + _scale(PROFILES[BRIEF]), *_glance(docs, BRIEF), *on_cpu]),
    }


def _views(docs: Path, profile: str) -> Iterator[View]:
    viewer = Viewer(PROFILES[profile], Store(docs / DATA / profile), finished_only=profile == BRIEF)
    return (viewer.view(one) for one in SPECIFICATIONS.values())


def _images(profile: str) -> str:
    """Return the folder of a profile's charts."""
    return IMAGES if profile == PUBLISHED else f"{IMAGES}/{profile}"


def _scale(profile: Profile) -> str:
    """Return the numbers of a profile's measurements, in words."""
    scale = profile.scale
    rows = {
        "test images of tables and curves": scale.images,
        "patches between the points of insertion and deletion": scale.curve_step,
        "subsets per image of faithfulness": scale.subsets,
        "masks of RISE": scale.masks,
        "images with reference Shapley values": scale.shapley_images,
        "their evaluations per image": scale.truth,
        "evaluations per image of KernelSHAP as published": scale.paired,
    }
    table = Table("What is smaller", (Column("what"), Column("here"), Column("paper", title="small and full")))
    paper = Scale()
    usual = (1024, paper.curve_step, paper.subsets, paper.masks, 100, paper.truth, paper.paired)
    for (what, here), there in zip(rows.items(), usual, strict=True):
        table.add(what=what, here=f"{here:,}", paper=f"{there:,}")
    changes = [f"- `{one}`" for one in scale.training]
    changes += [f"- default procedure: `{one}`" for one in scale.default_training]
    for name, setting in profile.names().items():
        changes += [f"- {name}: `{one}`" for one in setting.changes]
        changes += [f"- {name}, default procedure: `{one}`" for one in setting.default_changes]
    table.notes += [
        f"Training images: {scale.split[0]:,} at most." if scale.split else "",
        "Settings of the trainings:",
    ]
    return "\n".join([table.to_markdown(), *changes, ""])


def _is_table(view: View) -> bool:
    return view.specification.id.startswith("table-")


def _section(view: View, profile: str) -> str:
    """Return one table or figure: what it shows, where its numbers come from, tables and charts."""
    one = view.specification
    lines = [f"## {_name(one)}: {one.title}\n", f"Images: {one.images}.\n"]
    lines += [f"{note}\n" for note in one.notes]
    lines += [f"- {source}: {about}" for source, about in view.sources.items()]
    lines.append("" if view.sources else f"{_state(view)}.\n")
    for table in view.tables:
        table.notes = [note for note in table.notes if note != LEGEND]
        lines.append(table.to_markdown())
    lines += [f"![{one.title}]({_images(profile)}/{name})\n" for name in view.charts]
    if one.kind in ("maps", "class-maps"):
        lines.append(
            f"`vitshap reproduce {one.id} --profile {profile}` draws it; photos of data sets are not shown here.\n"
        )
    elif not _is_table(view):
        lines.append("The paper shows these curves as a picture and prints no numbers.\n")
    return "\n".join(lines)


def _not_run(docs: Path) -> list[str]:
    """Return which steps have not been run, how long they would take, and why they are missing."""
    profile, store = PROFILES[PUBLISHED], Store(docs / DATA / PUBLISHED)
    missing: dict[str, list[str]] = {}
    for task in tasks_of(profile, SPECIFICATIONS.values()):
        if store.find(task.setting.name, task.step) is None:
            missing.setdefault(task.setting.name, []).append(task.step)
    if not missing:
        return []
    table = Table("Steps that have not been run", (Column("setting"), Column("steps"), Column("estimated")))
    for setting, names in missing.items():
        seconds = sum(profile.expected(name) or 0 for name in names)
        table.add(setting=setting, steps=", ".join(names), estimated=duration(seconds))
    table.notes.append(f"Estimated: {profile.hardware}. {WHY_NOT_RUN}")
    return ["## Not run, and why\n", table.to_markdown()]


def _status(views: list[View], brief: list[View]) -> list[str]:
    """Return the state of every table and figure, on the main pages and on that of the short runs on a CPU."""
    table = Table(
        "Tables and figures", (Column("what"), Column("title"), Column("state"), Column("cpu", title="on a CPU"))
    )
    for view, short in zip(views, brief, strict=True):
        page, anchor = "tables" if _is_table(view) else "figures", _anchor(view.specification)
        table.add(
            what=f"[{_name(view.specification)}]({page}.md#{anchor})",
            title=view.specification.title,
            state=_state(view),
            cpu=f"[{_state(short)}](cpu.md#{anchor})" if short.filled else NOT_RUN,
        )
    return ["## All tables and figures\n", table.to_markdown()]


def _state(view: View) -> str:
    total = view.filled + view.not_run
    if not view.filled:
        return NOT_RUN
    return "complete" if not view.not_run else f"{view.filled:,} of {total:,} numbers or curves"


def _glance(docs: Path, profile: str) -> list[str]:
    """Return which method is best at what, and at which cost, on ImageNette."""
    setting = PROFILES[profile].setting("imagenette", "vit-tiny")
    assert setting is not None
    store = Store(docs / DATA / profile)
    evaluated = finished_parts(store, setting.name, "evaluate-main")
    main, times = joined(evaluated), store.find(setting.name, "timing")
    needed = {evaluated_step("main", part) for part in EVALUATED_PARTS if part != "variants"}
    parts: list[tuple[Any, str]] = [(classes, metric) for classes in ("target", "non-target") for metric in METRICS]
    columns = [Column("method")]
    for classes, metric in parts:
        title = f"{metric} {ARROWS.get(metric, chr(0x2191))}" + ("" if classes == "target" else ", non-target")
        columns += [Column(f"{classes} {metric}", title=title), Column(f"{classes} {metric} paper", title="paper")]
    columns += [Column("milliseconds", title="ms per image"), Column("training", title="training, minutes")]
    table = Table(f"ImageNette, {setting.note}; the paper's ViT-Tiny beside it (table 7)", columns, notes=[LEGEND])
    found: Mapping[str, Any] = {} if main is None else main.values
    marks = {part: marks_of(found.get(part[0], {}).get("metrics", {}).get(part[1], {}), part[1]) for part in parts}
    for row in ALL_METHODS:
        cells = {"method": ROWS[row]}
        for part in parts:
            classes, metric = part
            none = (row == "random" and metric == "faithfulness") or (
                row.startswith("attention-") and classes == "non-target"
            )
            own = found.get(classes, {}).get("metrics", {}).get(metric, {}).get(row)
            cells[f"{classes} {metric}"] = own_text(
                own, marks[part].get(row), run=was_run(main, row), expected=not none
            )
            number = printed("table-7", row, metric, data="imagenette", classes=classes)
            cells[f"{classes} {metric} paper"] = printed_text(number)
        spent = None if times is None else times.values["rows"].get(row)
        cells["milliseconds"] = NOT_RUN if times is None else "-" if spent is None else f"{spent['milliseconds']:,.1f}"
        cells["training"] = _training(store, setting.name, row)
        table.add(**cells)
    best = Table(
        "The best on ImageNette", (Column("measure"), Column("here"), Column("paper", title="paper, ViT-Tiny"))
    )
    for part in parts:
        ours = [ROWS[row] for row in ALL_METHODS if row in marks[part] and marks[part][row].bold]
        theirs = [
            METHODS[row]
            for row in METHODS
            if (one := printed("table-7", row, part[1], data="imagenette", classes=part[0])) and one.bold
        ]
        measure = f"{part[1]}, {part[0]} classes"
        best.add(
            measure=measure, here=", ".join(ours) if needed <= set(evaluated) else NOT_RUN, paper=", ".join(theirs)
        )
    fastest = None if times is None else min(times.values["rows"].items(), key=lambda item: item[1]["milliseconds"])[0]
    best.add(measure="time per image", here=NOT_RUN if fastest is None else ROWS[fastest], paper="not printed")
    best.notes.append("All methods that were run and whose 95 % interval overlaps that of the best mean.")
    return ["## Which method is best at what, and at which cost\n", best.to_markdown(), table.to_markdown()]


def _training(store: Store, setting: str, row: str) -> str:
    """Return the minutes of training that a method needs: surrogate and explainer."""
    steps = {"vit-shapley": "train-explainer-paper", "vitshap": "train-explainer-default"}
    if row not in steps:
        return "0"
    results = [store.find(setting, name) for name in ("train-surrogate", steps[row])]
    if any(one is None for one in results):
        return NOT_RUN
    return f"{sum(one.record['seconds'] for one in results if one is not None) / 60:.1f}"


def _name(one: Specification) -> str:
    kind, _, number = one.id.partition("-")
    return f"{kind.capitalize()} {number}"


def _anchor(one: Specification) -> str:
    text = f"{_name(one)}: {one.title}".lower()
    kept = "".join(letter for letter in text if letter.isalnum() or letter in " -_")
    return "-".join(kept.split())
