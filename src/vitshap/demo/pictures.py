"""What the demo draws: digits by classes and by methods, and how the trainings went."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from vitshap import plots
from vitshap.demo.compare import Comparison
from vitshap.training.loop import LOG
from vitshap.training.recipes.recipe import STAGES

CLASSES = 5
CAPTIONS = {
    "classifier": "The classifier: cross-entropy and accuracy by epoch.",
    "surrogate": "The surrogate: how far its answers with missing patches are from the classifier's on whole digits.",
    "explainer": "The explainer: its loss on unseen digits, beside that of giving every patch the same value.",
}
SELECTION = "selection_loss"
"""What chooses the best epoch of an explainer that learns from stored values."""


class Drawn(NamedTuple):
    """A picture and what it shows."""

    path: Path
    caption: str


def draw_digits(comparison: Comparison, folder: Path) -> Iterator[Drawn]:
    """All methods side by side for the true class, then for each digit exact and learned values of several classes."""
    yield _methods(comparison, folder / "methods.png")
    for i in range(len(comparison.images)):
        yield _classes(comparison, i, folder / f"digit-{i}.png")


def draw_training(folder: Path, training: Path) -> Iterator[Drawn]:
    """Curves of every training that left a log under ``training``."""
    for stage in STAGES:
        log = training / stage / LOG
        if not log.is_file():
            continue
        records = [json.loads(line) for line in log.read_text().splitlines()]
        select = SELECTION if SELECTION in records[0] else None
        if select is not None:  # training weighs by noise: its loss has another scale, beside which the others are flat
            records = [{name: value for name, value in line.items() if name != "train_loss"} for line in records]
        figure = plots.training_curves(records, select=select, title=f"Training the {stage}")
        yield Drawn(plots.save(figure, folder / f"training-{stage}.png"), CAPTIONS[stage])


def _methods(comparison: Comparison, path: Path) -> Drawn:
    """Values of one unit alone: only they have a common scale."""
    unit = comparison.explanations["exact"].unit
    shown = {name: one for name, one in comparison.explanations.items() if one.unit == unit}
    labels = comparison.labels.tolist()
    figure = plots.method_grid(
        [[one[i].heatmap(label)[0].numpy() for one in shown.values()] for i, label in enumerate(labels)],
        [image.clamp(0, 1) for image in comparison.images],
        column_titles=list(shown),
        row_titles=[f"a {label}" for label in labels],
        units=unit,
        scale="row",
    )
    return Drawn(plots.save(figure, path), "Values for the true class of each digit; a row has one scale.")


def _classes(comparison: Comparison, i: int, path: Path) -> Drawn:
    exact, learned = (comparison.explanations[name][i] for name in ("exact", "explainer"))
    likeliest = exact.prediction[0].topk(CLASSES).indices.tolist()
    figure = plots.class_row(
        [one.heatmap(index)[0].numpy() for one in (exact, learned) for index in likeliest],
        comparison.images[i].clamp(0, 1),
        titles=[
            f"{name}, class {index}" + (f" ({float(exact.prediction[0, index]):.1%})" if name == "exact" else "")
            for name in ("exact", "explainer")
            for index in likeliest
        ],
        unit=exact.unit,
        title=f"a {int(comparison.labels[i])}",
    )
    said = f"A {int(comparison.labels[i])}: exact values above, the explainer's below, for the {CLASSES} likeliest classes."
    return Drawn(plots.save(figure, path), said)
