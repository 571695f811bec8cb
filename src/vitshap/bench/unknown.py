"""From which probability on an image is taken to show one of the classes that an explainer knows.

A net of ten classes gives every photo one of them. The threshold is the one that warns at a chosen share of known images;
what it is worth is the share of other images that it catches.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitshap.models import MaskedModel
from vitshap.models.base import evaluating
from vitshap.training.batches import Images, evenly


class Separation(NamedTuple):
    """How well a threshold tells other images from known ones."""

    threshold: float
    known_below: float
    """Share of known images that are warned about."""
    others_below: dict[str, float]
    """Share of other images that are, by data set."""
    order: dict[str, float]
    """How often a known image has a larger probability than another one (area under the ROC curve), by data set."""


def top_probabilities(model: MaskedModel, data: Any, *, count: int, batch: int = 64) -> Tensor:
    """The largest probability of each of ``count`` images, evenly over the data set: ``[n]``."""
    if model.unit != "probability" or model.num_classes == 1:
        raise ValueError("only a net with the probabilities of several classes can tell that none of them fits")
    images = Images(model, data, None, seed=0)
    order = evenly(len(images), count).split(batch)  # type: ignore[no-untyped-call]
    with torch.no_grad(), evaluating(model.net):
        return torch.cat([model(pixels).amax(1).cpu() for pixels, _ in images.views(order, 0)])


def separate(known: Tensor, others: dict[str, Tensor], *, warned: float = 0.05) -> Separation:
    """The threshold (two decimals) below which at most the share ``warned`` of known images is."""
    threshold = math.floor(float(known.double().quantile(warned)) * 100) / 100
    return Separation(
        threshold,
        float((known < threshold).double().mean()),
        {name: float((one < threshold).double().mean()) for name, one in others.items()},
        {name: _area(known, one) for name, one in others.items()},
    )


def _area(known: Tensor, others: Tensor) -> float:
    from sklearn.metrics import roc_auc_score

    is_known = torch.cat([torch.ones(len(known)), torch.zeros(len(others))])
    return float(roc_auc_score(is_known.numpy(), torch.cat([known, others]).numpy()))
