"""Images that the surrogate is unsure of, met more often than others.

Few images of a training set are, for the net has learned their labels, and they are the hardest to explain: their values
are large, come about in coalitions of all sizes and are the noisiest. A repeated image has a place of its own among the
samples, so that it is varied in its own ways and asked about its own coalitions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vitshap.models import MaskedModel
from vitshap.training.batches import Images

SURE = 0.98
"""Largest probability from which on the surrogate is sure of an image."""
_TOGETHER = 256


def repeat_unsure(images: Images, model: MaskedModel, times: int) -> None:
    """Let ``images`` hold those that ``model`` is unsure of so many times."""
    if model.output != "softmax":
        raise ValueError(
            f'values.unsure needs a net that divides probability among classes, not output "{model.output}"'
        )
    images.source = images.source.repeated(unsure(images, model).repeat(times - 1))


def unsure(images: Images, model: MaskedModel) -> Tensor:
    """Positions of images whose largest probability is below ``SURE`` as they are, int64 ``[n]`` on the CPU."""
    found = []
    with torch.no_grad():
        for pixels, batch in images.in_order(_TOGETHER):
            largest = model(pixels).amax(1)
            found.append(images.positions(batch.indices)[largest < SURE])
    return torch.cat(found).cpu()
