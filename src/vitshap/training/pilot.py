"""Which coalitions to evaluate: a pilot on a few images measures where values spread, and chooses sizes by it.

Why sizes may be chosen, and which choice has the least noise, is told in ``noise.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from vitshap.coalitions import CoalitionLaw, Coalitions, of_sizes, shapley_kernel
from vitshap.training.noise import Plan

SAFETY = 0.1
"""Part of the pilot's law that stays as before it, so that no weight is far larger than the Shapley kernel's."""


def pilot(
    evaluate: Callable[[Coalitions], tuple[Tensor, Tensor, Tensor]],
    d: int,
    *,
    seed: int,
    repeats: int,
    weigh: Callable[[Tensor, Tensor], Tensor],
    cost: Tensor | None = None,
    fixed: CoalitionLaw | None = None,
) -> Plan:
    """Measure the spread of values at some sizes and choose the law; ``fixed``: pairs of that law whatever is found.

    ``evaluate`` takes coalitions ``[S, d]`` and gives their values for some images ``[B, S, K]``, v(0) and v(1) ``[B, K]``.
    ``weigh`` takes noise and v(1) of images and classes ``[B, K]`` and says how much the noise of each counts.
    ``cost`` of evaluating a coalition of each size, ``[d + 1]``; None: all the same.
    """
    grid = _size_grid(d)
    first = of_sizes(grid.repeat_interleave(repeats), d, generator=torch.Generator().manual_seed(seed))
    worth, base, full = (t.double().cpu() for t in evaluate(torch.cat([first, ~first])))
    worth = worth.view(len(worth), 2, len(grid), repeats, -1)  # [B, side, sizes, repeats, K]
    curve = _mean_curve(worth.mean(3), base, full, grid, d)
    size = torch.arange(1, d, dtype=torch.float64)
    half = torch.minimum(size, d - size)
    small, large, both = (
        _interpolated(spread, grid, half)  # [B, d - 1, K]
        for spread in (worth[:, 0].var(2), worth[:, 1].var(2), (worth[:, 0] - worth[:, 1]).var(2) / 4)
    )
    spread = {"pairs": both, "coalitions": torch.where((size <= d / 2)[:, None], small, large)}
    kernel = shapley_kernel(d)
    single = torch.ones(d + 1, dtype=torch.float64) if cost is None else cost.double().cpu()
    price = {"pairs": single + single.flip(0), "coalitions": single}  # of a unit of each size
    usual = _noise(kernel, both)  # [B, K]
    counts = weigh(usual, full)
    laws = {
        name: _best_law(kernel, (one * counts[:, None]).mean((0, 2)).sqrt(), price[name])
        for name, one in spread.items()
    }
    if fixed is not None:
        spread, laws = {"pairs": both}, {"pairs": fixed}
    before = _at_equal_cost(kernel, usual * counts, price["pairs"])
    relative = {
        name: _at_equal_cost(laws[name], _noise(laws[name], one) * counts, price[name]) / before if before > 0 else 1.0
        for name, one in spread.items()
    }
    best = min(relative, key=lambda name: relative[name])
    noise = _noise(laws[best], spread[best])  # [B, K]
    return Plan(laws[best], best == "pairs", curve, float(noise.mean()), noise.mean(0), relative)


def _noise(law: CoalitionLaw, spread: Tensor) -> Tensor:
    """Variance of the estimate from one unit, summed over players: ``[B, K]`` of spreads ``[B, d - 1, K]`` at sizes."""
    d = law.num_players
    size = torch.arange(1, d, dtype=torch.float64)
    return ((d / (size * (d - size) * law.size_probabilities[1:d]))[:, None] * spread).sum(1)


def _at_equal_cost(law: CoalitionLaw, noise: Tensor, price: Tensor) -> float:
    """Mean noise of a unit times its mean price."""
    return float(noise.mean() * (law.size_probabilities * price).sum())


def _size_grid(d: int) -> Tensor:
    """Sizes from 1 to d/2, all of them or about 14 that grow geometrically."""
    half = d // 2
    if half <= 16:
        return torch.arange(1, half + 1)
    growing = torch.logspace(0, math.log2(half), 14, base=2, dtype=torch.float64).round()
    return torch.tensor(sorted({int(size) for size in growing}))


def _mean_curve(means: Tensor, base: Tensor, full: Tensor, grid: Tensor, d: int) -> Tensor:
    """The least-squares share of the way from v(0) to v(1) at each size, ``[d + 1]``; ``means``: ``[B, 2, sizes, K]``."""
    way = (full - base)[:, None, None]
    share = ((means - base[:, None, None]) * way).sum((0, 3)) / way.square().sum().clamp(min=1e-30)  # [2, sizes]
    size = torch.arange(d + 1, dtype=torch.float64)
    known = torch.cat([torch.zeros(1), grid, (d - grid).flip(0), torch.full((1,), d)]).double()
    heights = torch.cat([share.new_zeros(1), share[0], share[1].flip(0), share.new_ones(1)])
    unique = torch.cat([known.new_ones(1, dtype=torch.bool), known[1:] > known[:-1]])  # d/2 may be there twice
    return _lines(size, known[unique], heights[unique])


def _interpolated(spread: Tensor, grid: Tensor, sizes: Tensor) -> Tensor:
    """``[B, grid, K]`` at other sizes, along lines in the logarithm of the size."""
    at, known = sizes.log(), grid.double().log()
    place = torch.searchsorted(known, at).clamp(1, max(len(known) - 1, 1))
    if len(known) == 1:
        return spread.expand(-1, len(sizes), -1)
    part = ((at - known[place - 1]) / (known[place] - known[place - 1])).clamp(0, 1)[:, None]
    return spread[:, place - 1] * (1 - part) + spread[:, place] * part


def _lines(at: Tensor, known: Tensor, heights: Tensor) -> Tensor:
    place = torch.searchsorted(known, at).clamp(1, len(known) - 1)
    part = (at - known[place - 1]) / (known[place] - known[place - 1])
    return heights[place - 1] * (1 - part) + heights[place] * part


def law_before_pilot(cost: Tensor) -> CoalitionLaw:
    """The Shapley kernel over the root of the ``cost`` of each size ``[d + 1]``: of least noise at equal cost where values
    spread alike at all sizes."""
    kernel = shapley_kernel(len(cost) - 1)
    wanted = kernel.size_probabilities / cost.sqrt()
    return CoalitionLaw(kernel.num_players, wanted / wanted.sum())


def _best_law(kernel: CoalitionLaw, spread: Tensor, price: Tensor) -> CoalitionLaw:
    """Sizes in proportion to spread / sqrt(k (d - k) price), which has the least product of noise and cost."""
    d = kernel.num_players
    size = torch.arange(1, d, dtype=torch.float64)
    wanted = spread / (size * (d - size) * price[1:d]).sqrt()
    if not wanted.sum() > 0:
        return kernel
    probabilities = SAFETY * law_before_pilot(price).size_probabilities
    probabilities[1:d] += (1 - SAFETY) * wanted / wanted.sum()
    return CoalitionLaw(d, probabilities)
