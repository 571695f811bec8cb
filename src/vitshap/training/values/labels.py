"""Labels for training an explainer: unbiased estimates of the Shapley values from sampled coalitions, with little noise.

For any distribution that first draws a size k with probability q(k) and then members uniformly, with ``c = s - k/d`` (the
centred members) and ``a(k) = d / (k (d - k) q(k))``,

    phi = (v(1) - v(0)) / d + E[ a(k) c (v(s) - m(k)) ]        for any function m of the size alone,

because the Shapley values are the mean over sizes of the linear effects at each size. So

- the curve m may be estimated from the other coalitions of the same view (leave one out), without bias;
- q may be chosen: the variance is smallest for q proportional to sd_k(v) / sqrt(k (d - k)), where sd_k is the standard
  deviation of values among coalitions of size k, which a pilot on a few images measures; variance times cost is smallest
  for that divided by the square root of the cost of a coalition of size k (small ones are evaluated faster);
- a pair (s, 1 - s) may be reduced to its difference, in which even effects cancel: this pays where both sides are equally
  noisy and wastes evaluations where one of them hardly varies. The pilot decides;
- the explainer's own prediction phi' may serve as a control variate: with any profile w over the sizes whose mean is 1,
  ``phi' + E[ a(k) c (v(s) - m(k) - w(k) c phi') ]`` still equals phi, without the noise that phi' explains;
- least squares of ``v(s) - m(k)`` on ``c`` with weights a(k) is the same with w = 1, which reduces the noise where effects
  are equal at all sizes and increases it much where they are not.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitshap.coalitions import CoalitionLaw, Coalitions
from vitshap.explainers.network import size_basis

NEARBY = 0.3
"""Bandwidth of the local mean over sizes: a standard deviation in half log-odds of the size."""
CURVE_PRIOR = 1.0
"""Coalitions as which the pilot's curve counts in the local mean."""
CLASS_PRIOR = 4
"""Units as which the mean noise of the class counts in the estimate of a view's noise."""
NOISE_PER_PLAYER = 5
"""A unit's noise over the sum of squares of the values that it estimates, per player: large values are noisy. On a ViT with
196 players it is 1.2 to 8 for nine tenths of views and classes (median 2.7), though the noise itself varies by a factor of
a thousand. Too large a number costs little; too small a one relies on few coalitions."""
PREDICTION_PRIOR = 8
"""Units as which the noise that the explainer's prediction suggests counts."""
FLOOR = 0.003
"""Smallest noise of a view and class relative to the mean over the pilot: it bounds weights to about 300 times that of
the mean."""


@dataclass(frozen=True, eq=False)
class Plan:
    """Which coalitions are evaluated, and the noise that the pilot measured."""

    law: CoalitionLaw
    paired: bool
    curve: Tensor
    """Mean position of values between v(0) and v(1) at each size: float64 ``[d + 1]``, 0 to 1 at the ends."""
    typical_noise: float
    """Mean over pilot images and classes of the variance of an estimate from one unit (a coalition or a pair), summed over
    players."""
    class_noise: Tensor
    """The same mean for each class, ``[K]``."""
    relative_noise: dict[str, float] = field(default_factory=dict)
    """Variance at equal cost relative to pairs from the Shapley kernel, for each design that was considered."""

    @cached_property
    def weights(self) -> Tensor:
        """a(k) for every size, float64 ``[d + 1]``; infinite for sizes that are never drawn."""
        d = self.law.num_players
        size = torch.arange(d + 1, dtype=torch.float64)
        inverse: Tensor = 1 / (size * (d - size) / d * self.law.size_probabilities)
        return inverse.to(self.curve.device)

    @cached_property
    def profile_basis(self) -> Tensor:
        """Basis functions of the size profiles, float32 ``[d + 1, J]``; for a pair, the mean of its two sizes."""
        basis = size_basis(self.law.num_players)
        if self.paired:
            basis = (basis + basis.flip(1)) / 2
        return basis.T.float().to(self.curve.device)

    def on(self, device: torch.device) -> Plan:
        """Return a copy whose tensors are on ``device``; coalitions are still drawn on the CPU."""
        return replace(self, curve=self.curve.to(device), class_noise=self.class_noise.to(device))


@dataclass(frozen=True, eq=False)
class Prediction:
    """An explainer's prediction for a batch of views, used as a control variate."""

    values: Tensor
    """``[B, d, K]``."""
    shares: Tensor
    """Coefficients of the size profile in its basis, ``[B, J, K]``, adding up to 1."""


@dataclass(frozen=True, eq=False)
class Residuals:
    """Coalition values of a batch of views minus the effect of the size; units are coalitions or pairs."""

    centred: Tensor
    """``[B, n, d]``: members minus their mean; doubled for pairs, whose difference counts every player twice."""
    values: Tensor
    """``[B, n, K]``."""
    weights: Tensor
    """a(k), divided by four for pairs: ``[B, n]``."""

    def part(self, units: slice) -> Residuals:
        """Return some of the units."""
        return Residuals(self.centred[:, units], self.values[:, units], self.weights[:, units])

    def labels(self) -> Tensor:
        """Return unbiased estimates of ``phi - (v(1) - v(0)) / d``, ``[B, d, K]``."""
        return torch.einsum("bnd,bn,bnk->bdk", self.centred, self.weights, self.values) / self.values.shape[1]

    def noise(self) -> Tensor:
        """Return each unit's estimate of the variance of a one-unit label, summed over players: ``[B, n, K]``."""
        reach: Tensor = self.weights * torch.linalg.vector_norm(self.centred, dim=2)
        return reach[..., None].square() * self.values.square()

    def squared_errors(self, values: Tensor) -> Tensor:
        """Return weighted squared errors ``[B, n, K]`` of efficient explanations ``[B, d, K]``.

        Their mean is on the scale of ``|phi - phi*|^2``.
        """
        misfit = self.values - self.centred @ values  # centred rows add up to zero, so (v(1) - v(0)) / d cancels
        return self.weights[..., None] * misfit.square()


def residuals(
    plan: Plan,
    coalitions: Coalitions,
    values: Tensor,
    base: Tensor,
    full: Tensor,
    *,
    remove_size_effect: bool = True,
    prediction: Prediction | None = None,
) -> Residuals:
    """Return the residuals of coalitions bool ``[B, S, d]`` with values ``[B, S, K]``.

    ``base``, ``full``: v(0), v(1) ``[B, K]``; ``prediction`` is subtracted as a control variate.
    """
    d = coalitions.shape[2]
    sizes = coalitions.sum(2)  # [B, S]
    curve = (plan.curve if remove_size_effect else torch.linspace(0, 1, d + 1)).to(values)
    left = values.float() - base[:, None] - curve[sizes][..., None] * (full - base)[:, None]  # [B, S, K]
    if plan.paired:
        coalitions, sizes = coalitions[:, ::2], sizes[:, ::2]
        left = left[:, ::2] - left[:, 1::2]
    weights = plan.weights.to(left)[sizes]
    centred = coalitions.to(left.dtype) - (sizes / d)[..., None]
    if plan.paired:
        weights, centred = weights / 4, 2 * centred
    if prediction is not None:
        profile = plan.profile_basis.to(prediction.shares)[sizes] @ prediction.shares  # [B, n, K]
        left = left - profile * (centred @ prediction.values)
    if remove_size_effect:
        left = _subtract_local_mean(left, sizes, d, odd=plan.paired)
    return Residuals(centred, left, weights)


class NoiseWeighting(NamedTuple):
    """How views and classes are weighted by their noise."""

    power: float = 1.0
    """Weights are the inverse of the noise to this power."""
    offset: float = 0.0
    """Constant added to every weight, where average noise has the weight 1."""


EQUAL_WEIGHTS = NoiseWeighting(power=0.0)


def noise_weights(noise: Tensor, typical: float, weighting: NoiseWeighting) -> Tensor:
    """Return weights of images and classes; without an offset, average noise contributes an error of 1."""
    relative: Tensor = (typical / (noise + FLOOR * typical)) ** weighting.power
    return (relative + weighting.offset) / typical


def weighted_halves(
    plan: Plan,
    coalitions: Coalitions,
    values: Tensor,
    base: Tensor,
    full: Tensor,
    *,
    weighting: NoiseWeighting,
    remove_size_effect: bool = True,
    prediction: Prediction | None = None,
    predicted: Tensor | None = None,
) -> list[tuple[Residuals, Tensor]]:
    """Return the residuals of both halves of a view's units, each with weights ``[B, K]`` by the noise of the other half.

    The noise is estimated without the values that it weights, also when a curve is fitted; otherwise values far from zero
    would weigh less, which is a bias. The estimate starts from a prior: from ``predicted``, the explainer's values
    ``[B, d, K]``, or the mean noise of the class.
    """
    options: Any = {"remove_size_effect": remove_size_effect, "prediction": prediction}
    left = residuals(plan, coalitions, values, base, full, **options)
    units, (prior, counts) = left.values.shape[1], _prior_noise(plan, full, predicted)
    if units < 2:
        return [(left, noise_weights(prior, plan.typical_noise, weighting))]
    weights = []
    for start in (0, 1):
        own = torch.arange(start, units, 2, device=coalitions.device)
        if plan.paired:
            own = torch.stack([2 * own, 2 * own + 1], 1).flatten()
        with torch.no_grad():
            half = residuals(plan, coalitions[:, own], values[:, own], base, full, **options)
            noise = (half.noise().sum(1) + counts * prior) / (half.values.shape[1] + counts)  # [B, K]
            weights.append(noise_weights(noise, plan.typical_noise, weighting))
    return [(left.part(slice(start, None, 2)), weights[1 - start]) for start in (0, 1)]


def _prior_noise(plan: Plan, full: Tensor, predicted: Tensor | None) -> tuple[Tensor, int]:
    """Return the prior noise of one unit, ``[B, K]``, and the number of units as which it counts."""
    if predicted is None:
        return plan.class_noise.to(full).expand_as(full), CLASS_PRIOR
    about_mean = predicted - predicted.mean(1, keepdim=True)
    return NOISE_PER_PLAYER * predicted.shape[1] * about_mean.square().sum(1), PREDICTION_PRIOR


def _subtract_local_mean(values: Tensor, sizes: Tensor, d: int, *, odd: bool) -> Tensor:
    """Return residuals ``[B, n, K]``: each minus a local mean of the others of similar size, shrunk towards zero.

    A local mean rather than a polynomial: values at large sizes, where they vary little, must not depend on the spread at
    small sizes, because an error there would weigh most. ``odd``: values of pairs change their sign with the side.
    """
    position = (sizes / (d - sizes)).log() / 2  # [B, n], symmetric about d/2
    near = _nearness(position[:, :, None] - position[:, None])  # [B, n, n]
    across = _nearness(position[:, :, None] + position[:, None]) if odd else torch.zeros_like(near)
    others = 1 - torch.eye(sizes.shape[1], device=values.device)
    total: Tensor = ((near + across) * others).sum(2, keepdim=True) + CURVE_PRIOR
    return values - ((near - across) * others / total).to(values.dtype) @ values


def _nearness(distance: Tensor) -> Tensor:
    return torch.exp(-0.5 * (distance / NEARBY).square())
