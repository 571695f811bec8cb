"""The size-effect regression as a ``State``: stratified pairs of coalitions, and the regression on their values."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from vitshap.coalitions import Coalitions, harmonic_number
from vitshap.estimators.controls import Controls, size_curves, slope_curves
from vitshap.estimators.estimate import endpoints
from vitshap.estimators.regression import NO_PENALTY, PENALTIES, Fit, Sample, assemble, better, fit
from vitshap.estimators.strata import Drawer, Strata, allocate, strata
from vitshap.game import Game

Moments: TypeAlias = Literal["auto", "exact", "sampled"]
Sampling: TypeAlias = Literal["adaptive", "balanced", "shapley", "leverage"]
"""How the budget is split over sizes: by the Shapley kernel, evenly (leverage scores), or three quarters of the way from
even to the kernel ("balanced"), the best fixed split over games of 12 to 196 players. "adaptive" starts with that and
then follows the measured errors of each input (``adaptive.py``)."""

MOST_COLUMNS = 1200
"""Triples are used if columns or units are at most this many; beyond, the factorisation costs too much."""
CANDIDATES = ((1, 0.0), (1, 0.1), (3, 0.3))
"""Numbers of slopes per player, with the variance expected of triples relative to that of single players."""
UNITS_PER_KNOT, LARGEST_LEVERAGE = 32, 1 - 1e-6
AMPLE = 20
"""With this many units per column a penalty has no noticeable effect."""
POOLED = 4.0
"""The variance of a player's value from n pairs of d players is a mean of its own and of the mean over all players, with
weights n and this times d: few pairs tell the size of the errors, but not which players have the larger ones."""
SMALL_SAMPLE, LARGEST_FACTOR = 20.0, 2.0
"""Squared standard errors from n pairs are multiplied by 1 + the first / n, at most by the second: the regression is chosen
by the errors that it leaves, and few errors have heavy tails (docs/estimators.md, section 6)."""


class SizeEffectState:
    """Units evaluated so far; implements ``State``."""

    posterior, known_before = False, False
    error_spread: Tensor | None = None
    evaluated_error: Tensor | None = None

    def __init__(self, game: Game, paired: bool, moments: Moments, sampling: Sampling, batch: int, seed: int) -> None:
        """Start without evaluations."""
        self.method = "kernelshap"
        self._game, self._moments, self._batch = game, moments, batch
        self._design = strata(game.num_players, paired=paired)
        self._per_unit = 2 if paired else 1
        needed = min(game.num_players + 3 if moments == "sampled" else 2, self._design.total)
        self.smallest = 2 + self._per_unit * needed
        # From here on every stratum has units, so that drawing in steps equals drawing at once.
        self.first_check = 2 + self._per_unit * max(4 * len(self._design.population), 2 * needed)
        self._rounding = torch.Generator().manual_seed(seed)
        self._drawer = Drawer(self._design, torch.Generator(device=game.device).manual_seed(seed))
        exponent = {"adaptive": 0.75, "balanced": 0.75, "shapley": 1.0, "leverage": 0.0}[sampling]
        self._wish = self._design.relative_mass**exponent * self._design.multiplicity
        self._expected = torch.zeros_like(self._design.mass)
        self._parts: list[tuple[Coalitions, Tensor, Tensor]] = []

    def advance(self, evaluations: int) -> int:
        """Evaluate new units up to ``evaluations`` in total."""
        self._draw(min((evaluations - 2) // self._per_unit, self._design.total))
        return 2 + self._per_unit * int(self._drawer.drawn.sum())

    def _draw(self, total: int, fewest: int = 0) -> None:
        """Draw and evaluate new units up to ``total``, at least ``fewest`` of every size."""
        drawn = self._drawer.drawn
        counts, self._expected = allocate(self._design, self._wish, total, drawn, self._rounding, fewest=fewest)
        if bool((counts > drawn).any()):
            members, groups = self._drawer.up_to(counts)
            self._parts.append((members, groups, self._evaluate(members)))

    def _evaluate(self, members: Coalitions) -> Tensor:
        """Return v(s), or v(s) - v(1-s), ``[n, B K]`` in the game's own precision."""
        values = []
        for part in torch.split(members, max(self._batch // self._per_unit, 1)):
            if self._per_unit == 1:
                value = self._game(part)
            else:
                one, other = self._game(torch.cat([part, ~part])).chunk(2, dim=1)
                value = one - other
            values.append(value.transpose(0, 1).flatten(1))
        return torch.cat(values)

    def _sample(self) -> Sample:
        members, groups, y = (torch.cat(column) for column in zip(*self._parts, strict=True))
        order = torch.argsort(groups, stable=True)
        counts = self._drawer.drawn
        # Below one expected unit, whether there is one is random; its weight corrects for that.
        weight = self._design.mass / torch.where(self._expected < 1, self._expected, counts.to(torch.float64))
        return Sample(self._design, members[order], groups[order], counts, weight, y[order].to(torch.float64))

    def estimate(self) -> tuple[Tensor, Tensor]:
        """Return values and standard errors, ``[B, d, K]`` each."""
        game, sample = self._game, self._sample()
        base, full = endpoints(game)
        factor = harmonic_number(game.num_players - 1) * (2 / self._per_unit)
        values, variance = assemble(sample, regress(sample, self._moments), factor)  # [d, B K]
        shape = (game.num_players, game.batch_size, game.num_outputs)
        values = values.view(shape).transpose(0, 1) + ((full - base) / game.num_players)[:, None]
        return values, standard_errors(variance.view(shape).transpose(0, 1), self._per_unit * len(sample.groups) / 2)


def standard_errors(variance: Tensor, pairs: float) -> Tensor:
    """Return standard errors from the regression's variances ``[..., d, K]``, for so many pairs of evaluations."""
    pairs, pooled = max(pairs, 0.5), POOLED * variance.shape[-2]
    variance = (pairs * variance + pooled * variance.mean(-2, keepdim=True)) / (pairs + pooled)
    return (min(1 + SMALL_SAMPLE / pairs, LARGEST_FACTOR) * variance).sqrt()


def regress(sample: Sample, moments: Moments) -> Fit:
    """Return the fit with the least remaining variance for each output."""
    n, curves = len(sample.groups), _curves(sample)

    def fitted(controls: Controls | None) -> Fit:
        ample = moments == "sampled" or (controls is not None and n > AMPLE * controls.num_columns)
        return fit(sample, curves, controls, NO_PENALTY if ample else PENALTIES)

    return reduce(better, map(fitted, _candidates(sample.design, n, moments)))


def _curves(sample: Sample) -> Tensor:
    """Return curves of the size, ``[G, q]``, as many as leave every unit a residual.

    A unit that alone determines a curve would have the residual 0, which biases the values and claims to be exact.
    """
    counts = sample.counts.to(torch.float64)
    sampled = (counts > 0) & (sample.unseen > 0)
    for knots in range(min(max(len(sample.groups) // UNITS_PER_KNOT, 2), len(counts)), 0, -1):
        curves = size_curves(sample.design, knots)
        inverse = torch.linalg.pinv(curves.T @ (counts[:, None] * curves), hermitian=True)
        leverage = ((curves @ inverse) * curves).sum(1)
        if not bool((leverage[sampled] > LARGEST_LEVERAGE).any()):
            return curves
    return torch.zeros_like(counts)[:, None]


def _candidates(design: Strata, n: int, moments: Moments) -> Iterator[Controls | None]:
    d = design.num_players
    if moments == "sampled":
        yield Controls(design, slope_curves(design, 3 if n > 12 * d else 1))
        return
    yield None
    if moments == "exact" or n < 8:
        return
    tried = set()
    for slopes, triples in CANDIDATES:
        controls = Controls(design, slope_curves(design, slopes), triples if design.paired and d > 3 else 0.0)
        if min(n, controls.num_columns) > MOST_COLUMNS:
            controls = Controls(design, controls.slopes)
        if (slopes, controls.triples) not in tried:
            tried.add((slopes, controls.triples))
            yield controls
