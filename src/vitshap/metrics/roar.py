"""ROAR: the accuracy of a classifier that sees only the most, or all but the most, important players.

The evaluator is the surrogate, or any other model that predicts with players withheld, such as a classifier trained with
random masks apart from the surrogate (EVAL-X). The form in which a classifier is retrained on the masked images is
``vitshap.experiments.roar``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from vitshap.explanation import Explanation
from vitshap.methods import ExplainableModel
from vitshap.metrics.base import MetricResult, game_of, own_classes, predicted_classes
from vitshap.metrics.orders import player_counts, player_ranks, ranked_outputs

PAPER_COUNTS, PAPER_PLAYERS = (1, 3, 7, 14, 28, 56, 84, 112, 140, 168, 182), 196


@dataclass(frozen=True, eq=False, kw_only=True)
class Roar(MetricResult):
    """Whether predictions are right; ``values`` is the share inserted minus the share deleted, mean over ``counts``."""

    counts: Tensor
    """Players inserted or deleted, int64 ``[N]``."""
    inserted: Tensor = field(metadata={"per_class": False})
    """Whether the prediction from the ``counts`` most important players is right: 0 or 1, float64 ``[B, N]``.

    With several labels per image, the share of the explained classes that are predicted rightly.
    """
    deleted: Tensor = field(metadata={"per_class": False})
    """The same from all other players, ``[B, N]``."""


def roar_counts(d: int) -> tuple[int, ...]:
    """Return the paper's numbers of players, 1 to 182 of 196, or these shares of ``d``: rounded, at least 1, each once."""
    return tuple(sorted({max(1, round(count * d / PAPER_PLAYERS)) for count in PAPER_COUNTS}))


def roar(
    surrogate: ExplainableModel,
    images: Any,
    explanation: Explanation,
    /,
    *,
    labels: Tensor | None = None,
    evaluator: ExplainableModel | None = None,
    counts: Sequence[int] | None = None,
    seed: int = 0,
) -> Roar:
    """Predict the label from the most important players (insertion) and from all others (deletion); higher is better.

    The order is that of the label's class. For sigmoid outputs every explained class is a question of its own, and the
    order is reversed for labels 0: players that speak against the class come first. ``labels``: as ``own_classes`` takes
    them; None: what the explained model predicted. ``evaluator``: None: the surrogate.
    """
    model = surrogate if evaluator is None else evaluator
    if model.output == "identity":
        raise ValueError("roar measures accuracy: it needs an output of classes, not a regression")
    pixels = model.prepare(images).pixels
    game = game_of(model, pixels, explanation)
    numbers = _checked(roar_counts(game.num_players) if counts is None else counts, game.num_players)
    labels = predicted_classes(explanation.prediction, model) if labels is None else labels
    own = own_classes(labels, model)  # [B, K]
    ranks = player_ranks(explanation, pixels, seed)
    many = torch.full_like(numbers, game.num_players)
    kept = torch.cat([torch.stack([torch.zeros_like(numbers), numbers], 1), torch.stack([numbers, many], 1)])
    columns = explanation.classes.shape[1]
    if model.output == "softmax":
        column = _column(explanation, labels).to(ranks.device)  # [B]
        at = column if explanation.class_specific else torch.zeros_like(column)
        ranks = ranks.gather(2, at[:, None, None].expand(-1, ranks.shape[1], 1))
        label = labels.to(game.device)[:, None]
        right = torch.cat([out.argmax(2) == label for _, out in ranked_outputs(game, ranks, kept)], 1)  # [B, 2N]
        correct = torch.full((len(pixels), columns, len(kept)), torch.nan, dtype=torch.float64, device=game.device)
        correct[torch.arange(len(pixels), device=game.device), column] = right.double()
    else:
        correct = _sigmoid_correct(game, explanation, ranks, kept, own)
    inserted, deleted = correct.cpu().split(len(numbers), 2)  # type: ignore[no-untyped-call]
    return Roar(
        metric="roar",
        values=(inserted - deleted).mean(2),
        classes=explanation.classes,
        higher_is_better=True,
        class_specific=explanation.class_specific,
        counts=numbers,
        inserted=inserted.nanmean(1),
        deleted=deleted.nanmean(1),
    )


def _sigmoid_correct(game: Any, explanation: Explanation, ranks: Tensor, kept: Tensor, own: Tensor) -> Tensor:
    """Return whether each explained class is predicted rightly, float64 ``[B, T, P]``."""
    classes = explanation.classes.to(game.device)
    label = own.to(game.device).gather(1, classes)  # [B, T]
    ranks = reversed_where(ranks.expand(-1, -1, classes.shape[1]), ~label, player_counts(explanation))
    parts = []
    for order, outputs in ranked_outputs(game, ranks, kept):
        probability = outputs.gather(2, classes[:, order, None])[..., 0]  # [B, S]
        parts.append((probability >= 0.5) == label[:, order])
    return torch.cat(parts, 1).view(*classes.shape, len(kept)).double()


def reversed_where(ranks: Tensor, chosen: Tensor, counts: Tensor) -> Tensor:
    """Reverse the orders ``[B, d, T]`` that are ``chosen`` (bool ``[B, T]``); absent players stay last."""
    last = counts.to(ranks.device, ranks.dtype)[:, None, None] - 1
    return torch.where(chosen[:, None].to(ranks.device) & (ranks <= last), last - ranks, ranks)


def _column(explanation: Explanation, labels: Tensor) -> Tensor:
    """Return the column of each image's label among its explained classes, int64 ``[B]``."""
    hit = explanation.classes == labels.cpu()[:, None]
    if not bool(hit.any(1).all()):
        image = int((~hit.any(1)).nonzero()[0])
        raise ValueError(f"class {int(labels[image])} was not explained for image {image}")
    return hit.int().argmax(1)


def _checked(counts: Sequence[int], d: int) -> Tensor:
    numbers = sorted(set(counts))
    if not numbers or numbers[0] < 1 or numbers[-1] > d:
        raise ValueError(f"counts of {d} players are 1 to {d}, got {list(counts)}")
    return torch.tensor(numbers)
