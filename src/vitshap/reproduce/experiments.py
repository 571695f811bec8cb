"""Steps beyond the paper: what each part of our training procedure adds, and how fast estimators converge."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch

from vitshap.experiments import ablation, convergence
from vitshap.experiments.tables import Table
from vitshap.explainers import Explainer
from vitshap.files import read_json, write_text
from vitshap.metrics import agreement, deletion, insertion
from vitshap.reproduce.context import Context
from vitshap.reproduce.shapley import compared_games, predictions, stored_truth
from vitshap.training.batches import evenly
from vitshap.training.values.store import Evaluator

COALITIONS = 40
"""Evaluations of each view in the comparison of procedures."""
THRESHOLD = 0.1
"""Of the largest standard error to the range of the values, at which an image has converged."""
THRESHOLD_IMAGES = 20
"""Images that are estimated one by one until then, spread over the compared ones: each takes seconds, in which a GPU mostly
waits."""


def measure_procedure(context: Context, folder: Path) -> dict[str, Any]:
    """Train explainers with each step beyond the paper's procedure, alone and together, with equal evaluations."""
    surrogate, known, targets = context.surrogate, stored_truth(context), predictions(context)
    pixels, compiled = context.pixels(surrogate, context.compared), surrogate.device.type == "cuda"
    evaluator = Evaluator(surrogate, compiled=compiled)
    evaluator.choose_precision(pixels)

    def judge(one: Explainer) -> dict[str, float | None]:
        explanation = one(pixels)
        scores = agreement(explanation.values, known, targets)
        for name, metric in (("insertion", insertion), ("deletion", deletion)):
            scores[name] = metric(evaluator.model, pixels.to(evaluator.dtype), explanation).target(targets).mean
        return scores

    named = list(ablation.variants(context.scale.procedure_views, COALITIONS, surrogate.num_players).items())
    numbers = context.scale.procedure_variants or range(len(named))
    rows = Rows(folder / "rows.json")
    done = {row["variant"] for row in rows.before}
    chosen = {name: config for name, config in (named[number] for number in numbers) if name not in done}

    def finished(table: Table) -> None:
        rows.add(table)
        context.console.print(table.line(), highlight=False)

    table = ablation.results_table("procedures")
    train, val = (context.opened(part, surrogate) for part in ("train", "val"))
    runs = folder / "runs"
    # A variant that was interrupted starts again, so that its seconds are whole.
    shutil.rmtree(runs, ignore_errors=True)
    if chosen:
        ablation.ablate(surrogate, train, val, judge, chosen, runs, table=table, compiled=compiled, finished=finished)
    return {"rows": rows.all()}


def measure_convergence(context: Context, folder: Path) -> dict[str, Any]:
    """Measure evaluations and seconds until Shapley values converge, by estimator and number of evaluations.

    Every row is stored when it is measured.
    """
    game_of, images = compared_games(context), len(context.compared)
    budgets, threshold = (Rows(folder / f"{name}.json") for name in ("budgets", "threshold"))

    def measured(table: Table) -> None:
        budgets.add(table)
        context.console.print(table.line(), highlight=False)

    with torch.no_grad():
        convergence.measure_budgets(
            game_of,
            images,
            context.scale.convergence_budgets,
            reference=stored_truth(context),
            skip={(row["estimator"], row["budget"]) for row in budgets.before},
            finished=measured,
        )
        few = evenly(images, THRESHOLD_IMAGES)
        convergence.measure_threshold(
            lambda part: game_of(few[part]),
            len(few),
            THRESHOLD,
            budget=context.scale.truth,
            first=len(threshold.before),
            finished=threshold.add,
        )
    return {"budgets": budgets.all(), "threshold": threshold.all()}


class Rows:
    """Rows of a table in a file, those of an earlier part of an interrupted step among them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.before = self.all()

    def add(self, table: Table) -> None:
        """Store the rows of a table after those that were there before."""
        write_text(self._path, json.dumps([*self.before, *table.to_json()["rows"]]))

    def all(self) -> list[dict[str, Any]]:
        """Return all stored rows."""
        return read_json(self._path) if self._path.is_file() else []
