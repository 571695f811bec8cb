"""Steps beyond the paper: what each part of our training procedure adds, and how fast estimators converge."""

from __future__ import annotations

import json
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

COALITIONS = 40
"""Evaluations of each view in the comparison of procedures."""
THRESHOLD = 0.1
"""Of the largest standard error to the range of the values, at which an image has converged."""
ROWS = "rows.json"


def measure_procedure(context: Context, folder: Path) -> dict[str, Any]:
    """Train explainers with each step beyond the paper's procedure, alone and together, with equal evaluations."""
    surrogate, known, targets = context.surrogate, stored_truth(context), predictions(context)
    pixels = context.pixels(surrogate, context.compared)

    def judge(one: Explainer) -> dict[str, float | None]:
        explanation = one(pixels)
        scores = agreement(explanation.values, known, targets)
        for name, metric in (("insertion", insertion), ("deletion", deletion)):
            scores[name] = metric(surrogate, pixels, explanation).target(targets).mean
        return scores

    named = list(ablation.variants(context.scale.procedure_views, COALITIONS, surrogate.num_players).items())
    numbers = context.scale.procedure_variants or range(len(named))
    rows: list[dict[str, Any]] = read_json(folder / ROWS) if (folder / ROWS).is_file() else []
    before = list(rows)
    done = {row["variant"] for row in before}
    chosen = {name: config for name, config in (named[number] for number in numbers) if name not in done}

    def finished(table: Table) -> None:
        write_text(folder / ROWS, json.dumps([*before, *table.to_json()["rows"]]))
        context.console.print(table.line(), highlight=False)

    table = ablation.results_table("procedures")
    train, val = (context.opened(part, surrogate) for part in ("train", "val"))
    if chosen:
        ablation.ablate(surrogate, train, val, judge, chosen, folder / "runs", table=table, finished=finished)
    return {"rows": read_json(folder / ROWS)}


def measure_convergence(context: Context, folder: Path) -> dict[str, Any]:
    """Measure evaluations and seconds until Shapley values converge, by estimator and number of evaluations."""
    game_of, images = compared_games(context), len(context.compared)
    with torch.no_grad():
        table = convergence.measure_budgets(
            game_of,
            images,
            context.scale.convergence_budgets,
            reference=context.scale.truth,
            finished=lambda table: context.console.print(table.line(), highlight=False),
        )
        reached = convergence.measure_threshold(game_of, images, THRESHOLD, budget=context.scale.truth)
    return {"budgets": table.to_json()["rows"], "threshold": reached.to_json()["rows"]}
