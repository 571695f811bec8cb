"""The loop that all sampling estimators share: evaluate, estimate, look at the error, stop or go on.

An estimator is a ``State`` that can be advanced to a number of evaluations and asked for what it knows. Budget, stopping
rule, history and callbacks live here once.
"""

from __future__ import annotations

from math import isfinite
from typing import Protocol

import torch
from torch import Tensor

from vitshap.estimators.estimate import Checkpoint, Estimate, Watcher, endpoints, error_ratios, without_absent
from vitshap.game import Game

GROWTH = 1.3
"""Evaluations between two looks grow by this factor at least, so that looking costs a bounded share of the work."""
CAUTION = 0.7
"""Unwatched, the next look comes after this share of the evaluations that are forecast to reach the threshold ..."""
FARTHEST = 2.0
"""... but after no more than this factor: a regression often does better than the forecast."""


class State(Protocol):
    """A sampling estimator in the middle of its work."""

    method: str
    smallest: int
    """Evaluations (endpoints included) below which there is no estimate."""
    first_look: int
    """Evaluations before which a partial estimate says too little to be worth its computation."""

    def advance(self, evaluations: int) -> int:
        """Evaluate up to ``evaluations`` in all, endpoints included; return how many were used, never more."""

    def estimate(self) -> tuple[Tensor, Tensor | None]:
        """Values and standard errors so far, float64 ``[B, d, K]`` each."""


def run(
    state: State,
    game: Game,
    *,
    budget: int,
    threshold: float | None,
    target: Tensor | None,
    progress: Watcher | None,
) -> Estimate:
    """Advance ``state`` until the budget is used or every class is below ``threshold``, or those of ``target``."""
    require_budget(budget, state.smallest, state.method)
    if threshold is not None and not threshold > 0:
        raise ValueError(f"threshold is a positive ratio of standard error to range, got {threshold}")
    base, full = endpoints(game)
    watched = _targets(game, full, target)  # [B, T]
    likely = watched.gather(1, full.gather(1, watched).argmax(1, keepdim=True))  # [B, 1]
    looks = threshold is not None or progress is not None
    history: list[Checkpoint] = []
    goal = _rounded(max(state.first_look, 128), budget) if looks else budget
    while True:
        used = state.advance(goal)
        values, stderr = without_absent(game, *state.estimate())
        ratios = error_ratios(values, stderr)  # [B, K]
        worst = ratios.gather(1, watched).amax(1)  # [B]
        below = worst < (threshold if threshold is not None else torch.finfo(ratios.dtype).tiny)
        history.append(Checkpoint(used, float(worst.max()), float(ratios.gather(1, likely).max())))
        estimate = Estimate(values, stderr, base, full, used, state.method, below, tuple(history))
        if progress is not None:
            progress(estimate)
        if goal == budget or bool(below.all()):
            return estimate
        goal = _next_look(goal, budget, history[-1], None if progress is not None else threshold)


def _next_look(goal: int, budget: int, last: Checkpoint, threshold: float | None) -> int:
    """Evaluations at the next look: one growth on, or nearer to where ``threshold`` is forecast to be reached."""
    following = GROWTH * goal
    if threshold is not None and isfinite(last.worst_ratio):
        # The ratio falls as one over the square root of the evaluations.
        forecast = CAUTION * last.evaluations * (last.worst_ratio / threshold) ** 2
        following = max(following, min(forecast, FARTHEST * goal))
    return _rounded(following, budget)


def _rounded(goal: float, budget: int) -> int:
    """No look just before the end."""
    return int(goal) if goal < budget / GROWTH**0.5 else budget


def require_batch(batch: int) -> None:
    """Raise ``ValueError`` unless ``batch`` is a number of coalitions that can be evaluated at a time."""
    if batch < 2:
        raise ValueError(f"batch is the number of coalitions evaluated at a time, at least 2; got {batch}")


def require_budget(budget: int, smallest: int, method: str) -> None:
    """Raise ``ValueError`` unless ``budget`` is at least ``smallest`` evaluations."""
    if budget < smallest:
        raise ValueError(
            f"a budget of {budget} evaluations is too small: {method} needs at least {smallest} for this game "
            f"(the empty and the full coalition included)"
        )


def _targets(game: Game, full: Tensor, target: Tensor | None) -> Tensor:
    """Outputs that a threshold is for, int64 ``[B, T]``."""
    if target is None:
        return torch.arange(game.num_outputs, device=full.device).expand(game.batch_size, -1)
    return target.view(game.batch_size, -1).to(full.device)
