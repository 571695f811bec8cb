"""The grid pointing game (Böhle et al. 2021): is the value of a class in the part of a mosaic that shows it?

Every image becomes a quarter of a mosaic of 2 x 2 images, of which no other shows its class. The mosaic is explained for
this class. The score is the share of the positive values that lies in the right quarter: 1/4 for random values.

The three other images and the quarter are random numbers of the image's position among all candidates and of the class,
so they do not depend on the batch in which an image is measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitshap.counter_rng import random_bits, sample_keys, whole_numbers
from vitshap.explanation import Explanation
from vitshap.methods import ExplainableModel
from vitshap.metrics.base import MetricResult, check_matches, named_method, own_classes, predicted_classes
from vitshap.players import Players


@dataclass(frozen=True, eq=False)
class Candidates:
    """Images that the other three of a mosaic are drawn from, the explained ones among them."""

    own: Tensor
    """Which outputs are each image's own classes, bool ``[N, K]``."""
    places: Tensor
    """Of the explained images, int64 ``[B]``."""
    load: Callable[[Tensor], Tensor]
    """From places of images, int64 ``[n]``, to their pixels ``[n, C, H, W]``."""


def grid_pointing(
    surrogate: ExplainableModel,
    images: Any,
    explanation: Explanation,
    /,
    *,
    labels: Tensor | None = None,
    method: Callable[..., Explanation] | None = None,
    candidates: Candidates | None = None,
    seed: int = 0,
) -> MetricResult:
    """Return the share of the positive values in the right quarter of a mosaic; higher is better.

    Of each image those explained classes count that are its own (``own_classes`` of ``labels``; None: what the explained
    model predicted). The three other images are drawn from those that are not of this class: of three different classes if
    there are that many. ``candidates``: all images of which some are measured here, in place of ``labels``; None: these.
    Images are scaled down by two. ``method``: the one that made the explanation; None: the method of the explanation's
    name with its default options, for the surrogate. It is undefined without three other images, where no value is
    positive, and for stored values.
    """
    if surrogate.output == "identity":
        raise ValueError("the grid pointing game needs images of different classes, not a regression")
    pixels = surrogate.prepare(images).pixels
    check_matches(surrogate, pixels, explanation)
    if candidates is None:
        labels = predicted_classes(explanation.prediction, surrogate) if labels is None else labels
        places = torch.arange(len(pixels))
        candidates = Candidates(own_classes(labels, surrogate), places, lambda some: pixels[some.to(pixels.device)])
    own = candidates.own[candidates.places]  # [B, K]
    explain = named_method(explanation, surrogate) if method is None else method
    kinds = torch.unique(candidates.own, dim=0, return_inverse=True)[1]  # [N]: one kind has the same classes
    games = []
    for image, column in own.gather(1, explanation.classes).nonzero().tolist():  # columns of an image's own classes
        place, target = candidates.places[image : image + 1], int(explanation.classes[image, column])
        others = _others(kinds, candidates.own, target, sample_keys("mosaic", place, seed=seed, epoch=target))
        quarter = whole_numbers(sample_keys("quarter", place, seed=seed, epoch=target), 1, bits=2)
        if others is not None:
            games.append((image, column, [int(place), *others], int(quarter)))
    values = torch.full(explanation.classes.shape, torch.nan, dtype=torch.float64)
    for start in range(0, len(games) if explain else 0, len(pixels)):  # as many mosaics at a time as there are images
        shown, columns, four, quarter = map(torch.tensor, zip(*games[start : start + len(pixels)], strict=True))
        needed, at = torch.unique(four, return_inverse=True)
        assert explain is not None
        made = mosaics(candidates.load(needed), at[:, 0], at[:, 1:], quarter)
        values[shown, columns] = share_in_quarter(explain(made, target=explanation.classes[shown, columns]), quarter)
    return MetricResult(
        metric="grid-pointing",
        values=values,
        classes=explanation.classes,
        higher_is_better=True,
        class_specific=explanation.class_specific,
    )


def mosaics(pixels: Tensor, image: Tensor, others: Tensor, quarter: Tensor) -> Tensor:
    """Return mosaics ``[n, C, H, W]`` with ``image`` (``[n]``) in ``quarter`` and ``others`` (``[n, 3]``) elsewhere.

    Quarters are numbered 0 to 3: top left, top right, bottom left, bottom right.
    """
    place = torch.arange(4).expand(len(image), -1)  # [n, 4]
    rest = (place - (place > quarter[:, None]).long()).clamp(max=2)  # others in the order of the remaining quarters
    shown = torch.where(place == quarter[:, None], image[:, None], others.gather(1, rest)).to(pixels.device)
    height, width = pixels.shape[-2:]
    rows, columns = (height // 2, height - height // 2), (width // 2, width - width // 2)
    bands = []
    for row in range(2):
        parts = (
            F.interpolate(pixels[shown[:, 2 * row + column]], (rows[row], columns[column]), mode="area")
            for column in range(2)
        )
        bands.append(torch.cat(list(parts), 3))
    return torch.cat(bands, 2)


def share_in_quarter(explanation: Explanation, quarter: Tensor) -> Tensor:
    """Return the share of the positive values of the first explained class in these quarters, float64 ``[n]``.

    A player counts with the part of its area that lies in the quarter.
    """
    d = explanation.values.shape[1]
    rows, columns = explanation.grid
    down = _overlap(rows)[quarter // 2]  # [n, rows]
    across = _overlap(columns)[quarter % 2]  # [n, columns]
    inside = (down[:, :, None] * across[:, None, :]).flatten(1)[..., None]  # [n, N, 1]
    players = Players(explanation.players, d)
    area = players.sum_tokens(torch.ones_like(inside))[..., 0]
    part = players.sum_tokens(inside)[..., 0] / area.clamp(min=1)  # [n, d]
    positive = explanation.values[..., 0].double().clamp(min=0)
    total = positive.sum(1)
    return torch.where(total > 0, (positive * part).sum(1) / total, torch.nan)


def _overlap(cells: int) -> Tensor:
    """Return the part of each of ``cells`` cells in a row that lies in its first and in its second half, ``[2, cells]``."""
    edge = torch.arange(cells, dtype=torch.float64)
    first = (cells / 2 - edge).clamp(0, 1)
    return torch.stack([first, 1 - first])


def _others(kinds: Tensor, own: Tensor, target: int, key: Tensor) -> list[int] | None:
    """Draw three images that are not of class ``target``, of different ``kinds`` if possible; None if there are fewer."""
    order = random_bits(key, len(own))[0].argsort()
    order = order[~own[order, target]]
    first: dict[int, int] = {}
    for image, kind in zip(order.tolist(), kinds[order].tolist(), strict=True):
        first.setdefault(kind, image)
        if len(first) == 3:
            break
    different = list(first.values())
    chosen = [*different, *(i for i in order.tolist() if i not in different)][:3]
    return chosen if len(chosen) == 3 else None
