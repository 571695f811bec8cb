"""The pages ``docs/results``: every table and figure from committed results, beside the paper's numbers.

``docs/results/data/PROFILE/SETTING/STEP/result.json`` are the results as their steps left them, without weights and
pictures. All text of the pages is made here, so that a test can compare the two. Maps over photos of data sets are not
committed.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from vitshap.experiments.tables import Column, Table
from vitshap.files import read_json, write_text
from vitshap.reproduce.cells import LEGEND, NOT_RUN
from vitshap.reproduce.profiles import FULL, PROFILES, Profile
from vitshap.reproduce.runner import tasks_of
from vitshap.reproduce.sources import source_lines
from vitshap.reproduce.specifications import FAITHFULNESS, SPECIFICATIONS, Specification
from vitshap.reproduce.store import RESULT, Store
from vitshap.reproduce.summary import all_numbers, best_methods
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
- **reduced scale**: made with the same code and specification, but with a smaller model or other data, as said beside it,
  and with [smaller numbers](#what-is-smaller-than-in-the-paper);
- **not run**: the command exists, and has not been run for this page.

What differs from the paper, and why: [differences](../differences.md). The same on two CPU cores, with short trainings and
few images: [on a CPU](cpu.md).
"""
PICTURES = ("maps", "class-maps")
"""Kinds of figures that are pictures of photos, which are not shown on the pages."""
WHY_NOT_RUN = (
    "They need more time on a GPU than there was. ViT-Small and ViT-Large (tables 8 and 9, figure 11) belong to the "
    "profile `full`: no weights of theirs could be had."
)
BRIEF_INTRODUCTION = """# On a CPU

What `vitshap reproduce --profile cpu` gives on two CPU cores: the steps of the [other pages](index.md), with trainings so
short that their effect is far from exhausted, and with few images, spread evenly over those of the other profiles, so that
intervals are wide. All numbers are of **reduced scale**. On ImageNette the networks are those of the recipe
`imagenette-deit-tiny`: "the paper's procedure" has the paper's loss and coalitions, not the authors' explainer network.
Tables and figures of which nothing was run are left out.
"""
SMALLER = {
    "split": ("training, validation and test images, at most", "all"),
    "images": ("test images of tables and curves", "1,024; Pets 735"),
    "curve_step": ("patches between the points of insertion and deletion; the area is then trapezoidal", "1"),
    "subsets": ("subsets per image of faithfulness and of each size of sensitivity-n", ""),
    "masks": ("masks of RISE", ""),
    "shapley_images": ("images with reference Shapley values", "100"),
    "truth": ("evaluations per image of the reference values", ""),
    "paired": ("evaluations per image of KernelSHAP as published, with pairs", ""),
    "unpaired": ("the same without pairs", ""),
    "refined": ("evaluations per image of refine", ""),
    "removal_step": ("patches between the points of the removal figure", ""),
    "retrained_methods": ("methods of ROAR with retraining", "all"),
    "retrained_counts": ("numbers of patches of ROAR with retraining", "11, from 1 to 182"),
    "retrained_from": ("network that ROAR's retraining starts from", ""),
    "retrained_epochs": ("epochs of ROAR's retraining", ""),
    "ablation_epochs": ("epochs of the explainer's variants", ""),
    "loss_images": ("validation and test images on which an explainer's loss is measured", "all"),
    "timed_images": ("timed images", ""),
    "grid_images": ("images of the comparison of maps with KernelSHAP", ""),
}
"""What the numbers of ``Scale`` are, and the profile full's where its number says too little."""


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
        "index.md": "\n".join(
            [
                INTRODUCTION,
                *_summary(docs, PUBLISHED, BRIEF),
                *_not_run(docs),
                *_scale(PROFILES[PUBLISHED]),
                *_status(views, brief),
            ]
        ),
        "tables.md": "\n".join(["# Tables\n", LEGEND, "", FAITHFULNESS, "", *tables]),
        "figures.md": "\n".join(["# Figures\n", *figures]),
        "cpu.md": "\n".join([BRIEF_INTRODUCTION, *_summary(docs, BRIEF), *_scale(PROFILES[BRIEF]), *on_cpu]),
    }


def _summary(docs: Path, *profiles: str) -> list[str]:
    """Return the best methods in some profiles, and all numbers of the first of them."""
    found = best_methods(docs / DATA, *profiles), all_numbers(docs / DATA, profiles[0])
    return ["## Which method is best at what, and at which cost\n", *(table.to_markdown() for table in found)]


def _views(docs: Path, profile: str) -> Iterator[View]:
    viewer = Viewer(PROFILES[profile], Store(docs / DATA / profile), finished_only=profile == BRIEF)
    return (viewer.view(one) for one in SPECIFICATIONS.values())


def _images(profile: str) -> str:
    """Return the folder of a profile's charts."""
    return IMAGES if profile == PUBLISHED else f"{IMAGES}/{profile}"


def _scale(profile: Profile) -> list[str]:
    """Return which numbers of a profile's measurements are smaller than those of the profile full, and its trainings."""
    columns = (
        Column("what"),
        Column("here", title=f"profile `{profile.name}`"),
        Column("full", title="profile `full`"),
    )
    table, usual = Table("What is smaller", columns), asdict(FULL.scale)
    for name, value in asdict(profile.scale).items():
        if name in SMALLER and value != usual[name]:
            what, full = SMALLER[name]
            here = (
                ", ".join("all" if one is None else _plain(one) for one in value) if name == "split" else _plain(value)
            )
            table.add(what=what, here=here, full=full or _plain(usual[name]))
    for key, setting in profile.settings.items():
        others, usually = setting.explained_others, FULL.settings[key].explained_others
        what = f"non-target classes of each image, {setting.name}"
        if others is not None and what not in table.values("what"):
            full = "all" if usually is None else f"{_plain(usually)} (the paper: all)"
            table.add(what=what, here=_plain(others), full=full)
    changes = [f"- `{one}`" for one in profile.scale.training]
    changes += [f"- default procedure: `{one}`" for one in profile.scale.default_training]
    for name, setting in profile.names().items():
        changes += [f"- {name}: `{one}`" for one in setting.changes]
        changes += [f"- {name}, default procedure: `{one}`" for one in setting.default_changes]
    return [
        "## What is smaller than in the paper\n",
        table.to_markdown(),
        "Changes of the recipes' settings:\n",
        *changes,
        "",
    ]


def _plain(value: object) -> str:
    """Return a number of ``Scale`` as text."""
    if isinstance(value, list | tuple):
        return ", ".join(map(_plain, value))
    return f"{value:,}" if isinstance(value, int) else str(value)


def _is_table(view: View) -> bool:
    return view.specification.id.startswith("table-")


def _section(view: View, profile: str) -> str:
    """Return one table or figure: what it shows, where its numbers come from, tables and charts."""
    one = view.specification
    lines = [f"## {_name(one)}: {one.title}\n", f"Images of the paper: {one.images}.\n"]
    lines += [f"{note}\n" for note in one.notes if note != FAITHFULNESS]  # which stands once on every page
    lines += (
        ["Here:\n", *(f"- {line}" for line in source_lines(view.sources)), ""]
        if view.sources
        else [f"Here: {NOT_RUN}.\n"]
    )
    for table in view.tables:
        table.notes = [note for note in table.notes if note != LEGEND]
        lines.append(table.to_markdown())
    lines += [f"![{one.title}]({_images(profile)}/{name})\n" for name in view.charts]
    if one.kind in PICTURES:
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
        seconds = sum(profile.expected(setting, name) or 0 for name in names)
        ablations = [name for name in names if name.startswith("ablation-")]
        listed = [name for name in names if name not in ablations]
        listed += [f"{len(ablations)} steps ablation-*"] if ablations else []
        table.add(setting=setting, steps=", ".join(listed), estimated=duration(seconds))
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
    what = "pictures" if view.specification.kind in PICTURES else "numbers or curves"
    return "complete" if not view.not_run else f"{view.filled:,} of {total:,} {what}"


def _name(one: Specification) -> str:
    kind, _, number = one.id.partition("-")
    return f"{kind.capitalize()} {number}"


def _anchor(one: Specification) -> str:
    text = f"{_name(one)}: {one.title}".lower()
    kept = "".join(letter for letter in text if letter.isalnum() or letter in " -_")
    return "-".join(kept.split())
