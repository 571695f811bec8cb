"""Ridge regression on control functions, with leave-one-out residuals for a whole grid of penalties from one factorisation.

All inputs and outputs of a game share their coalitions, so one eigendecomposition (of columns or of coalitions, whichever
are fewer) serves them all; each output then takes the penalty that leaves it the least variance. A large penalty is
KernelSHAP with its exact moment matrix, none is KernelSHAP with the sampled one: the data choose between the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitshap.estimators.controls import Controls
from vitshap.estimators.regression import CHUNK, Fit, Sample, left_over, variance_score

PENALTIES = (1e-4, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)
"""Candidates, in units of a coalition's mean squared norm in the space of the columns."""
NO_PENALTY = (1e-9,)


@dataclass(frozen=True, eq=False)
class Size:
    """The free part of the regression: curves of the size, and the projection that removes them."""

    z: Tensor
    """float64 ``[n, q]``."""
    inverse: Tensor
    """``(z'z)^-1``, float64 ``[q, q]``."""

    def remove(self, rows: Tensor) -> Tensor:
        """What curves of the size do not explain of ``rows`` (``[n, m]``)."""
        return rows - self.z @ (self.inverse @ (self.z.T @ rows))

    @property
    def leverage(self) -> Tensor:
        """How much a unit's own value enters its fitted value, ``[n]``."""
        return ((self.z @ self.inverse) * self.z).sum(1)


@dataclass(frozen=True, eq=False)
class Basis:
    """Orthonormal directions of the controls over the units, with what each is worth to the players."""

    spectrum: Tensor
    """Squared lengths of the directions, float64 ``[m]``."""
    values: Tensor
    """Shapley values by direction, float64 ``[d, m]``: ``known = values @ (scores / (spectrum + penalty))``."""
    controls: Controls
    directions: Tensor
    """The directions over the units ``[n, m]`` where coalitions are few, else the map from columns to them ``[p, m]``."""
    offset: Tensor | None
    """The columns' regression on the size curves, ``[q, p]``; None when the directions are given over the units."""

    def rows(self, sample: Sample, size: Size, part: slice) -> Tensor:
        """The directions' entries at some of the units, float64 ``[c, m]``."""
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
    # Columns are dependent (centred memberships add up to zero): a direction of no length stays short, not 0 / 0.
    length = spectrum.clamp(min=1e-12 * float(spectrum[-1])).sqrt()
    values = controls.values_of_columns(axes.device) @ axes * spectrum.sqrt()
    basis = Basis(spectrum, values, controls, axes / length, offset)
    if len(sample.y) > CHUNK:
        return basis
    over_units = basis.rows(sample, size, slice(None))  # they fit: computed once instead of in every pass
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
    chosen = variance.argmin(0)  # [O]
    residual, leverage = torch.empty_like(y), torch.empty_like(y)
    for part in sample.chunks():
        rows = basis.rows(sample, size, part)
        residual[part] = y[part] - rows @ (kept[:, chosen] * scores)
        leverage[part] = (size.leverage[part, None] + rows**2 @ kept)[:, chosen]
    known = basis.values @ (scores / (basis.spectrum[:, None] + penalty[chosen]))
    return left_over(sample, residual, leverage, known)
