"""Ablation: train an explainer with each step beyond the paper's procedure alone, with all, and with all but one.

All variants spend equally many evaluations. Coalition values are computed once per distribution of sizes and shared by
variants that differ in the loss only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from vitshap.experiments.tables import Column, Table
from vitshap.explainers import Explainer, ExplainerConfig
from vitshap.models import MaskedModel
from vitshap.training.batches import Images
from vitshap.training.configs import ExplainerTraining, LoopConfig, ValuesConfig, number
from vitshap.training.explainer import make_store, network_config, train_explainer, validation_set
from vitshap.training.loop import best_record
from vitshap.training.recipes import load_recipe
from vitshap.training.values.store import Evaluator, ValueStore, training_images

RECIPE = "imagenette-deit-tiny"
"""Recipe whose steps are measured."""
Judge = Callable[[Explainer], dict[str, float | None]]
"""Computes scores of an explainer, by name."""
SCORES = (
    *(f"{prefix}{name}" for name in ("target", "others") for prefix in ("reliability_", "raw_", "")),
    *("insertion", "others_insertion", "deletion", "random_insertion", "random_deletion", "loss"),
)
"""Columns of the table with a judge's scores; those that a judge does not compute stay empty."""


def results_table(title: str) -> Table:
    """Make the empty table of an ablation: one row per variant."""
    columns = (
        Column("variant"),
        Column("evaluations", ",.0f"),
        Column("values_seconds", ",.0f", "s", title="coalition values"),
        Column("training_seconds", ",.0f", "s", title="training"),
        Column("best_epoch", ".0f"),
        *(Column(name, ".3f") for name in SCORES),
    )
    note = "coalition values: 0 s where an earlier variant's are used, or where they are computed during training"
    return Table(title, columns, notes=[note])


def variants(views: int, coalitions: int, num_players: int, *, passes: int = 2) -> dict[str, ExplainerTraining]:
    """Return the paper's procedure, its loss on stored values, every step alone on top of that, all, and all but one."""
    loop = LoopConfig(epochs=passes * views, batch_size=256, learning_rate=3e-4, warmup_steps=200, save_every=10**9)
    plain = ValuesConfig(
        views=views,
        coalitions=coalitions,
        remove_size_effect=False,
        noise_weight_power=0.0,
        predicted_class_weight=0.0,
        allocation="shapley",
        loss="regression",
    )
    tanh = ExplainerTraining(loop=loop, values=plain, network=ExplainerConfig())
    stored = replace(tanh, network=ExplainerConfig(tanh=False, output_scale=2 / num_players))
    steps = recipe_steps()
    paper_epochs = max(1, views * (coalitions + 1) // 33)
    return {
        "paper": ExplainerTraining(procedure="paper", loop=LoopConfig(epochs=paper_epochs, save_every=10**9)),
        "stored values, tanh": tanh,
        "stored values": stored,
        **{f"+ {name}": _with(stored, [change]) for name, change in steps.items()},
        "all together": _with(stored, steps.values()),
        **{f"all but {name}": _with(stored, [c for other, c in steps.items() if other != name]) for name in steps},
    }


def recipe_steps() -> dict[str, dict[str, Any]]:
    """Return what each step changes, by part of the configuration, with the shipped recipe's settings."""
    recipe = load_recipe(RECIPE).explainer
    values, views = recipe.values, recipe.augmentation
    assert views is not None
    return {
        "size effect removed": {"values": {"remove_size_effect": values.remove_size_effect}},
        "noise weights": {
            "values": {"noise_weight_power": values.noise_weight_power, "noise_offset": values.noise_offset}
        },
        "larger weight of the predicted class": {"values": {"predicted_class_weight": values.predicted_class_weight}},
        "sizes by pilot": {"values": {"allocation": values.allocation}},
        "noise cancelled": {"values": {"loss": values.loss}, "network": {"profiles": True}},
        "magnitudes": {"network": {"magnitudes": True}},
        "upright photos": {"augmentation": {"vertical_flip": views.vertical_flip}},
        "smaller crops": {
            "augmentation": {"crop_scale": views.crop_scale},
            "values": {"weak_augmentation_fraction": values.weak_augmentation_fraction},
        },
        "pasted rectangles": {"augmentation": {"paste": views.paste}},
        "low-confidence images oversampled": {
            "values": {"low_confidence_oversampling": values.low_confidence_oversampling}
        },
    }


def _with(config: ExplainerTraining, changes: Iterable[dict[str, Any]]) -> ExplainerTraining:
    for change in changes:
        parts: dict[str, Any] = {part: replace(getattr(config, part), **to) for part, to in change.items()}
        config = replace(config, **parts)
    return config


def _equal_evaluations(config: ExplainerTraining, images: int, samples: int) -> ExplainerTraining:
    """Use fewer coalitions per image where some images are repeated."""
    if config.values.low_confidence_oversampling == 1:
        return config
    coalitions = round((number(config.values.coalitions) + 1) * images / samples) - 1
    return replace(config, values=replace(config.values, coalitions=max(1, coalitions)))


def _store_key(config: ExplainerTraining) -> tuple[Any, ...]:
    """Return what coalition values depend on: variants that agree in it share them."""
    values = config.values
    # A pilot chooses sizes by the weights of the loss.
    weights = (values.noise_weighting, values.predicted_class_weight) if values.allocation == "pilot" else None
    return (
        config.augmentation,
        weights,
        values.views,
        values.coalitions,
        values.weak_augmentation_fraction,
        values.low_confidence_oversampling,
    )


def ablate(
    surrogate: MaskedModel,
    data: Any,
    val: Any,
    judge: Judge,
    chosen: dict[str, ExplainerTraining],
    folder: Path,
    *,
    table: Table,
    compiled: bool = False,
    finished: Callable[[Table], object] = lambda table: None,
    console: Console | None = None,
) -> Table:
    """Train every variant and add its row to ``table``; ``finished`` is called with the table after every row.

    ``compiled``: compile the evaluation of coalitions; trainings are too short to gain by it.
    """
    evaluate = Evaluator(surrogate, compiled=compiled)
    unseen = Images(surrogate, val, None, seed=0)
    stores: dict[tuple[Any, ...], ValueStore] = {}
    for variant_number, (name, config) in enumerate(chosen.items()):
        images = training_images(surrogate, data, config)
        config = _equal_evaluations(config, len(data), len(images))
        started, store = time.perf_counter(), None
        if config.procedure == "values":
            key = _store_key(config)
            if key not in stores:
                stores.clear()  # one at a time: memory
                stores[key] = make_store(evaluate, images, config.values)
                stores[key].fill()
            store = stores[key]
        values_seconds = time.perf_counter() - started
        torch.manual_seed(0)
        explainer = Explainer(surrogate, network_config(config, surrogate.num_players))
        started = time.perf_counter()
        place = folder / f"variant-{variant_number}"
        validation = validation_set(place, evaluate, unseen, explainer, config, store)
        history = train_explainer(
            explainer, images, validation, place, config, store=store, console=console or Console(quiet=True)
        )
        seconds = time.perf_counter() - started
        best = best_record(history, validation.selection_metric)
        per_image = number(config.values.coalitions) if store is not None else config.coalitions
        rounds = number(config.values.views if store is not None else config.loop.epochs)
        table.add(
            variant=name,
            evaluations=rounds * len(images) * (per_image + 1),
            values_seconds=values_seconds,
            training_seconds=seconds,
            best_epoch=int(best["epoch"]),
            **judge(explainer),
            loss=best["loss"],
        )
        finished(table)
    return table
