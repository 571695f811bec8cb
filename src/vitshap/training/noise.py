"""Where the noise of sampled coalitions is, and how an explainer learns from them with less of it.

For any law that first draws a size k with probability q(k) and then members uniformly, with ``c = s - k/d`` (the members,
centred) and ``a(k) = d / (k (d - k) q(k))``,

    phi = (v(1) - v(0)) / d + E[ a(k) c (v(s) - m(k)) ]        for any function m of the size alone,

because the Shapley values are the mean over sizes of the linear effects at each size. So

- the curve m may come from the view's other coalitions (leave one out), which keeps the expectation exact;
- q may be chosen: the variance is smallest for q proportional to sd_k(v) / sqrt(k (d - k)), with sd_k the spread of
  values among coalitions of one size, which a pilot on a few images measures; variance times cost is smallest for that
  over the root of what a coalition of size k costs, for small ones are evaluated faster;
- a pair (s, 1 - s) may stand for its difference, whose even parts cancel: worth it where the two sides are equally noisy,
  a waste where one of them hardly varies. The pilot decides;
- the explainer's own values phi' may be used to cancel noise: with any profile w of the sizes whose mean over them is 1,
  ``phi' + E[ a(k) c (v(s) - m(k) - w(k) c phi') ]`` is still phi, and what a coalition's members add up to at its size is
  no noise any more;
- least squares of ``v(s) - m(k)`` on ``c`` with weights a(k) is the same with w = 1, which cancels noise where effects are
  alike at all sizes and adds much where they are not.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from vitshap.coalitions import CoalitionLaw, Coalitions
from vitshap.explainers.network import size_bumps

NEARBY = 0.3
"""Sizes of coalitions that are averaged for the curve: a standard deviation in half log-odds of the size."""
TRUST = 1.0
"""Coalitions that the pilot's curve counts as."""
PRIOR = 4
"""Units that the class's mean noise counts as in the guess of a view's."""
NOISE_PER_PLAYER = 5
"""A unit's noise over the sum of squares of the values that it is about, per player: large values are noisy ones. On a ViT
with 196 players it is 1.2 to 8 for nine tenths of views and classes (median 2.7), though the noise itself varies a
thousandfold. Too large a guess costs little, too small a one trusts few coalitions."""
SIZE_PRIOR = 8
"""Units that this guess counts as where the explainer's values are there to make it."""
FLOOR = 0.003
"""Least noise of a view and class, in means over the pilot: weights are at most three hundred times the mean's."""


@dataclass(frozen=True, eq=False)
class Plan:
    """Which coalitions are evaluated, and what the pilot knows about their noise."""

    law: CoalitionLaw
    paired: bool
    curve: Tensor
    """How far from v(0) to v(1) values are at each size on average: float64 ``[d + 1]``, 0 to 1 at the ends."""
    typical_noise: float
    """Mean over pilot images and classes of the variance that one view's estimate would have from one unit (a coalition
    or a pair), summed over players."""
    class_noise: Tensor
    """The same for each class, ``[K]``."""
    relative_noise: dict[str, float] = field(default_factory=dict)
    """Variance at equal cost, relative to Shapley-kernel pairs: for each way that was considered."""

    @cached_property
    def weights(self) -> Tensor:
        """a(k) of every size, float64 ``[d + 1]``; infinite where a size is never drawn."""
        d = self.law.num_players
        size = torch.arange(d + 1, dtype=torch.float64)
        inverse: Tensor = 1 / (size * (d - size) / d * self.law.size_probabilities)
        return inverse.to(self.curve.device)

    @cached_property
    def bumps(self) -> Tensor:
        """Bumps of profiles at every size, float32 ``[d + 1, J]``; a pair has the mean of its two sizes."""
        bumps = size_bumps(self.law.num_players)
        if self.paired:
            bumps = (bumps + bumps.flip(1)) / 2
        return bumps.T.float().to(self.curve.device)

    def on(self, device: torch.device) -> Plan:
        """The same with what every step reads on ``device``; the law, which is drawn from, stays where it is."""
        return replace(self, curve=self.curve.to(device), class_noise=self.class_noise.to(device))


@dataclass(frozen=True, eq=False)
class Known:
    """What an explainer says of a batch of views, which cancels noise as far as it is right."""

    values: Tensor
    """``[B, d, K]``."""
    shares: Tensor
    """Of bumps in the profile of sizes, ``[B, J, K]``, adding up to 1."""


@dataclass(frozen=True, eq=False)
class Residuals:
    """What is left of the values of a batch of views when the size's part is taken away; units are coalitions or pairs."""

    centred: Tensor
    """``[B, n, d]``: members minus their mean; doubled for pairs, whose difference sees every player twice."""
    values: Tensor
    """``[B, n, K]``."""
    weights: Tensor
    """a(k), over four for pairs: ``[B, n]``."""

    def part(self, units: slice) -> Residuals:
        """Some of the units."""
        return Residuals(self.centred[:, units], self.values[:, units], self.weights[:, units])

    def labels(self) -> Tensor:
        """Unbiased estimates of ``phi - (v(1) - v(0)) / d``, ``[B, d, K]``."""
        return torch.einsum("bnd,bn,bnk->bdk", self.centred, self.weights, self.values) / self.values.shape[1]

    def noise(self) -> Tensor:
        """Variance of such an estimate from one unit, summed over players: each unit's own guess, ``[B, n, K]``."""
        reach: Tensor = self.weights * torch.linalg.vector_norm(self.centred, dim=2)
        return reach[..., None].square() * self.values.square()

    def squared_errors(self, values: Tensor) -> Tensor:
        """Of efficient explanations ``[B, d, K]``: ``[B, n, K]``, whose mean is on the scale of ``|phi - phi*|^2``."""
        misfit = self.values - self.centred @ values  # centred rows add up to zero: (v(1) - v(0)) / d has no part
        return self.weights[..., None] * misfit.square()


def residuals(
    plan: Plan,
    coalitions: Coalitions,
    worth: Tensor,
    base: Tensor,
    full: Tensor,
    *,
    size_effect: bool = True,
    known: Known | None = None,
) -> Residuals:
    """Of coalitions bool ``[B, S, d]`` with values ``[B, S, K]``; ``base``, ``full``: v(0), v(1) ``[B, K]``.

    With ``known``, what is left of the explainer's values by its profile.
    """
    d = coalitions.shape[2]
    sizes = coalitions.sum(2)  # [B, S]
    curve = (plan.curve if size_effect else torch.linspace(0, 1, d + 1)).to(worth)
    left = worth.float() - base[:, None] - curve[sizes][..., None] * (full - base)[:, None]  # [B, S, K]
    if plan.paired:
        coalitions, sizes = coalitions[:, ::2], sizes[:, ::2]
        left = left[:, ::2] - left[:, 1::2]
    weights = plan.weights.to(left)[sizes]
    centred = coalitions.to(left.dtype) - (sizes / d)[..., None]
    if plan.paired:
        weights, centred = weights / 4, 2 * centred
    if known is not None:
        profile = plan.bumps.to(known.shares)[sizes] @ known.shares  # [B, n, K]
        left = left - profile * (centred @ known.values)
    if size_effect:
        left = _without_curve(left, sizes, d, odd=plan.paired)
    return Residuals(centred, left, weights)


class Weighing(NamedTuple):
    """How views and classes are weighed by their noise."""

    power: float = 1.0
    """Inverse to this power of the noise."""
    alike: float = 0.0
    """What is added for all alike, where typical noise has the weight 1."""


NO_WEIGHTS = Weighing(power=0.0)


def weights_by_noise(noise: Tensor, typical: float, weighing: Weighing) -> Tensor:
    """Weights of images and classes; without ``alike`` typical noise gives an error of 1."""
    relative: Tensor = (typical / (noise + FLOOR * typical)) ** weighing.power
    return (relative + weighing.alike) / typical


def weighted_halves(
    plan: Plan,
    coalitions: Coalitions,
    worth: Tensor,
    base: Tensor,
    full: Tensor,
    *,
    weighing: Weighing,
    size_effect: bool = True,
    known: Known | None = None,
    explained: Tensor | None = None,
) -> list[tuple[Residuals, Tensor]]:
    """Residuals of both halves of a view's units, each with weights ``[B, K]`` by the noise that the other half shows.

    The noise is guessed without any value that it weighs, also when a curve is fitted: else values far from zero would
    count less, a bias. A guess before any unit is counted in: by the size of ``explained``, an explainer's values
    ``[B, d, K]``, else the class's mean.
    """
    left = residuals(plan, coalitions, worth, base, full, size_effect=size_effect, known=known)
    units, (guess, counts) = left.values.shape[1], _guessed_noise(plan, full, explained)
    if units < 2:
        return [(left, weights_by_noise(guess, plan.typical_noise, weighing))]
    weights = []
    for start in (0, 1):
        own = torch.arange(start, units, 2, device=coalitions.device)
        if plan.paired:
            own = torch.stack([2 * own, 2 * own + 1], 1).flatten()
        with torch.no_grad():
            half = residuals(plan, coalitions[:, own], worth[:, own], base, full, size_effect=size_effect, known=known)
            noise = (half.noise().sum(1) + counts * guess) / (half.values.shape[1] + counts)  # [B, K]
            weights.append(weights_by_noise(noise, plan.typical_noise, weighing))
    return [(left.part(slice(start, None, 2)), weights[1 - start]) for start in (0, 1)]


def _guessed_noise(plan: Plan, full: Tensor, explained: Tensor | None) -> tuple[Tensor, int]:
    """Noise of one unit before any is seen, ``[B, K]``, and the units that this guess counts as."""
    if explained is None:
        return plan.class_noise.to(full).expand_as(full), PRIOR
    about_mean = explained - explained.mean(1, keepdim=True)
    return NOISE_PER_PLAYER * explained.shape[1] * about_mean.square().sum(1), SIZE_PRIOR


def _without_curve(values: Tensor, sizes: Tensor, d: int, *, odd: bool) -> Tensor:
    """Residuals ``[B, n, K]``: each minus a mean of the others, those of similar size, with zero counted in.

    A local mean and no polynomial: values that have settled at large sizes are told nothing by the spread at small ones,
    and an error there would weigh most. Values of pairs change their sign with the side (``odd``).
    """
    position = (sizes / (d - sizes)).log() / 2  # [B, n], symmetric about d/2
    near = _nearness(position[:, :, None] - position[:, None])  # [B, n, n]
    across = _nearness(position[:, :, None] + position[:, None]) if odd else torch.zeros_like(near)
    others = 1 - torch.eye(sizes.shape[1], device=values.device)
    total: Tensor = ((near + across) * others).sum(2, keepdim=True) + TRUST
    return values - ((near - across) * others / total).to(values.dtype) @ values


def _nearness(distance: Tensor) -> Tensor:
    return torch.exp(-0.5 * (distance / NEARBY).square())
