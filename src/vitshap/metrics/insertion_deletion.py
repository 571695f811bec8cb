"""Insertion and deletion: how fast the output rises or falls when players are added or removed by decreasing value.

Players are ranked once per image and class. The coalitions of the curve are "rank below k" (insertion) or "rank k and
above" (deletion) and are built chunk by chunk; the game stores the values of the empty and of the full coalition. A
class-agnostic explanation needs one sequence of coalitions for all classes. Ties are broken at random, because the order
of the players would favour one corner of the image.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitshap.explanation import Explanation
from vitshap.game import Game
from vitshap.methods import ExplainableModel, image_generators
from vitshap.metrics.base import MetricResult, game_of


@dataclass(frozen=True, eq=False, kw_only=True)
class Curve(MetricResult):
    """Outputs of the explained classes after each step; ``values`` is the area, the plain mean of an image's points."""

    points: Tensor
    """float64 ``[B, T, d + 1]``: output after k players; NaN for k above the image's number of players."""
    fractions: Tensor
    """k divided by the image's number of players, float64 ``[B, d + 1]``; NaN where ``points`` are."""


def insertion(surrogate: ExplainableModel, images: Any, explanation: Explanation, /, *, seed: int = 0) -> Curve:
    """Insert players into the empty image in order of decreasing value; higher is better."""
    return _curve(surrogate, images, explanation, seed, insert=True)


def deletion(surrogate: ExplainableModel, images: Any, explanation: Explanation, /, *, seed: int = 0) -> Curve:
    """Delete players from the whole image in order of decreasing value; lower is better."""
    return _curve(surrogate, images, explanation, seed, insert=False)


def _curve(surrogate: ExplainableModel, images: Any, explanation: Explanation, seed: int, *, insert: bool) -> Curve:
    pixels = surrogate.prepare(images).pixels
    batch, d, _ = explanation.values.shape
    game = game_of(surrogate, pixels, explanation)
    ranks = _ranks(explanation, pixels, seed).to(game.device)
    classes = explanation.classes.to(game.device)
    empty, full = (end.double().gather(1, classes)[..., None] for end in (game.null, game.grand))  # [B, T, 1]
    first, last = (empty, full) if insert else (full, empty)
    points = torch.cat([first, _inner_points(game, ranks, classes, insert), last], 2)
    if explanation.player_mask is None:
        count = torch.full((batch, 1), d)
    else:
        count = explanation.player_mask.sum(1, keepdim=True)
    step = torch.arange(d + 1).expand(batch, -1)
    # an image with fewer than d players reaches its last point earlier
    points = points.cpu().where((step < count)[:, None], last.cpu())
    points = points.masked_fill((step > count)[:, None], torch.nan)
    fractions = (step.double() / count).masked_fill(step > count, torch.nan)
    return Curve(
        metric="insertion" if insert else "deletion",
        values=points.nanmean(2),
        classes=explanation.classes,
        higher_is_better=insert,
        class_specific=explanation.class_specific,
        points=points,
        fractions=fractions,
    )


def _ranks(explanation: Explanation, pixels: Tensor, seed: int) -> Tensor:
    """Rank players by decreasing value from 0, int64 ``[B, d, T]`` (T = 1 for a class-agnostic explanation).

    One random order per image breaks the ties of all classes, so the ranks of a class do not depend on which other
    classes were explained.
    """
    values = explanation.values if explanation.class_specific else explanation.values[..., :1]
    if explanation.player_mask is not None:
        values = values.masked_fill(~explanation.player_mask[..., None], -torch.inf)
    d = values.shape[1]
    shuffle = torch.stack([torch.randperm(d, generator=g) for g in image_generators(pixels, seed)])
    shuffle = shuffle[..., None].expand_as(values)  # [B, d, T]
    by_value = values.gather(1, shuffle).argsort(dim=1, descending=True, stable=True)
    return shuffle.gather(1, by_value).argsort(dim=1)


def _inner_points(game: Game, ranks: Tensor, classes: Tensor, insert: bool) -> Tensor:
    """Evaluate the curves after 1 to d - 1 players, float64 ``[B, T, d - 1]``."""
    batch, d, paths = ranks.shape
    ranks = ranks.transpose(1, 2)  # [B, paths, d]
    jobs = torch.cartesian_prod(torch.arange(paths), torch.arange(1, d)).to(game.device).view(-1, 2)
    shared = paths < classes.shape[1]  # class-agnostic: one sequence of coalitions for all classes
    parts = []
    chunk = game.bounded_chunk
    for start in range(0, len(jobs), chunk):
        path, step = jobs[start : start + chunk].unbind(1)
        inside = ranks[:, path] < step[:, None]  # [B, S, d]
        coalitions = inside if insert else ~inside
        if shared:
            parts.append(game(coalitions, classes).double().transpose(1, 2))  # [B, T, S]
        else:
            parts.append(game(coalitions).double().gather(2, classes[:, path, None]).transpose(1, 2))  # [B, 1, S]
    if not parts:
        return torch.empty(batch, classes.shape[1], 0, dtype=torch.float64, device=game.device)
    return torch.cat(parts, 2).view(batch, classes.shape[1], d - 1)
