"""Insertion and deletion: how fast the output rises or falls when players are added or removed by decreasing value."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor

from vitshap.explanation import Explanation
from vitshap.methods import ExplainableModel
from vitshap.metrics.base import MetricResult, game_of
from vitshap.metrics.orders import outputs_of_classes, player_counts, player_ranks

Area: TypeAlias = Literal["mean", "trapezoid"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Curve(MetricResult):
    """Outputs of the explained classes after each step; ``values`` is the area under an image's points."""

    points: Tensor
    """float64 ``[B, T, P]``: output after k = 0, step, 2 x step, ... and all players; NaN beyond the image's players."""
    fractions: Tensor = field(metadata={"per_class": False})
    """k divided by the image's number of players, float64 ``[B, P]``; NaN where ``points`` are."""


def insertion(
    surrogate: ExplainableModel,
    images: Any,
    explanation: Explanation,
    /,
    *,
    step: int = 1,
    area: Area = "mean",
    seed: int = 0,
) -> Curve:
    """Insert players into the empty image in order of decreasing value, ``step`` at a time; higher is better.

    ``area``: the plain mean of the points, as in the paper, or the trapezoidal rule over the share of players.
    """
    return _curve(surrogate, images, explanation, step, area, seed, insert=True)


def deletion(
    surrogate: ExplainableModel,
    images: Any,
    explanation: Explanation,
    /,
    *,
    step: int = 1,
    area: Area = "mean",
    seed: int = 0,
) -> Curve:
    """Delete players from the whole image in order of decreasing value, ``step`` at a time; lower is better.

    ``area`` as for ``insertion``.
    """
    return _curve(surrogate, images, explanation, step, area, seed, insert=False)


def _curve(
    surrogate: ExplainableModel,
    images: Any,
    explanation: Explanation,
    step: int,
    area: Area,
    seed: int,
    *,
    insert: bool,
) -> Curve:
    if step < 1 or area not in get_args(Area):
        raise ValueError(f'step is at least 1 and area "mean" or "trapezoid", got {step} and {area!r}')
    pixels = surrogate.prepare(images).pixels
    d = explanation.values.shape[1]
    game = game_of(surrogate, pixels, explanation)
    classes = explanation.classes.to(game.device)
    inner = torch.arange(0, d, step)[1:]
    kept = torch.stack([torch.zeros_like(inner), inner] if insert else [inner, torch.full_like(inner, d)], 1)
    points = outputs_of_classes(game, player_ranks(explanation, pixels, seed), kept, classes)
    empty, full = (end.double().gather(1, classes)[..., None] for end in (game.null, game.grand))  # [B, T, 1]
    first, last = (empty, full) if insert else (full, empty)
    points = torch.cat([first, points, last], 2).cpu()
    # an image with fewer than d players reaches its last point earlier
    count = player_counts(explanation)[:, None]
    reached = torch.cat([torch.tensor([0]), inner, torch.tensor([d])]).expand(len(pixels), -1)  # [B, P]
    points = points.where((reached < count)[:, None], last.cpu())
    beyond = torch.cat([torch.zeros_like(count, dtype=torch.bool), (reached >= count)[:, :-1]], 1)
    points = points.masked_fill(beyond[:, None], torch.nan)
    fractions = (reached.minimum(count).double() / count).masked_fill(beyond, torch.nan)
    return Curve(
        metric="insertion" if insert else "deletion",
        values=curve_area(points, fractions, area),
        classes=explanation.classes,
        higher_is_better=insert,
        class_specific=explanation.class_specific,
        points=points,
        fractions=fractions,
    )


def curve_area(points: Tensor, fractions: Tensor, area: Area) -> Tensor:
    """Return the area ``[B, T]`` under points ``[B, T, P]`` at ``fractions`` ``[B, P]``; NaN at the end are left out."""
    if area == "mean":
        return points.nanmean(2)
    return ((points[..., 1:] + points[..., :-1]) / 2 * fractions.diff(dim=1)[:, None]).nansum(2)
