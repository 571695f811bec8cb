"""Adaptive allocation of evaluations to sizes, by the residual errors of a pilot.

A pair (s, 1-s) spends as much on its large coalition as on its small one, although the output for large coalitions often
hardly varies; and sizes at which all coalitions have the same value need few evaluations. So after a pilot of ordinary
pairs, each input gets n_k coalitions of every size k <= d/2 and m_k complements (as pairs as far as possible), which
minimise the variance of its values (docs/estimators.md, section 10).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log
from typing import cast

import torch
from torch import Tensor

from vitshap.coalitions import Coalitions, harmonic_number
from vitshap.estimators.controls import centre, position
from vitshap.estimators.estimate import endpoints
from vitshap.estimators.regression import Fit, Sample
from vitshap.estimators.size_effect import Moments, Sampling, SizeEffectState, regress, standard_errors
from vitshap.estimators.strata import ENUMERABLE, Strata, allocate
from vitshap.game import Game

BANDWIDTH = 0.25
"""Error variances are smoothed over sizes, on the axis log(k / (d - k))."""
PILOT = 1 / 4
"""Share of the evaluations used for the pilot, while that is at most ``first_check``; half of it beyond."""
FEWEST = 48
"""Pairs of the smallest pilot; it also has one of every size."""
GAIN, THIN_GAIN = 1.2, 1.3
"""The expected variance must fall by this factor; otherwise all evaluations are ordinary pairs. The second applies to a
pilot below ``first_check``, whose estimate of it is less exact."""
HORIZON = 4
"""With partial estimates, the expected variance is computed for this multiple of the evaluations so far."""
KEPT = 0.1
"""Share of the evaluations that keep the ordinary allocation, in case the pilot is misleading."""


@dataclass(frozen=True, eq=False)
class Side:
    """One input's small or large coalitions, with the residuals of the regression."""

    sample: Sample
    fitted: Fit
    rows: Tensor
    """Indices of these units among all drawn ones, int64 ``[n]``."""


@dataclass(frozen=True, eq=False)
class Moment:
    """Per size, the mean squared error of small and of large coalitions and of their product, float64 ``[G]`` each."""

    small: Tensor
    large: Tensor
    product: Tensor

    def variance(self, counts: Tensor) -> Tensor:
        """Return the variance ``[G]`` of the difference of means over ``counts`` (``[2, G]``) coalitions of each side."""
        both = counts.amax(0)  # covariance of means over n and m units that share min(n, m) of them
        return self.small / counts[0] + self.large / counts[1] - 2 * self.product / both

    def needs(self, paired: Tensor) -> Tensor:
        """Return the squared optimal counts of both sides, up to a factor, ``[2, G]``; equal if ``paired``."""
        pair = (self.small + self.large - 2 * self.product).clamp(min=0) / 2
        less_small, less_large = self.small - 2 * self.product, self.large - 2 * self.product
        more_small, more_large = (less_small > self.large) & ~paired, (less_large > self.small) & ~paired
        small = torch.where(more_small, less_small, torch.where(more_large, self.small, pair))
        large = torch.where(more_small, self.large, torch.where(more_large, less_large, pair))
        return torch.stack([small, large])


class AdaptiveState(SizeEffectState):
    """A pilot of pairs, then small and large coalitions of every size, allocated for each input."""

    def __init__(self, game: Game, paired: bool, moments: Moments, sampling: Sampling, batch: int, seed: int) -> None:
        """Start without evaluations; ``paired`` must be true."""
        super().__init__(game, paired, moments, sampling, batch, seed)
        # Enumerated pairs of size d/2 come in one order only, and few players need no adaptation: use pairs.
        self._possible = self._design.population[-1] > ENUMERABLE
        # Unpaired coalitions of size d/2 have a size effect like all others.
        self._side = replace(self._design, paired=False)
        self._members = torch.zeros(0, game.num_players, dtype=torch.bool, device=game.device)
        self._groups = torch.zeros(0, dtype=torch.int64, device=game.device)
        self._order = torch.zeros(0, dtype=torch.int64, device=game.device)  # index within the stratum
        self._values: Tensor | None = None  # [2, B, N, K]: v(s), v(1-s); zero where not evaluated
        self._both: list[Tensor] = []
        self._counts: Tensor | None = None  # [B, 2, G] once allocated, on the CPU
        self._fitted: dict[int, tuple[Side, Side]] = {}

    def advance(self, evaluations: int) -> int:
        """Evaluate up to ``evaluations`` in total: pairs for the pilot, then by the adaptive allocation."""
        if self._counts is None:
            pilot, drawn = self._pilot(evaluations), self._drawer.drawn
            # Pairs that were drawn before need not be of every size; the pilot adds what is missing.
            units = max((pilot - 2) // 2, int(drawn.clamp(min=1).sum()))
            if not self._possible or evaluations < 2 * pilot or evaluations < 2 + 2 * units:
                return super().advance(evaluations)
            used = 2 + 2 * int(drawn.sum())
            self._draw(units, fewest=1)
            if not self._switch(max(evaluations, HORIZON * used)):
                return super().advance(evaluations)
        self._allocate(evaluations - 2)
        return 2 + int(self._counts_now.sum((1, 2)).max())

    def _pilot(self, evaluations: int) -> int:
        """Return the evaluations of the pilot if there are ``evaluations`` in total."""
        smallest = 2 + 2 * max(FEWEST, len(self._design.population))
        return max(smallest, min(int(PILOT * evaluations), self.first_check), int(PILOT / 2 * evaluations))

    @property
    def switched(self) -> bool:
        """Whether the adaptive allocation is in use."""
        return self._counts is not None

    @property
    def _counts_now(self) -> Tensor:
        return cast(Tensor, self._counts)

    def _evaluate(self, members: Coalitions) -> Tensor:
        if not self._possible:
            return super()._evaluate(members)
        parts = torch.split(members, max(self._batch // 2, 1))
        both = [torch.stack(self._game(torch.cat([part, ~part])).chunk(2, dim=1)) for part in parts]  # [2, B, n, K]
        self._both.append(torch.cat(both, dim=2))
        return (self._both[-1][0] - self._both[-1][1]).transpose(0, 1).flatten(1)

    def _switch(self, evaluations: int) -> bool:
        """Switch to the adaptive allocation if it is expected to lower the variance enough."""
        sample = self._sample()
        members = torch.cat([members for members, _, _ in self._parts])
        groups = torch.cat([groups for _, groups, _ in self._parts])
        self._members, self._groups = members[:0], groups[:0]
        self._append(members, groups, torch.zeros_like(self._drawer.drawn), torch.cat(self._both, dim=2))
        self._counts = self._drawer.drawn.repeat(self._game.batch_size, 2, 1)
        paired = smooth(self._design, sample.groups, self._per_input(regress(sample, self._moments).error))  # [B, G]
        usual = allocate(
            self._design, self._wish, (evaluations - 2) // 2, self._drawer.drawn, torch.Generator().manual_seed(0)
        )[1]
        before, after = 0.0, 0.0
        for b, errors in enumerate(self._moments_of_inputs()):
            ours = self._split(b, errors, evaluations - 2, torch.Generator().manual_seed(0))
            before += float((self._weight * paired[b] / usual).sum().log())
            after += float((self._weight * errors.variance(ours)).sum().log())
        asked = GAIN if 2 + 2 * len(sample.groups) >= self.first_check else THIN_GAIN
        if before - after > log(asked) * self._game.batch_size:
            self._parts.clear()
            self._both.clear()
            return True
        self._counts = self._values = None
        self._fitted.clear()
        return False

    @property
    def _weight(self) -> Tensor:
        """Weight of a squared error of each size in the variance of the values, up to a factor; ``[G]``."""
        drawn = torch.tensor([float(n > ENUMERABLE) for n in self._design.population], dtype=torch.float64)
        return self._design.mass**2 / self._design.relative_mass * drawn

    def _per_input(self, error: Tensor) -> Tensor:
        """Sum the squares over outputs, ``[n, B]``."""
        return error.square().view(len(error), self._game.batch_size, -1).sum(2)

    def _append(self, members: Coalitions, groups: Tensor, before: Tensor, values: Tensor | None) -> None:
        """Add units to the ``before`` (``[G]``) that exist already."""
        counts = torch.bincount(groups, minlength=len(before))
        by_group = torch.argsort(groups, stable=True)
        place = torch.empty_like(groups)
        place[by_group] = (
            torch.arange(len(groups), device=groups.device) - (counts.cumsum(0) - counts)[groups[by_group]]
        )
        if values is None:
            old = self._values_now
            values = torch.cat([old, old.new_zeros(*old.shape[:2], len(groups), old.shape[3])], dim=2)
        self._order = torch.cat([self._order[: len(self._groups)], place + before.to(groups.device)[groups]])
        self._members = torch.cat([self._members, members])
        self._groups = torch.cat([self._groups, groups])
        self._values = values

    def _moments_of_inputs(self) -> list[Moment]:
        return [moment(*self._sides(b), len(self._groups)) for b in range(self._game.batch_size)]

    def _split(self, b: int, errors: Moment, total: int, generator: torch.Generator) -> Tensor:
        """Return the numbers of small and large coalitions of every size for one input, int64 ``[2, G]``."""
        halves = 2 * self._design.sizes == self._design.num_players
        best = self._design.mass / self._design.relative_mass.sqrt() * errors.needs(halves).sqrt()
        usual = self._wish.expand(2, -1)
        wish = ((1 - KEPT) * best / best.sum().clamp(min=1e-300) + KEPT * usual / usual.sum()).flatten()
        population = self._design.population
        both = replace(self._side, mass=self._side.mass.repeat(2), population=population + population)
        already = self._counts_now[b].flatten()
        counts = allocate(both, wish, total, already, generator)[0]
        counts = torch.maximum(counts, already).view(2, -1)
        counts = counts.where(~halves, torch.maximum(counts.amin(0), already.view(2, -1).amax(0)))
        excess = int(counts.sum()) - total
        if excess > 0:  # from rounding: taken from the largest count
            counts.view(-1)[int((counts - already.view(2, -1)).where(~halves, 0).argmax())] -= excess
        return counts

    def _allocate(self, total: int) -> None:
        """Allocate ``total`` evaluations per input by the errors so far, and evaluate the new ones."""
        before = self._counts_now
        after = torch.stack(
            [self._split(b, errors, total, self._rounding) for b, errors in enumerate(self._moments_of_inputs())]
        )
        drawn = self._drawer.drawn.clone()
        needed = torch.maximum(after.amax((0, 1)), drawn)
        if bool((needed > drawn).any()):
            self._append(*self._drawer.up_to(needed), drawn, None)
        rows_of, places = [], []
        for old, new in zip(before, after, strict=True):
            new_units = (self._order >= old.to(self._order.device)[:, self._groups]) & (
                self._order < new.to(self._order.device)[:, self._groups]
            )  # [2, N]
            sides, rows = new_units.nonzero(as_tuple=True)
            rows_of.append(self._members[rows] ^ (sides == 1)[:, None])
            places.append((sides, rows))
        self._counts = after
        self._fitted.clear()
        # Inputs have equal numbers up to rounding; shorter ones are filled with the full coalition.
        most = max(len(rows) for rows in rows_of)
        coalitions = torch.stack(
            [torch.cat([rows, rows.new_ones(most - len(rows), rows.shape[1])]) for rows in rows_of]
        )  # [B, S, d]
        values = self._values_now
        for first in range(0, most, self._batch):
            part = self._game(coalitions[:, first : first + self._batch])
            for b, (sides, rows) in enumerate(places):
                here = slice(first, min(first + self._batch, len(rows)))
                values[sides[here], b, rows[here]] = part[b, : len(rows[here])]

    @property
    def _values_now(self) -> Tensor:
        return cast(Tensor, self._values)

    def _evaluated(self, b: int) -> Tensor:
        """Return which small and large coalitions were evaluated for an input, bool ``[2, N]``."""
        return self._order < self._counts_now[b].to(self._order.device)[:, self._groups]

    def _sides(self, b: int) -> tuple[Side, Side]:
        if b not in self._fitted:
            # After the pilot all inputs have the same coalitions, and one factorisation is used for all.
            same = bool((self._counts_now == self._counts_now[b]).all())
            inputs = range(self._game.batch_size) if same else range(b, b + 1)
            small, large = (self._side_of(inputs, side) for side in (0, 1))
            self._fitted.update(zip(inputs, zip(small, large, strict=True), strict=True))
        return self._fitted[b]

    def _side_of(self, inputs: range, side: int) -> list[Side]:
        """Return the small (0) or large (1) coalitions of inputs that share them."""
        rows = self._evaluated(inputs[0])[side].nonzero()[:, 0]
        rows = rows[torch.argsort(self._groups[rows], stable=True)]
        counts = self._counts_now[inputs[0], side]
        y = self._values_now[side, inputs.start : inputs.stop, rows].to(torch.float64).transpose(0, 1).flatten(1)
        sample = Sample(self._side, self._members[rows], self._groups[rows], counts, self._side.mass / counts, y)
        fitted = regress(sample, self._moments)
        parts = [
            part.chunk(len(inputs), dim=-1) for part in (fitted.residual, fitted.error, fitted.known, fitted.score)
        ]
        return [Side(sample, Fit(*fields), rows) for fields in zip(*parts, strict=True)]

    def estimate(self) -> tuple[Tensor, Tensor]:
        """Return values and standard errors, ``[B, d, K]`` each."""
        if self._counts is None:
            return super().estimate()
        base, full = endpoints(self._game)
        factor = harmonic_number(self._game.num_players - 1)
        values, errors = [], []
        for b in range(self._game.batch_size):
            value, variance = difference(*self._sides(b), len(self._groups))
            values.append(factor * value + (full - base)[b] / self._game.num_players)
            errors.append(factor * standard_errors(variance, int(self._counts_now[b].sum()) / 2))
        return torch.stack(values), torch.stack(errors)


def moment(small: Side, large: Side, total: int) -> Moment:
    """Return mean squares and products of leave-one-out errors, summed over outputs; ``total`` units were drawn."""
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
    """Return means of ``values`` (``[n, C]``) over the units of each size and its neighbours, on the CPU, ``[C, G]``."""
    place = position(design)
    near = torch.exp(-((place[:, None] - place) ** 2) / (2 * BANDWIDTH**2))  # [G, G]
    sums = values.new_zeros(len(place), values.shape[1]).index_add(0, groups, values).cpu()
    counts = torch.bincount(groups, minlength=len(place)).to("cpu", torch.float64)
    return ((near @ sums) / (near @ counts)[:, None]).T


def difference(small: Side, large: Side, total: int) -> tuple[Tensor, Tensor]:
    """Return ``sum_k P_k E_k[x (v(s) - v(1-s))]`` and its variance, ``[d, K]`` each, from sides that share some units.

    A unit contributes one coalition or both. Residuals have almost no mean within a size, so squares are not centred;
    the variance is, if anything, overestimated.
    """
    design, device = small.sample.design, small.rows.device
    left, weighted, alone = torch.zeros(3, total, small.fitted.error.shape[1], dtype=torch.float64, device=device)
    members = torch.zeros(total, design.num_players, dtype=torch.bool, device=device)
    groups = torch.zeros(total, dtype=torch.int64, device=device)
    # Finite-population correction: units evaluated on both sides reduce the variance of the difference, units on one
    # side only that of this side.
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
