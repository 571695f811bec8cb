"""Steps of ROAR: the accuracy with important patches inserted or deleted, under four evaluators."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitshap.data import PixelSource
from vitshap.experiments.roar import retrain
from vitshap.explanation import Explanation
from vitshap.files import read_json, read_tensors, write_tensors, write_text
from vitshap.methods import MethodLike, method
from vitshap.metrics import mean_interval, roar
from vitshap.metrics.orders import player_ranks
from vitshap.models import MaskedModel
from vitshap.reproduce.context import SEED, Context
from vitshap.reproduce.measurements import rivals
from vitshap.reproduce.specifications import MAIN_METHODS
from vitshap.training.batches import Images
from vitshap.training.configs import ClassifierTraining, number
from vitshap.training.values.store import Evaluator

RANDOM_SEEDS = 10
BATCH = 64
BEFORE, ORDERS = "roar-surrogate", "orders.safetensors"
"""The step that leaves the ranks of patches by method, int16 ``[seeds, images, patches]``, and the file."""


def measure_roar(context: Context, folder: Path, *, evaluator: str) -> dict[str, Any]:
    """Measure the accuracy on the whole test split for every method; each is stored when it is done.

    ``evaluator``: "surrogate", "masked" (a separate masked classifier), "retrained" or "retrained-no-positions".
    """
    measure = _retrained if evaluator.startswith("retrained") else _evaluated
    chosen = MAIN_METHODS
    if measure is _retrained and context.scale.retrained_methods is not None:
        chosen = tuple(name for name in MAIN_METHODS if name in context.scale.retrained_methods)
    parts = ("train", "val", "test") if measure is _retrained else ("test",)
    sources = [context.opened(part, context.classifier) for part in parts]  # read once for all methods
    methods = _methods(context, chosen)
    found: dict[str, Any] = {}
    for name in chosen:
        path = folder / f"{name}.json"
        if not path.is_file():
            write_text(path, json.dumps(measure(context, folder / name, methods[name], evaluator, sources)))
            context.console.print(f"{name}: done", highlight=False)
        found[name] = read_json(path)
    if evaluator == "surrogate":
        left = context.store.folder(context.setting.name, BEFORE)
        left.mkdir(parents=True, exist_ok=True)
        write_tensors(left / ORDERS, {name: read_tensors(folder / name / ORDERS)["ranks"] for name in chosen})
    first = next(iter(found.values()))
    return {"counts": first["counts"], "images": len(context.splits.test), "rows": found}


def _methods(context: Context, names: tuple[str, ...]) -> dict[str, list[MethodLike]]:
    """Return the methods by row; random orders of several seeds."""
    made: dict[str, list[MethodLike]] = {}
    for name, spec in rivals(context, names).items():
        assert isinstance(spec, tuple)
        seeds = [{"seed": seed} for seed in range(RANDOM_SEEDS)] if name == "random" else [{}]
        made[name] = [method(spec[0], context.classifier, **spec[1], **seed) for seed in seeds]
    return {**made, **{row: [one] for row, one in context.explainers().items()}}


def _evaluated(
    context: Context, folder: Path, methods: list[MethodLike], evaluator: str, sources: Sequence[PixelSource]
) -> dict[str, Any]:
    """Measure with a model that predicts with patches withheld, in the fastest precision of the device.

    The surrogate's step leaves the orders of patches, so that the other evaluator's need not explain the images again.
    """
    surrogate, images = context.surrogate, Images(context.surrogate, sources[-1], None, seed=SEED)
    judge = Evaluator(surrogate if evaluator == "surrogate" else context.trained("train-masked-classifier"))
    path = context.store.folder(context.setting.name, BEFORE) / ORDERS
    stored = read_tensors(path)[folder.name] if evaluator != "surrogate" and path.is_file() else None
    counts = context.scale.roar_counts
    orders: list[Tensor] = []
    right: dict[str, list[Tensor]] = {"insertion": [], "deletion": []}
    numbers: list[int] = []
    for pixels, batch in images.in_order(BATCH):
        judge.choose_precision(pixels)
        labels = batch.labels.cpu().long()
        explained = (labels if surrogate.num_classes > 1 else torch.zeros_like(labels))[:, None]
        if stored is None:
            ranks = [player_ranks(one(pixels, target=explained), pixels, seed=0)[..., 0].cpu() for one in methods]
            orders.append(torch.stack(ranks).to(torch.int16))
        else:
            start = sum(part.shape[1] for part in orders)
            orders.append(stored[:, start : start + len(pixels)])
        seeds = [
            roar(
                judge.model, pixels.to(judge.dtype), _of_order(one, explained, surrogate), labels=labels, counts=counts
            )
            for one in orders[-1]
        ]
        numbers = [int(count) for count in seeds[0].counts]
        right["insertion"].append(torch.stack([one.inserted for one in seeds]).mean(0))
        right["deletion"].append(torch.stack([one.deleted for one in seeds]).mean(0))
    write_tensors(folder / ORDERS, {"ranks": torch.cat(orders, 1)})
    return {"counts": numbers, **{name: _accuracies(torch.cat(parts)) for name, parts in right.items()}}


def _of_order(ranks: Tensor, classes: Tensor, model: MaskedModel) -> Explanation:
    """Return values with these ranks ``[B, d]``, the first of which is the largest, for one class of each image."""
    return Explanation(
        values=-ranks.float()[..., None],
        classes=classes,
        additive=False,
        unit="score",
        prediction=torch.zeros(len(ranks), model.num_classes),
        prediction_by="classifier",
        players=model.players.labels.cpu(),
        method="order",
    )


def _retrained(
    context: Context, folder: Path, methods: list[MethodLike], evaluator: str, sources: Sequence[PixelSource]
) -> dict[str, Any]:
    """Retrain classifiers on masked images."""
    explain: Callable[..., Any] = methods[0]
    done = retrain(
        context.initial() if context.scale.retrained_from == "initial" else context.classifier,
        sources,
        explain,
        folder,
        config=retraining(context),
        counts=context.scale.retrained_counts,
        positions=evaluator == "retrained",
    )
    found: dict[str, Any] = {"counts": sorted({one.count for one in done})}
    for direction in ("insertion", "deletion"):
        by_count = {one.count: one for one in done if one.direction == direction}
        right = torch.tensor([by_count[count].correct for count in found["counts"]], dtype=torch.float64).T
        found[direction] = _accuracies(right)
    return found


def retraining(context: Context) -> ClassifierTraining:
    """Return the settings of masked retraining: the classifier's, with fewer epochs if the profile says so.

    The warm-up is then a tenth of the steps at most, because the recipe's could be longer than the whole training.
    """
    config = context.recipe.classifier or ClassifierTraining()
    epochs = context.scale.retrained_epochs
    warmup = "capped" if epochs < number(config.loop.epochs) else config.loop.warmup
    return replace(config, loop=replace(config.loop, epochs=epochs, warmup=warmup))


def _accuracies(right: Tensor) -> dict[str, list[float]]:
    """Return accuracies and their 95 % intervals, of results ``[images, counts]``."""
    ends = [mean_interval(right[:, i], binary=True) for i in range(right.shape[1])]
    return {
        "mean": [round(float(one), 5) for one in right.mean(0)],
        "low": [round(low, 5) for low, _ in ends],
        "high": [round(high, 5) for _, high in ends],
    }
