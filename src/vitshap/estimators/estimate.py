"""What an estimator returns: values with standard errors and their cost, how reliable they are, and a progress bar.

An ``Estimate`` knows nothing of images or of how it was made: the stopping rule, the stored reference values and the
methods treat exact values, regressions and permutations in the same way.

Reliability tells how much of the difference between players is signal. Two independent halves of the evaluations give two
estimates; their correlation over players is the reliability of one half, and the Spearman-Brown formula turns it into
that of both together. Unlike a standard error it has no unit, so it can be compared between classes, images and models.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from vitshap.game import Game

if TYPE_CHECKING:
    from rich.console import Console
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from vitshap.explanation import Explanation


@dataclass(frozen=True)
class Checkpoint:
    """Error ratios after ``evaluations``, the largest over the inputs: of the worst class that the threshold applies to,
    and of the most probable one of these classes."""

    evaluations: int
    worst_ratio: float
    target_ratio: float
    error_share: float = 1.0
    """Estimated share of the error in the variance between players, of the worst input and class; 1 if not known."""


@dataclass(frozen=True, eq=False)
class Estimate:
    """Shapley values of a batch of ``B`` inputs, ``d`` players and ``K`` outputs."""

    values: Tensor
    """float64 ``[B, d, K]``; summed over players they are ``full_values - base_values``."""
    stderr: Tensor | None
    """Standard errors, float64 ``[B, d, K]``; zero for exact values, None if they cannot be estimated."""
    base_values: Tensor
    """v of the empty coalition, float64 ``[B, K]``."""
    full_values: Tensor
    """v of the full coalition, float64 ``[B, K]``."""
    evaluations: int
    """Coalitions evaluated per input, the empty and the full one included."""
    method: str
    converged: Tensor
    """Whether the threshold was reached, bool ``[B]``; without a threshold, whether the values are exact."""
    history: tuple[Checkpoint, ...] = ()
    posterior: bool = False
    """Whether the values are the mean of a posterior, and ``stderr`` its standard deviation: then the exact values vary
    around them, whereas unbiased estimates vary around the exact values."""

    def ratios(self) -> Tensor:
        """Return the largest standard error divided by the range of the values (Covert and Lee, 2021), ``[B, K]``."""
        return error_ratios(self.values, self.stderr)

    def interval(self, z: float = 1.96) -> tuple[Tensor, Tensor]:
        """Return the lower and upper ends of the confidence intervals, ``[B, d, K]`` each; ``z = 1.96`` for 95 %."""
        if self.stderr is None:
            raise ValueError(f"this {self.method} estimate has no standard errors: give it a larger budget")
        return self.values - z * self.stderr, self.values + z * self.stderr


ProgressCallback: TypeAlias = Callable[[Estimate], object]
"""Called with every partial estimate; its return value is ignored."""


def error_ratios(values: Tensor, stderr: Tensor | None, player_mask: Tensor | None = None) -> Tensor:
    """Return ``max_i stderr / (max_i phi - min_i phi)`` of values and errors ``[B, d, K]``, as ``[B, K]``.

    ``player_mask`` (bool ``[B, d]``): players that are absent do not count.
    """
    if stderr is None:
        return torch.full_like(values[:, 0], torch.inf)
    low = high = values
    if player_mask is not None:
        absent = ~player_mask[..., None].to(values.device)
        low, high, stderr = (
            one.masked_fill(absent, end) for one, end in ((low, torch.inf), (high, -torch.inf), (stderr, 0))
        )
    spread = high.amax(1) - low.amin(1)
    largest = stderr.amax(1)
    # An output that is the same for all players has no range: it is converged if it has no error either.
    return torch.where(largest > 0, largest / spread, torch.zeros_like(largest))


def endpoints(game: Game) -> tuple[Tensor, Tensor]:
    """Return v of the empty and of the full coalition in float64, ``[B, K]`` each."""
    return game.null.to(torch.float64), game.grand.to(torch.float64)


def without_absent(game: Game, values: Tensor, stderr: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Set the values of players that are absent from an input to their exact value, zero.

    Their estimated values are shared equally among the other players, so that the sum does not change.
    """
    if game.player_mask is None:
        return values, stderr
    present = game.player_mask.to(values.device).expand(values.shape[0], -1)[..., None]  # [B, d, 1]
    misplaced = values.where(~present, 0.0).sum(1, keepdim=True)  # [B, 1, K]
    shared = values + misplaced / present.sum(1, keepdim=True)
    return shared.where(present, 0.0), None if stderr is None else stderr.where(present, 0.0)


class Estimator(Protocol):
    """An estimator with its other options fixed (``functools.partial``)."""

    def __call__(self, game: Game, /, *, budget: int, seed: int) -> Estimate:
        """Estimate the game's values within the budget."""


def split_half(estimator: Estimator, game: Game, *, budget: int, seed: int = 0) -> tuple[Estimate, Tensor]:
    """Estimate twice with half the budget each; return the mean of the two and its reliability ``[B, K]``.

    Both halves use the same two endpoints, which count once: the budget is not exceeded.
    """
    one = estimator(game, budget=(budget + 2) // 2, seed=2 * seed)
    if one.method == "exact":
        return one, torch.ones_like(one.full_values)
    two = estimator(game, budget=(budget + 2) // 2, seed=2 * seed + 1)
    stderr = None
    if one.stderr is not None and two.stderr is not None:
        stderr = (one.stderr**2 + two.stderr**2).sqrt() / 2
    mean = Estimate(
        values=(one.values + two.values) / 2,
        stderr=stderr,
        base_values=one.base_values,
        full_values=one.full_values,
        evaluations=one.evaluations + two.evaluations - 2,
        method=one.method,
        converged=one.converged & two.converged,
        history=(*one.history, *two.history),
        posterior=one.posterior,
    )
    return mean, spearman_brown(correlation(one.values, two.values, game.player_mask))


def correlation(one: Tensor, two: Tensor, player_mask: Tensor | None = None) -> Tensor:
    """Return the Pearson correlation over players of values ``[B, d, K]``, as ``[B, K]``.

    If an output is the same for all players, it is 1 if the two agree and 0 otherwise. ``player_mask`` (bool ``[B, d]``):
    players that are absent do not count.
    """
    present = torch.ones_like(one[..., :1]) if player_mask is None else player_mask[..., None].to(one)  # [B, d, 1]
    count = present.sum(1, keepdim=True)
    a, b = ((each - (each * present).sum(1, keepdim=True) / count) * present for each in (one, two))
    scale = (a.square().sum(1) * b.square().sum(1)).sqrt()
    agree = (torch.isclose(one, two) | (present == 0)).all(1).to(one.dtype)
    return torch.where(scale > 0, (a * b).sum(1) / scale.clamp(min=torch.finfo(one.dtype).tiny), agree)


def spearman_brown(half: Tensor) -> Tensor:
    """Return the reliability of both halves together from the correlation between them; at least -1."""
    return (2 * half / (1 + half).clamp(min=torch.finfo(half.dtype).tiny)).clamp(min=-1)


def reliability_from_errors(estimate: Estimate | Explanation) -> Tensor:
    """Estimate the reliability from standard errors, without a second half: 0 to 1, ``[B, K]`` or ``[B, T]``.

    It is the share of the variance between players that is not error: below 0.5 there is more noise than signal. Its
    square root approximates the correlation with the exact values. Absent players are not counted.
    """
    if estimate.stderr is None:
        raise ValueError(
            f"this {estimate.method} estimate has no standard errors: only sampling gives them, with a larger budget"
        )
    return 1 - error_share(estimate, estimate.player_mask if isinstance(estimate, Explanation) else None)


def error_share(estimate: Estimate | Explanation, player_mask: Tensor | None = None) -> Tensor:
    """Return the share of the error in the variance between players, 0 to 1, ``[B, K]``; 1 without standard errors.

    An unbiased estimate has the variance of the exact values and of its error together; the mean of a posterior has the
    former less the latter.
    """
    values = estimate.values.double()
    if estimate.stderr is None:
        return torch.ones_like(values[:, 0])
    squares = estimate.stderr.double().square()
    present = (
        torch.ones_like(values[..., :1]) if player_mask is None else player_mask[..., None].to(values)
    )  # [B, d, 1]
    count = present.sum(1)  # [B, 1]
    centred = (values - (values * present).sum(1, keepdim=True) / count[:, None]) * present
    variance = centred.square().sum(1) / (count - 1).clamp(min=1)
    error = (squares * present).sum(1) / count
    if estimate.posterior:
        variance = variance + error
    tiny = torch.finfo(variance.dtype).tiny
    return torch.where(error > 0, (error / variance.clamp(min=tiny)).clamp(max=1), 0.0)


def forecast(checkpoint: Checkpoint, threshold: float) -> float:
    """Return the evaluations still needed to reach ``threshold`` for the worst class; infinity if no error is known."""
    excess = (checkpoint.worst_ratio / threshold) ** 2 - 1
    return max(0.0, checkpoint.evaluations * excess)


@contextmanager
def progress_bar(
    budget: int, threshold: float | None = None, *, console: Console | None = None
) -> Iterator[ProgressCallback]:
    """Yield a function for ``progress=``: a bar that shows the ratio falling and the evaluations left.

    The ratio of error to range falls as one over the square root of the evaluations, which gives the forecast.
    """
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f}/{task.total:,.0f} evaluations"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("first evaluations", total=budget)

        def show(estimate: Estimate) -> None:
            if not estimate.history:
                return
            last = estimate.history[-1]
            total = float(budget)
            if threshold is not None:
                total = min(total, last.evaluations + forecast(last, threshold))
            bar.update(task, completed=last.evaluations, total=total, description=describe_progress(last, threshold))

        yield show


def describe_progress(checkpoint: Checkpoint, threshold: float | None) -> str:
    """Return one line: the ratio of the worst class, that of the target, and the evaluations left."""
    text = f"error/range {checkpoint.worst_ratio:.3f} (target {checkpoint.target_ratio:.3f})"
    if threshold is None:
        return text
    left = forecast(checkpoint, threshold)
    if left == float("inf"):
        return f"{text}, to {threshold:g}: not known yet"
    return f"{text}, to {threshold:g}: about {left:,.0f} left"
