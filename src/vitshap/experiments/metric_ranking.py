"""A test of the metrics themselves: do they rank explanations that are known to be better above worse ones?

Converged Shapley values are degraded step by step towards chance: a growing share of the players pass their values on to
each other. A metric that measures closeness to the Shapley values recovers this order; one that is saturated, or that
measures something else, does not. A second table shows how the metrics rank methods, and a third how far the metrics agree.

Metrics that explain other images or models than the given ones (grid pointing, randomisation) cannot be tested in this way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast, get_args

import torch
from torch import Tensor

from vitshap.experiments.tables import Cell, Column, Table
from vitshap.explanation import Explanation
from vitshap.methods import ExplainableModel
from vitshap.metrics import Metric, MetricResult, coalition_responses, metric
from vitshap.metrics.correlations import ResponseMetric
from vitshap.players import Players

LEVELS = (0.0, 0.25, 0.5, 0.75, 1.0)
METRICS = ("insertion", "deletion", "sensitivity-n", "faithfulness", "saco", "single-patch")


def degraded(explanation: Explanation, level: float, *, seed: int = 0) -> Explanation:
    """Return the explanation with the values of a share ``level`` of the players exchanged: 0 as it is, 1 chance.

    In a random order of an image's players each of the first ones takes the value of the next one, so the players that
    are degraded at one level are degraded at all higher levels too, and the sum of the values stays the same.
    """
    if not 0 <= level <= 1:
        raise ValueError(f"level is the share of the players, 0 to 1; got {level:g}")
    batch, d, _ = explanation.values.shape
    present = torch.ones(batch, d, dtype=torch.bool) if explanation.player_mask is None else explanation.player_mask
    keys = torch.rand(batch, d, generator=torch.Generator().manual_seed(seed)).masked_fill(~present, torch.inf)
    order = keys.argsort(1)  # [B, d], absent players last
    moved = (level * present.sum(1, keepdim=True)).round().long()  # [B, 1]
    place = torch.arange(d).expand(batch, -1)
    following = torch.where(place + 1 < moved, place + 1, 0)
    source = torch.where(place < moved, following, place)
    taken = torch.empty_like(order).scatter(1, order, order.gather(1, source))  # [B, d]: whose value each player has
    values = explanation.values.gather(1, taken[..., None].expand_as(explanation.values))
    return replace(explanation, values=values, stderr=None)


def recovery_table(
    surrogate: ExplainableModel,
    images: Any,
    truth: Explanation,
    /,
    *,
    metrics: Mapping[str, Metric] | Sequence[str] = METRICS,
    levels: Sequence[float] = LEVELS,
    seeds: int = 3,
) -> Table:
    """Measure the truth and its degraded versions; a row per metric with its mean at every level.

    ``order``: Kendall's tau between these means and the quality, 1 if every step is recovered. ``per image``: the same
    within each image, mean over images. ``separation``: the mean difference of the truth from chance, in standard errors
    over images. Scores are means of ``seeds`` random exchanges.
    """
    named = _metrics(metrics, surrogate, images, truth)
    if len(levels) < 2 or list(levels) != sorted(set(levels)):
        raise ValueError(f"levels are two or more increasing shares, got {list(levels)}")
    columns = [Column("metric"), *(Column(f"level_{i}", ".4f", title=f"{x:.0%}") for i, x in enumerate(levels))]
    columns += [Column("order", ".2f"), Column("per_image", ".2f"), Column("separation", ".1f", "standard errors")]
    table = Table(f"share of players whose values are exchanged, {len(truth)} images", columns)
    versions = [[degraded(truth, level, seed=seed) for seed in range(seeds if level else 1)] for level in levels]
    for name, measure in named.items():
        results = [[measure(surrogate, images, one) for one in some] for some in versions]
        scores = torch.stack([torch.stack([one.per_image for one in some]).nanmean(0) for some in results], 1)
        means = scores.nanmean(0)  # [levels]
        sign = 1.0 if results[0][0].higher_is_better else -1.0
        difference = sign * (scores[:, 0] - scores[:, -1])
        difference = difference[~difference.isnan()]
        quality = -torch.arange(len(levels), dtype=torch.float64)
        within = torch.tensor([kendall(sign * row, quality) for row in scores if not bool(row.isnan().any())])
        table.add(
            metric=name,
            **{f"level_{i}": float(mean) for i, mean in enumerate(means)},
            order=kendall(sign * means, quality),
            per_image=float(within.nanmean()),
            separation=float(difference.mean() / (difference.std() / len(difference) ** 0.5)),
        )
    return table


def measure_methods(
    surrogate: ExplainableModel,
    images: Any,
    explanations: Mapping[str, Explanation],
    /,
    *,
    metrics: Mapping[str, Metric] | Sequence[str] = METRICS,
) -> dict[str, dict[str, MetricResult]]:
    """Measure every explanation, of the same players and classes, by every metric: results by metric and explanation."""
    named = _metrics(metrics, surrogate, images, next(iter(explanations.values())))
    return {
        name: {by: measure(surrogate, images, one) for by, one in explanations.items()}
        for name, measure in named.items()
    }


def ranks_table(scores: Mapping[str, Mapping[str, MetricResult]]) -> Table:
    """Arrange the rank of every method by every metric, 1 for the best, with the mean score as a note."""
    methods = _common(scores)
    columns = (Column("method"), *(Column(name.replace("-", "_"), ".1f", title=name) for name in scores))
    table = Table("rank by each metric (mean score)", columns)
    ranks = {name: _ranks(by_method, methods) for name, by_method in scores.items()}
    for i, by in enumerate(methods):
        cells = {
            name.replace("-", "_"): Cell(float(ranks[name][i]), note=f"{scores[name][by].mean:.4f}") for name in scores
        }
        table.add(method=by, **cells)
    return table


def agreement_table(scores: Mapping[str, Mapping[str, MetricResult]]) -> Table:
    """Arrange Kendall's tau between the orders in which every two metrics rank the methods."""
    methods = _common(scores)
    ranks = {name: _ranks(by_method, methods) for name, by_method in scores.items()}
    columns = (Column("metric"), *(Column(name.replace("-", "_"), ".2f", title=name) for name in scores))
    table = Table(f"agreement on {len(methods)} methods (Kendall's tau)", columns)
    for one in scores:
        table.add(metric=one, **{two.replace("-", "_"): kendall(ranks[one], ranks[two]) for two in scores})
    return table


def kendall(one: Tensor, two: Tensor) -> float:
    """Return Kendall's tau-b; NaN if one side is constant or not known."""
    from scipy.stats import kendalltau

    return float(kendalltau(one.double().numpy(), two.double().numpy()).statistic)


def _metrics(
    metrics: Mapping[str, Metric] | Sequence[str], surrogate: ExplainableModel, images: Any, explanation: Explanation
) -> dict[str, Metric]:
    """Return metrics by name; coalitions that do not depend on the explanation are evaluated once."""
    if isinstance(metrics, Mapping):
        return dict(metrics)
    players = Players(explanation.players, explanation.values.shape[1])
    found = {}
    for name in metrics:
        shared: dict[str, Any] = {}
        if name in get_args(ResponseMetric):
            responses = coalition_responses(
                surrogate, images, cast(ResponseMetric, name), players=players, classes=explanation.classes
            )
            shared = {"responses": responses}
        found[name] = metric(name, **shared)
    return found


def _common(scores: Mapping[str, Mapping[str, MetricResult]]) -> list[str]:
    """Return the methods, which must be the same for all metrics."""
    methods = [list(by_method) for by_method in scores.values()]
    if not methods or any(one != methods[0] for one in methods) or len(methods[0]) < 2:
        raise ValueError("at least two methods must be measured, the same by every metric")
    return methods[0]


def _ranks(by_method: Mapping[str, MetricResult], methods: Sequence[str]) -> Tensor:
    """Return ranks by mean score, 1 for the best; equal scores share the mean of their ranks."""
    from scipy.stats import rankdata

    sign = -1.0 if next(iter(by_method.values())).higher_is_better else 1.0
    return torch.from_numpy(rankdata([sign * by_method[name].mean for name in methods]))
