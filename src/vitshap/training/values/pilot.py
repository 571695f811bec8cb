"""The pilot: measures the spread of coalition values on a few images and chooses which coalitions to evaluate.

``labels.py`` explains why the distribution of sizes may be chosen, and which choice has the least noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from vitshap.coalitions import CoalitionLaw, Coalitions, of_sizes, shapley_kernel
from vitshap.models import MaskedModel
from vitshap.training import processes
from vitshap.training.batches import Images, evenly
from vitshap.training.configs import ValuesConfig, number
from vitshap.training.objectives import class_importance
from vitshap.training.values.labels import Plan, noise_weights
from vitshap.training.values.store import ROWS, CoalitionValues, Evaluator

PILOT_IMAGES, PILOT_REPEATS = 64, 8
SAFETY = 0.1
"""Fraction of the default distribution in the chosen one, so that no weight is far larger than with the Shapley kernel."""


def plan_evaluations(evaluate: Evaluator, images: Images, config: ValuesConfig, scale: Tensor | None = None) -> Plan:
    """Return the plan that a pilot on a few images finds best (allocation "pilot"), or pairs from the Shapley kernel.

    The pilot takes at most a fiftieth of the evaluations, but at least four images. ``scale``: unit of the outputs ``[K]``.
    """
    unit = 1.0 if scale is None else scale
    null = null_values(evaluate) if evaluate.model.same_null else None
    d = evaluate.model.num_players
    fixed = shapley_kernel(d) if config.allocation == "shapley" else None
    affordable = number(config.views) * len(images) * number(config.coalitions) // 50

    def values(coalitions: Coalitions) -> tuple[Tensor, Tensor, Tensor]:
        count = max(4, min(PILOT_IMAGES, affordable // len(coalitions)))
        if null is not None:
            full, found = _pilot_values(evaluate, images, coalitions, count=count)
            return found / unit, (null / unit).expand_as(full), full / unit
        empty = torch.zeros_like(coalitions[:1])
        full, found = _pilot_values(evaluate, images, torch.cat([empty, coalitions]), count=count)
        return found[:, 1:] / unit, found[:, 0] / unit, full / unit

    def weigh(noise: Tensor, full: Tensor) -> Tensor:
        """Weight as the loss will."""
        importance = class_importance(full, evaluate.model.output, config.predicted_class_weight)
        return importance * noise_weights(noise, float(noise.mean()), config.noise_weighting)

    cost = evaluate.model.evaluation_cost()
    return _of_main(pilot(values, d, seed=images.seed, repeats=PILOT_REPEATS, weigh=weigh, cost=cost, fixed=fixed))


def _of_main(plan: Plan) -> Plan:
    """Return the main process's plan on every process.

    Their own differ by rounding, and so would a few of the coalitions that one process evaluates and another trains on.
    """
    tensors = {"law": plan.law.size_probabilities, "curve": plan.curve, "class_noise": plan.class_noise}
    found, (paired, typical, relative) = processes.tensors_from_main(
        lambda: (tensors, [plan.paired, plan.typical_noise, plan.relative_noise])
    )
    law = CoalitionLaw(plan.law.num_players, found["law"])
    return Plan(law, paired, found["curve"], typical, found["class_noise"], relative)


def _pilot_values(evaluate: Evaluator, images: Images, coalitions: Coalitions, *, count: int) -> CoalitionValues:
    """Return the values of the same coalitions ``[S, d]`` for ``count`` training images."""
    found: list[CoalitionValues] = []
    for pixels, _ in images.views(evenly(len(images), count).split(max(1, ROWS // len(coalitions))), 0):  # type: ignore[no-untyped-call]
        found.append(evaluate(pixels, coalitions.to(pixels.device).expand(len(pixels), -1, -1)))
    return CoalitionValues(*(torch.cat(parts) for parts in zip(*found, strict=True)))


def null_values(evaluate: Evaluator) -> Tensor:
    """Return v(0), ``[1, K]``, where it is the same for all images: that of a blank image."""
    model = evaluate.model
    blank = torch.zeros(1, model.adapter.channels, *model.image_size, device=model.device)
    empty = torch.zeros(1, 1, model.num_players, dtype=torch.bool, device=model.device)
    return evaluate(blank, empty).values[:, 0]


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
    """Measure the spread of values at some sizes and choose the distribution; ``fixed``: always pairs from this one.

    ``evaluate``: maps coalitions ``[S, d]`` to their values for some images ``[B, S, K]``, v(0) and v(1) ``[B, K]``.
    ``weigh``: maps noise and v(1) of images and classes ``[B, K]`` to the weights of their noise.
    ``cost``: of evaluating a coalition of each size, ``[d + 1]``; None: equal for all sizes.
    """
    grid = _size_grid(d)
    first = of_sizes(grid.repeat_interleave(repeats), d, generator=torch.Generator().manual_seed(seed))
    values, base, full = (t.double().cpu() for t in evaluate(torch.cat([first, ~first])))
    values = values.view(len(values), 2, len(grid), repeats, -1)  # [B, side, sizes, repeats, K]
    curve = _mean_curve(values.mean(3), base, full, grid, d)
    size = torch.arange(1, d, dtype=torch.float64)
    half = torch.minimum(size, d - size)
    small, large, both = (
        _interpolated(spread, grid, half)  # [B, d - 1, K]
        for spread in (values[:, 0].var(2), values[:, 1].var(2), (values[:, 0] - values[:, 1]).var(2) / 4)
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
    """Return the variance of a one-unit label, summed over players, ``[B, K]``; ``spread``: by size ``[B, d - 1, K]``."""
    d = law.num_players
    size = torch.arange(1, d, dtype=torch.float64)
    return ((d / (size * (d - size) * law.size_probabilities[1:d]))[:, None] * spread).sum(1)


def _at_equal_cost(law: CoalitionLaw, noise: Tensor, price: Tensor) -> float:
    """Return the mean noise of a unit times its mean cost."""
    return float(noise.mean() * (law.size_probabilities * price).sum())


def _size_grid(d: int) -> Tensor:
    """Return sizes from 1 to d/2: all of them, or about 14 in geometric progression."""
    half = d // 2
    if half <= 16:
        return torch.arange(1, half + 1)
    growing = torch.logspace(0, math.log2(half), 14, base=2, dtype=torch.float64).round()
    return torch.tensor(sorted({int(size) for size in growing}))


def _mean_curve(means: Tensor, base: Tensor, full: Tensor, grid: Tensor, d: int) -> Tensor:
    """Return the least-squares position from v(0) to v(1) at each size, ``[d + 1]``; ``means``: ``[B, 2, sizes, K]``."""
    way = (full - base)[:, None, None]
    share = ((means - base[:, None, None]) * way).sum((0, 3)) / way.square().sum().clamp(min=1e-30)  # [2, sizes]
    size = torch.arange(d + 1, dtype=torch.float64)
    known = torch.cat([torch.zeros(1), grid, (d - grid).flip(0), torch.full((1,), d)]).double()
    heights = torch.cat([share.new_zeros(1), share[0], share[1].flip(0), share.new_ones(1)])
    unique = torch.cat([known.new_ones(1, dtype=torch.bool), known[1:] > known[:-1]])  # d/2 may be there twice
    return _lines(size, known[unique], heights[unique])


def _interpolated(spread: Tensor, grid: Tensor, sizes: Tensor) -> Tensor:
    """Interpolate ``[B, grid, K]`` at other sizes, linearly in the logarithm of the size."""
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
    """Return the Shapley kernel divided by the square root of the ``cost`` of each size ``[d + 1]``.

    It has the least noise at equal cost if the spread of values is the same at all sizes.
    """
    kernel = shapley_kernel(len(cost) - 1)
    wanted = kernel.size_probabilities / cost.sqrt()
    return CoalitionLaw(kernel.num_players, wanted / wanted.sum())


def default_plan(model: MaskedModel) -> Plan:
    """Return a plan without a pilot, for timing steps of ``model``."""
    d, classes = model.num_players, model.num_classes
    curve = torch.linspace(0, 1, d + 1, dtype=torch.float64)
    plan = Plan(law_before_pilot(model.evaluation_cost()), False, curve, 1.0, torch.ones(classes))
    return plan.on(model.device)


def _best_law(kernel: CoalitionLaw, spread: Tensor, price: Tensor) -> CoalitionLaw:
    """Return sizes in proportion to spread / sqrt(k (d - k) price), which minimises the product of noise and cost."""
    d = kernel.num_players
    size = torch.arange(1, d, dtype=torch.float64)
    wanted = spread / (size * (d - size) * price[1:d]).sqrt()
    if not wanted.sum() > 0:
        return kernel
    probabilities = SAFETY * law_before_pilot(price).size_probabilities
    probabilities[1:d] += (1 - SAFETY) * wanted / wanted.sum()
    return CoalitionLaw(d, probabilities)
