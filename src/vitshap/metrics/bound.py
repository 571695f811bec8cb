"""Theorem 1 where everything can be computed: the error of given values, and what their loss says of it.

The loss of values ``phi`` is ``L = E[(v(s) - v(0) - s'phi)^2]`` under the Shapley kernel p_Sh, a quadratic in ``phi``.
Moments that one pass over all coalitions collects (``E[u^2]`` and ``E[su]`` of the gain ``u = v(s) - v(0)``; ``E[ss']`` is
known in closed form) give it for any values, and its minimiser among the efficient ones: the Shapley values themselves.

Efficient values differ from them by a vector that adds up to zero, and on those ``E[ss']`` is ``1 / (2 H_{d-1})`` times the
identity. So for one image and class the theorem's inequality is an equality; what is left between error and bound is that
the mean of distances is at most the root of the mean of their squares.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import comb
from typing import Any

import torch
from torch import Tensor

from vitshap.coalitions import all_coalitions, harmonic_number, shapley_kernel
from vitshap.explanation import Explanation
from vitshap.game import Game
from vitshap.methods import ExplainableModel
from vitshap.metrics.base import MetricResult, game_of

MOST_PLAYERS = 20
EFFICIENT = 1e-3
"""How far values may be from adding up to v(1) - v(0), as a share of the largest such difference (or of 1, if less)."""
ROUNDING = 1e-5
"""The share by which an error may exceed its bound where both are the same number, computed in two ways."""
TINY = 1e-7
"""The root of what is lost where a loss and its optimum are all but equal."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ErrorBound(MetricResult):
    """Euclidean distances to the exact Shapley values; ``mean`` is the left-hand side of the theorem's inequality."""

    losses: Tensor
    """``L`` of the values, float64 ``[B, T]``, unscaled: the loss that training reports is d times this."""
    optima: Tensor
    """``L*``: the same of the exact Shapley values, float64 ``[B, T]``."""
    num_players: int

    @property
    def bound(self) -> float:
        """``sqrt(2 H_{d-1} (L - L*))``, with means over images and classes."""
        return self._root(float(self.losses.mean() - self.optima.mean()))

    @property
    def loose_bound(self) -> float:
        """The same with ``L* = 0``: valid without knowing the exact values, and larger."""
        return self._root(float(self.losses.mean()))

    @property
    def holds(self) -> bool:
        """Whether error <= bound <= looser bound, but for rounding."""
        slack = TINY * (1 + self.loose_bound)
        bound = self.bound * (1 + ROUNDING) + slack
        return self.mean <= bound <= self.loose_bound * (1 + ROUNDING) ** 2 + 2 * slack

    def _root(self, excess: float) -> float:
        factor = 2 * harmonic_number(self.num_players - 1)
        return float((factor * max(excess, 0.0)) ** 0.5)


@dataclass(frozen=True, eq=False)
class KernelMoments:
    """What all coalitions of a game together say about any values, float64."""

    gain_squared: Tensor
    """``E[u^2]`` ``[B, K]``, for the gain u = v(s) - v(0) under p_Sh."""
    gain_by_player: Tensor
    """``E[su]`` ``[B, d, K]``."""
    total: Tensor
    """``v(1) - v(0)`` ``[B, K]``."""
    second_moment: Tensor
    """``E[ss']`` ``[d, d]``."""

    def loss(self, values: Tensor) -> Tensor:
        """``E[(v(s) - v(0) - s'phi)^2]`` of values ``[B, d, K]``: ``[B, K]``."""
        values = values.to(self.gain_by_player)
        linear = (values * self.gain_by_player).sum(1)
        quadratic = (values * torch.einsum("ij,bjk->bik", self.second_moment, values)).sum(1)
        return (self.gain_squared - 2 * linear + quadratic).clamp(min=0)

    def shapley_values(self) -> Tensor:
        """The efficient values of least loss, ``[B, d, K]``."""
        d = len(self.second_moment)
        centred = self.gain_by_player - self.gain_by_player.mean(1, keepdim=True)
        return 2 * harmonic_number(d - 1) * centred + self.total[:, None] / d


def kernel_moments(game: Game, /, *, batch: int = 4096) -> KernelMoments:
    """Ask about all ``2^d`` coalitions of a game of 2 to 20 players, ``batch`` at a time."""
    d = game.num_players
    if not 2 <= d <= MOST_PLAYERS:
        raise ValueError(f"all coalitions are asked about for 2 to {MOST_PLAYERS} players, not {d}")
    if game.player_mask is not None and not bool(game.player_mask.all()):
        raise ValueError("some images lack some players: give the game of images that have the same players")
    law = shapley_kernel(d)
    alike = torch.tensor([comb(d, k) for k in range(d + 1)], dtype=torch.float64)
    chance = (law.size_probabilities / alike).to(game.device)  # of each coalition, by its size
    base = game.null.to(torch.float64)  # [B, K]
    squared = torch.zeros_like(base)
    by_player = torch.zeros(game.batch_size, d, game.num_outputs, dtype=torch.float64, device=game.device)
    for coalitions in torch.split(all_coalitions(d, device=game.device)[1:-1], batch):
        gain = game(coalitions).to(torch.float64) - base[:, None]  # [B, S, K]
        weight = chance[coalitions.sum(1)]  # [S]
        squared += torch.einsum("s,bsk->bk", weight, gain.square())
        by_player += torch.einsum("sd,bsk->bdk", weight[:, None] * coalitions, gain)
    total = game.grand.to(torch.float64) - base
    return KernelMoments(squared, by_player, total, law.second_moment().to(game.device))


def error_bound(game: Game, values: Tensor, /, *, batch: int = 4096) -> ErrorBound:
    """Theorem 1 for ``values`` ``[B, d, K]`` of all players and outputs of ``game``, by asking about all coalitions.

    Values must be efficient (add up to v(1) - v(0)): the theorem is about those alone.
    """
    moments = kernel_moments(game, batch=batch)
    values = values.to(moments.gain_by_player)
    missing = float((values.sum(1) - moments.total).abs().max())
    allowed = EFFICIENT * max(1.0, float(moments.total.abs().max()))
    if not missing <= allowed:
        raise ValueError(f"the theorem is about values that add up to v(1) - v(0); these miss it by {missing:.3g}")
    truth = moments.shapley_values()
    return ErrorBound(
        metric="shapley-error",
        values=(values - truth).square().sum(1).sqrt().cpu(),
        classes=torch.arange(game.num_outputs).expand(game.batch_size, -1),
        higher_is_better=False,
        losses=moments.loss(values).cpu(),
        optima=moments.loss(truth).cpu(),
        num_players=game.num_players,
    )


def shapley_error(
    surrogate: ExplainableModel, images: Any, explanation: Explanation, /, *, batch: int = 4096
) -> ErrorBound:
    """Distance of an additive explanation to the exact Shapley values, and Theorem 1's bound on it; lower is better.

    All coalitions are evaluated: for at most 20 players.
    """
    game = game_of(surrogate, surrogate.prepare(images).pixels, explanation)
    found = error_bound(game.only(explanation.classes.to(game.device)), explanation.values, batch=batch)
    return replace(found, classes=explanation.classes, class_specific=explanation.class_specific)
