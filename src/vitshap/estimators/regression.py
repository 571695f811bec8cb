"""From evaluated units to Shapley values and standard errors: the size-effect regression.

With ``x = s - |s|/d``, a unit's value y and any function c of the coalition whose Shapley values are known,

    phi = (v(1) - v(0)) / d  +  F * sum over sizes k of P_k * ( E_k[x (y - c)] + E_k[x c] ),

F = H_{d-1} for pairs (y = v(s) - v(1-s)) and 2 H_{d-1} for single coalitions. The first expectation is estimated, the
second is known; so c may be fitted to the same data as long as no unit's own value enters the c that is subtracted from
it. Leave-one-out residuals do that at no cost. docs/estimators.md derives each step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from vitshap.coalitions import Coalitions
from vitshap.estimators.controls import centre
from vitshap.estimators.strata import Strata

CHUNK = 8192
"""Units whose columns exist at once."""


@dataclass(frozen=True, eq=False)
class Sample:
    """Evaluated units, sorted by stratum."""

    design: Strata
    members: Coalitions
    """bool ``[n, d]``; of a pair, the coalition with fewer members."""
    groups: Tensor
    """Stratum of each unit, int64 ``[n]``."""
    counts: Tensor
    """Units per stratum, int64 ``[G]``, on the CPU."""
    weight: Tensor
    """A unit's share of the expectation, float64 ``[G]``, on the CPU: P_k / n_k."""
    y: Tensor
    """v(s), or v(s) - v(1-s) for pairs; float64 ``[n, O]`` for O = inputs x outputs."""

    @cached_property
    def unseen(self) -> Tensor:
        """Share of each stratum that was not evaluated, float64 ``[G]``: zero where it was enumerated."""
        population = torch.tensor([float(min(size, 2**62)) for size in self.design.population], dtype=torch.float64)
        return 1 - self.counts / population

    @cached_property
    def importance(self) -> Tensor:
        """How much a unit's squared residual adds to the variance of the values, float64 ``[n]``."""
        size = self.design.sizes.to(torch.float64)
        return self.per_unit(self.weight**2 * self.unseen * size * (self.design.num_players - size))

    def per_unit(self, per_group: Tensor) -> Tensor:
        """Look a stratum's number up for every unit, ``[n]``."""
        return per_group.to(self.members.device)[self.groups]

    def chunks(self) -> Iterator[slice]:
        """Slices over the units."""
        for first in range(0, len(self.groups), CHUNK):
            yield slice(first, first + CHUNK)


@dataclass(frozen=True, eq=False)
class Fit:
    """What remains of the units' values, and the Shapley values of what was taken away."""

    residual: Tensor
    """What is left to be estimated, float64 ``[n, O]``: residuals, in part as if the unit had not been fitted."""
    error: Tensor
    """Errors of predicting each unit from the others, float64 ``[n, O]``: what unseen units would be missed by."""
    known: Tensor
    """Shapley values (before the factor F) of the fitted function, float64 ``[d, O]``."""
    score: Tensor
    """Estimated variance of the values, summed over players, up to a factor; float64 ``[O]``."""


def better(one: Fit, other: Fit) -> Fit:
    """Per output, the fit that leaves less variance."""
    first = one.score <= other.score
    return Fit(
        torch.where(first, one.residual, other.residual),
        torch.where(first, one.error, other.error),
        torch.where(first, one.known, other.known),
        torch.minimum(one.score, other.score),
    )


def left_over(sample: Sample, residual: Tensor, leverage: Tensor, known: Tensor) -> Fit:
    """The fit that left these residuals ``[n, O]``, where a unit's own value entered its fit by ``leverage``.

    Dividing by ``1 - leverage`` gives the leave-one-out error. Drawn without replacement, however, the other units of a
    stratum say something about the one that is left out, and exactly the share ``unseen`` of that correction is right
    for the values (it turns n / (n - 1) into the covariance's n / (n - 1) * (N - 1) / N).
    """
    error = residual / (1 - leverage).clamp(min=1e-6)
    unseen = sample.per_unit(sample.unseen)[:, None]
    return Fit(residual + unseen * (error - residual), error, known, variance_score(error, sample.importance))


def variance_score(error: Tensor, importance: Tensor) -> Tensor:
    """Variance that these leave-one-out errors ``[n, O]`` mean for the values, summed over players; ``[O]``."""
    return (importance[:, None] * error**2).sum(0)


def assemble(sample: Sample, fitted: Fit, factor: float) -> tuple[Tensor, Tensor]:
    """Values (without the equal share of the total) and their variances, float64 ``[d, O]`` each."""
    values = torch.zeros_like(fitted.known)
    variance = torch.zeros_like(fitted.known)
    bounds = [0, *sample.counts.cumsum(0).tolist()]
    strata = zip(bounds[:-1], bounds[1:], sample.weight.tolist(), sample.unseen.tolist(), strict=True)
    for first, last, weight, unseen in strata:
        n = last - first
        if n == 0:
            continue
        x = centre(sample.members[first:last], sample.groups[first:last], sample.design)  # [n, d]
        values += weight * (x.T @ fitted.residual[first:last])
        if unseen > 0:
            error = fitted.error[first:last]  # [n, O]
            squares = (x**2).T @ error**2
            if n > 1:
                squares = (squares - (x.T @ error) ** 2 / n) * (n / (n - 1))
            variance += weight**2 * unseen * squares
    return factor * (values + fitted.known), factor**2 * variance.clamp(min=0)
