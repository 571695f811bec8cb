"""Error against evaluations: an explainer, ``kernelshap``, and ``refine`` with the explainer and with tokens as its prior.

All are compared with reference values of the same images: the Euclidean distance, correlations over players, and how often
the 95 % intervals hold the reference. Correlations are corrected for the reference's own reliability, distances for its
standard errors. The predicted class and the other classes (their mean; of R^2 their median) are shown apart.

``two_step_table`` compares with rules that spend evaluations unevenly: ``refine`` up to a requested accuracy, and the rule
of Selective Explanations (Paes et al., 2405.19562), which evaluates only images whose explanation is predicted to be bad.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from vitshap.estimators.estimate import Estimate, correlation
from vitshap.estimators.exact import MOST_PLAYERS, exact
from vitshap.estimators.kernel import kernelshap
from vitshap.estimators.truth import Truth, compute
from vitshap.experiments.estimates import (
    CONTROL,
    EXPLAINER,
    KERNELSHAP,
    METHODS,
    REFINED,
    TOKENS,
    TOTAL,
    Key,
    Subject,
    Values,
    estimate,
    keys,
    stored,
)
from vitshap.experiments.tables import Column, Table
from vitshap.explainers import Explainer
from vitshap.game import Game

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = (
    Column("method"),
    Column("budget", ",d", "evaluations/image"),
    Column("l2_target", ".4g", title="L2, target"),
    Column("l2_others", ".4g", title="L2, others"),
    Column("pearson_target", ".4f"),
    Column("pearson_others", ".4f"),
    Column("r2_target", ".4f"),
    Column("r2_others", ".4f", title="r2 others, median"),
    Column("spearman_target", ".4f"),
    Column("spearman_others", ".4f"),
    Column("coverage", ".4f"),
    Column("least_coverage", ".4f", title="least coverage of a player"),
    Column("low_coverage", ".4f", title="coverage, low confidence"),
    Column("high_coverage", ".4f", title="coverage, high confidence"),
)
Z = 1.96
NOTE = (
    "target: the predicted class; others: mean of the other classes, of r2 their median, since values that hardly differ "
    "between players have one far below 0. L2: root mean square over images of the Euclidean distance from the reference. "
    "Coverage: of 95 % intervals, over images, players and classes"
)


class _Sums(NamedTuple):
    """Of all seeds of a method and budget, each ``[N, K]`` but the last, bool ``[N, d, K]`` as numbers."""

    squares: Tensor
    pearson: Tensor
    r2: Tensor
    spearman: Tensor
    inside: Tensor


def store_truth(
    folder: Path, subject: Subject, *, budget: int, progress: Callable[[int, int], object] | None = None
) -> Truth:
    """Compute reference values of the subject's images into ``folder``, or continue; exact if the budget suffices.

    Their evaluations are independent of those of ``estimates``.
    """
    d = subject.model.num_players
    all_of_them = d <= MOST_PLAYERS and budget >= 2**d
    return compute(
        folder,
        subject.game,
        num_inputs=len(subject.pixels),
        surrogate=subject.model.fingerprint(),
        budget=budget,
        estimator=_enumerated if all_of_them else kernelshap,
        method="exact" if all_of_them else "kernelshap",
        batch=min(subject.batch, 10),
        seed=1_000_000,
        progress=progress,
    )


def _enumerated(game: Game, /, *, budget: int, seed: int) -> Estimate:
    return exact(game)


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
    folder: Path | None = None,
    finished: Callable[[Table], object] = lambda table: None,
) -> Table:
    """Measure the error of every method at every budget against reference values of these images.

    ``game_of(slice)`` makes the game of some of the images; default: the explainer's surrogate in "auto" precision. Images
    whose largest output is below ``confidence`` are those of low confidence. With a ``folder`` estimates are stored, and
    those that are there are not computed again. ``finished`` is called after every row.
    """
    _require_as_many(len(pixels), truth)
    subject = Subject(explainer.surrogate, pixels, explainer, game_of, batch)
    table = Table(f"{len(pixels)} images", COLUMNS, notes=[NOTE])
    rows: dict[tuple[str, int], list[Key]] = {}
    for key in keys(methods, budgets, seeds):
        rows.setdefault((key.method, key.budget), []).append(key)
    for (method, budget), some in rows.items():
        found = [estimate(subject, k)[method] if folder is None else stored(folder, subject, k) for k in some]
        table.add(method=method, budget=budget, **summary(found, truth, confidence))
        finished(table)
    return table


def stored_curves(found: Mapping[Key, Values], truth: Truth, /, *, confidence: float = 0.5) -> Table:
    """Return the table of ``error_curves`` from stored estimates, the means over their seeds."""
    table = Table(f"{len(truth.values)} images", COLUMNS, notes=[NOTE])
    rows: dict[tuple[str, int], list[Values]] = {}
    for key, values in found.items():
        _require_as_many(len(values.values), truth)
        rows.setdefault((key.method, key.budget), []).append(values)
    order = (*METHODS, CONTROL, TOTAL)
    for method, budget in sorted(rows, key=lambda row: (order.index(row[0]), row[1])):
        table.add(method=method, budget=budget, **summary(rows[method, budget], truth, confidence))
    return table


def summary(runs: Sequence[Values], truth: Truth, confidence: float) -> dict[str, Any]:
    """Return the columns of ``error_curves`` for one method and budget: means over images and over ``runs``."""
    sums = [_compare(one, truth) for one in runs]
    means = _Sums(*(sum(column[1:], start=column[0]) / len(runs) for column in zip(*sums, strict=True)))
    return _row(means, truth, confidence)


def _require_as_many(images: int, truth: Truth) -> None:
    if images != len(truth.values):
        raise ValueError(f"{images} images are given, and reference values of {len(truth.values)}")


def _compare(found: Values, truth: Truth) -> _Sums:
    values, error = found.values, found.values - truth.values
    squares = error.square().sum(1) - truth.stderr.square().sum(1)
    spread = (truth.values - truth.values.mean(1, keepdim=True)).square().sum(1) - truth.stderr.square().sum(1)
    r2 = 1 - squares / spread.clamp(min=torch.finfo(spread.dtype).tiny)
    inside = torch.full_like(error, torch.nan)
    if found.stderr is not None:
        inside = (error.abs() <= Z * (found.stderr.square() + truth.stderr.square()).sqrt()).to(error)
    spearman = correlation(_ranks(values), _ranks(truth.values))
    return _Sums(squares, correlation(values, truth.values), r2, spearman, inside)


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


def target_correlation(values: Tensor, truth: Truth) -> Tensor:
    """Return the correlation with the reference of each image's predicted class, corrected for its reliability, ``[N]``."""
    target = truth.full_values.argmax(1, keepdim=True)
    found = correlation(values, truth.values) / truth.reliability.clamp(min=1e-6).sqrt()
    return found.gather(1, target)[:, 0].clamp(max=1)


def accuracy_table(
    found: Mapping[Key, Values], reached: Values, truth: Truth, accuracy: float, method: str
) -> tuple[Table, Table]:
    """Compare runs up to a requested accuracy with a single budget for all images; return that and a histogram.

    The single budget is that at which ``method`` brings as many images there, interpolated between the stored budgets.
    """
    share = float((target_correlation(reached.values, truth) >= accuracy).double().mean())
    spent = reached.evaluations.double()
    curve: dict[int, list[float]] = {}
    for key, values in found.items():
        if key.method == method or (key.method == EXPLAINER and method == REFINED):
            there = (target_correlation(values.values, truth) >= accuracy).double().mean()
            curve.setdefault(key.budget, []).append(float(there))
    points = sorted((budget, sum(shares) / len(shares)) for budget, shares in curve.items())
    single = _budget_for(points, share)
    columns = (
        Column("accuracy", "g"),
        Column("reached", ".1%", title="images that reach it"),
        Column("mean", ",.0f", "evaluations/image"),
        Column("median", ",.0f"),
        Column("most", ",.0f"),
        Column("single", ",.0f", title="single budget for as many images"),
        Column("ratio", ".2f", title="mean / single budget"),
        Column("seconds", ".2f", "s/image"),
    )
    table = Table(f"{method}: until the estimated correlation is {accuracy:g}", columns)
    table.add(
        accuracy=accuracy,
        reached=share,
        mean=float(spent.mean()),
        median=float(spent.median()),
        most=float(spent.max()),
        single=single,
        ratio=None if not single else float(spent.mean()) / single,
        seconds=reached.seconds / len(spent),
    )
    if single is None:
        table.notes.append("no stored budget brings as many images there")
    histogram = Table("evaluations per image", (Column("up_to", ",d"), Column("images", "d")))
    low = -1
    for edge in (2, *(2**i for i in range(7, 21))):
        count = int(((spent > low) & (spent <= edge)).sum())
        low = edge
        if count:
            histogram.add(up_to=edge, images=count)
    return table, histogram


def two_step_table(found: Mapping[Key, Values], truth: Truth) -> Table:
    """Compare ``refine`` with the explainer as a control variate and with Selective Explanations at equal evaluations.

    Selective Explanations take the explainer's values, but for the share ``n / N`` of images with the largest predicted
    relative error ``l explainer + (1 - l) kernelshap`` with N evaluations; l is the best one on the other half of the
    selected images, of each half. The best N of the stored budgets is shown, which favours this rule.
    """
    columns = (
        Column("budget", ",d", "evaluations/image"),
        Column("rule"),
        Column("pearson_target", ".4f"),
        Column("pearson_others", ".4f"),
        Column("l2_target", ".4g"),
        Column("l2_others", ".4g"),
    )
    table = Table("rules at the same number of evaluations", columns)
    explainer = found.get(Key(EXPLAINER, 0))
    budgets = sorted(key.budget for key in found if key.method == KERNELSHAP and key.seed == 0)
    for budget in budgets:
        for method in (KERNELSHAP, TOKENS, CONTROL, REFINED, TOTAL):
            if (values := found.get(Key(method, budget))) is not None:
                table.add(budget=budget, rule=method, **_shown(values, truth))
        if explainer is None or explainer.stderr is None:
            continue
        tried = [
            (larger, _selective(explainer, found[Key(KERNELSHAP, larger)], truth, budget / larger))
            for larger in budgets
            if larger >= budget
        ]
        best, values = max(tried, key=lambda one: _shown(one[1], truth)["pearson_target"])
        share = f"{best:,d} for {budget / best:.0%} of the images"
        table.add(budget=budget, rule=f"Selective Explanations, {share}", **_shown(values, truth))
    return table


def figure(table: Table, title: str = "") -> Figure:
    """Draw error and correlations of a table of ``error_curves`` against evaluations."""
    import numpy as np

    from vitshap.plots.comparisons import Band, Panel, comparison_figure

    panels = []
    shown = {"l2": "L2 distance", "pearson": "Pearson correlation", "r2": "R^2", "spearman": "Spearman correlation"}
    for key, label in shown.items():
        bands = {}
        measured = set(table.values("method"))
        for method in (name for name in (REFINED, TOKENS, KERNELSHAP, CONTROL, EXPLAINER) if name in measured):
            rows = [row for row in table.rows if row["method"].value == method]
            x = np.array([row["budget"].value for row in rows], dtype=float)
            y = np.array([row[f"{key}_target"].value for row in rows], dtype=float)
            if method == EXPLAINER:  # without evaluations: a horizontal line
                others = [value for value in table.values("budget") if value]
                x, y = np.array([min(others), max(others)], dtype=float), np.repeat(y[:1], 2)
            bands[method] = Band(x, y, np.zeros_like(y))
        baselines = (EXPLAINER,)
        panels.append(
            Panel(f"{label}, predicted class", "evaluations per image", label, bands, baselines, (True, key == "l2"))
        )
    return comparison_figure(panels, title=title)


def _budget_for(points: Sequence[tuple[int, float]], share: float) -> float | None:
    """Return the budget at which a share of images is reached, interpolated in its logarithm; None beyond the last."""
    for i, (budget, reached) in enumerate(points):
        if reached < share:
            continue
        if i == 0 or points[i - 1][1] >= reached or points[i - 1][0] < 2:
            return float(budget)
        low, less = points[i - 1]
        return float(low * (budget / low) ** ((share - less) / (reached - less)))
    return None


def _shown(values: Values, truth: Truth) -> dict[str, Any]:
    row = summary([values], truth, 0.5)
    return {key: row[key] for key in ("pearson_target", "pearson_others", "l2_target", "l2_others")}


def _selective(explainer: Values, sampled: Values, truth: Truth, share: float) -> Values:
    assert explainer.stderr is not None
    target = truth.full_values.argmax(1)
    rows = torch.arange(len(target))
    error = explainer.stderr.square().sum(1)[rows, target]
    predicted = error / explainer.values.var(1)[rows, target].clamp(min=1e-16)
    chosen = predicted.argsort(descending=True)[: round(share * len(target))]
    values = explainer.values.clone()
    for own, other in ((chosen[::2], chosen[1::2]), (chosen[1::2], chosen[::2])):
        learned = other if len(other) else own
        apart = explainer.values[learned] - sampled.values[learned]  # l minimises |sampled + l apart - truth|^2
        left = truth.values[learned] - sampled.values[learned]
        mix = ((left * apart).sum() / apart.square().sum().clamp(min=1e-300)).clamp(0, 1) if len(learned) else 0.0
        values[own] = sampled.values[own] + mix * (explainer.values[own] - sampled.values[own])
    return Values(values, None, explainer.evaluations)
