"""Small and large coalitions as two samples that share some of their units: errors, needs, and the difference of both."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vitshap.estimators.controls import centre, position
from vitshap.estimators.regression import Fit, Sample
from vitshap.estimators.strata import Strata

BANDWIDTH = 0.25
"""Error variances are smoothed over sizes, on the axis log(k / (d - k))."""


@dataclass(frozen=True, eq=False)
class Side:
    """One input's small coalitions, or its large ones, with what the regression leaves of them."""

    sample: Sample
    fitted: Fit
    rows: Tensor
    """Which of all drawn units these are, int64 ``[n]``."""


@dataclass(frozen=True, eq=False)
class Moment:
    """Per size, the mean squared error of small and of large coalitions and of their product, float64 ``[G]`` each."""

    small: Tensor
    large: Tensor
    product: Tensor

    def variance(self, counts: Tensor) -> Tensor:
        """Of the difference of means, ``[G]``, from ``counts`` (``[2, G]``) small and large coalitions of each size."""
        both = counts.amax(0)  # the covariance of means over n and over m units, the fewer among the more
        return self.small / counts[0] + self.large / counts[1] - 2 * self.product / both

    def needs(self, paired: Tensor) -> Tensor:
        """Squares of the best numbers of small and large coalitions, up to a factor, ``[2, G]``; equal where ``paired``."""
        pair = (self.small + self.large - 2 * self.product).clamp(min=0) / 2
        less_small, less_large = self.small - 2 * self.product, self.large - 2 * self.product
        more_small, more_large = (less_small > self.large) & ~paired, (less_large > self.small) & ~paired
        small = torch.where(more_small, less_small, torch.where(more_large, self.small, pair))
        large = torch.where(more_small, self.large, torch.where(more_large, less_large, pair))
        return torch.stack([small, large])


def moment(small: Side, large: Side, total: int) -> Moment:
    """Mean squares and products of leave-one-out errors, summed over outputs; the sides have their units from ``total``."""
    design = small.sample.design
    errors = small.fitted.error.new_zeros(2, total, small.fitted.error.shape[1])
    there = torch.zeros(2, total, dtype=torch.bool, device=errors.device)
    groups = torch.zeros(total, dtype=torch.int64, device=errors.device)
    for index, side in enumerate((small, large)):
        errors[index, side.rows], there[index, side.rows] = side.fitted.error, True
        groups[side.rows] = side.sample.groups
    both = there.all(0)
    products = ((errors[0] ** 2, there[0]), (errors[1] ** 2, there[1]), (errors[0] * errors[1], both))
    return Moment(*(smooth(design, groups[rows], values[rows].sum(1, keepdim=True))[0] for values, rows in products))


def smooth(design: Strata, groups: Tensor, values: Tensor) -> Tensor:
    """Mean over units of each size and its neighbours of ``values`` (``[n, C]``), on the CPU, ``[C, G]``."""
    place = position(design)
    near = torch.exp(-((place[:, None] - place) ** 2) / (2 * BANDWIDTH**2))  # [G, G]
    sums = values.new_zeros(len(place), values.shape[1]).index_add(0, groups, values).cpu()
    counts = torch.bincount(groups, minlength=len(place)).to("cpu", torch.float64)
    return ((near @ sums) / (near @ counts)[:, None]).T


def difference(small: Side, large: Side, total: int) -> tuple[Tensor, Tensor]:
    """``sum_k P_k E_k[x (v(s) - v(1-s))]`` and its variance, ``[d, K]`` each, from sides that share some of all units.

    A unit counts with what it adds to the difference, be it one coalition or both. What is left over has next to no mean
    within a size, so squares are not centred: that errs, if at all, on the side of too large a variance.
    """
    design, device = small.sample.design, small.rows.device
    left, weighted, alone = torch.zeros(3, total, small.fitted.error.shape[1], dtype=torch.float64, device=device)
    members = torch.zeros(total, design.num_players, dtype=torch.bool, device=device)
    groups = torch.zeros(total, dtype=torch.int64, device=device)
    # Drawn without replacement: what both sides saw of a size lessens the variance of the difference, and what only one
    # of them saw lessens its own.
    unseen = torch.minimum(small.sample.unseen, large.sample.unseen)
    for sign, side in ((1, small), (-1, large)):
        weight = sign * side.sample.per_unit(side.sample.weight)[:, None]
        left[side.rows] += weight * side.fitted.residual
        weighted[side.rows] += weight * side.fitted.error
        own = side.sample.per_unit(side.sample.unseen - unseen)[:, None]
        alone[side.rows] += own * (weight * side.fitted.error) ** 2
        members[side.rows], groups[side.rows] = side.sample.members, side.sample.groups
    x = centre(members, groups, design)
    variance = (x**2).T @ (unseen.to(device)[groups][:, None] * weighted**2 + alone)
    return x.T @ left + small.fitted.known - large.fitted.known, variance
