"""Orders of players by their value, and the outputs of coalitions that are ranges of such an order.

Players are ranked once per image and class. The coalitions of a curve ("rank below k") are built chunk by chunk on the
device. A class-agnostic explanation has one order for all classes, whose coalitions are evaluated once. Ties are broken
at random, because the order of the players would favour one corner of the image.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from vitshap.explanation import Explanation
from vitshap.game import Game
from vitshap.methods import image_generators


def player_ranks(explanation: Explanation, pixels: Tensor, seed: int) -> Tensor:
    """Rank players by decreasing value from 0, int32 ``[B, d, T]`` on the pixels' device; absent players come last.

    T is 1 for a class-agnostic explanation. One random order per image breaks the ties of all classes, so the ranks of a
    class do not depend on which other classes were explained.
    """
    values = explanation.values if explanation.class_specific else explanation.values[..., :1]
    if explanation.player_mask is not None:
        values = values.masked_fill(~explanation.player_mask[..., None], -torch.inf)
    values = values.to(pixels.device)
    ordered, order = values.sort(dim=1, descending=True, stable=True)
    tied = (ordered[:, 1:] == ordered[:, :-1]).flatten(1).any(1).nonzero().flatten()
    if len(tied):  # only these images need random numbers, which are a function of their pixels
        d = values.shape[1]
        shuffle = torch.stack([torch.randperm(d, generator=g) for g in image_generators(pixels[tied].cpu(), seed)])
        shuffle = shuffle.to(values.device)[..., None].expand(-1, -1, values.shape[2])
        by_value = values[tied].gather(1, shuffle).argsort(dim=1, descending=True, stable=True)
        order[tied] = shuffle.gather(1, by_value)
    return order.argsort(dim=1).to(torch.int32)


def player_counts(explanation: Explanation) -> Tensor:
    """Return the number of players of each image, int64 ``[B]``."""
    batch, d, _ = explanation.values.shape
    return torch.full((batch,), d) if explanation.player_mask is None else explanation.player_mask.sum(1)


def ranked_outputs(game: Game, ranks: Tensor, kept: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Evaluate ranges of every order chunk by chunk; yield (order of each coalition ``[S]``, outputs ``[B, S, K]``).

    ``ranks``: ``[B, d, orders]``. ``kept``: int64 ``[P, 2]``, the first and one past the last rank that is kept; if the
    first is larger, the ranks between are withheld instead. Order by order, the ranges one after the other.
    """
    ranks = ranks.transpose(1, 2).contiguous()  # [B, orders, d]
    jobs = torch.cartesian_prod(torch.arange(ranks.shape[1]), torch.arange(len(kept))).view(-1, 2).to(game.device)
    kept = kept.to(game.device, ranks.dtype)
    chunk = game.bounded_chunk
    for start in range(0, len(jobs), chunk):
        order, which = jobs[start : start + chunk].unbind(1)
        low, high = kept[which, 0, None], kept[which, 1, None]  # [S, 1]
        rank = ranks[:, order]  # [B, S, d]
        yield order, game(((rank >= low) == (rank < high)) == (low <= high))


def outputs_of_classes(game: Game, ranks: Tensor, kept: Tensor, classes: Tensor) -> Tensor:
    """Return the outputs of the explained classes, float64 ``[B, T, P]``, each for the ranges of its own order."""
    batch, columns = classes.shape
    parts = []
    for order, outputs in ranked_outputs(game, ranks, kept):
        if ranks.shape[2] < columns:  # class-agnostic: one order for all classes
            index = classes[:, None, :].expand(-1, outputs.shape[1], -1)
            parts.append(outputs.gather(2, index).transpose(1, 2).double())  # [B, T, S]
        else:
            parts.append(outputs.gather(2, classes[:, order, None]).transpose(1, 2).double())  # [B, 1, S]
    if not parts:
        return torch.empty(batch, columns, 0, dtype=torch.float64, device=game.device)
    return torch.cat(parts, 2).view(batch, columns, len(kept))
