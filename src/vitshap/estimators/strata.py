"""Stratified sampling of coalitions: strata of equal size, drawn without replacement.

A sampling unit is a coalition or, with pairing, a coalition together with its complement. Units of one size form a
stratum. Sizes are not drawn at random: every stratum gets a share of the budget, and small strata (single players, pairs
of players) are enumerated if their share covers them; they then have no sampling error.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb

import torch
from torch import Tensor

from vitshap.coalitions import Coalitions, of_sizes, shapley_kernel

ENUMERABLE = 2**22
"""Strata of at most this many units are drawn without replacement; in larger ones repetitions are negligible."""


@dataclass(frozen=True, eq=False)
class Strata:
    """All units of a game of ``num_players`` players, by size."""

    num_players: int
    paired: bool
    sizes: Tensor
    """int64 ``[G]``: 1..d/2 when paired (the smaller of the two coalitions), else 1..d-1."""
    mass: Tensor
    """Probability of each stratum under the Shapley kernel, float64 ``[G]``."""
    population: tuple[int, ...]
    """Number of units in each stratum."""

    @property
    def multiplicity(self) -> Tensor:
        """1, or 1/2 for pairs of coalitions of size d/2, which are counted twice by their size; ``[G]``."""
        return torch.where(self.paired & (2 * self.sizes == self.num_players), 0.5, 1.0).to(torch.float64)

    @property
    def relative_mass(self) -> Tensor:
        """The Shapley kernel's weight of a size, ``1 / (k (d - k))``, float64 ``[G]``."""
        size = self.sizes.to(torch.float64)
        return 1 / (size * (self.num_players - size))

    @property
    def total(self) -> int:
        """Total number of units."""
        return sum(self.population)


def strata(d: int, *, paired: bool) -> Strata:
    """Return the strata of ``d`` players."""
    probability = shapley_kernel(d).size_probabilities
    if not paired:
        sizes = torch.arange(1, d)
        return Strata(d, False, sizes, probability[1:d], tuple(comb(d, k) for k in range(1, d)))
    sizes = torch.arange(1, d // 2 + 1)
    halves = [2 if 2 * k == d else 1 for k in range(1, d // 2 + 1)]  # the middle size is its own complement
    mass = 2 * probability[sizes] / torch.tensor(halves)
    return Strata(d, True, sizes, mass, tuple(comb(d, k) // half for k, half in enumerate(halves, start=1)))


def allocate(
    design: Strata, wish: Tensor, total: int, already: Tensor, generator: torch.Generator, *, fewest: int = 0
) -> tuple[Tensor, Tensor]:
    """Split ``total`` units over the strata in proportion to ``wish`` (``[G]``): int64 ``[G]``, and their expectation.

    No stratum gets more units than it contains or fewer than ``already`` and, if the total suffices, ``fewest``. Fractions
    are rounded randomly, without bias.
    """
    most = torch.tensor([min(size, total) for size in design.population], dtype=torch.float64)
    least = torch.maximum(already.to(torch.float64), _floor(design, total, most, fewest))
    if float(least.sum()) > total:  # units that were drawn before leave too few for the others
        least = already.to(torch.float64)
    low, high = 0.0, float(total / wish.min())
    for _ in range(100):  # bisection for the scale at which the capped shares add up to the total
        scale = (low + high) / 2
        low, high = (scale, high) if float(_capped(scale * wish, least, most).sum()) < total else (low, scale)
    expected = _capped(high * wish, least, most)
    edges = expected.cumsum(0) + float(torch.rand((), dtype=torch.float64, generator=generator))
    edges[-1] = max(float(edges[-1]), total)
    counts = torch.diff(edges.floor().clamp(max=total), prepend=torch.zeros(1, dtype=torch.float64))
    return torch.minimum(counts, most).to(torch.int64), expected


def _floor(design: Strata, total: int, most: Tensor, fewest: int) -> Tensor:
    # The error of a stratum can be measured with two units, if the budget is large enough.
    affordable = total >= 4 * len(design.population)
    return torch.minimum(most, torch.full_like(most, max(2.0, fewest) if affordable else fewest))


def _capped(share: Tensor, least: Tensor, most: Tensor) -> Tensor:
    return torch.minimum(torch.maximum(share, least), most)


class Drawer:
    """Draws units stratum by stratum without replacement."""

    def __init__(self, design: Strata, generator: torch.Generator) -> None:
        """Start without units; coalitions are made on the generator's device."""
        self.design = design
        self.drawn = torch.zeros(len(design.population), dtype=torch.int64)
        self._generator = generator
        self._order: dict[int, Tensor] = {}

    def up_to(self, counts: Tensor) -> tuple[Coalitions, Tensor]:
        """Draw up to ``counts`` units per stratum (``[G]``); return new units ``[n, d]`` and their strata ``[n]``."""
        device = self._generator.device
        listed, free = [], []
        for g, (first, last) in enumerate(zip(self.drawn.tolist(), counts.tolist(), strict=True)):
            if self.design.population[g] > ENUMERABLE:
                free.append(torch.full((last - first,), g, device=device))
            elif last > first:
                listed.append((g, self._ranks(g)[first:last]))
        self.drawn = torch.maximum(self.drawn, counts)
        parts = [(torch.full_like(ranks, g), ranks) for g, ranks in listed]
        units, groups = [], []
        if parts:
            groups.append(torch.cat([group for group, _ in parts]))
            units.append(self._unrank(groups[-1], torch.cat([ranks for _, ranks in parts])))
        if free:
            groups.append(torch.cat(free))
            size = self.design.sizes.to(device)[groups[-1]]
            units.append(of_sizes(size, self.design.num_players, generator=self._generator))
        return torch.cat(units), torch.cat(groups)

    def _ranks(self, g: int) -> Tensor:
        if g not in self._order:
            number = self.design.population[g]
            self._order[g] = torch.randperm(number, generator=self._generator, device=self._generator.device)
        return self._order[g]

    def _unrank(self, groups: Tensor, ranks: Tensor) -> Coalitions:
        """Return the coalition of each rank in the combinatorial number system, ``[n, d]``."""
        d, device = self.design.num_players, ranks.device
        size = self.design.sizes.to(device)[groups]
        needed = torch.minimum(size, d - size)  # for a large coalition, the complement is drawn
        table = torch.tensor(
            [[min(comb(j, k), 2**62) for k in range(int(needed.max()) + 1)] for j in range(d)], device=device
        )
        if self.design.paired:
            # A pair of size d/2 is represented by the coalition with the last player: the upper half of the ranks.
            ranks = ranks + torch.where(2 * size == d, table[d - 1][needed], 0)
        members = torch.empty(len(ranks), d, dtype=torch.bool, device=device)
        for j in range(d - 1, -1, -1):
            below = table[j][needed]  # coalitions of the remaining members without player j
            joins = (ranks >= below) & (needed > 0)
            members[:, j] = joins
            ranks = ranks - below.where(joins, 0)
            needed = needed - joins.to(needed.dtype)
        return members ^ (2 * size > d)[:, None]
