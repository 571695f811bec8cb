"""Trainings of the classifier (with or without masked patches) and of the surrogate.

Each is a ``Task`` of the loop: a module that returns its loss, batches as functions of (seed, epoch, sample), and a
validation on fixed, seeded coalitions of unseen images.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from rich.console import Console
from torch import Tensor, nn

from vitshap.coalitions import CoalitionLaw, uniform_size
from vitshap.data import CachedPixels, sample_coalitions
from vitshap.models import MaskedModel
from vitshap.players import patches
from vitshap.training.batches import Images
from vitshap.training.compilation import Compilable
from vitshap.training.configs import ClassifierTraining, SurrogateTraining, number, resolve_auto
from vitshap.training.loop import Task, train
from vitshap.training.objectives import (
    class_weights,
    classification_loss,
    classification_metrics,
    require_classes,
    surrogate_loss,
)
from vitshap.training.values.validation import VALIDATION

T = TypeVar("T")
Logits = Callable[[MaskedModel, Tensor, Tensor | None], Tensor]
"""From images and the patches that each coalition keeps, bool ``[B, S, N]`` (None: whole images), to logits."""


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
    """Train a copy of ``model`` on (image, label) and return it with the best weights by validation.

    ``folder``: for checkpoints and the log, from which ``resume`` continues; None: nothing is kept.
    """
    return _fit_classifier(model, data, val, folder, config, resume, console, masked=False)


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
    """Do the same with random coalitions of patches, in validation too, so that the classifier is its own surrogate."""
    return _fit_classifier(model, data, val, folder, config, resume, console, masked=True)


def _fit_classifier(
    model: MaskedModel,
    data: Any,
    val: Any,
    folder: str | Path | None,
    config: ClassifierTraining | None,
    resume: bool,
    console: Console | None,
    *,
    masked: bool,
) -> MaskedModel:
    config = config or ClassifierTraining()
    if config.augmentation is not None and config.augmentation.paste:
        raise ValueError("a classifier cannot be trained on pasted images, whose labels do not change: set paste to 0")
    if config.selection_metric == "kappa" and model.output == "sigmoid" and model.num_classes > 1:
        raise ValueError(
            f"Cohen's kappa needs one label per image, the model has {model.num_classes} sigmoid outputs: set "
            "selection_metric to accuracy or loss"
        )
    model = copy.deepcopy(model)
    model.classifier_fingerprint = None  # it becomes a model of its own, whatever it was derived from
    images = Images(model, data, config.augmentation, seed=config.loop.seed, compiled=config.compiled is True)
    unseen = Images(model, val, None, seed=config.loop.seed)
    for source in (images.source, unseen.source):
        if isinstance(source, CachedPixels):
            require_classes(source.labels, model)
    config = resolve_auto(config, model, len(images))
    with kept_or_temporary(folder) as place:
        task = classifier_task(model, images, unseen, config, masked=masked)
        train(task, config.loop, place, resume=resume, console=console)
    return model


def classifier_task(
    model: MaskedModel, images: Images, unseen: Images, config: ClassifierTraining, *, masked: bool
) -> Task:
    """Return the task of training ``model`` itself."""
    weights = class_weights(config.class_weights, images.source, model)
    step = ClassifierStep(model, weights, compiled=config.compiled is True)
    law = uniform_size(model.num_players)

    def batches(order: Iterable[Tensor], epoch: int) -> Iterator[tuple[Tensor, ...]]:
        for pixels, batch in images.views(order, epoch):
            if not isinstance(images.source, CachedPixels):
                require_classes(batch.labels, model)
            if masked:
                yield pixels, batch.labels, _draw(law, batch.indices, config.loop.seed, epoch, config.coalitions)
            else:
                yield pixels, batch.labels

    def validate() -> dict[str, float]:
        return classifier_scores(step, unseen, config, masked=masked)

    metric = "loss" if model.output == "identity" else config.selection_metric
    return Task(step, model, batches, len(images), validate, selection_metric=metric)


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
    """Fine-tune a copy of ``classifier`` whose predictions for coalitions match the classifier's for whole images."""
    surrogate = copy.deepcopy(classifier)
    surrogate.classifier_fingerprint = classifier.fingerprint()
    config = config or SurrogateTraining()
    images = Images(surrogate, data, config.augmentation, seed=config.loop.seed, compiled=config.compiled is True)
    unseen = Images(surrogate, val, None, seed=config.loop.seed)
    config = resolve_auto(config, surrogate, len(images))
    with kept_or_temporary(folder) as place:
        task = surrogate_task(surrogate, copy.deepcopy(classifier).eval(), images, unseen, config)
        train(task, config.loop, place, resume=resume, console=console)
    return surrogate


def surrogate_task(
    surrogate: MaskedModel, classifier: MaskedModel, images: Images, unseen: Images, config: SurrogateTraining
) -> Task:
    """Return the task of training ``surrogate`` itself."""
    step = SurrogateStep(surrogate, classifier, compiled=config.compiled is True)
    law = uniform_size(surrogate.num_players)

    def batches(order: Iterable[Tensor], epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        for pixels, batch in images.views(order, epoch):
            yield pixels, _draw(law, batch.indices, config.loop.seed, epoch, number(config.coalitions))

    return Task(step, surrogate, batches, len(images), lambda: surrogate_scores(step, unseen, config))


def classifier_scores(
    step: ClassifierStep, images: Images, config: ClassifierTraining, *, masked: bool
) -> dict[str, float]:
    """Return the metrics of a classifier on unseen images; ``masked``: on fixed coalitions of their patches."""
    model, logits, labels = step.model, [], []
    law = uniform_size(model.num_players)
    for pixels, batch in images.in_order(config.validation_batch_size):
        if not masked:
            logits.append(model.logits(pixels).float())
            labels.append(batch.labels)
            continue
        fixed = _draw(law, batch.indices, config.loop.seed, 0, config.validation_coalitions, VALIDATION)
        logits.append(model.logits(pixels, fixed).float().flatten(0, 1))
        labels.append(batch.labels.repeat_interleave(config.validation_coalitions, 0))
    if not isinstance(images.source, CachedPixels):
        require_classes(torch.cat(labels), model)
    return classification_metrics(torch.cat(logits), torch.cat(labels), model.output, step.class_weights)


def surrogate_scores(step: SurrogateStep, images: Images, config: SurrogateTraining) -> dict[str, float]:
    """Return the loss of a surrogate on fixed coalitions of the patches of unseen images."""
    law, total, count = uniform_size(step.surrogate.num_players), 0.0, 0
    for pixels, batch in images.in_order(config.validation_batch_size):
        fixed = _draw(law, batch.indices, config.loop.seed, 0, config.validation_coalitions, VALIDATION)
        total += float(step(pixels, fixed)) * len(pixels)
        count += len(pixels)
    return {"loss": total / count}


class ClassifierStep(nn.Module):
    """Returns the loss of a batch of whole images or of coalitions."""

    def __init__(self, model: MaskedModel, class_weights: Tensor | None, *, compiled: bool = False) -> None:
        super().__init__()
        self.model, self.class_weights = model, class_weights
        self._logits = _compilable(partial(_full_length, model), partial(_packed, model), model, wanted=compiled)

    def forward(self, pixels: Tensor, labels: Tensor, coalitions: Tensor | None = None) -> Tensor:
        # [B, K] or [B, S, K]; whether they are finite is checked when the loss is read
        logits = self._logits(pixels, None if coalitions is None else _kept_patches(self.model, coalitions))
        if coalitions is not None:
            labels = labels.repeat_interleave(logits.shape[1], 0)
            logits = logits.flatten(0, 1)
        return classification_loss(logits, labels, self.model.output, self.class_weights)


class SurrogateStep(nn.Module):
    """Returns the divergence of the surrogate's predictions for coalitions from the classifier's for whole images."""

    def __init__(self, surrogate: MaskedModel, classifier: MaskedModel, *, compiled: bool = False) -> None:
        super().__init__()
        self.surrogate = surrogate
        # Both networks in one graph: what a recorded graph returns may be overwritten when the next one is launched.
        full_length, packed = (partial(_both, logits, classifier, surrogate) for logits in (_full_length, _packed))
        self._answers = _compilable(full_length, packed, surrogate, wanted=compiled)

    def forward(self, pixels: Tensor, coalitions: Tensor) -> Tensor:
        target, predicted = self._answers(pixels, _kept_patches(self.surrogate, coalitions))
        return surrogate_loss(target, predicted, self.surrogate.output)


def _compilable(
    full_length: Callable[..., T], packed: Callable[..., T], model: MaskedModel, *, wanted: bool
) -> Compilable[T]:
    """Return ``packed``, or ``full_length`` where it is compiled."""
    # The hook with which the session of "embeddings" makes its blank image would be compiled anew in every step.
    wanted = wanted and model.removal != "embeddings"
    return Compilable(full_length, model, wanted=wanted, instead=packed, context=model.adapter.ready)


def _both(
    logits: Logits, classifier: MaskedModel, surrogate: MaskedModel, pixels: Tensor, keep: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the classifier's logits of whole images, ``[B, K]``, and the surrogate's of coalitions, ``[B, S, K]``."""
    with torch.no_grad():
        target = logits(classifier, pixels, None)
    return target, logits(surrogate, pixels, keep)


def _kept_patches(model: MaskedModel, coalitions: Tensor) -> Tensor:
    """Turn coalitions of players ``[B, S, d]`` into those of patches ``[B, S, N]``."""
    image = torch.arange(len(coalitions), device=coalitions.device).repeat_interleave(coalitions.shape[1])
    return model.players.keep_tokens(coalitions.flatten(0, 1), image).view(*coalitions.shape[:2], -1)


def _packed(model: MaskedModel, pixels: Tensor, keep: Tensor | None) -> Tensor:
    """Return logits of whole images, or of kept patches: withheld ones are not computed."""
    if keep is None:
        return model.logits(pixels, finite=False)
    with model.adapter.ready():
        return model.run_session(model.open_session(pixels), keep, patches(model.grid))


def _full_length(model: MaskedModel, pixels: Tensor, keep: Tensor | None) -> Tensor:
    """Return the same with every patch computed and the withheld ones masked.

    Recorded kernels need shapes that do not depend on the coalitions. Half of all tokens are withheld on average, so a
    network computes twice as many as in ``_packed``; but a batch that leaves the GPU waiting for launches has that much
    time to spare. Packed and compiled with dynamic shapes, its kernels would be fewer but still launched one by one.
    """
    return model.adapter.predict(pixels) if keep is None else model.full_length_logits(pixels, keep)


def _draw(law: CoalitionLaw, indices: Tensor, seed: int, epoch: int, n: int, purpose: str = "coalitions") -> Tensor:
    return sample_coalitions(law, indices, seed=seed, epoch=epoch, n=n, purpose=purpose)


@contextmanager
def kept_or_temporary(folder: str | Path | None) -> Iterator[Path]:
    """Yield the folder, or a temporary one for None."""
    if folder is not None:
        yield Path(folder)
        return
    with tempfile.TemporaryDirectory(prefix="vitshap-") as place:
        yield Path(place)
