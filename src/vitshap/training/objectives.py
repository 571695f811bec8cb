"""Losses and metrics. All losses are computed in float32, because half precision loses small probabilities."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from vitshap.coalitions import Coalitions
from vitshap.data import CachedPixels, PixelSource, require_labels
from vitshap.models import MaskedModel
from vitshap.models.masked import Output
from vitshap.training.batches import chunks


def surrogate_loss(classifier_logits: Tensor, surrogate_logits: Tensor, output: Output) -> Tensor:
    """Return the mean divergence of the surrogate's predictions for coalitions from the classifier's for whole images.

    ``classifier_logits``: ``[B, K]``; ``surrogate_logits``: ``[B, S, K]``, or ``[B, K]`` for one coalition each. KL for
    softmax, the sum over classes of Bernoulli KLs for sigmoid, squared error (summed over outputs) for identity.
    """
    f, g = classifier_logits.float().detach(), surrogate_logits.float()
    if g.ndim == 3:
        f = f[:, None].expand_as(g)
    if output == "softmax":
        divergence = F.kl_div(g.log_softmax(-1), f.log_softmax(-1), reduction="none", log_target=True)
    elif output == "sigmoid":
        p = f.sigmoid()
        divergence = p * (F.logsigmoid(f) - F.logsigmoid(g)) + (1 - p) * (F.logsigmoid(-f) - F.logsigmoid(-g))
    else:
        divergence = (f - g).square()
    return divergence.sum(-1).mean()


def classification_loss(logits: Tensor, labels: Tensor, output: Output, class_weights: Tensor | None = None) -> Tensor:
    """Return the cross-entropy of ``logits`` (``[B, K]``), or the squared error for identity.

    ``labels``: classes ``[B]`` for softmax, 0 to 1 ``[B]`` or ``[B, K]`` for sigmoid, numbers for identity.
    ``class_weights`` (``[K]``) multiply the losses of classes; for one logit ``[2]``, those of 0 and of 1.
    """
    logits = logits.float()
    if output == "softmax":
        labels = labels.long()
        if class_weights is None:
            return F.cross_entropy(logits, labels)
        # A plain mean: torch's own divides by the sum of the batch's weights, so the other samples would change a weight.
        return F.cross_entropy(logits, labels, weight=class_weights, reduction="none").mean()
    targets = labels.to(logits.dtype).view_as(logits)
    if output == "identity":
        return (logits - targets).square().mean()
    weight = None
    if class_weights is not None:
        one = logits.shape[-1] == 1
        weight = torch.lerp(class_weights[0], class_weights[1], targets) if one else class_weights.expand_as(logits)
    return F.binary_cross_entropy_with_logits(logits, targets, weight=weight)


def explainer_loss(values: Tensor, coalitions: Coalitions, coalition_values: Tensor, base: Tensor) -> Tensor:
    """Return the weighted-least-squares objective on the paper's scale: d times the mean of ``(v(s) - v(0) - s'phi)^2``.

    ``values``: phi ``[B, d, K]``, already efficient; ``coalitions``: bool ``[B, S, d]`` drawn from the Shapley kernel;
    ``coalition_values``: v(s) ``[B, S, K]``; ``base``: v(0) ``[B, K]``. The mean is over images, coalitions and classes.
    """
    with torch.autocast(values.device.type, enabled=False):  # half precision would round the sums
        predicted = coalitions.float() @ values.float()  # [B, S, K]
    return values.shape[1] * (coalition_values.float() - base.float()[:, None] - predicted).square().mean()


def class_importance(full: Tensor, output: Output, predicted_class_weight: float) -> Tensor:
    """Return the weights of an image's classes in the loss, ``[B, K]``: 1 + weight x (K - 1) x p(k) for softmax, else 1.

    ``full``: v(1), ``[B, K]``.
    """
    if output != "softmax":
        return torch.ones_like(full)
    return 1 + predicted_class_weight * (full.shape[1] - 1) * full


def uniform_explanation(base: Tensor, full: Tensor, d: int) -> Tensor:
    """Return the explanation with equal values for all players, ``(v(1) - v(0)) / d``: ``[B, d, K]``."""
    return ((full - base) / d)[:, None].expand(-1, d, -1)


def classification_metrics(
    logits: Tensor, labels: Tensor, output: Output, class_weights: Tensor | None = None
) -> dict[str, float]:
    """Return the loss, and for classes also accuracy and (one label per image) Cohen's kappa."""
    found = {"loss": float(classification_loss(logits, labels, output, class_weights))}
    if output == "identity":
        return found
    if output == "softmax":
        predicted = logits.argmax(1)
    else:
        predicted, labels = (logits > 0).long(), (labels.view_as(logits) > 0.5).long()
    found["accuracy"] = float((predicted == labels).float().mean())
    if output == "softmax" or logits.shape[1] == 1:
        found["kappa"] = cohens_kappa(predicted.flatten(), labels.flatten())
    return found


def cohens_kappa(predicted: Tensor, labels: Tensor) -> float:
    """Return Cohen's kappa: 1 is perfect agreement, 0 is random agreement; 0 also where there is only one class."""
    from sklearn.metrics import cohen_kappa_score

    if bool((predicted == predicted[0]).all() & (labels == predicted[0]).all()):
        return 0.0
    return float(cohen_kappa_score(labels.cpu().numpy(), predicted.cpu().numpy()))


def require_classes(labels: Tensor, model: MaskedModel) -> None:
    """Raise a ``ValueError`` for labels that ``model`` cannot learn: missing ones, or classes that it does not have."""
    if labels.is_floating_point() and bool(labels.isnan().any()):
        raise ValueError("a classifier is trained on pairs (image, label), but some of these images have no label")
    if model.output == "softmax":
        if labels.ndim > 1:
            raise ValueError(
                f"with softmax an image has one label, its class; these have the shape {list(labels.shape[1:])}"
            )
        if labels.is_floating_point():
            raise ValueError(f"class labels must be integers, got {labels.dtype}")
        require_labels(labels, model.num_classes)
    elif (given := labels[0].numel()) != model.num_classes:
        raise ValueError(
            f"an image needs a label for each of the {model.num_classes} {model.output} outputs, got {given}"
        )
    if model.output == "sigmoid" and not 0 <= float(labels.min()) <= float(labels.max()) <= 1:
        raise ValueError(f"labels of a sigmoid output must be in [0, 1], got {labels.min():g} to {labels.max():g}")


def class_weights(
    wanted: Literal["balanced"] | tuple[float, ...] | None, source: PixelSource, model: MaskedModel
) -> Tensor | None:
    """Return the class weights of the configuration, on the model's device."""
    if wanted is None:
        return None
    if wanted == "balanced":
        return balanced_weights(source, model).to(model.device)
    classes = model.num_classes if model.num_classes > 1 else 2
    if len(wanted) != classes:
        raise ValueError(f"class_weights must be {classes} numbers, one per class, got {len(wanted)}")
    return torch.tensor(wanted, device=model.device)


def balanced_weights(source: PixelSource, model: MaskedModel) -> Tensor:
    """Return weights inverse to the class frequencies, 1 on average over images: ``[K]``, or ``[2]`` for one logit."""
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
