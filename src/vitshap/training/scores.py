"""How good a classifier is on validation images, and how its classes are weighed."""

from __future__ import annotations

import torch
from torch import Tensor

from vitshap.data import CachedPixels, PixelSource
from vitshap.models import MaskedModel
from vitshap.models.masked import Output
from vitshap.training.batches import chunks
from vitshap.training.objectives import classification_loss


def scores(logits: Tensor, labels: Tensor, output: Output, class_weights: Tensor | None = None) -> dict[str, float]:
    """Loss, and for classes also accuracy and (one label per image) Cohen's kappa."""
    found = {"loss": float(classification_loss(logits, labels, output, class_weights))}
    if output == "identity":
        return found
    if output == "softmax":
        predicted = logits.argmax(1)
    else:
        predicted, labels = (logits > 0).long(), labels.view_as(logits).long()
    found["accuracy"] = float((predicted == labels).float().mean())
    if output == "softmax" or logits.shape[1] == 1:
        found["kappa"] = cohens_kappa(predicted.flatten(), labels.flatten())
    return found


def cohens_kappa(predicted: Tensor, labels: Tensor) -> float:
    """Agreement beyond chance: 1 is perfect, 0 is chance, also where there is but one class."""
    from sklearn.metrics import cohen_kappa_score

    if bool((predicted == predicted[0]).all() & (labels == predicted[0]).all()):
        return 0.0
    return float(cohen_kappa_score(labels.cpu().numpy(), predicted.cpu().numpy()))


def balanced_weights(source: PixelSource, model: MaskedModel) -> Tensor:
    """Weights inverse to the frequency of the classes, 1 on average over images: ``[K]``, or ``[2]`` for one logit."""
    if isinstance(source, CachedPixels):
        labels = source.labels
    else:
        labels = torch.cat([batch.labels for batch in source.batches(chunks(len(source), 256))])
    if labels.ndim > 1 or labels.is_floating_point():
        raise ValueError("balanced class weights need one class per image")
    classes = max(model.num_classes, 2)
    counts = torch.bincount(labels, minlength=classes).float()
    if bool((counts == 0).any()):
        missing = (counts == 0).nonzero().flatten().tolist()
        raise ValueError(f"balanced class weights need images of every class; there are none of {missing}")
    return len(labels) / (classes * counts)
