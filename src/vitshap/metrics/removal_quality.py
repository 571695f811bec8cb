"""How well a model predicts with players withheld, for several ways to withhold them: the paper's figure on removal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitshap.coalitions import fixed_size, sample_coalitions
from vitshap.metrics.base import own_classes
from vitshap.models import MaskedModel
from vitshap.models.base import evaluating

SHARES = 14
"""Players are kept in steps of 1/14: 0, 14, ... 196 of 196."""
ON_CLASSIFIER = ("attention", "softmax", "pixels", "embeddings", "random")


@dataclass(frozen=True, eq=False)
class RemovalQuality:
    """Per-image results for every mechanism and number of players kept."""

    counts: Tensor
    """Players kept, int64 ``[N]``."""
    divergence: dict[str, Tensor]
    """By mechanism, from the classifier's prediction for the whole image to the masked one, float64 ``[B, N]``: KL
    divergence for softmax, its sum over classes for sigmoid, squared error for identity."""
    correct: dict[str, Tensor]
    """By mechanism, whether the masked prediction is the label: 0 or 1, float64 ``[B, N]``. The share of right classes for
    several labels per image; NaN for regression."""


def removal_counts(d: int) -> tuple[int, ...]:
    """Return the numbers of players that are kept: 0, 14, ... 196 of 196, or these shares of ``d``, rounded."""
    return tuple(sorted({round(d * k / SHARES) for k in range(SHARES + 1)}))


def removal_mechanisms(
    classifier: MaskedModel,
    /,
    *,
    reference: Tensor | None = None,
    surrogate: MaskedModel | None = None,
    fine_tuned_pixels: MaskedModel | None = None,
) -> dict[str, MaskedModel]:
    """Return the paper's seven ways to withhold players, by name; those that need a missing argument are left out.

    On the classifier as it is: "attention" (mask before the softmax), "softmax" (mask after it), "pixels" and
    "embeddings" set to zero, "random" patches of the images ``reference`` (``[n, C, H, W]``; default: the classifier's).
    "attention, fine-tuned" is the surrogate, "pixels, fine-tuned" a model trained with pixels set to zero.
    """
    found = {}
    for removal in ON_CLASSIFIER:
        made = classifier.with_removal(removal)
        if removal == "random" and reference is not None:
            made.reference = made.prepare(reference).pixels
        if removal != "random" or made.reference is not None:
            found[removal] = made
    if surrogate is not None:
        found["attention, fine-tuned"] = surrogate
    if fine_tuned_pixels is not None:
        if fine_tuned_pixels.removal != "pixels":
            raise ValueError(f'fine_tuned_pixels must have removal="pixels", got "{fine_tuned_pixels.removal}"')
        found["pixels, fine-tuned"] = fine_tuned_pixels
    return found


def removal_quality(
    classifier: MaskedModel,
    models: Mapping[str, MaskedModel],
    images: Any,
    labels: Tensor,
    *,
    counts: Sequence[int] | None = None,
    seed: int = 0,
    first: int = 0,
    batch: int = 64,
) -> RemovalQuality:
    """Compare masked predictions with the classifier's for whole images and with the labels.

    ``models``: the mechanisms by name (``removal_mechanisms``). One random subset per image and number of players is the
    same for all of them; it depends on the seed and the image's position, counted from ``first``, so that a data set can
    be measured part by part. ``labels``: as ``own_classes`` takes them. ``batch``: images at a time.
    """
    pixels = classifier.prepare(images).pixels
    d = classifier.num_players
    _check(classifier, models, len(pixels), labels)
    numbers = torch.tensor(sorted(set(removal_counts(d) if counts is None else counts)))
    if not len(numbers) or not 0 <= int(numbers[0]) <= int(numbers[-1]) <= d:
        raise ValueError(f"counts of {d} players are 0 to {d}, got {numbers.tolist()}")
    own = own_classes(labels, classifier)
    divergence: dict[str, list[Tensor]] = {name: [] for name in models}
    correct: dict[str, list[Tensor]] = {name: [] for name in models}
    for start in range(0, len(pixels), batch):
        part = pixels[start : start + batch]
        place = first + start + torch.arange(len(part), device=part.device)
        kept = torch.cat(
            [
                sample_coalitions(fixed_size(d, n), place, seed=seed, epoch=n, n=1, purpose="removal")
                for n in numbers.tolist()
            ],
            1,
        )  # [b, N, d]
        with torch.no_grad(), evaluating(classifier.net):
            whole = classifier.logits(part).float()
        for name, model in models.items():
            with torch.no_grad(), evaluating(model.net):
                logits = model.logits(part, kept).float()  # [b, N, K]
            divergence[name].append(_divergence(whole, logits, classifier.output).cpu())
            correct[name].append(_correct(logits.cpu(), own[start : start + batch], classifier.output))
    return RemovalQuality(
        numbers,
        {name: torch.cat(parts) for name, parts in divergence.items()},
        {name: torch.cat(parts) for name, parts in correct.items()},
    )


def _divergence(whole: Tensor, masked: Tensor, output: str) -> Tensor:
    """Return the divergence of masked logits ``[B, N, K]`` from whole ones ``[B, K]``, float64 ``[B, N]``."""
    f, g = whole.double()[:, None].expand_as(masked), masked.double()
    if output == "softmax":
        return F.kl_div(g.log_softmax(2), f.log_softmax(2), reduction="none", log_target=True).sum(2)
    if output == "sigmoid":
        p = f.sigmoid()
        positive, negative = F.logsigmoid(f) - F.logsigmoid(g), F.logsigmoid(-f) - F.logsigmoid(-g)
        return (p * positive + (1 - p) * negative).sum(2)
    return (f - g).square().sum(2)


def _correct(logits: Tensor, own: Tensor, output: str) -> Tensor:
    """Return whether predictions from logits ``[B, N, K]`` are the labels ``own`` ``[B, K]``, float64 ``[B, N]``."""
    if output == "identity":
        return torch.full(logits.shape[:2], torch.nan, dtype=torch.float64)
    if output == "softmax":
        return (logits.argmax(2) == own.int().argmax(1, keepdim=True)).double()
    return ((logits > 0) == own[:, None]).double().mean(2)


def _check(classifier: MaskedModel, models: Mapping[str, MaskedModel], images: int, labels: Tensor) -> None:
    if not models:
        raise ValueError("no mechanism is given: see removal_mechanisms")
    if len(labels) != images:
        raise ValueError(f"there are {images} images, but {len(labels)} labels")
    for name, model in models.items():
        if (model.num_players, model.num_classes) != (classifier.num_players, classifier.num_classes):
            given = f"{model.num_players} players and {model.num_classes} classes"
            wanted = f"{classifier.num_players} and {classifier.num_classes}"
            raise ValueError(f'"{name}" has {given}, the classifier {wanted}')
