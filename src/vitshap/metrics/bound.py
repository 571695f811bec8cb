"""Theorem 1 of the paper: the error of given values and the bound that their loss gives, over all coalitions or sampled.

The loss of values ``phi`` is ``L = E[(v(s) - v(0) - s'phi)^2]`` under the Shapley kernel p_Sh, a quadratic in ``phi``. One
pass over all coalitions collects the moments ``E[u^2]`` and ``E[su]`` of the gain ``u = v(s) - v(0)``; with ``E[ss']``,
known in closed form, they give the loss of any values, and its minimiser among the efficient ones: the Shapley values.

Efficient values differ from the Shapley values by a vector that adds up to zero, and on such vectors ``E[ss']`` is
``1 / (2 H_{d-1})`` times the identity. So the theorem's inequality is an equality for one image and class; over several,
the mean distance is at most the root of the mean squared distance.

A loss that was measured on sampled images bounds the expected one with a chosen probability, by Chebyshev's or Hoeffding's
inequality. Coalitions and classes of one image are not independent of each other, so the unit of both is the image.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import comb, log
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
"""Tolerance of the sum of the values, relative to the largest v(1) - v(0), or absolute if that is below 1."""
ROUNDING = 1e-5
"""Relative tolerance between error and bound, which may be the same number computed in two ways."""
TINY = 1e-7
"""Root of the rounding error of the difference between a loss and an almost equal optimum."""
LEVEL = 0.95
"""Probability with which a sampled bound holds."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ErrorBound(MetricResult):
    """Euclidean distances to the exact Shapley values; ``mean`` is the left-hand side of the theorem's inequality."""

    losses: Tensor
    """``L`` of the values, float64 ``[B, T]``, unscaled: the loss that training reports is d times this. NaN for values
    that do not add up to v(1) - v(0), of which the theorem says nothing."""
    optima: Tensor
    """``L*``, the loss of the exact Shapley values, float64 ``[B, T]``."""
    num_players: int

    @property
    def bound(self) -> float:
        """``sqrt(2 H_{d-1} (L - L*))``, with means over images and classes; NaN unless all values are efficient."""
        return _root(float(self.losses.mean() - self.optima.mean()), self.num_players)

    @property
    def loose_bound(self) -> float:
        """The bound with ``L* = 0``: larger, but valid without the exact values."""
        return _root(float(self.losses.mean()), self.num_players)

    @property
    def holds(self) -> bool:
        """Whether error <= bound <= looser bound, up to rounding."""
        slack = TINY * (1 + self.loose_bound)
        bound = self.bound * (1 + ROUNDING) + slack
        return self.mean <= bound <= self.loose_bound * (1 + ROUNDING) ** 2 + 2 * slack


@dataclass(frozen=True, eq=False)
class SampledBound:
    """Theorem 1 with a loss that was measured on sampled images and coalitions. All bounds of this kind are loose."""

    losses: Tensor
    """``L`` of each image, unscaled, float64 ``[N]``: means over coalitions of the Shapley kernel and classes. With
    them the bounds have ``L* = 0`` and are valid; ``L - L*`` of each image, with an estimated ``L*``, gives estimates."""
    num_players: int
    most: float | None = None
    """Largest loss that an image can have, for Hoeffding's inequality; None: not known."""
    level: float = LEVEL

    @property
    def bound(self) -> float:
        """The bound with the measured mean in place of the expected loss: it does not hold with a known probability."""
        return self._with(0.0)

    @property
    def chebyshev(self) -> float:
        """The bound by Chebyshev's inequality, which holds with probability ``level`` if the variance is the measured one.

        NaN for fewer than two images.
        """
        count = len(self.losses)
        return float("nan") if count < 2 else self._with(float(self.losses.std()) / (count * (1 - self.level)) ** 0.5)

    @property
    def hoeffding(self) -> float | None:
        """The bound by Hoeffding's inequality, which holds with probability ``level`` if no loss is above ``most``."""
        if self.most is None:
            return None
        return self._with(self.most * (log(1 / (1 - self.level)) / (2 * len(self.losses))) ** 0.5)

    def _with(self, slack: float) -> float:
        return _root(float(self.losses.mean()) + slack, self.num_players)


def _root(excess: float, num_players: int) -> float:
    """Return ``sqrt(2 H_{d-1} excess)``; NaN stays NaN."""
    if excess < 0:
        return 0.0
    return float((2 * harmonic_number(num_players - 1) * excess) ** 0.5)


@dataclass(frozen=True, eq=False)
class KernelMoments:
    """Moments of a game under the Shapley kernel, which give the loss of any values; float64."""

    gain_squared: Tensor
    """``E[u^2]`` ``[B, K]``, for the gain u = v(s) - v(0) under p_Sh."""
    gain_by_player: Tensor
    """``E[su]`` ``[B, d, K]``."""
    total: Tensor
    """``v(1) - v(0)`` ``[B, K]``."""
    second_moment: Tensor
    """``E[ss']`` ``[d, d]``."""

    def loss(self, values: Tensor) -> Tensor:
        """Return ``E[(v(s) - v(0) - s'phi)^2]`` of values ``[B, d, K]``: ``[B, K]``."""
        values = values.to(self.gain_by_player)
        linear = (values * self.gain_by_player).sum(1)
        quadratic = (values * torch.einsum("ij,bjk->bik", self.second_moment, values)).sum(1)
        return (self.gain_squared - 2 * linear + quadratic).clamp(min=0)

    def shapley_values(self) -> Tensor:
        """Return the efficient values of least loss, ``[B, d, K]``."""
        d = len(self.second_moment)
        centred = self.gain_by_player - self.gain_by_player.mean(1, keepdim=True)
        return 2 * harmonic_number(d - 1) * centred + self.total[:, None] / d


def kernel_moments(game: Game, /, *, batch: int = 4096) -> KernelMoments:
    """Evaluate all ``2^d`` coalitions of a game of 2 to 20 players, ``batch`` at a time."""
    d = game.num_players
    if not 2 <= d <= MOST_PLAYERS:
        raise ValueError(f"all coalitions can be evaluated for 2 to {MOST_PLAYERS} players, not {d}")
    if game.player_mask is not None and not bool(game.player_mask.all()):
        raise ValueError(
            "some players are absent from some images: give a game in which all images have the same players"
        )
    law = shapley_kernel(d)
    per_size = torch.tensor([comb(d, k) for k in range(d + 1)], dtype=torch.float64)
    probability = (law.size_probabilities / per_size).to(game.device)  # of each coalition, by its size
    base = game.null.to(torch.float64)  # [B, K]
    squared = torch.zeros_like(base)
    by_player = torch.zeros(game.batch_size, d, game.num_outputs, dtype=torch.float64, device=game.device)
    for coalitions in torch.split(all_coalitions(d, device=game.device)[1:-1], batch):
        gain = game(coalitions).to(torch.float64) - base[:, None]  # [B, S, K]
        weight = probability[coalitions.sum(1)]  # [S]
        squared += torch.einsum("s,bsk->bk", weight, gain.square())
        by_player += torch.einsum("sd,bsk->bdk", weight[:, None] * coalitions, gain)
    total = game.grand.to(torch.float64) - base
    return KernelMoments(squared, by_player, total, law.second_moment().to(game.device))


def error_bound(game: Game, values: Tensor, /, *, batch: int = 4096) -> ErrorBound:
    """Compute Theorem 1 for ``values`` ``[B, d, K]`` of all players and outputs of ``game``, over all coalitions.

    The theorem needs efficient values, which add up to v(1) - v(0).
    """
    found, missing = _distances(game, values, batch)
    if bool(found.losses.isnan().any()):
        raise ValueError(
            f"the theorem needs values that add up to v(1) - v(0); these miss it by {float(missing.max()):.3g}"
        )
    return found


def _distances(game: Game, values: Tensor, batch: int) -> tuple[ErrorBound, Tensor]:
    """Return distances of any values, with losses where they are efficient, and what sums of values miss, ``[B, K]``."""
    moments = kernel_moments(game, batch=batch)
    values = values.to(moments.gain_by_player)
    missing = (values.sum(1) - moments.total).abs()
    efficient = missing <= EFFICIENT * max(1.0, float(moments.total.abs().max()))
    exact = moments.shapley_values()
    found = ErrorBound(
        metric="shapley-error",
        values=(values - exact).square().sum(1).sqrt().cpu(),
        classes=torch.arange(game.num_outputs).expand(game.batch_size, -1),
        higher_is_better=False,
        losses=moments.loss(values).masked_fill(~efficient, torch.nan).cpu(),
        optima=moments.loss(exact).cpu(),
        num_players=game.num_players,
    )
    return found, missing


def shapley_error(
    surrogate: ExplainableModel, images: Any, explanation: Explanation, /, *, batch: int = 4096
) -> ErrorBound:
    """Compute the distance of an explanation to the exact Shapley values, and Theorem 1's bound on it.

    Lower is better. All coalitions are evaluated, so it is limited to 20 players. Every explanation has a distance; the
    loss and the bound are NaN for values that do not add up to v(1) - v(0), such as random scores.
    """
    game = game_of(surrogate, surrogate.prepare(images).pixels, explanation)
    found, _ = _distances(game.only(explanation.classes.to(game.device)), explanation.values, batch)
    return replace(found, classes=explanation.classes, class_specific=explanation.class_specific)
