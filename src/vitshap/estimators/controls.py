"""Functions of a coalition that are regressed out of its value, chosen because their Shapley values are known.

Three blocks, each antisymmetric in the same way as the values that it explains:

- *size*: curves of the coalition's size alone. Their Shapley values are equal for all players, so they say nothing about
  who matters, yet with softmax outputs they are most of the variance.
- *linear*: one effect per player, and the same effect growing or shrinking with the size.
- *triples*: products over three players. Products over two cancel between a coalition and its complement, so pairing
  already accounts for them; three is the first order that it leaves.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb

import torch
from torch import Tensor

from vitshap.coalitions import Coalitions
from vitshap.estimators.strata import Strata

MOST_TRIPLES = 1200


def position(design: Strata) -> Tensor:
    """The strata's place on the axis on which size effects are smooth, log(k / (d - k)), float64 ``[G]``."""
    size = design.sizes.to(torch.float64)
    return torch.log(size / (design.num_players - size))


def size_curves(design: Strata, knots: int) -> Tensor:
    """Piecewise linear curves of the size, one per knot, that add up to one; ``[G, knots]``."""
    place = position(design)
    wanted = torch.linspace(float(place[0]), float(place[-1]), max(knots, 1), dtype=torch.float64)
    nearest = (place[None] - wanted[:, None]).abs().argmin(1).unique()  # knots lie on sizes: none is without data
    knot = place[nearest]
    if len(knot) == 1:
        return torch.ones(len(place), 1, dtype=torch.float64)
    right = torch.searchsorted(knot, place).clamp(1, len(knot) - 1)
    share = ((place - knot[right - 1]) / (knot[right] - knot[right - 1])).clamp(0, 1)
    curves = torch.zeros(len(place), len(knot), dtype=torch.float64)
    rows = torch.arange(len(place))
    curves[rows, right - 1] = 1 - share
    curves[rows, right] += share
    return curves


@dataclass(frozen=True, eq=False)
class Controls:
    """Columns of the regression: players' effects times curves of the size, and triples of players."""

    design: Strata
    slopes: Tensor
    """How a player's effect depends on the size, ``[G, R]``; R = 0 leaves the linear block out."""
    triples: Tensor
    """int64 ``[T, 3]``; T = 0 leaves the block out."""

    @property
    def num_columns(self) -> int:
        """Number of columns."""
        return self.slopes.shape[1] * self.design.num_players + len(self.triples)

    def rows(self, members: Coalitions, groups: Tensor) -> Tensor:
        """Columns for coalitions ``[n, d]`` of the strata ``groups`` (``[n]``), float64 ``[n, p]``."""
        centred = centre(members, groups, self.design)  # [n, d]
        slopes = self.slopes.to(members.device)[groups]  # [n, R]
        linear = (slopes[:, :, None] * centred[:, None, :]).flatten(1)  # [n, R d]
        if not len(self.triples):
            return linear
        sign = 2 * members.to(torch.float64) - 1
        one, two, three = self.triples.to(members.device).unbind(1)
        return torch.cat([linear, sign[:, one] * sign[:, two] * sign[:, three]], dim=1)

    def shapley_values(self, coefficients: Tensor) -> Tensor:
        """``sum over strata of mass * E[(s - k/d) * columns] @ coefficients``: ``[p, O]`` to ``[d, O]``."""
        d, device = self.design.num_players, coefficients.device
        size = self.design.sizes.to(torch.float64)
        variance = size * (d - size) / (d * (d - 1))  # E[(s_i - k/d) s_i], up to centring over players
        linear = (self.design.mass * variance) @ self.slopes  # [R]
        blocks = coefficients[: len(linear) * d].unflatten(0, (len(linear), d))  # [R, d, O]
        values = torch.einsum("r,rdo->do", linear.to(device), blocks)
        values = values - values.mean(0)
        if len(self.triples):
            inside = float((self.design.mass * _triple_moment(self.design)).sum())
            each = inside * coefficients[len(linear) * d :]  # [T, O]
            outside = -3 / (d - 3) * each.sum(0) if d > 3 else torch.zeros_like(each.sum(0))
            values = values + outside
            for place in range(3):
                values = values.index_add(0, self.triples[:, place].to(device), each * (1 + 3 / max(d - 3, 1)))
        return values


def centre(members: Coalitions, groups: Tensor, design: Strata) -> Tensor:
    """``s - |s|/d``, float64 ``[n, d]``: what a player's membership tells beyond the size."""
    share = (design.sizes.to(torch.float64) / design.num_players).to(members.device)[groups]
    return members.to(torch.float64) - share[:, None]


def all_triples(d: int) -> Tensor:
    """Every set of three players, int64 ``[T, 3]``; none where there are too many to regress on."""
    if d < 4 or comb(d, 3) > MOST_TRIPLES:
        return torch.empty(0, 3, dtype=torch.int64)
    return torch.combinations(torch.arange(d), 3)


def _triple_moment(design: Strata) -> Tensor:
    """``E[(s_i - k/d) z_i z_j z_l]`` with z = 2s - 1 under uniform members, by size, ``[G]``."""
    d = design.num_players
    moments = []
    for k in design.sizes.tolist():
        others = _sign_product(d - 1, k - 1) if k else 0.0  # i takes part: k - 1 of the other d - 1 do
        without = _sign_product(d - 1, k)
        moments.append(k / d * (1 - k / d) * others + (1 - k / d) * (k / d) * without)
    return torch.tensor(moments, dtype=torch.float64)


def _sign_product(others: int, members: int) -> float:
    """``E[z_j z_l]`` of two of ``others`` players of whom ``members`` take part."""
    pairs = others * (others - 1)
    outside = others - members
    same = members * (members - 1) + outside * (outside - 1)
    return (2 * same - pairs) / pairs
