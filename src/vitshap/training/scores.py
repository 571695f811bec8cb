"""How good a classifier is on validation images, and how its classes are weighed."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from vitshap.data import CachedPixels, PixelSource, require_labels
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


def require_classes(labels: Tensor, model: MaskedModel) -> None:
    """Refuse labels that ``model`` cannot learn: none at all, or classes that it does not have."""
    if labels.is_floating_point() and bool(labels.isnan().any()):
        raise ValueError("a classifier learns from pairs (image, label), and some of these images have no label")
    if model.output == "softmax" and labels.ndim == 1:
        if labels.is_floating_point():
            raise ValueError(f"labels of classes are whole numbers, got {labels.dtype}")
        require_labels(labels, model.num_classes)
    if model.output == "sigmoid" and not 0 <= float(labels.min()) <= float(labels.max()) <= 1:
        raise ValueError(f"labels under a sigmoid are between 0 and 1, got {labels.min():g} to {labels.max():g}")


def class_weights(
    wanted: Literal["balanced"] | tuple[float, ...] | None, source: PixelSource, model: MaskedModel
) -> Tensor | None:
    """Weights of the classes on the model's device, as the configuration wants them."""
    if wanted is None:
        return None
    if wanted == "balanced":
        return balanced_weights(source, model).to(model.device)
    classes = model.num_classes if model.num_classes > 1 else 2
    if len(wanted) != classes:
        raise ValueError(f"class_weights are {classes} numbers, one per class; got {len(wanted)}")
    return torch.tensor(wanted, device=model.device)


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
