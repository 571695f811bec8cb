"""What is minimised: all losses take logits or values in float32, because half precision loses small probabilities."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vitshap.coalitions import Coalitions
from vitshap.models.masked import Output


def surrogate_loss(classifier_logits: Tensor, surrogate_logits: Tensor, output: Output) -> Tensor:
    """How far the surrogate's answers with missing patches are from the classifier's on the whole image; a mean.

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
    """Cross-entropy of ``logits`` (``[B, K]``) for ``labels``: classes ``[B]`` for softmax, 0/1 ``[B]`` or ``[B, K]`` for
    sigmoid, numbers for identity (squared error). ``class_weights`` (``[K]``) multiply the losses of classes; for one logit
    ``[2]``, those of 0 and of 1.
    """
    logits = logits.float()
    if output == "softmax":
        if class_weights is None:
            return F.cross_entropy(logits, labels)
        # A plain mean: torch's own divides by the batch's weights, so that a sample would count by who is beside it.
        return F.cross_entropy(logits, labels, weight=class_weights, reduction="none").mean()
    wanted = labels.to(logits.dtype).view_as(logits)
    if output == "identity":
        return (logits - wanted).square().mean()
    weight = None
    if class_weights is not None:
        weight = class_weights[wanted.long()] if logits.shape[-1] == 1 else class_weights.expand_as(logits)
    return F.binary_cross_entropy_with_logits(logits, wanted, weight=weight)


def explainer_loss(values: Tensor, coalitions: Coalitions, worth: Tensor, base: Tensor) -> Tensor:
    """The weighted-least-squares objective on the paper's scale: d times the mean of ``(v(s) - v(0) - s'phi)^2``.

    ``values``: ``[B, d, K]``, already efficient; ``coalitions``: bool ``[B, S, d]`` drawn from p_Sh; ``worth``: their
    values ``[B, S, K]``; ``base``: v(0), ``[B, K]``. The mean is over images, coalitions and classes.
    """
    with torch.autocast(values.device.type, enabled=False):  # half precision would round the sums
        predicted = coalitions.float() @ values.float()  # [B, S, K]
    return values.shape[1] * (worth.float() - base.float()[:, None] - predicted).square().mean()


def class_importance(full: Tensor, output: Output, emphasis: float) -> Tensor:
    """How much an image's classes count, ``[B, K]``: the predicted one as much as itself and ``emphasis`` times all others
    together. ``full``: v(1), ``[B, K]``. Outputs that are not probabilities of one class each count the same.
    """
    if output != "softmax":
        return torch.ones_like(full)
    return 1 + emphasis * (full.shape[1] - 1) * full


def uniform_explanation(base: Tensor, full: Tensor, d: int) -> Tensor:
    """The explanation that knows nothing, ``(v(1) - v(0)) / d`` for every player: ``[B, d, K]``."""
    return ((full - base) / d)[:, None].expand(-1, d, -1)
