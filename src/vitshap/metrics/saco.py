"""SaCo, the salience-guided faithfulness coefficient (Wu et al. 2024, arXiv 2404.01415)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vitshap.explanation import Explanation
from vitshap.methods import ExplainableModel
from vitshap.metrics.base import MetricResult, game_of
from vitshap.metrics.orders import outputs_of_classes, player_counts, player_ranks
from vitshap.metrics.statistics import is_constant


def saco(
    surrogate: ExplainableModel,
    images: Any,
    explanation: Explanation,
    /,
    *,
    groups: int = 10,
    seed: int = 0,
) -> MetricResult:
    """Compare groups of players: do those of larger value lower the output more when they are withheld?

    Players are divided by rank into ``groups`` of equal number (up to one player). Every pair of groups counts the
    difference of their values: positively if the drops of the output have the same order, else negatively; the result is
    divided by the sum of absolute differences. 1: every order is right, -1: every order is wrong. Values and drops of a
    group are divided by its number of players, since a group of one more player would have more of both. It is undefined
    for values that are all equal.
    """
    if groups < 2:
        raise ValueError(f"saco compares groups of players: groups is at least 2, got {groups}")
    pixels = surrogate.prepare(images).pixels
    game = game_of(surrogate, pixels, explanation)
    counts = player_counts(explanation)
    if int(counts.min()) < 2:
        raise ValueError("saco compares groups of players, but an image has only one player")
    classes = explanation.classes.to(game.device)
    count = counts.to(game.device)[:, None, None]
    made = min(groups, int(counts.max()))
    ranks = player_ranks(explanation, pixels, seed)
    # an image with fewer players than groups has as many groups as players; absent players are in none
    group = torch.where(ranks < count, ranks.long() * count.clamp(max=made) // count, made)  # [B, d, T]
    number = torch.arange(made)
    without = outputs_of_classes(game, group, torch.stack([number + 1, number], 1), classes)  # [B, T, groups]
    drop = game.grand.double().gather(1, classes)[..., None] - without
    values = explanation.values.to(game.device).double()
    group = group.expand_as(values)
    none = torch.zeros(len(values), made + 1, values.shape[2], dtype=torch.float64, device=game.device)
    sums, sizes = (
        none.scatter_add(1, group, part)[:, :made].transpose(1, 2) for part in (values, torch.ones_like(values))
    )  # [B, T, groups]
    score = _coefficient(sums / sizes.clamp(min=1), drop / sizes.clamp(min=1), sizes > 0)
    present = None if explanation.player_mask is None else explanation.player_mask[:, None]
    constant = is_constant(explanation.values.transpose(1, 2), present)
    return MetricResult(
        metric="saco",
        values=score.cpu().masked_fill(constant, torch.nan),
        classes=explanation.classes,
        higher_is_better=True,
        class_specific=explanation.class_specific,
    )


def _coefficient(value: Tensor, drop: Tensor, exists: Tensor) -> Tensor:
    """Return the coefficient ``[B, T]`` of groups with these values and drops of the output, ``[B, T, G]``."""
    difference = value[..., :, None] - value[..., None, :]  # [B, T, G, G]: every pair twice
    agrees = difference * (drop[..., :, None] - drop[..., None, :]) >= 0
    weight = (difference.abs() * (exists[..., :, None] & exists[..., None, :])).flatten(2)
    signed = torch.where(agrees.flatten(2), weight, -weight).sum(2)
    total = weight.sum(2)
    return torch.where(total > 0, signed / total.clamp(min=torch.finfo(total.dtype).tiny), torch.nan)
