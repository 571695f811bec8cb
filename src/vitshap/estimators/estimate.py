"""What an estimator returns: values, how sure it is of them, and what they cost.

An ``Estimate`` knows nothing of images or of how it was made, so that the stopping rule, the stored truth and whatever
turns values into explanations treat exact values, regressions and permutations alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from vitshap.game import Game


@dataclass(frozen=True)
class Checkpoint:
    """Where an estimator stood after ``evaluations``: the largest ratio over inputs, of the worst of the classes that a
    threshold is for, and of the most probable one of them."""

    evaluations: int
    worst_ratio: float
    target_ratio: float


@dataclass(frozen=True, eq=False)
class Estimate:
    """Shapley values of a batch of ``B`` inputs, ``d`` players and ``K`` outputs."""

    values: Tensor
    """float64 ``[B, d, K]``; summed over players they are ``full_values - base_values``."""
    stderr: Tensor | None
    """Standard errors, float64 ``[B, d, K]``; zero where nothing was left to chance, None where there is no way to tell."""
    base_values: Tensor
    """v of the empty coalition, float64 ``[B, K]``."""
    full_values: Tensor
    """v of the full coalition, float64 ``[B, K]``."""
    evaluations: int
    """Coalitions evaluated per input, the empty and the full one included."""
    method: str
    converged: Tensor
    """Whether the asked threshold was reached, bool ``[B]``; without a threshold, whether the values are exact."""
    history: tuple[Checkpoint, ...] = ()

    def ratios(self) -> Tensor:
        """Largest standard error over the range of the values (Covert and Lee, 2021), ``[B, K]``; small is converged."""
        return error_ratios(self.values, self.stderr)

    def interval(self, z: float = 1.96) -> tuple[Tensor, Tensor]:
        """Lower and upper ends of the confidence intervals, each ``[B, d, K]``; ``z = 1.96`` for 95 %."""
        if self.stderr is None:
            raise ValueError(f"this {self.method} estimate has no standard errors: give it a larger budget")
        return self.values - z * self.stderr, self.values + z * self.stderr


Watcher: TypeAlias = Callable[[Estimate], object]
"""Called with every partial estimate; whatever it returns is ignored."""


def error_ratios(values: Tensor, stderr: Tensor | None) -> Tensor:
    """``max_i stderr / (max_i phi - min_i phi)`` of values and errors ``[B, d, K]``, as ``[B, K]``."""
    if stderr is None:
        return torch.full_like(values[:, 0], torch.inf)
    spread = values.amax(1) - values.amin(1)
    largest = stderr.amax(1)
    # An output that is constant over players has no spread: it is converged when it has no error either.
    return torch.where(largest > 0, largest / spread, torch.zeros_like(largest))


def endpoints(game: Game) -> tuple[Tensor, Tensor]:
    """v of the empty and of the full coalition in float64, ``[B, K]`` each."""
    return game.null.to(torch.float64), game.grand.to(torch.float64)


def without_absent(game: Game, values: Tensor, stderr: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Give players that an input lacks the value that they have: zero, known exactly.

    What the noise gave them goes back to the others in equal shares, so that the values still add up.
    """
    if game.player_mask is None:
        return values, stderr
    present = game.player_mask.to(values.device).expand(values.shape[0], -1)[..., None]  # [B, d, 1]
    misplaced = values.where(~present, 0.0).sum(1, keepdim=True)  # [B, 1, K]
    shared = values + misplaced / present.sum(1, keepdim=True)
    return shared.where(present, 0.0), None if stderr is None else stderr.where(present, 0.0)
