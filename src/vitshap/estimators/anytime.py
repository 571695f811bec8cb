"""The loop that all sampling estimators share: evaluate, estimate, check the error, stop or continue.

An estimator is a ``State`` that can be advanced to a number of evaluations and returns its current estimate. Budget,
stopping rule, history and callbacks are implemented here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from statistics import NormalDist, median
from typing import Protocol, cast

import torch
from torch import Tensor

from vitshap.estimators.estimate import (
    Checkpoint,
    Estimate,
    ProgressCallback,
    endpoints,
    error_ratios,
    error_share,
    without_absent,
)
from vitshap.game import Game

GROWTH = 1.3
"""Evaluations grow at least by this factor between two checks, which bounds the cost of checking."""
CAUTION = 0.7
"""Without a callback, the next check comes at this share of the evaluations forecast to reach the threshold ..."""
FARTHEST = 2.0
"""... but at most at this multiple of the present ones, because a regression often beats the forecast."""
ENOUGH = 8
"""Evaluations per player from which a posterior's own evaluations tell how fast its error falls."""
CONFIDENCE = NormalDist().inv_cdf(0.9)
"""An accuracy is reached once nine of ten inputs with the same estimated error have it."""


class State(Protocol):
    """The state of a sampling estimator."""

    method: str
    smallest: int
    """Fewest evaluations (endpoints included) that give an estimate."""
    first_check: int
    """Evaluations before the first partial estimate; earlier ones are too inaccurate."""
    posterior: bool
    """Whether the values are a posterior mean, see ``Estimate.posterior``."""
    known_before: bool
    """Whether there is an estimate with standard errors before any evaluation but of the endpoints."""
    error_spread: Tensor | None
    """Standard deviation of the logarithm of the mean squared error ``[B, K]``, as far as its size is not known."""
    evaluated_error: Tensor | None
    """Mean squared standard error of the evaluations alone, float64 ``[B, K]``; None: no prior, or nothing evaluated."""

    def advance(self, evaluations: int) -> int:
        """Evaluate up to ``evaluations`` in total, endpoints included; return how many were used, never more."""

    def estimate(self) -> tuple[Tensor, Tensor | None]:
        """Return the present values and standard errors, float64 ``[B, d, K]`` each."""


@dataclass(frozen=True)
class Stop:
    """When to stop before the budget is used."""

    threshold: float | None = None
    """Largest ratio of standard error to the values' range."""
    accuracy: float | None = None
    """Correlation with the exact values that nine of ten inputs are expected to have."""

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for numbers that cannot be reached."""
        if self.threshold is not None and not self.threshold > 0:
            raise ValueError(f"threshold is a positive ratio of standard error to range, got {self.threshold}")
        if self.accuracy is not None and not 0 < self.accuracy < 1:
            raise ValueError(f"accuracy is a correlation with the exact values between 0 and 1, got {self.accuracy}")
        if self.threshold is not None and self.accuracy is not None:
            raise ValueError("give a threshold or an accuracy, not both")

    @property
    def early(self) -> bool:
        """Whether there is a rule."""
        return self.threshold is not None or self.accuracy is not None


class Run:
    """One estimation, step by step: each step evaluates up to the next check and makes a new estimate."""

    def __init__(
        self,
        state: State,
        game: Game,
        *,
        budget: int,
        stop: Stop,
        target: Tensor | None = None,
        progress: ProgressCallback | None = None,
        stepwise: bool = False,
    ) -> None:
        """Evaluate nothing yet. Without ``stepwise``, a rule to stop or ``progress``, there is one step."""
        require_budget(budget, state.smallest, state.method)
        self.smallest = state.smallest
        self._state, self._game, self._stop, self._progress = state, game, stop, progress
        self._ends = endpoints(game)
        self._checked = _targets(game, self._ends[1], target)  # [B, T]
        likely = self._ends[1].gather(1, self._checked).argmax(1, keepdim=True)
        self._likely = self._checked.gather(1, likely)  # [B, 1]
        self._history: list[Checkpoint] = []
        self.rate: float | None = None
        self.budget = budget
        self.estimate: Estimate | None = None
        steps = stepwise or stop.early or progress is not None
        first = 2 if state.known_before else max(state.first_check, 128)
        self.goal = _rounded(first, budget) if steps else budget
        self.done = False

    def step(self) -> Estimate:
        """Evaluate up to the next check; return the estimate."""
        used = self._state.advance(self.goal)
        values, stderr = without_absent(self._game, *self._state.estimate())
        ratios = error_ratios(values, stderr, self._game.player_mask)  # [B, K]
        worst = ratios.gather(1, self._checked).amax(1)  # [B]
        reached = worst < (self._stop.threshold or torch.finfo(ratios.dtype).tiny)
        estimate = Estimate(
            values, stderr, *self._ends, used, self._state.method, reached, posterior=self._state.posterior
        )
        share = error_share(estimate, self._game.player_mask).gather(1, self._checked).amax(1)  # [B]
        if self._stop.accuracy is not None:
            share = self._cautious(error_share(estimate, self._game.player_mask)).gather(1, self._checked).amax(1)
            estimate = replace(estimate, converged=share <= 1 - self._stop.accuracy**2)
        last = Checkpoint(used, float(worst.max()), float(ratios.gather(1, self._likely).max()), float(share.max()))
        self._history.append(last)
        self.rate = self._rate(estimate)
        self.estimate = replace(estimate, history=tuple(self._history))
        if self._progress is not None:
            self._progress(self.estimate)
        self.done = self.goal >= self.budget or bool(estimate.converged.all())
        self.goal = self._next()
        return self.estimate

    def _cautious(self, share: Tensor) -> Tensor:
        """Return the error's share ``[B, K]`` that nine of ten inputs with this expected share stay below.

        The squared error of d - 1 free values has a relative variance of 2 / (d - 1), beside that of its expected size.
        """
        variance = (2 / (self._players - 1).clamp(min=1)).to(share).expand_as(share)
        if self._state.error_spread is not None:
            variance = variance + self._state.error_spread.square()
        odds = share / (1 - share) * (CONFIDENCE * variance.sqrt()).exp()
        return torch.where(share < 1, odds / (1 + odds), 1.0)

    @property
    def _players(self) -> Tensor:
        """Number of players of each input, ``[B, 1]``, or ``[1, 1]`` if all are there."""
        mask = self._game.player_mask
        return torch.tensor([[self._game.num_players]]) if mask is None else mask.sum(-1, keepdim=True)

    def _rate(self, estimate: Estimate) -> float | None:
        """Return how much the inverse of the error's share grows per evaluation; None: nothing is evaluated.

        Precisions add up: evaluations whose errors alone have the share e / n raise the inverse by n / e.
        """
        evaluated = self._state.evaluated_error
        if estimate.stderr is None or (evaluated is None and self._state.known_before):
            return None
        share = error_share(estimate, self._game.player_mask)
        if evaluated is not None:
            squares = estimate.stderr.square().sum(1)
            share = share * evaluated * self._players.to(squares) / squares.clamp(min=torch.finfo(squares.dtype).tiny)
        largest = float(share.gather(1, self._checked).amax())
        return 1 / (largest * estimate.evaluations) if largest > 0 else None

    @property
    def knows_rate(self) -> bool:
        """Whether enough is evaluated for ``rate``: a regression on few evaluations overestimates its errors."""
        unbiased = not self._state.posterior
        return self.rate is not None and (
            unbiased or self._history[-1].evaluations >= ENOUGH * int(self._players.max())
        )

    def gain(self, usual: float) -> float:
        """Return the expected fall of the error's share per evaluation in the next step; infinity before the first one.

        ``usual`` is the rate where it is not known yet.
        """
        if not self._history:
            return inf
        last = self._history[-1]
        rate = self.rate if self.rate is not None and self.knows_rate else usual
        more = max(self.goal - last.evaluations, 1)
        return last.error_share**2 * rate / (1 + last.error_share * rate * more)

    def _next(self) -> int:
        """Return the evaluations at the next check: larger by ``GROWTH``, or by more if there is a rule and it is far."""
        last = self._history[-1]
        following = max(GROWTH * self.goal, self._state.first_check)
        if self._progress is None and self._stop.early:
            # The error falls as one over the square root of the evaluations.
            forecast = CAUTION * last.evaluations * self._excess(last)
            if isfinite(forecast):
                following = max(following, min(forecast, FARTHEST * self.goal))
        return _rounded(following, self.budget)

    def _excess(self, last: Checkpoint) -> float:
        """Return the factor of evaluations that is missing."""
        if self._stop.threshold is not None:
            return (last.worst_ratio / self._stop.threshold) ** 2
        allowed = 1 - cast(float, self._stop.accuracy) ** 2
        return last.error_share / (1 - last.error_share) * (1 - allowed) / allowed if last.error_share < 1 else inf


def run(
    state: State,
    game: Game,
    *,
    budget: int,
    threshold: float | None = None,
    accuracy: float | None = None,
    target: Tensor | None = None,
    progress: ProgressCallback | None = None,
) -> Estimate:
    """Advance ``state`` until the budget is used, or every class (of ``target``, if given) is accurate enough."""
    one = Run(state, game, budget=budget, stop=Stop(threshold, accuracy), target=target, progress=progress)
    while True:
        estimate = one.step()
        if one.done:
            return estimate


def run_together(runs: Sequence[Run], total: int) -> None:
    """Spend ``total`` evaluations on runs of one input each, always where the next step is expected to help most.

    First every run gets a step, of an equal share if the first steps together would exceed the total. The last estimate of
    a run stays in ``estimate``.
    """
    least = [max(one.smallest, 2) for one in runs]
    if total < sum(least):
        raise ValueError(
            f"{total} evaluations in total are too few for {len(runs)} inputs: they need at least {sum(least)} (the empty "
            "and the full coalition of each included)"
        )
    if sum(one.goal for one in runs) > total:
        for one, fewest in zip(runs, least, strict=True):
            one.goal = min(one.goal, max(total // len(runs), fewest))
    spent, reserved = 0, sum(least)

    def used(one: Run) -> int:
        return 0 if one.estimate is None else one.estimate.evaluations

    while waiting := [one for one in runs if not one.done]:
        usual = _usual_rate(runs)
        best = max(waiting, key=lambda one: one.gain(usual))
        if best.estimate is None:
            reserved -= max(best.smallest, 2)
        left = total - reserved - spent + used(best)
        if best.estimate is not None and left <= used(best):
            best.done = True
            continue
        if best.goal > left:
            best.goal = best.budget = left
        spent -= used(best)
        best.step()
        spent += used(best)


def _usual_rate(runs: Sequence[Run]) -> float:
    """Return the median rate of those that know theirs, or else of all that have one.

    If none has one it is tiny, so that the largest error share decides.
    """
    rates = [one.rate for one in runs if one.knows_rate] or [one.rate for one in runs]
    return median([rate for rate in rates if rate is not None] or [1e-9])


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
