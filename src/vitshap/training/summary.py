"""What came out, measured on test images that no training has seen."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from vitshap.coalitions import fixed_size
from vitshap.data import PixelSource, sample_coalitions
from vitshap.explainers import Explainer
from vitshap.models import MaskedModel
from vitshap.models.base import evaluating
from vitshap.training.batches import Images
from vitshap.training.configs import ExplainerTraining
from vitshap.training.explainer import hold_out
from vitshap.training.fit import ClassifierStep, SurrogateStep, classifier_scores, surrogate_scores
from vitshap.training.loop import LOG, autocast
from vitshap.training.objectives import surrogate_loss
from vitshap.training.recipes import Recipe
from vitshap.training.scores import class_weights, scores
from vitshap.training.values import Evaluator

LOSSES = ("loss", "uniform_loss")
COALITIONS = 4
"""Of each test image and size."""


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
    """Accuracy of the classifier, distance of the surrogate, and of every net that was trained the loss on test images
    beside that on validation images; of the explainer also that of giving every player the same value.

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
        with _tested(classifier):
            loss = classifier_scores(step, images, first, masked=recipe.masked)["loss"]
        kept = best_line(out / "classifier" / LOG, first.select)
        found.setdefault("classifier", {}).update(validation_loss=kept["loss"], test_loss=loss, epoch=kept["epoch"])
    if (second := recipe.surrogate) is not None and not recipe.masked:
        images = Images(surrogate, test, None, seed=second.loop.seed)
        with _tested(surrogate), evaluating(classifier):
            loss = surrogate_scores(SurrogateStep(surrogate, classifier), images, second)["loss"]
        kept = best_line(out / "surrogate" / LOG, "loss")
        found["surrogate"].update(validation_loss=kept["loss"], test_loss=loss, epoch=kept["epoch"])
    found["explainer"] = _explainer_losses(recipe.explainer, out, explainer, test)
    return found


def _explainer_losses(
    config: ExplainerTraining, out: Path, explainer: Explainer, test: PixelSource
) -> dict[str, float]:
    kept = best_line(out / "explainer" / LOG, "selection_loss")
    images = Images(explainer.surrogate, test, None, seed=config.loop.seed)
    held_out = hold_out(None, Evaluator(explainer.surrogate), images, explainer, config, None)
    with _tested(explainer):
        tested = held_out.losses(explainer, config.validation_batch)
    losses = {
        f"{part}_{name}": line[name] for part, line in (("validation", kept), ("test", tested)) for name in LOSSES
    }
    return losses | {"epoch": kept["epoch"]}


@contextmanager
def _tested(net: MaskedModel | Explainer) -> Iterator[None]:
    """As in a validation."""
    with torch.no_grad(), evaluating(net), autocast(next(net.parameters()).device):
        yield


def distances(
    classifier: MaskedModel, surrogate: MaskedModel, test: PixelSource, *, batch: int = 256
) -> dict[str, float]:
    """Mean divergence of the surrogate with a half and a quarter of the patches from the classifier with all.

    KL for softmax; see ``surrogate_loss`` for other outputs.
    """
    images, d = Images(classifier, test, None, seed=0), surrogate.num_players
    laws = {f"divergence_{n}_of_{d}": fixed_size(d, n) for n in (d // 2, d // 4)}
    totals, count = dict.fromkeys(laws, 0.0), 0
    with torch.no_grad(), evaluating(classifier), evaluating(surrogate):
        for pixels, drawn in images.in_order(batch):
            wanted = classifier.logits(pixels)
            for name, law in laws.items():
                some = sample_coalitions(law, drawn.indices, seed=0, epoch=0, n=COALITIONS, purpose="summary")
                loss = surrogate_loss(wanted, surrogate.logits(pixels, some), surrogate.output)
                totals[name] += float(loss) * len(pixels)
            count += len(pixels)
    return {name: total / count for name, total in totals.items()}


def best_line(log: Path, select: str) -> dict[str, float]:
    """Of a training's log, the validation whose weights were kept: the best by ``select``, or by the loss where the log
    does not have that."""
    history = [json.loads(line) for line in log.read_text().splitlines()]
    select = select if select in history[0] else "loss"
    return min(history, key=lambda line: line[select] if select.endswith("loss") else -line[select])


def in_words(summary: dict[str, Any]) -> list[str]:
    """A line for each net."""
    said = []
    if "classifier" in summary:
        found = summary["classifier"]
        numbers = ", ".join(f"{name} {found[name]:.4f}" for name in ("accuracy", "kappa") if name in found)
        said.append(f"classifier on {summary['test_images']:,} test images: {numbers}{_losses(found)}")
    parts = ", ".join(
        f"{value:.4f} with {name.removeprefix('divergence_').replace('_', ' ')} patches"
        for name, value in summary["surrogate"].items()
        if name.startswith("divergence_")
    )
    said.append(f"surrogate, divergence from the classifier: {parts}{_losses(summary['surrogate'])}")
    losses = summary["explainer"]
    said.append(
        f"explainer{_losses(losses, ',')}; of giving every patch the same value: validation "
        f"{losses['validation_uniform_loss']:.4g}, test {losses['test_uniform_loss']:.4g} (epoch {losses['epoch']})"
    )
    return said


def _losses(found: dict[str, float], between: str = ";") -> str:
    """Where it was trained, the losses on validation and test images."""
    if "validation_loss" not in found:
        return ""
    return f"{between} loss: validation {found['validation_loss']:.4g}, test {found['test_loss']:.4g}"


def _same_classes(classifier: MaskedModel, class_names: Sequence[str]) -> bool:
    """Whether the net's classes are the data's; one logit is that of the second of two."""
    own, given = list(classifier.class_names or ()), list(class_names)
    return classifier.output != "identity" and own == (given[1:] if classifier.num_classes == 1 else given)


def _accuracy(classifier: MaskedModel, test: PixelSource, batch: int) -> dict[str, float]:
    logits, labels = [], []
    with torch.no_grad(), evaluating(classifier):
        for pixels, drawn in Images(classifier, test, None, seed=0).in_order(batch):
            logits.append(classifier.logits(pixels).float())
            labels.append(drawn.labels)
    found = scores(torch.cat(logits), torch.cat(labels), classifier.output)
    return {"test_loss": found.pop("loss"), **found}
