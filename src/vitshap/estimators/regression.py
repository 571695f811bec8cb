"""From evaluated units to Shapley values and standard errors: the size-effect regression.

With ``x = s - |s|/d``, a unit's value y and any function c of the coalition whose Shapley values are known,

    phi = (v(1) - v(0)) / d  +  F * sum over sizes k of P_k * ( E_k[x (y - c)] + E_k[x c] ),

F = H_{d-1} for pairs (y = v(s) - v(1-s)) and 2 H_{d-1} for single coalitions. The first expectation is estimated, the
second is known; so c may be fitted to the same data as long as no unit's own value enters the c that is subtracted from
it. Leave-one-out residuals do that at no cost. docs/estimators.md derives each step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitshap.coalitions import Coalitions
from vitshap.estimators.controls import Controls, centre
from vitshap.estimators.strata import Strata

CHUNK = 8192
"""Units whose columns exist at once."""
PENALTIES = (1e-6, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)
"""Candidate ridge penalties, in units of the columns' mean square times the number of columns over units."""


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
    y: Tensor
    """v(s), or v(s) - v(1-s) for pairs; ``[n, O]`` for O = inputs x outputs."""
    weight: Tensor
    """A unit's share of the expectation, float64 ``[G]``, on the CPU: P_k / n_k."""

    def __post_init__(self) -> None:
        population = torch.tensor([float(min(size, 2**62)) for size in self.design.population], dtype=torch.float64)
        object.__setattr__(self, "unseen", 1 - (self.counts / population))

    unseen: Tensor = torch.empty(0)
    """Share of each stratum that was not evaluated, float64 ``[G]``: zero where it was enumerated."""

    @property
    def importance(self) -> Tensor:
        """How much a squared residual adds to the total variance of the values, ``[G]``."""
        size = self.design.sizes.to(torch.float64)
        return self.weight**2 * self.unseen * size * (self.design.num_players - size)

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
    """Leave-one-out residuals, float64 ``[n, O]``."""
    known: Tensor
    """Shapley values (before the factor F) of the fitted function, ``[d, O]``."""
    score: Tensor
    """Estimated variance of the values, summed over players, up to a factor; ``[O]``."""


def fit(sample: Sample, curves: Tensor, controls: Controls, penalties: Sequence[float]) -> Fit:
    """Regress on curves of the size (``[G, q]``, free) and on the controls (penalised); the best penalty per output."""
    importance = sample.per_unit(sample.importance)[:, None]  # [n, 1]
    basis = curves.to(sample.members.device)  # [G, q]
    z = basis[sample.groups]
    inverse = torch.linalg.pinv(z.T @ (importance * z), hermitian=True)
    y = sample.y.to(torch.float64)
    y = y - z @ (inverse @ (z.T @ (importance * y)))
    size_leverage = ((z @ inverse) * z).sum(1, keepdim=True) * importance  # [n, 1]
    if controls.num_columns == 0:
        residual = _leave_one_out(y, size_leverage, sample)
        none = y.new_zeros(sample.design.num_players, y.shape[1])
        return Fit(residual, none, _score(y, size_leverage, importance))
    return _ridge(sample, controls, penalties, y, size_leverage, importance, z, inverse)


def _ridge(
    sample: Sample,
    controls: Controls,
    penalties: Sequence[float],
    y: Tensor,
    size_leverage: Tensor,
    importance: Tensor,
    z: Tensor,
    inverse: Tensor,
) -> Fit:
    p = controls.num_columns
    gram = y.new_zeros(p, p)
    cross = y.new_zeros(z.shape[1], p)
    target = y.new_zeros(p, y.shape[1])
    for part in sample.chunks():
        rows = controls.rows(sample.members[part], sample.groups[part])
        weighted = importance[part] * rows
        gram += rows.T @ weighted
        cross += z[part].T @ weighted
        target += weighted.T @ y[part]
    projection = inverse @ cross  # [q, p]: columns on size curves
    gram -= cross.T @ projection
    spectrum, axes = torch.linalg.eigh(gram)
    target = axes.T @ target  # [p, O]
    scale = spectrum.clamp(min=0).sum() / len(y)  # mean over columns of their squares, times p / n
    best: Fit | None = None
    for penalty in penalties:
        shrink = 1 / (spectrum.clamp(min=0) + penalty * scale)
        coefficients = axes @ (shrink[:, None] * target)  # [p, O]
        residual, leverage = torch.empty_like(y), size_leverage.clone()
        for part in sample.chunks():
            rows = controls.rows(sample.members[part], sample.groups[part]) - z[part] @ projection
            residual[part] = y[part] - rows @ coefficients
            leverage[part] += ((rows @ axes) ** 2 @ shrink)[:, None] * importance[part]
        score = _score(residual, leverage, importance)
        candidate = Fit(_leave_one_out(residual, leverage, sample), controls.shapley_values(coefficients), score)
        best = candidate if best is None else better(best, candidate)
    if best is None:
        raise ValueError("there is no penalty to choose from")
    return best


def better(one: Fit, other: Fit) -> Fit:
    """Per output, the fit that leaves less variance."""
    first = one.score <= other.score
    return Fit(
        torch.where(first, one.residual, other.residual),
        torch.where(first, one.known, other.known),
        torch.minimum(one.score, other.score),
    )


def _score(residual: Tensor, leverage: Tensor, importance: Tensor) -> Tensor:
    return (importance * (residual / (1 - leverage).clamp(min=1e-6)) ** 2).sum(0)


def _leave_one_out(residual: Tensor, leverage: Tensor, sample: Sample) -> Tensor:
    """Residuals as if each unit had not been fitted; in an enumerated stratum there is nothing to correct."""
    unseen = sample.per_unit(sample.unseen)[:, None]
    leverage = leverage.clamp(max=1 - 1e-6)
    return residual * (1 + unseen * leverage / (1 - leverage))


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
        residual = fitted.residual[first:last]
        total = x.T @ residual
        values += weight * total
        if unseen > 0:
            squares = (x**2).T @ residual**2
            if n > 1:
                squares = (squares - total**2 / n) * (n / (n - 1))
            variance += weight**2 * unseen * squares
    return factor * (values + fitted.known), factor**2 * variance.clamp(min=0)
