"""Estimate of the time that a recipe takes on this machine, from a few real optimiser steps of each training.

They are extrapolated (``clock``) together with validation, evaluation of coalitions, reading of images, checkpoints,
calibration and the evaluation on test images. The estimate is a range, because three things are unknown beforehand: early
stopping, the gain by compilation, and the number of images of low confidence (a tenth is assumed).
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import replace
from functools import partial

import torch
from rich.console import Console

from vitshap.data import (
    Splits,
)
from vitshap.models import MaskedModel
from vitshap.training.compilation import can_compile
from vitshap.training.processes import from_main
from vitshap.training.recipes.clock import Clock, StageTime, compiled, duration
from vitshap.training.recipes.recipe import STAGES, Recipe

LONG = 300.0
"""Seconds of a training above which compilation pays."""


def print_estimate(
    recipe: Recipe, model: MaskedModel, splits: Splits, done: Container[str], console: Console | None
) -> Recipe:
    """Print how long the run will take (``console`` None: time nothing); return the recipe with ``compiled`` decided."""
    stages: list[StageTime] = []
    if console is not None and needed(recipe, done):
        console.print("timing a few steps of each training")
        stages = estimate(recipe, model, splits, done=done)
    for name in STAGES:
        config = getattr(recipe, name)
        if config is None or config.compiled != "auto":
            continue
        slow = any(stage.name == name and stage.seconds > LONG for stage in stages)
        pays = bool(from_main(partial(bool, slow and can_compile(model.device))))
        recipe = replace(recipe, **{name: replace(config, compiled=pays)})
        stages = [compiled(stage) if pays and stage.name == name else stage for stage in stages]
    if console is not None:
        for line in lines(stages):
            console.print(line, highlight=False, soft_wrap=True)
    return recipe


def estimate(
    recipe: Recipe, model: MaskedModel, splits: Splits, *, done: Container[str] = frozenset()
) -> list[StageTime]:
    """Estimate the time of reading the images and of each training that is not ``done``, on the device of ``model``.

    Where ``compiled`` is "auto" it is treated as false.
    """
    names = needed(recipe, done)
    if not names:
        return []
    clock = Clock(model, splits)
    stages = [clock.images()]
    if "classifier" in names:
        stages.append(clock.classifier(recipe))
    if "surrogate" in names:
        stages.append(clock.surrogate(recipe))
    if "explainer" in names:
        stages.append(clock.explainer(recipe.explainer, recipe.calibration))
    if model.device.type == "cuda":
        torch.cuda.empty_cache()
    return stages


def needed(recipe: Recipe, done: Container[str]) -> list[str]:
    """Return the trainings of a recipe that are not ``done``."""
    wanted = {
        "classifier": recipe.classifier is not None,
        "surrogate": recipe.surrogate is not None and not recipe.masked,
        "explainer": True,
    }
    return [name for name, included in wanted.items() if included and name not in done]


def lines(stages: Iterable[StageTime]) -> list[str]:
    """Return the estimate in words, a line for each training and one for the total."""
    stages = list(stages)
    if not stages:
        return []
    each = [f"{stage.name}: about {duration(stage.seconds)} ({stage.detail})" for stage in stages]
    low, high = (sum(stage.span[i] for stage in stages) for i in (0, 1))
    return [*each, f"in total about {duration(high, low)}, estimated from a few steps of each training"]
