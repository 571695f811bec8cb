"""Evaluation of a run on test images, and its description in words."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from vitshap.coalitions import fixed_size
from vitshap.data import PixelSource, Splits, sample_coalitions
from vitshap.explainers import Explainer
from vitshap.models import MaskedModel
from vitshap.models.base import evaluating
from vitshap.training.batches import Images
from vitshap.training.configs import ExplainerTraining
from vitshap.training.explainer import validation_set
from vitshap.training.fit import ClassifierStep, SurrogateStep, classifier_scores, surrogate_scores
from vitshap.training.loop import LOG, autocast, best_record
from vitshap.training.objectives import class_weights, classification_metrics, surrogate_loss
from vitshap.training.recipes.recipe import STAGES, Recipe
from vitshap.training.values.store import Evaluator

LOSSES = ("loss", "uniform_loss")
COALITIONS = 4
"""Coalitions of each test image and size."""


def summarise(
    recipe: Recipe,
    out: Path,
    classifier: MaskedModel,
    explainer: Explainer,
    train: PixelSource,
    test: PixelSource,
    class_names: Sequence[str],
    *,
    batch: int = 256,
) -> dict[str, Any]:
    """Return the classifier's accuracy, the surrogate's divergence, and the losses of all trained networks.

    Losses are on validation and test images; the explainer's are given beside those of equal values for all players.
    ``out``: the run's folder; ``class_names``: of the test images' labels.
    """
    surrogate = explainer.surrogate
    found: dict[str, Any] = {"test_images": len(test)}
    if _same_classes(classifier, class_names):
        found["classifier"] = _accuracy(classifier, test, batch)
    found["surrogate"] = distances(classifier, surrogate, test, batch=batch)
    if (first := recipe.classifier) is not None:
        step = ClassifierStep(classifier, class_weights(first.class_weights, train, classifier))
        images = Images(classifier, test, None, seed=first.loop.seed)
        with _validating(classifier):
            loss = classifier_scores(step, images, first, masked=recipe.masked)["loss"]
        kept = _best(out / "classifier", first.selection_metric)
        found.setdefault("classifier", {}).update(validation_loss=kept["loss"], test_loss=loss, epoch=kept["epoch"])
    if (second := recipe.surrogate) is not None and not recipe.masked:
        images = Images(surrogate, test, None, seed=second.loop.seed)
        with _validating(surrogate), evaluating(classifier):
            loss = surrogate_scores(SurrogateStep(surrogate, classifier), images, second)["loss"]
        kept = _best(out / "surrogate", "loss")
        found["surrogate"].update(validation_loss=kept["loss"], test_loss=loss, epoch=kept["epoch"])
    found["explainer"] = _explainer_losses(recipe.explainer, out, explainer, test)
    return found


def _explainer_losses(
    config: ExplainerTraining, out: Path, explainer: Explainer, test: PixelSource
) -> dict[str, float]:
    kept = _best(out / "explainer", "selection_loss")
    images = Images(explainer.surrogate, test, None, seed=config.loop.seed)
    validation = validation_set(None, Evaluator(explainer.surrogate), images, explainer, config, None)
    with _validating(explainer):
        tested = validation.losses(explainer, config.validation_batch_size)
    losses = {
        f"{part}_{name}": line[name] for part, line in (("validation", kept), ("test", tested)) for name in LOSSES
    }
    return losses | {"epoch": kept["epoch"]}


@contextmanager
def _validating(net: MaskedModel | Explainer) -> Iterator[None]:
    """Evaluate in the mode and precision of a validation."""
    with torch.no_grad(), evaluating(net), autocast(next(net.parameters()).device):
        yield


def distances(
    classifier: MaskedModel, surrogate: MaskedModel, test: PixelSource, *, batch: int = 256
) -> dict[str, float]:
    """Return the mean divergence of the surrogate with a half and a quarter of the patches from the classifier with all.

    KL for softmax; see ``surrogate_loss`` for other outputs.
    """
    images, d = Images(classifier, test, None, seed=0), surrogate.num_players
    laws = {f"divergence_{n}_of_{d}": fixed_size(d, n) for n in (d // 2, d // 4)}
    totals, count = dict.fromkeys(laws, 0.0), 0
    with torch.no_grad(), evaluating(classifier), evaluating(surrogate):
        for pixels, drawn in images.in_order(batch):
            target = classifier.logits(pixels)
            for name, law in laws.items():
                some = sample_coalitions(law, drawn.indices, seed=0, epoch=0, n=COALITIONS, purpose="summary")
                loss = surrogate_loss(target, surrogate.logits(pixels, some), surrogate.output)
                totals[name] += float(loss) * len(pixels)
            count += len(pixels)
    return {name: total / count for name, total in totals.items()}


def _best(folder: Path, metric: str) -> dict[str, float]:
    """Return the record of a training's log whose weights were kept."""
    return best_record([json.loads(line) for line in (folder / LOG).read_text().splitlines()], metric)


def announcement(recipe: Recipe, model: MaskedModel, splits: Splits, state: Any) -> str:
    """Return what a run is going to do: its data, model and trainings."""
    train, val, test = splits
    where = f"{state.device.type}, {state.num_processes} processes" if state.num_processes > 1 else state.device.type
    weights = sum(p.numel() for p in model.net.parameters())
    names = train.class_names
    shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
    return "\n".join(
        [
            *([recipe.description] if recipe.description else []),
            f"data: {recipe.data.source}, {len(train):,} training, {len(val):,} validation and {len(test):,} test images, "
            f"{len(names)} classes ({shown})",
            f"model: {recipe.model.name}, {weights / 1e6:.3g} million weights, {model.num_players} players, "
            f"{model.num_classes} outputs, on {where}",
            "; ".join(_trainings(recipe)),
        ]
    )


def _trainings(recipe: Recipe) -> Iterator[str]:
    for name in STAGES:
        if (config := getattr(recipe, name)) is not None and not (name == "surrogate" and recipe.masked):
            epochs, size, rate = config.loop.numbers()
            yield f"{name}: {epochs} epochs, batch size {size}, learning rate {rate:.3g}"
    if recipe.explainer.procedure == "values":
        values = recipe.explainer.values
        yield f"{values.views} views of every image with {values.coalitions} coalitions each"


def in_words(summary: dict[str, Any]) -> list[str]:
    """Return the summary as one line for each network."""
    lines = []
    if "classifier" in summary:
        found = summary["classifier"]
        numbers = ", ".join(f"{name} {found[name]:.4f}" for name in ("accuracy", "kappa") if name in found)
        lines.append(f"classifier on {summary['test_images']:,} test images: {numbers}{_losses(found)}")
    parts = ", ".join(
        f"{value:.4f} with {name.removeprefix('divergence_').replace('_', ' ')} patches"
        for name, value in summary["surrogate"].items()
        if name.startswith("divergence_")
    )
    lines.append(f"surrogate, divergence from the classifier: {parts}{_losses(summary['surrogate'])}")
    losses = summary["explainer"]
    lines.append(
        f"explainer{_losses(losses, ',')}; with equal values for all patches: validation "
        f"{losses['validation_uniform_loss']:.4g}, test {losses['test_uniform_loss']:.4g} (epoch {losses['epoch']})"
    )
    return lines


def _losses(found: dict[str, float], between: str = ";") -> str:
    """Return the losses on validation and test images, if the network was trained."""
    if "validation_loss" not in found:
        return ""
    return f"{between} loss: validation {found['validation_loss']:.4g}, test {found['test_loss']:.4g}"


def _same_classes(classifier: MaskedModel, class_names: Sequence[str]) -> bool:
    """Whether the model's classes are those of the data; a single logit is that of the second of two classes."""
    own, given = list(classifier.class_names or ()), list(class_names)
    return classifier.output != "identity" and own == (given[1:] if classifier.num_classes == 1 else given)


def _accuracy(classifier: MaskedModel, test: PixelSource, batch: int) -> dict[str, float]:
    logits, labels = [], []
    with torch.no_grad(), evaluating(classifier):
        for pixels, drawn in Images(classifier, test, None, seed=0).in_order(batch):
            logits.append(classifier.logits(pixels).float())
            labels.append(drawn.labels)
    found = classification_metrics(torch.cat(logits), torch.cat(labels), classifier.output)
    return {"test_loss": found.pop("loss"), **found}
