"""From evaluated units to Shapley values and standard errors: the size-effect regression.

With ``x = s - |s|/d``, a unit's value y and any function c of the coalition whose Shapley values are known,

    phi = (v(1) - v(0)) / d  +  F * sum over sizes k of P_k * ( E_k[x (y - c)] + E_k[x c] ),

F = H_{d-1} for pairs (y = v(s) - v(1-s)) and 2 H_{d-1} for single coalitions. The first expectation is estimated, the
second is known; so c may be fitted to the same data as long as no unit's own value enters the c that is subtracted from
it. Leave-one-out residuals do that at no cost. docs/estimators.md derives each step.

c is fitted by ridge regression, with leave-one-out residuals for a whole grid of penalties from one factorisation. All
inputs and outputs of a game share their coalitions, so one eigendecomposition (of columns or of coalitions, whichever are
fewer) serves them all; each output then takes the penalty that leaves it the least variance. A large penalty is
KernelSHAP with its exact moment matrix, none is KernelSHAP with the sampled one: the data choose between the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from vitshap.coalitions import Coalitions
from vitshap.estimators.controls import Controls, centre
from vitshap.estimators.strata import Strata

PENALTIES = (1e-4, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)
"""Candidates, in units of a coalition's mean squared norm in the space of the columns."""
NO_PENALTY = (1e-9,)
SMALL, CAUTION = 0.1, 0.5
"""A penalty p below the first is chosen only if it leaves less variance by the factor (first / p)^(second d / n), at most
that of n = d units: where there are about as many units as players, small penalties can leave little by chance, and their
values are far off."""
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
        """Weight of a unit's squared residual in the variance of the values, float64 ``[n]``."""
        size = self.design.sizes.to(torch.float64)
        return self.per_unit(self.weight**2 * self.unseen * size * (self.design.num_players - size))

    def per_unit(self, per_group: Tensor) -> Tensor:
        """Look up a number per stratum for every unit, ``[n]``."""
        return per_group.to(self.members.device)[self.groups]

    def chunks(self) -> Iterator[slice]:
        """Iterate over slices of the units."""
        for first in range(0, len(self.groups), CHUNK):
            yield slice(first, first + CHUNK)


@dataclass(frozen=True, eq=False)
class Fit:
    """Residuals of the units' values, and the Shapley values of the fitted function."""

    residual: Tensor
    """Residuals, partly corrected for the unit's own influence on the fit, float64 ``[n, O]``."""
    error: Tensor
    """Leave-one-out prediction errors, float64 ``[n, O]``, as expected for unseen units."""
    known: Tensor
    """Shapley values (before the factor F) of the fitted function, float64 ``[d, O]``."""
    score: Tensor
    """Estimated variance of the values, summed over players, up to a factor; float64 ``[O]``."""


def better(one: Fit, other: Fit) -> Fit:
    """Return the fit with less remaining variance, for each output."""
    first = one.score <= other.score
    return Fit(
        torch.where(first, one.residual, other.residual),
        torch.where(first, one.error, other.error),
        torch.where(first, one.known, other.known),
        torch.minimum(one.score, other.score),
    )


def left_over(sample: Sample, residual: Tensor, leverage: Tensor, known: Tensor) -> Fit:
    """Return the fit with these residuals ``[n, O]`` and each unit's ``leverage`` on its own fitted value.

    Dividing by ``1 - leverage`` gives the leave-one-out error. When sampling without replacement, the other units of a
    stratum carry information about the one left out, and the share ``unseen`` of that correction is right for the values
    (it turns n / (n - 1) into the covariance's n / (n - 1) * (N - 1) / N).
    """
    error = residual / (1 - leverage).clamp(min=1e-6)
    unseen = sample.per_unit(sample.unseen)[:, None]
    return Fit(residual + unseen * (error - residual), error, known, variance_score(error, sample.importance))


def variance_score(error: Tensor, importance: Tensor) -> Tensor:
    """Return the variance of the values, summed over players, from leave-one-out errors ``[n, O]``; ``[O]``."""
    return (importance[:, None] * error**2).sum(0)


def assemble(sample: Sample, fitted: Fit, factor: float) -> tuple[Tensor, Tensor]:
    """Return values (without the equal share of the total) and their variances, float64 ``[d, O]`` each."""
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


@dataclass(frozen=True, eq=False)
class Size:
    """The free part of the regression: curves of the size, and the projection that removes them."""

    z: Tensor
    """float64 ``[n, q]``."""
    inverse: Tensor
    """``(z'z)^-1``, float64 ``[q, q]``."""

    def remove(self, rows: Tensor) -> Tensor:
        """Return the residuals of ``rows`` (``[n, m]``) after regression on the size curves."""
        return rows - self.z @ (self.inverse @ (self.z.T @ rows))

    @property
    def leverage(self) -> Tensor:
        """Weight of a unit's own value in its fitted value, ``[n]``."""
        return ((self.z @ self.inverse) * self.z).sum(1)


@dataclass(frozen=True, eq=False)
class Basis:
    """Orthonormal directions of the controls over the units, with their Shapley values."""

    spectrum: Tensor
    """Squared lengths of the directions, float64 ``[m]``."""
    values: Tensor
    """Shapley values by direction, float64 ``[d, m]``: ``known = values @ (scores / (spectrum + penalty))``."""
    controls: Controls
    directions: Tensor
    """The directions over the units ``[n, m]`` if these are few, otherwise the map from columns to them ``[p, m]``."""
    offset: Tensor | None
    """The columns' regression on the size curves, ``[q, p]``; None if the directions are given over the units."""

    def rows(self, sample: Sample, size: Size, part: slice) -> Tensor:
        """Return the directions' entries at some of the units, float64 ``[c, m]``."""
        if self.offset is None:
            return self.directions[part]
        columns = self.controls.columns(sample.members[part], sample.groups[part])
        return (columns - size.z[part] @ self.offset) @ self.directions


def fit(sample: Sample, curves: Tensor, controls: Controls | None, penalties: Sequence[float]) -> Fit:
    """Regress on ``curves`` of the size (``[G, q]``, free) and on ``controls`` (penalised, the best penalty per output)."""
    z = curves.to(sample.members.device)[sample.groups]
    size = Size(z, torch.linalg.pinv(z.T @ z, hermitian=True))
    y = size.remove(sample.y)  # [n, O]
    if controls is None:
        nothing = y.new_zeros(sample.design.num_players, y.shape[1])
        return left_over(sample, y, size.leverage[:, None], nothing)
    few_units = len(y) <= controls.num_columns
    basis = _over_units(sample, size, controls) if few_units else _over_columns(sample, size, controls)
    return _best_penalty(sample, size, basis, y, penalties)


def _over_units(sample: Sample, size: Size, controls: Controls) -> Basis:
    products = controls.inner_products(sample.members, sample.groups)  # [n, n]
    products = size.remove(size.remove(products).T)
    spectrum, directions = torch.linalg.eigh(products)
    values = controls.values_of_inner_products(sample.members, sample.groups)  # [d, n]
    values = size.remove(values.T).T @ directions
    return Basis(spectrum.clamp(min=0), values, controls, directions, None)


def _over_columns(sample: Sample, size: Size, controls: Controls) -> Basis:
    p = controls.num_columns
    squares = sample.y.new_zeros(p, p)
    cross = sample.y.new_zeros(size.z.shape[1], p)
    for part in sample.chunks():
        columns = controls.columns(sample.members[part], sample.groups[part])
        squares += columns.T @ columns
        cross += size.z[part].T @ columns
    offset = size.inverse @ cross
    spectrum, axes = torch.linalg.eigh(squares - cross.T @ offset)
    spectrum = spectrum.clamp(min=0)
    # Columns are dependent (centred memberships add up to zero): avoid 0 / 0 for directions of length 0.
    length = spectrum.clamp(min=1e-12 * float(spectrum[-1])).sqrt()
    values = controls.values_of_columns(axes.device) @ axes * spectrum.sqrt()
    basis = Basis(spectrum, values, controls, axes / length, offset)
    if len(sample.y) > CHUNK:
        return basis
    over_units = basis.rows(sample, size, slice(None))  # small enough to be computed once instead of in every pass
    return Basis(spectrum, values, controls, over_units, None)


def _best_penalty(sample: Sample, size: Size, basis: Basis, y: Tensor, penalties: Sequence[float]) -> Fit:
    unit = basis.spectrum.sum() / len(y)
    penalty = unit * torch.tensor(penalties, dtype=torch.float64, device=y.device) + torch.finfo(torch.float64).tiny
    kept = basis.spectrum[:, None] / (basis.spectrum[:, None] + penalty)  # [m, L]
    scores = y.new_zeros(len(basis.spectrum), y.shape[1])  # [m, O]
    for part in sample.chunks():
        scores += basis.rows(sample, size, part).T @ y[part]
    variance = y.new_zeros(len(penalties), y.shape[1])  # [L, O]
    for part in sample.chunks() if len(penalties) > 1 else ():
        rows = basis.rows(sample, size, part)
        leverage = size.leverage[part, None] + rows**2 @ kept  # [c, L]
        for index in range(len(penalties)):
            residual = y[part] - rows @ (kept[:, index, None] * scores)
            error = residual / (1 - leverage[:, index, None]).clamp(min=1e-6)
            variance[index] += variance_score(error, sample.importance[part])
    power = CAUTION * min(1.0, sample.design.num_players / len(y))
    handicap = torch.tensor([max(1.0, SMALL / one) ** power for one in penalties], device=y.device)
    chosen = (handicap[:, None] * variance).argmin(0)  # [O]
    residual, leverage = torch.empty_like(y), torch.empty_like(y)
    for part in sample.chunks():
        rows = basis.rows(sample, size, part)
        residual[part] = y[part] - rows @ (kept[:, chosen] * scores)
        leverage[part] = (size.leverage[part, None] + rows**2 @ kept)[:, chosen]
    known = basis.values @ (scores / (basis.spectrum[:, None] + penalty[chosen]))
    return left_over(sample, residual, leverage, known)
