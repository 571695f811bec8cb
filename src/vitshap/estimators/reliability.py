"""How much of what differs between players is signal: split-half reliability.

Two independent halves of the evaluations give two estimates. Their correlation over players is the reliability of a half;
Spearman and Brown's formula turns it into that of both together. Unlike a standard error it has no unit, so it can be
compared between classes, images and nets.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from vitshap.estimators.estimate import Estimate
from vitshap.explanation import Explanation
from vitshap.game import Game


class Estimator(Protocol):
    """Any estimator whose other options are fixed (``functools.partial``)."""

    def __call__(self, game: Game, /, *, budget: int, seed: int) -> Estimate:
        """Estimate the game's values within the budget."""


def split_half(estimator: Estimator, game: Game, *, budget: int, seed: int = 0) -> tuple[Estimate, Tensor]:
    """Estimate twice with half the budget each: the mean of the two, and its reliability ``[B, K]``.

    Both halves start from the same two endpoints, which count once: the budget is not exceeded.
    """
    one = estimator(game, budget=(budget + 2) // 2, seed=2 * seed)
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
    )
    return mean, spearman_brown(correlation(one.values, two.values))


def correlation(one: Tensor, two: Tensor) -> Tensor:
    """Pearson correlation over players of values ``[B, d, K]``, as ``[B, K]``.

    Where an output does not differ between players there is nothing to correlate: 1 if the two agree, else 0.
    """
    a, b = one - one.mean(1, keepdim=True), two - two.mean(1, keepdim=True)
    scale = (a.square().sum(1) * b.square().sum(1)).sqrt()
    agree = torch.isclose(one, two).all(1).to(one.dtype)
    return torch.where(scale > 0, (a * b).sum(1) / scale.clamp(min=torch.finfo(one.dtype).tiny), agree)


def spearman_brown(half: Tensor) -> Tensor:
    """Reliability of both halves together from the correlation between them; not below -1."""
    return (2 * half / (1 + half).clamp(min=torch.finfo(half.dtype).tiny)).clamp(min=-1)


def reliability_from_errors(estimate: Estimate | Explanation) -> Tensor:
    """The same without a second half, from standard errors: ``[B, K]`` (of an explanation ``[B, T]``), 0 to 1.

    One minus the share of the errors' variance in the values' variance over players: below 0.5 there is more noise than
    signal. Its square root is about the correlation with the values that unlimited evaluations would give. Only players
    that an image has are counted.
    """
    if estimate.stderr is None:
        raise ValueError(
            f"this {estimate.method} estimate has no standard errors: only sampling gives them, with a larger budget"
        )
    values, squares = estimate.values.double(), estimate.stderr.double().square()
    mask = getattr(estimate, "player_mask", None)
    present = torch.ones_like(values[..., :1]) if mask is None else mask[..., None].to(values)  # [B, d, 1]
    count = present.sum(1)  # [B, 1]
    centred = (values - (values * present).sum(1, keepdim=True) / count[:, None]) * present
    variance = centred.square().sum(1) / (count - 1).clamp(min=1)
    error = (squares * present).sum(1) / count
    tiny = torch.finfo(variance.dtype).tiny
    return torch.where(error > 0, (1 - error / variance.clamp(min=tiny)).clamp(min=0), 1.0)
