"""Trainings of nets that classify: a classifier (with or without missing patches) and a surrogate.

Each is a ``Task`` for the one loop: a module that returns its loss, batches drawn from (seed, epoch, sample), and a
validation on a fixed, seeded set of (image, coalition) tuples from unseen images.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from vitshap.coalitions import CoalitionLaw, fixed_size, uniform_size
from vitshap.data import CachedPixels, sample_coalitions
from vitshap.models import MaskedModel
from vitshap.training.batches import Images
from vitshap.training.configs import ClassifierTraining, SurrogateTraining, suited
from vitshap.training.loop import Task, number, train
from vitshap.training.objectives import classification_loss, surrogate_loss
from vitshap.training.scores import class_weights, require_classes, scores

VALIDATION = "validation"
"""Purpose of the validation's coalitions: training never meets them."""


def fit_classifier(
    model: MaskedModel,
    data: Any,
    val: Any,
    /,
    folder: str | Path | None = None,
    config: ClassifierTraining | None = None,
    *,
    resume: bool = False,
    console: Console | None = None,
) -> MaskedModel:
    """Train a copy of ``model`` on (image, label) and return the best by validation.

    ``folder`` takes checkpoints and the log, and with ``resume`` gives them back; None: nothing is kept.
    """
    law = fixed_size(model.num_players, model.num_players)
    return _fit_classifier(model, data, val, law, folder, config or ClassifierTraining(), resume, console)


def fit_masked_classifier(
    model: MaskedModel,
    data: Any,
    val: Any,
    /,
    folder: str | Path | None = None,
    config: ClassifierTraining | None = None,
    *,
    resume: bool = False,
    console: Console | None = None,
) -> MaskedModel:
    """The same with random subsets of patches, in validation too, so that the classifier is its own surrogate."""
    law = uniform_size(model.num_players)
    return _fit_classifier(model, data, val, law, folder, config or ClassifierTraining(), resume, console)


def fit_surrogate(
    classifier: MaskedModel,
    data: Any,
    val: Any,
    /,
    folder: str | Path | None = None,
    config: SurrogateTraining | None = None,
    *,
    resume: bool = False,
    console: Console | None = None,
) -> MaskedModel:
    """Fine-tune a copy of ``classifier`` so that its answers with missing patches are the classifier's on whole images."""
    surrogate = copy.deepcopy(classifier)
    surrogate.classifier_fingerprint = classifier.fingerprint()
    classifier = copy.deepcopy(classifier).eval()
    step = SurrogateStep(surrogate, classifier)
    config = config or SurrogateTraining()
    images = Images(surrogate, data, config.augmentation, seed=config.loop.seed)
    unseen = Images(surrogate, val, None, seed=config.loop.seed)
    config = suited(config, surrogate, len(images))
    law = uniform_size(surrogate.num_players)

    def batches(order: Iterable[Tensor], epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        for pixels, batch in images.views(order, epoch):
            yield pixels, _drawn(law, batch.indices, config.loop.seed, epoch, number(config.coalitions))

    with kept_or_temporary(folder) as place:
        task = Task(step, surrogate, batches, len(images), lambda: surrogate_scores(step, unseen, config))
        train(task, config.loop, place, resume=resume, console=console)
    return surrogate


def _fit_classifier(
    model: MaskedModel,
    data: Any,
    val: Any,
    law: CoalitionLaw,
    folder: str | Path | None,
    config: ClassifierTraining,
    resume: bool,
    console: Console | None,
) -> MaskedModel:
    if config.augmentation is not None and config.augmentation.paste:
        raise ValueError("a classifier cannot learn from pasted images, whose label stays as it was: set paste to 0")
    model = copy.deepcopy(model)
    model.classifier_fingerprint = None  # whatever it was before, it becomes a net of its own
    images = Images(model, data, config.augmentation, seed=config.loop.seed)
    unseen = Images(model, val, None, seed=config.loop.seed)
    for source in (images.source, unseen.source):
        if isinstance(source, CachedPixels):
            require_classes(source.labels, model)
    config = suited(config, model, len(images))
    weights = class_weights(config.class_weights, images.source, model)
    whole = float(law.size_probabilities[-1]) == 1
    step = ClassifierStep(model, weights)

    def batches(order: Iterable[Tensor], epoch: int) -> Iterator[tuple[Tensor, ...]]:
        for pixels, batch in images.views(order, epoch):
            if not isinstance(images.source, CachedPixels):
                require_classes(batch.labels, model)
            if whole:
                yield pixels, batch.labels
            else:
                some = _drawn(law, batch.indices, config.loop.seed, epoch, config.coalitions)
                yield pixels, batch.labels, some

    def validate() -> dict[str, float]:
        return classifier_scores(step, unseen, config, masked=not whole)

    select = "loss" if model.output == "identity" else config.select
    with kept_or_temporary(folder) as place:
        task = Task(step, model, batches, len(images), validate, select=select, higher_is_better=select != "loss")
        train(task, config.loop, place, resume=resume, console=console)
    return model


def classifier_scores(
    step: ClassifierStep, images: Images, config: ClassifierTraining, *, masked: bool
) -> dict[str, float]:
    """Metrics of a classifier on unseen images; ``masked``: on fixed random subsets of their patches."""
    model, logits, labels = step.model, [], []
    law = uniform_size(model.num_players)
    for pixels, batch in images.in_order(config.validation_batch):
        if not masked:
            logits.append(model.logits(pixels).float())
            labels.append(batch.labels)
            continue
        fixed = _drawn(law, batch.indices, config.loop.seed, 0, config.validation_coalitions, VALIDATION)
        logits.append(model.logits(pixels, fixed).float().flatten(0, 1))
        labels.append(batch.labels.repeat_interleave(config.validation_coalitions, 0))
    if not isinstance(images.source, CachedPixels):
        require_classes(torch.cat(labels), model)
    return scores(torch.cat(logits), torch.cat(labels), model.output, step.class_weights)


def surrogate_scores(step: SurrogateStep, images: Images, config: SurrogateTraining) -> dict[str, float]:
    """Loss of a surrogate on fixed random subsets of the patches of unseen images."""
    law, total, count = uniform_size(step.surrogate.num_players), 0.0, 0
    for pixels, batch in images.in_order(config.validation_batch):
        fixed = _drawn(law, batch.indices, config.loop.seed, 0, config.validation_coalitions, VALIDATION)
        total += float(step(pixels, fixed)) * len(pixels)
        count += len(pixels)
    return {"loss": total / count}


class ClassifierStep(nn.Module):
    """Returns the loss of a batch, of whole images or of coalitions."""

    def __init__(self, model: MaskedModel, class_weights: Tensor | None) -> None:
        super().__init__()
        self.model, self.class_weights = model, class_weights

    def forward(self, pixels: Tensor, labels: Tensor, coalitions: Tensor | None = None) -> Tensor:
        logits = self.model.logits(pixels, coalitions, finite=False)  # [B, K] or [B, S, K]; seen when read
        if coalitions is not None:
            labels = labels.repeat_interleave(logits.shape[1], 0)
            logits = logits.flatten(0, 1)
        return classification_loss(logits, labels, self.model.output, self.class_weights)


class SurrogateStep(nn.Module):
    """Returns how far the surrogate's answers about coalitions are from the classifier's about whole images."""

    def __init__(self, surrogate: MaskedModel, classifier: MaskedModel) -> None:
        super().__init__()
        self.surrogate = surrogate
        self._classifier = [classifier]  # in a list: it is asked, not trained

    def forward(self, pixels: Tensor, coalitions: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = self._classifier[0].logits(pixels, finite=False)  # seen when they were read
        answers = self.surrogate.logits(pixels, coalitions, finite=False)
        return surrogate_loss(wanted, answers, self.surrogate.output)


def _drawn(law: CoalitionLaw, indices: Tensor, seed: int, epoch: int, n: int, purpose: str = "coalitions") -> Tensor:
    return sample_coalitions(law, indices, seed=seed, epoch=epoch, n=n, purpose=purpose)


@contextmanager
def kept_or_temporary(folder: str | Path | None) -> Iterator[Path]:
    """The folder, or one that is gone afterwards."""
    if folder is not None:
        yield Path(folder)
        return
    with tempfile.TemporaryDirectory(prefix="vitshap-") as place:
        yield Path(place)
