"""The demo from start to end: photos first, then training on digits, the comparison, and the report.

Everything is written to one folder. A later run replaces it; a folder that no demo made is never touched.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image
from rich.console import Console
from torch import Tensor

from vitshap.data import ImageData, load_data
from vitshap.demo import digits
from vitshap.experiments.tables import write_tables
from vitshap.explainers import bundle
from vitshap.explaining import Explained, Failed, ReportWriter, Section, Summary, explain_photos, open_bundle, terminal
from vitshap.explaining.curves import CLASSES
from vitshap.explaining.html import figure_html, pairs_html, table_html
from vitshap.explaining.sinks import Heatmaps
from vitshap.files import write_text
from vitshap.training.loop import TrainingDiverged
from vitshap.training.recipes import Recipe, load_recipe, summary
from vitshap.training.recipes.run import BUNDLE, SUMMARY
from vitshap.training.recipes.run import run as train

RECIPE = "digits"
IMAGES = 8
MARK, TRAINING, DIGITS, PHOTOS, NUMBERS, REPORT = (
    "vitshap-demo",
    "training",
    "digits",
    "photos",
    "numbers.json",
    "report.html",
)
HEADING = "Shapley values in one forward pass"
SAMPLES = ("china.jpg", "flower.jpg")
"""Photos that come with scikit-learn."""
PATCHES = 3
NONE_SHIPPED = "No explainer comes with this installation: photos are left out. Train one with: vitshap train RECIPE"


class Photos(NamedTuple):
    """The explained photos, and what explained them or why nothing did."""

    entries: list[Explained]
    summary: Summary


def main(out: Path, console: Console) -> int:
    """Run the demo as a command; return the exit code: 2, after one line, for errors that the user can correct."""
    try:
        run(out, console)
    except (ValueError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except TrainingDiverged as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the next run starts from the beginning", file=sys.stderr)
        return 130
    return 0


def run(
    out: Path,
    console: Console,
    *,
    recipe: Recipe | None = None,
    images: int = IMAGES,
    budgets: Sequence[int] = digits.BUDGETS,
    estimate: bool = True,
) -> digits.Comparison:
    """Explain photos, train, compare and draw; everything goes to the folder ``out``.

    ``recipe``: by default the shipped ``digits``. ``estimate``: print first how long the trainings will take.
    """
    started = time.perf_counter()
    prepare(out)
    _heading(console, "1. Photos, by the explainer that comes with the package")
    photos = explain_samples(out / PHOTOS, console)
    _write_report(out, photos, [])
    if photos.entries:
        _print(console, f"report: {out / REPORT} (digits are added to it below)")

    _heading(console, "2. Training on handwritten digits: classifier, surrogate, explainer")
    recipe = recipe or load_recipe(RECIPE)
    explainer = train(recipe, out / TRAINING, console=console, device="cpu", estimate=estimate)
    trained = summary.in_words(json.loads((out / TRAINING / SUMMARY).read_text()))

    _heading(console, f"3. {images} unseen digits: every method beside the exact Shapley values")
    test = load_data(RECIPE, seed=recipe.data.seed).test
    found = digits.compare(explainer, _pixels(test)[:images], test.labels[:images], console, budgets=budgets)
    console.print(found.table.to_terminal())
    _heading(console, "4. Theorem 1: the explainer's loss bounds its error")
    for name, number in digits.theorem_lines(found.theorem):
        _print(console, f"{name}: {number}")

    _heading(console, "5. Pictures and report")
    drawn = list(digits.draw_digits(found, out / DIGITS))
    curves = list(digits.draw_training(out / DIGITS, out / TRAINING))
    for name in ("exact", "explainer"):
        found.explanations[name].save(out / DIGITS / f"{name}.safetensors")
    _write_numbers(out / NUMBERS, found, time.perf_counter() - started)
    _write_report(out, photos, [*_digit_sections(found, drawn), _training_section(trained, curves)])
    _print_places(out, console, photos=bool(photos.entries))
    _print(console, f"{time.perf_counter() - started:.0f} s in all")
    return found


def prepare(out: Path) -> None:
    """Make the folder ready: remove an earlier demo, refuse anything else."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file: name a folder with --out")
    present = [name for name in (TRAINING, DIGITS, PHOTOS, NUMBERS, REPORT) if (out / name).exists()]
    if present and not (out / MARK).is_file():
        raise ValueError(f"{out / present[0]} exists and no demo made it: name another folder with --out")
    for name in present:
        shutil.rmtree(out / name) if (out / name).is_dir() else (out / name).unlink()
    write_text(out / MARK, "vitshap demo made the files in this folder, and replaces them when it runs again.\n")


def explain_samples(folder: Path, console: Console) -> Photos:
    """Explain the photos, print the results, and draw heatmaps into ``folder``; without a shipped explainer say so."""
    if not bundle.shipped():
        return _no_photos(NONE_SHIPPED, console)
    try:
        source = open_bundle()
    except (ValueError, OSError) as error:  # the digits need no shipped explainer
        reason = " ".join(str(error).split())
        return _no_photos(f"The explainer that comes with this installation cannot be used: {reason}", console)
    _print(console, *terminal.source_lines(source))
    paths = [Path(str(files("sklearn.datasets.images") / name)) for name in SAMPLES]
    heatmaps, entries = Heatmaps(folder), []
    for entry in explain_photos(paths, source, curves=CLASSES):
        entry = replace(entry, path=Path(entry.path).name)  # its folder among the packages does not matter
        _print(console, *terminal.entry_lines(entry, source, k=PATCHES))
        if not isinstance(entry, Failed):
            entries.append(entry)
            heatmaps.add(entry)
    return Photos(entries, source.summary({}))


def _no_photos(reason: str, console: Console) -> Photos:
    _print(console, reason)
    return Photos([], Summary(source="", method="", warnings=(reason,)))


def _write_report(out: Path, photos: Photos, sections: Sequence[Section]) -> None:
    """Write the report of ``vitshap explain`` about the photos, with further sections."""
    with ReportWriter(out, photos.summary, patches=PATCHES, heading=HEADING, sections=sections) as report:
        for entry in photos.entries:
            report.add(entry)


def _digit_sections(found: digits.Comparison, drawn: Sequence[digits.Drawn]) -> list[Section]:
    table = found.table
    rows = [[column.show(row[column.key]) for column in table.columns] for row in table.rows]
    numbers = table_html(table.title, [column.heading for column in table.columns], rows)
    notes = "".join(f"<p>{escape(note)}</p>" for note in table.notes)
    facts = "".join(f"<div>{pairs_html([line])}</div>" for line in digits.theorem_lines(found.theorem))
    theorem = (
        "<p>The explainer's loss bounds its distance from the exact Shapley values, without knowing them. Here they are "
        "known: losses and errors are sums over all coalitions, means over these digits and all classes.</p>"
        f'<dl class="facts">{facts}</dl>'
    )
    others = f"<details><summary>Other classes of each digit</summary>{_figures(drawn[1:])}</details>"
    return [
        Section(table.title, notes + numbers),
        Section("Theorem 1 on these digits", theorem),
        Section("Maps of the digits", _figures(drawn[:1]) + others),
    ]


def _training_section(trained: Sequence[str], curves: Sequence[digits.Drawn]) -> Section:
    return Section("Training on digits", "".join(f"<p>{escape(line)}</p>" for line in trained) + _figures(curves))


def _figures(pictures: Sequence[digits.Drawn]) -> str:
    parts = []
    for drawn in pictures:
        with Image.open(drawn.path) as image:
            parts.append(figure_html(image, drawn.caption))
    return "".join(parts)


def _pixels(images: ImageData) -> Tensor:
    """Return the digits, which are held as pixels, not as files."""
    assert isinstance(images.images, Tensor)
    return images.images


def _write_numbers(path: Path, found: digits.Comparison, seconds: float) -> None:
    names = {"error": "mean", "bound": "bound", "loose_bound": "loose_bound", "holds": "holds"}
    theorem = {name: getattr(found.theorem, attribute) for name, attribute in names.items()}
    write_tables(path, found.table, theorem=theorem, seconds=round(seconds, 1), torch=torch.__version__)


def _print_places(out: Path, console: Console, *, photos: bool) -> None:
    places = {
        "report, to be opened in a browser": out / REPORT,
        "pictures of digits": out / DIGITS,
        **({"heatmaps of photos": out / PHOTOS} if photos else {}),
        "numbers": out / NUMBERS,
        "the explainer, for vitshap.Explainer.from_pretrained": out / TRAINING / BUNDLE,
    }
    _print(console, *(f"{name}: {place}" for name, place in places.items()))


def _print(console: Console, *lines: str) -> None:
    console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True, emoji=False)


def _heading(console: Console, text: str) -> None:
    console.print(f"\n{text}", style="bold", highlight=False)
