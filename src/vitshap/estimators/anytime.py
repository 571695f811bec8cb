"""The loop that all sampling estimators share: evaluate, estimate, check the error, stop or continue.

An estimator is a ``State`` that can be advanced to a number of evaluations and returns its current estimate. Budget,
stopping rule, history and callbacks are implemented here.
"""

from __future__ import annotations

from math import isfinite
from typing import Protocol

import torch
from torch import Tensor

from vitshap.estimators.estimate import Checkpoint, Estimate, ProgressCallback, endpoints, error_ratios, without_absent
from vitshap.game import Game

GROWTH = 1.3
"""Evaluations grow at least by this factor between two checks, which bounds the cost of checking."""
CAUTION = 0.7
"""Without a callback, the next check comes at this share of the evaluations forecast to reach the threshold ..."""
FARTHEST = 2.0
"""... but at most at this multiple of the present ones, because a regression often beats the forecast."""


class State(Protocol):
    """The state of a sampling estimator."""

    method: str
    smallest: int
    """Fewest evaluations (endpoints included) that give an estimate."""
    first_check: int
    """Evaluations before the first partial estimate; earlier ones are too inaccurate."""

    def advance(self, evaluations: int) -> int:
        """Evaluate up to ``evaluations`` in total, endpoints included; return how many were used, never more."""

    def estimate(self) -> tuple[Tensor, Tensor | None]:
        """Return the present values and standard errors, float64 ``[B, d, K]`` each."""


def run(
    state: State,
    game: Game,
    *,
    budget: int,
    threshold: float | None,
    target: Tensor | None,
    progress: ProgressCallback | None,
) -> Estimate:
    """Advance ``state`` until the budget is used or every class (of ``target``, if given) is below ``threshold``."""
    require_budget(budget, state.smallest, state.method)
    if threshold is not None and not threshold > 0:
        raise ValueError(f"threshold is a positive ratio of standard error to range, got {threshold}")
    base, full = endpoints(game)
    checked = _targets(game, full, target)  # [B, T]
    likely = checked.gather(1, full.gather(1, checked).argmax(1, keepdim=True))  # [B, 1]
    checks = threshold is not None or progress is not None
    history: list[Checkpoint] = []
    goal = _rounded(max(state.first_check, 128), budget) if checks else budget
    while True:
        used = state.advance(goal)
        values, stderr = without_absent(game, *state.estimate())
        ratios = error_ratios(values, stderr)  # [B, K]
        worst = ratios.gather(1, checked).amax(1)  # [B]
        below = worst < (threshold if threshold is not None else torch.finfo(ratios.dtype).tiny)
        history.append(Checkpoint(used, float(worst.max()), float(ratios.gather(1, likely).max())))
        estimate = Estimate(values, stderr, base, full, used, state.method, below, tuple(history))
        if progress is not None:
            progress(estimate)
        if goal == budget or bool(below.all()):
            return estimate
        goal = _next_check(goal, budget, history[-1], None if progress is not None else threshold)


def _next_check(goal: int, budget: int, last: Checkpoint, threshold: float | None) -> int:
    """Return the evaluations at the next check: larger by ``GROWTH``, or by more if ``threshold`` is far away."""
    following = GROWTH * goal
    if threshold is not None and isfinite(last.worst_ratio):
        # The ratio falls as one over the square root of the evaluations.
        forecast = CAUTION * last.evaluations * (last.worst_ratio / threshold) ** 2
        following = max(following, min(forecast, FARTHEST * goal))
    return _rounded(following, budget)


def _rounded(goal: float, budget: int) -> int:
    """Round up to the budget if the check would come just before the end."""
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
    """Return the outputs that the threshold applies to, int64 ``[B, T]``."""
    if target is None:
        return torch.arange(game.num_outputs, device=full.device).expand(game.batch_size, -1)
    return target.view(game.batch_size, -1).to(full.device)
