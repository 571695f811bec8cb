"""Control variates: functions of a coalition with known Shapley values, which are regressed out of its value.

- *size*: curves of the coalition's size. Their Shapley values are equal for all players, so they do not distinguish
  players, but with softmax outputs they are most of the variance.
- *slopes*: one effect per player, constant or varying with the size.
- *triples*: products over three players. Products over two players cancel between a coalition and its complement;
  three is the lowest order that pairing leaves.

Slopes and triples are computed as columns or, if there are more columns than coalitions, as inner products between
coalitions; for all triples together these are a cubic in one number.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb

import torch
from torch import Tensor

from vitshap.coalitions import Coalitions
from vitshap.estimators.strata import Strata


def position(design: Strata) -> Tensor:
    """Return log(k / (d - k)) of the strata, float64 ``[G]``: the axis on which size effects are smooth."""
    size = design.sizes.to(torch.float64)
    return torch.log(size / (design.num_players - size))


def size_curves(design: Strata, knots: int) -> Tensor:
    """Return at most ``knots`` piecewise linear curves of the size that add up to one; ``[G, q]``."""
    place = position(design)
    wanted = torch.linspace(float(place[0]), float(place[-1]), max(knots, 1), dtype=torch.float64)
    # Knots lie on sizes, so that each has data.
    knot = place[torch.unique((place[None] - wanted[:, None]).abs().argmin(1))]
    curves = torch.ones(len(place), 1, dtype=torch.float64)
    if len(knot) > 1:
        right = torch.searchsorted(knot, place).clamp(1, len(knot) - 1)
        share = ((place - knot[right - 1]) / (knot[right] - knot[right - 1])).clamp(0, 1)
        rows = torch.arange(len(place))
        curves = torch.zeros(len(place), len(knot), dtype=torch.float64)
        curves[rows, right - 1] = 1 - share
        curves[rows, right] += share
    # The difference within a pair changes sign with the order of the two, so size d/2 has no size effect.
    return curves * (design.multiplicity == 1)[:, None]


def slope_curves(design: Strata, number: int) -> Tensor:
    """Return constant, linear and quadratic curves of the size for players' effects, ``[G, R]`` with R <= ``number``."""
    place = position(design)
    if len(place) == 1:
        return torch.ones(1, min(number, 1), dtype=torch.float64)
    place = (place - place.mean()) / place.std()
    return torch.stack([torch.ones_like(place), place, place**2 - 1], dim=1)[:, :number]


@dataclass(frozen=True, eq=False)
class Controls:
    """The penalised part of the regression: players' effects times curves of the size, and all triples of players."""

    design: Strata
    slopes: Tensor
    """Curves of players' effects over the size, float64 ``[G, R]``; R = 0 omits them."""
    triples: float = 0.0
    """Expected variance of all triples together, relative to that of the players' effects; 0 omits them."""

    @property
    def num_columns(self) -> int:
        """Number of columns."""
        d = self.design.num_players
        return self.slopes.shape[1] * d + (comb(d, 3) if self.triples else 0)

    def columns(self, members: Coalitions, groups: Tensor) -> Tensor:
        """Return the columns for coalitions ``[n, d]`` of the strata ``groups`` (``[n]``), float64 ``[n, p]``."""
        slopes = self.slopes.to(members.device)[groups]  # [n, R]
        linear = (slopes[:, :, None] * centre(members, groups, self.design)[:, None, :]).flatten(1)  # [n, R d]
        if not self.triples:
            return linear
        sign = signs(members)
        one, two, three = self._all_triples(members.device)
        return torch.cat([linear, self._triple_variance**0.5 * sign[:, one] * sign[:, two] * sign[:, three]], dim=1)

    def inner_products(self, members: Coalitions, groups: Tensor) -> Tensor:
        """Return ``columns @ columns.T`` without computing the columns, float64 ``[n, n]``."""
        d = self.design.num_players
        centred = centre(members, groups, self.design)
        slopes = self.slopes.to(members.device)[groups]
        products = (centred @ centred.T) * (slopes @ slopes.T)
        if self.triples:
            sign = signs(members)
            agreement = sign @ sign.T  # players on which two coalitions agree, minus those on which they differ
            products = products + self._triple_variance * (agreement**3 - (3 * d - 2) * agreement) / 6
        return products

    def values_of_columns(self, device: torch.device) -> Tensor:
        """Return ``sum_k P_k E_k[(s_i - k/d) * column]`` for every player and column, float64 ``[d, p]``."""
        d = self.design.num_players
        centring = torch.eye(d, dtype=torch.float64, device=device) - 1 / d
        values = torch.cat([weight * centring for weight in self._slope_moments.tolist()] or [centring[:, :0]], dim=1)
        if self.triples:
            inside = torch.zeros(d, comb(d, 3), dtype=torch.float64, device=device)
            for member in self._all_triples(device):
                inside[member, torch.arange(len(member), device=device)] = 1.0
            values = torch.cat([values, self._triple_variance**0.5 * self._triple_moment * (inside - 3 / d)], dim=1)
        return values

    def values_of_inner_products(self, members: Coalitions, groups: Tensor) -> Tensor:
        """Return ``values_of_columns @ columns.T`` without computing the columns, float64 ``[d, n]``."""
        d = self.design.num_players
        slopes = self.slopes.to(members.device)[groups]  # [n, R]
        weight = slopes @ self._slope_moments.to(members.device)  # [n]
        values = weight[:, None] * centre(members, groups, self.design)
        if self.triples:
            sign = signs(members)
            others = sign.sum(1, keepdim=True) - sign
            with_player = sign * (others**2 - (d - 1)) / 2  # sum over the triples with the player
            scale = self._triple_variance * self._triple_moment
            values = values + scale * (with_player - with_player.mean(1, keepdim=True))
        return values.T

    @property
    def _slope_moments(self) -> Tensor:
        d, size = self.design.num_players, self.design.sizes.to(torch.float64)
        return (self.design.mass * size * (d - size) / (d * (d - 1))) @ self.slopes  # [R]

    @property
    def _triple_variance(self) -> float:
        d = self.design.num_players
        return self.triples * 1.5 / ((d - 1) * (d - 2))  # C(d, 3) triples share what d effects of size 1/4 have

    @property
    def _triple_moment(self) -> float:
        """Value of a triple's product for its members, before centring over players."""
        d = self.design.num_players
        moment = 0.0
        for mass, k in zip(self.design.mass.tolist(), self.design.sizes.tolist(), strict=True):
            moment += mass * (k / d) * (1 - k / d) * (_sign_product(d - 1, k - 1) + _sign_product(d - 1, k))
        return moment * d / (d - 3)  # relative to non-members, whose value is -3 / (d - 3) of it

    def _all_triples(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        one, two, three = torch.combinations(torch.arange(self.design.num_players, device=device), 3).unbind(1)
        return one, two, three


def centre(members: Coalitions, groups: Tensor, design: Strata) -> Tensor:
    """Return ``s - |s|/d``, float64 ``[n, d]``: memberships centred by the size."""
    share = (design.sizes.to(torch.float64) / design.num_players).to(members.device)[groups]
    return members.to(torch.float64) - share[:, None]


def signs(members: Coalitions) -> Tensor:
    """Return +1 for members and -1 for the others, float64."""
    return 2 * members.to(torch.float64) - 1


def _sign_product(players: int, members: int) -> float:
    """Return ``E[z_j z_l]`` for the signs of two of ``players`` players, of whom ``members`` are in the coalition."""
    pairs = players * (players - 1)
    outside = players - members
    same = members * (members - 1) + outside * (outside - 1)
    return (2 * same - pairs) / pairs
