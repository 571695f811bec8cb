"""What was measured, in words: data, model, classes and images of a panel, and where its result comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vitshap.reproduce.profiles import Setting
from vitshap.reproduce.specifications import Panel
from vitshap.reproduce.steps import with_needs
from vitshap.reproduce.store import Result, Store, changed

NAMES = {
    "imagenette": "ImageNette",
    "mura": "MURA",
    "pets": "Pets",
    "chest": "Chest radiographs",
    "digits": "Digits",
}
MODELS = {f"vit-{size}": f"ViT-{size.capitalize()}" for size in ("tiny", "small", "base", "large")}


EARLIER_TRAINING = "measured with networks of an earlier training by the same settings"


@dataclass
class Source:
    """A finished step that a table or figure shows."""

    setting: Setting
    record: Mapping[str, Any]
    """What the step left: hardware, date, seed, seconds and command among it."""
    facts: dict[str, None] = field(default_factory=dict)
    """How many images, and what else differs from the paper, in words."""


def data_name(panel: Panel, setting: Setting | None) -> str:
    """Return the data set that was measured; the paper's if it is not part of the profile."""
    return NAMES[panel.data if setting is None else setting.data]


def panel_title(panel: Panel, setting: Setting | None, images: int | None) -> str:
    """Return what a table is of, and what the paper's numbers in it are of, where that is something else."""
    paper = f"{NAMES[panel.data]}, {MODELS[panel.model]}"
    here = f"{data_name(panel, setting)}, {setting.architecture}" if setting and setting.architecture else paper
    title = f"{here}, {explained_classes(panel)}" + ("" if images is None else f" ({images:,} images)")
    return title if here == paper else f"{title}; paper: {paper}"


def explained_classes(panel: Panel) -> str:
    """Return which classes of which images are explained."""
    if not panel.step.endswith("-abnormal"):
        return f"{panel.classes} classes"
    return "images predicted abnormal" if panel.classes == "target" else "abnormal class of images predicted normal"


def facts(panel: Panel, setting: Setting, result: Result) -> Iterator[str]:
    """Yield how many images a panel shows, and of how many non-target classes."""
    part = result.values.get(panel.classes, result.values)
    images = part.get("images")
    if images is None and panel.step == "timing":
        counts = {row["batch"]: row["images"] for row in part["rows"].values()}
        for size, count in sorted(counts.items()):
            yield f"{count:,} images in batches of {size}" if size > 1 else f"{count:,} images one at a time"
    if images is not None:
        predicted = "abnormal" if panel.classes == "target" else "normal"
        which = f" predicted {predicted}" if panel.step in ("evaluate-abnormal", "sensitivity-abnormal") else ""
        yield f"{images if isinstance(images, int) else len(images):,} images{which}"
    for name, reason in result.record.get("withdrawn", {}).items():
        yield f"{name}: withdrawn, {reason}"
    drawn = panel.step in ("evaluate-main", "sensitivity") and panel.classes == "non-target"
    if drawn and setting.explained_others is not None:
        yield (
            f"non-target: {setting.explained_others} of each image's other classes, drawn once for all methods (the paper: "
            "all)"
        )


def of_earlier_training(store: Store, setting: Setting, step: str, result: Result) -> bool:
    """Whether a network that a step measured has been trained again since, by the same settings.

    By the weights; by the date for results that do not say which weights they are of.
    """
    before = {name: store.find(setting.name, name) for name in with_needs([step]) if name.startswith("train-")}
    found = {name: one for name, one in before.items() if one is not None}
    if result.networks:
        return bool(changed(result.networks, {name: one.weights_digest for name, one in found.items()}))
    return any(one.record["date"] > result.record["date"] for one in found.values())


def source_lines(sources: Mapping[str, Source]) -> list[str]:
    """Return a line for all steps of one setting that were run on the same machine and day: what was measured, label,
    hardware, date, seed, command, and the seconds of each step."""
    lines: dict[tuple[str, str, str], dict[str, str]] = {}
    known: dict[tuple[str, str, str], dict[str, None]] = {}
    for name, source in sources.items():
        setting, about = source.setting, source.record
        what = f"{NAMES[setting.data]}, {setting.label}{f': {setting.note}' if setting.note else ''}"
        step = name.partition("/")[2]
        command = about["command"].replace(f"/{step} ", "/STEP ")
        made = f"{about['hardware']}, {about['date']}, seed {about['seed']}"
        lines.setdefault((what, made, command), {})[step] = f"{about['seconds']:,.0f} s"
        known.setdefault((what, made, command), {}).update(source.facts)
    return [_source_line(*key, [*known[key]], steps) for key, steps in lines.items()]


def _source_line(what: str, made: str, command: str, facts: Sequence[str], steps: Mapping[str, str]) -> str:
    listed = ", ".join(f"{name} {seconds}" for name, seconds in steps.items())
    if len(steps) == 1:
        command, listed = command.replace("/STEP ", f"/{next(iter(steps))} "), next(iter(steps.values()))
    return f"{'; '.join((what, *facts, made))}; `{command}`: {listed}"
