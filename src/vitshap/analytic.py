"""Textbook games with known Shapley values, which the estimators are tested against."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import comb

import torch
from torch import Tensor

from vitshap.coalitions import Coalitions
from vitshap.game import Game


class AnalyticGame(Game):
    """A game with known Shapley values."""

    def __init__(self, value: Callable[[Coalitions], Tensor], shapley_values: Tensor, /) -> None:
        """Make a game of ``value``, a function of bool ``[B, S, d]``; ``shapley_values`` are float64 ``[B, d, K]``."""
        batch, players, outputs = shapley_values.shape
        super().__init__(
            value, num_players=players, num_outputs=outputs, batch_size=batch, device=shapley_values.device
        )
        self.shapley_values = shapley_values


def additive(weights: Tensor, /) -> AnalyticGame:
    """Make the game whose v(s) is the sum of the members' weights (``[B, d, K]``), which are the Shapley values."""
    weights = weights.to(torch.float64)
    return AnalyticGame(lambda s: s.to(torch.float64) @ weights, weights)


def majority(d: int, /, quota: int | None = None) -> AnalyticGame:
    """Make the game with v(s) = 1 if s has at least ``quota`` members (default: more than half); all values are 1/d."""
    needed = d // 2 + 1 if quota is None else quota

    def value(s: Coalitions) -> Tensor:
        return (s.sum(-1, keepdim=True) >= needed).to(torch.float64)

    return AnalyticGame(value, torch.full((1, d, 1), 1 / d, dtype=torch.float64))


def glove(left: int, right: int, /) -> AnalyticGame:
    """Make the glove game: ``left`` players own a left glove, ``right`` a right one; v(s) is the number of pairs in s."""
    d = left + right

    def value(s: Coalitions) -> Tensor:
        return torch.minimum(s[..., :left].sum(-1), s[..., left:].sum(-1)).to(torch.float64)[..., None]

    shares = [_glove_share(left, right)] * left + [_glove_share(right, left)] * right
    return AnalyticGame(value, torch.tensor([float(x) for x in shares], dtype=torch.float64).view(1, d, 1))


def _glove_share(own: int, other: int) -> Fraction:
    """Probability that the owner of a glove, arriving in random order, finds an unpaired glove of the other kind."""
    d = own + other
    total = Fraction(0)
    for before in range(d):
        ways = sum(comb(own - 1, a) * comb(other, before - a) for a in range(before + 1) if a < before - a)
        total += Fraction(ways, comb(d - 1, before))
    return total / d


def random_unanimity(
    d: int,
    /,
    *,
    terms: int = 50,
    batch_size: int = 1,
    num_outputs: int = 1,
    seed: int = 0,
    largest: int | None = None,
) -> AnalyticGame:
    """Make a random weighted sum of unanimity games: v(s) is the sum of c_T over the sets T contained in s.

    Each c_T is shared equally among the members of T. Every game can be written in this way. ``largest`` limits the size
    of the sets, which is the order of interaction.
    """
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(1, (largest or d) + 1, (terms,), generator=generator)
    ranks = torch.rand(terms, d, generator=generator).argsort(1).argsort(1)
    sets = (ranks < sizes[:, None]).to(torch.float64)  # [terms, d]
    coefficients = torch.randn(batch_size, terms, num_outputs, generator=generator, dtype=torch.float64)

    def value(s: Coalitions) -> Tensor:
        contained = (s.to(torch.float64) @ sets.t()) == sets.sum(1)  # [B, S, terms]
        return contained.to(torch.float64) @ coefficients

    shapley_values = (sets / sets.sum(1, keepdim=True)).t() @ coefficients  # [B, d, K]
    return AnalyticGame(value, shapley_values)
