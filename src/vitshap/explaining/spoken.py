"""What ``vitshap explain`` says, line by line: plain text, made here and printed elsewhere."""

from __future__ import annotations

from collections.abc import Iterator

from vitshap.explaining.sources import CHANCE, Source
from vitshap.report import Explained, Failed, patches
from vitshap.report.entries import class_label
from vitshap.report.words import (
    accuracy,
    convergence,
    hints,
    output_text,
    plain,
    reliability,
    reliability_text,
    signed,
)

NAMES_SHOWN = 20
PREDICTIONS = 5
OTHERS = 4
"""Further classes whose maps' reliability is printed."""


def about_source(source: Source) -> Iterator[str]:
    """What explains, what it knows, and what to beware of."""
    yield f"{source.name}; method {source.method_name}"
    names, count = source.model.class_names, source.model.num_classes
    if names is None:
        yield f"{count:,} classes, which have no names: give --target by number, 0 to {count - 1}"
    else:
        shown = ", ".join(class_label(names, index) for index in range(min(count, NAMES_SHOWN)))
        more = f", and {count - NAMES_SHOWN:,} more" if count > NAMES_SHOWN else ""
        yield f"it knows {count:,} class{'' if count == 1 else 'es'}: {shown}{more}"
    for warning in source.warnings:
        yield f"warning: {warning}"


def about_budget(budget: int, why: str, seconds: float, images: int) -> str:
    """How many evaluations an image gets, why, and how long that will take."""
    whole = f", {duration(seconds * images)} for {images:,} images" if images > 1 else ""
    again = "" if why == "asked for" else f"; --budget {budget} gives the same values again"
    return f"{budget:,} evaluations per image, {why}: {duration(seconds)} per image{whole}{again}"


def about_entry(entry: Explained | Failed, source: Source, *, k: int) -> Iterator[str]:
    """One image: predictions, and the most important patches of the first explained class."""
    if isinstance(entry, Failed):
        yield f"{entry.name}: {entry.reason}"
        return
    outputs = source.model.unit
    yield entry.name
    said = (f"{entry.label(index)} {output_text(value, outputs)}" for index, value in entry.predicted(PREDICTIONS))
    yield f"  predicted: {', '.join(said)}"
    for warning in entry.warnings:
        yield f"  warning: {warning}"
    for note in (*entry.notes, *hints(entry)):
        yield f"  note: {note}"
    first = entry.classes[0]
    if source.method_name == CHANCE:
        yield f"  patches that chance drew highest, which explains nothing about {entry.label(first)}:"
    else:
        yield f"  patches that speak most for {entry.label(first)}{_ends(entry, source)}, rows and columns counted from 1:"
    for rank, patch in enumerate(patches(entry, k, first), 1):
        error = "" if patch.stderr is None else f" ± {plain(patch.stderr)}"
        yield f"    {rank}. {signed(patch.value)}{error}  {patch.place}: {patch.cell} ({patch.pixels})"
    for text in (accuracy(entry, first), convergence(entry.explanation)):
        if text is not None:
            yield f"    {text}"
    known = [(index, reliability(entry, index)) for index in entry.classes[1 : 1 + OTHERS]]
    if others := [f"{entry.label(index)} {reliability_text(value)}" for index, value in known if value is not None]:
        yield f"    reliability of other maps: {', '.join(others)}"


def nothing_fits(doubtful: int, explained: int) -> str:
    """What to do where no class fits."""
    which = "this image" if explained == 1 else f"{doubtful:,} of {explained:,} images"
    return (
        f"No known class seems to fit {which}, so the explanation says little. For other classes name a net that knows "
        "them: vitshap explain PHOTO --model NAME (of timm, or a hub id or folder of transformers)."
    )


def duration(seconds: float) -> str:
    """A time as a person would say it."""
    if seconds < 90:
        return f"about {max(seconds, 0.1):.1f} s" if seconds < 10 else f"about {seconds:.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 5400 else f"about {seconds / 3600:.1f} h"


def _ends(entry: Explained, source: Source) -> str:
    base, full = entry.explanation.base_values, entry.explanation.full_values
    if base is None or full is None:
        return ""
    texts = (output_text(float(ends[0, 0]), source.model.unit) for ends in (base, full))
    return " ({} with no patch, {} with all)".format(*texts)
