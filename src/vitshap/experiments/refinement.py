"""Error against evaluations: an explainer, ``kernelshap``, and ``refine`` with the explainer and with tokens as its prior.

All are compared with reference values of the same images: the Euclidean distance, correlations over players, and how often
the 95 % intervals hold the reference. Correlations are corrected for the reference's own reliability, distances for its
standard errors. The predicted class and the mean of the other classes are shown apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitshap.estimators.estimate import Estimate, correlation, endpoints
from vitshap.estimators.exact import exact
from vitshap.estimators.kernel import kernelshap
from vitshap.estimators.posterior import Prior
from vitshap.estimators.priors import explained_prior, token_prior, token_similarity
from vitshap.estimators.refine import refine
from vitshap.estimators.truth import Specification, Truth
from vitshap.experiments.tables import Column, Table
from vitshap.explainers import Explainer
from vitshap.game import Game

METHODS = ("explainer", "kernelshap", "refine, tokens", "refine, explainer")
COLUMNS = (
    Column("method"),
    Column("budget", ",d", "evaluations/image"),
    Column("l2_target", ".4g", title="L2, target"),
    Column("l2_others", ".4g", title="L2, others"),
    Column("pearson_target", ".4f"),
    Column("pearson_others", ".4f"),
    Column("r2_target", ".4f"),
    Column("r2_others", ".4f"),
    Column("spearman_target", ".4f"),
    Column("spearman_others", ".4f"),
    Column("coverage", ".4f"),
    Column("least_coverage", ".4f", title="least coverage of a player"),
    Column("low_coverage", ".4f", title="coverage, low confidence"),
    Column("high_coverage", ".4f", title="coverage, high confidence"),
)
Z = 1.96
NOTE = (
    "target: the predicted class; others: mean of the other classes. L2: root mean square over images of the Euclidean "
    "distance from the reference. Coverage: of 95 % intervals, over images, players and classes"
)


class _Sums(NamedTuple):
    """Of all seeds of a method and budget, each ``[N, K]`` but the last, bool ``[N, d, K]`` as numbers."""

    squares: Tensor
    pearson: Tensor
    r2: Tensor
    spearman: Tensor
    inside: Tensor


def exact_truth(game_of: Callable[[slice], Game], images: int, /, *, batch: int = 8, surrogate: str = "") -> Truth:
    """Return the exact values of ``images`` inputs of at most 20 players as reference values without errors."""
    parts = [exact(game_of(slice(first, min(first + batch, images)))) for first in range(0, images, batch)]
    values, base, full = (
        torch.cat([getattr(part, name) for part in parts]).cpu() for name in ("values", "base_values", "full_values")
    )
    specification = Specification(images, surrogate, "exact", parts[0].evaluations, batch, 0)
    return Truth(specification, values, torch.zeros_like(values), base, full, torch.ones_like(full))


def error_curves(
    explainer: Explainer,
    pixels: Tensor,
    truth: Truth,
    /,
    *,
    budgets: Sequence[int],
    seeds: Sequence[int] = (0,),
    methods: Sequence[str] = METHODS,
    game_of: Callable[[slice], Game] | None = None,
    batch: int = 8,
    confidence: float = 0.5,
    finished: Callable[[Table], object] = lambda table: None,
) -> Table:
    """Measure the error of every method at every budget against reference values of these images.

    ``game_of(slice)`` makes the game of some of the images; default: the explainer's surrogate in "auto" precision. Images
    whose largest output is below ``confidence`` are those of low confidence. ``finished`` is called after every row.
    """
    if len(pixels) != len(truth.values):
        raise ValueError(f"{len(pixels)} images are given, and reference values of {len(truth.values)}")
    make = game_of or (lambda part: explainer.surrogate.game(pixels[part], precision="auto"))
    table = Table(f"{len(pixels)} images", COLUMNS, notes=[NOTE])
    parts = [slice(first, min(first + batch, len(pixels))) for first in range(0, len(pixels), batch)]
    priors = [_priors(explainer, pixels[part], make(part)) for part in parts]
    for name in methods:
        for budget in (0,) if name == "explainer" else budgets:
            used = seeds[:1] if name == "explainer" else seeds
            sums: _Sums | None = None
            for seed in used:
                estimates = [
                    _estimate(name, make(part), prior, budget, seed * len(parts) + i)
                    for i, (part, prior) in enumerate(zip(parts, priors, strict=True))
                ]
                found = _compare(estimates, truth)
                sums = found if sums is None else _Sums(*(a + b for a, b in zip(sums, found, strict=True)))
            assert sums is not None
            means = _Sums(*(one / len(used) for one in sums))
            table.add(method=name, budget=budget, **_row(means, truth, confidence))
            finished(table)
    return table


def _priors(explainer: Explainer, pixels: Tensor, game: Game) -> dict[str, Prior]:
    surrogate = explainer.surrogate
    similarity = token_similarity(surrogate.adapter, pixels, surrogate.players)
    explanation = explainer(pixels)
    everything = explanation.classes.to(game.device)
    return {
        "tokens": token_prior(game, similarity),
        "explainer": explained_prior(explanation, game, everything, similarity, explainer.calibration),
    }


def _estimate(name: str, game: Game, priors: dict[str, Prior], budget: int, seed: int) -> Estimate:
    if name == "kernelshap":
        return kernelshap(game, budget=budget, seed=seed)
    if name == "explainer":
        prior = priors["explainer"]
        unknown = torch.zeros(game.batch_size, dtype=torch.bool)
        return Estimate(prior.mean, prior.stderr, *endpoints(game), 1, name, unknown, posterior=True)
    return refine(game, priors[name.removeprefix("refine, ")], budget=budget, seed=seed)


def _compare(estimates: Sequence[Estimate], truth: Truth) -> _Sums:
    values = torch.cat([one.values for one in estimates]).cpu()
    error = values - truth.values
    squares = error.square().sum(1) - truth.stderr.square().sum(1)
    spread = (truth.values - truth.values.mean(1, keepdim=True)).square().sum(1) - truth.stderr.square().sum(1)
    r2 = 1 - squares / spread.clamp(min=torch.finfo(spread.dtype).tiny)
    inside = torch.full_like(error, torch.nan)
    if all(one.stderr is not None for one in estimates):
        stderr = torch.cat([one.stderr for one in estimates if one.stderr is not None]).cpu()
        inside = (error.abs() <= Z * (stderr.square() + truth.stderr.square()).sqrt()).to(error)
    return _Sums(
        squares, correlation(values, truth.values), r2, correlation(_ranks(values), _ranks(truth.values)), inside
    )


def _row(means: _Sums, truth: Truth, confidence: float) -> dict[str, Any]:
    own = torch.zeros_like(means.squares, dtype=torch.bool).scatter(1, truth.full_values.argmax(1, keepdim=True), True)
    reliability = truth.reliability.clamp(min=0).sqrt()
    row: dict[str, Any] = {}
    for end, where in (("target", own), ("others", ~own)):
        row[f"l2_{end}"] = float(means.squares[where].mean().clamp(min=0).sqrt())
        for name, found in (("pearson", means.pearson), ("spearman", means.spearman)):
            row[f"{name}_{end}"] = float(found[where].mean() / reliability[where].mean())
        row[f"r2_{end}"] = float(means.r2[where].median()) if end == "others" else float(means.r2[where].mean())
    if bool(means.inside.isnan().any()):
        return row | dict.fromkeys(("coverage", "least_coverage", "low_coverage", "high_coverage"))
    low = truth.full_values.amax(1) < confidence  # [N]
    row["coverage"] = float(means.inside.mean())
    row["least_coverage"] = float(means.inside.mean((0, 2)).min())
    row["low_coverage"] = float(means.inside[low].mean()) if bool(low.any()) else None
    row["high_coverage"] = float(means.inside[~low].mean()) if bool((~low).any()) else None
    return row


def _ranks(values: Tensor) -> Tensor:
    """Return the ranks over players of values ``[N, d, K]``."""
    return values.argsort(1).argsort(1).to(torch.float64)
