"""Two photos that come with scikit-learn, explained by the explainer that comes with the package."""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from vitshap.explainers import bundle
from vitshap.explaining import Explained, Failed, Wanted, explain_photos, open_bundle, spoken
from vitshap.explaining.outputs import Heatmaps
from vitshap.report import Summary

NAMES = ("china.jpg", "flower.jpg")
CLASSES, PATCHES = 5, 3
NONE_SHIPPED = "No explainer comes with this installation: photos are left out. Train one with: vitshap train RECIPE"


class Photos(NamedTuple):
    """What was explained, or why nothing was."""

    entries: list[Explained]
    summary: Summary | None
    said: str = ""


def explain_samples(folder: Path, console: Console) -> Photos:
    """Explain them, say what was found, and draw heatmaps into ``folder``; without a shipped explainer say so."""
    if not bundle.shipped():
        _say(console, NONE_SHIPPED)
        return Photos([], None, NONE_SHIPPED)
    try:
        source = open_bundle()
    except (ValueError, OSError) as error:  # what was done before must not be lost
        said = f"The explainer that comes with this installation cannot be used: {' '.join(str(error).split())}"
        _say(console, said)
        return Photos([], None, said)
    _say(console, *spoken.about_source(source))
    paths = [Path(str(files("sklearn.datasets.images") / name)) for name in NAMES]
    heatmaps, entries = Heatmaps(folder), []
    for entry in explain_photos(paths, source, wanted=Wanted(top=CLASSES)):
        entry = replace(entry, path=Path(entry.path).name)  # where it lies among the packages is nobody's concern
        _say(console, *spoken.about_entry(entry, source, k=PATCHES))
        if not isinstance(entry, Failed):
            entries.append(entry)
            heatmaps.add(entry)
    return Photos(entries, source.summary({}))


def _say(console: Console, *lines: str) -> None:
    console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True, emoji=False)
