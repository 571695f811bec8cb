"""Measure how many evaluations and seconds an image takes until its Shapley values have converged.

Three measures, over the same images: the evaluations until the error falls below a share of the range (the paper's rule),
the agreement of two halves of the evaluations (reliability), and the correlation of a budget's values with a reference of
very many evaluations.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from vitshap.estimators.estimate import Estimate, Estimator, correlation, split_half
from vitshap.estimators.kernel import kernelshap, kernelshap_original
from vitshap.estimators.permutation import permutation
from vitshap.estimators.truth import Truth
from vitshap.experiments.tables import Column, Table
from vitshap.game import Game

ESTIMATORS: dict[str, Estimator] = {
    "kernelshap": kernelshap,
    "kernelshap, balanced": partial(kernelshap, sampling="balanced"),
    "kernelshap-original": kernelshap_original,
    "permutation": permutation,
}


BUDGET_COLUMNS = (
    Column("estimator"),
    Column("budget", ",.0f", "evaluations/image"),
    Column("seconds", ".3f", "s/image", title="time"),
    Column("reliability", ".4f"),
    Column("reliability_other", ".4f"),
    Column("correlation", ".4f"),
    Column("correlation_other", ".4f"),
)
_NOTE = "other: mean over the classes that are not predicted. correlation: with the reference"


class Start(Protocol):
    """Called with what is measured next, and with its evaluations where they are known."""

    def __call__(self, title: str, evaluations: int | None = None, /) -> object: ...


def measure_budgets(
    game_of: Callable[[slice], Game],
    images: int,
    budgets: Sequence[int],
    *,
    reference: int | Truth,
    estimators: Sequence[str] = tuple(ESTIMATORS),
    skip: Collection[tuple[str, int]] = (),
    finished: Callable[[Table], object] = lambda table: None,
    start: Start = lambda title, evaluations=None: None,
    seed: int = 0,
) -> Table:
    """Measure reliability and correlation of estimators and budgets with reference values.

    ``reference``: stored values of these images, of other random numbers, or the number of evaluations of new ones. These
    are allocated beforehand (``sampling="balanced"``), so that they share only the regression with the default.
    ``finished`` is called with the table after every row, ``start`` with what is measured next and its evaluations. Left
    out are the estimators and budgets in ``skip``, and a budget that is too small for an estimator, which is reported to
    ``start``.
    """
    everyone = slice(0, images)
    known: Truth | Estimate
    if isinstance(reference, Truth):
        evaluations, known = reference.specification.budget, reference[everyone]
        _warm_up(game_of(everyone))
    else:
        start(f"reference, {images} images, evaluations of each", reference)
        evaluations = reference
        known = kernelshap(game_of(everyone), budget=reference, sampling="balanced", seed=seed + 10**6)
    true, target = known.values.cpu(), known.full_values.argmax(1).cpu()
    table = Table(f"{images} images, reference of {evaluations:,} evaluations each", BUDGET_COLUMNS, notes=[_NOTE])
    for name in estimators:
        estimator = ESTIMATORS[name]
        for budget in (one for one in budgets if (name, one) not in skip):
            start(f"{name}, budget {budget:,}, and again in two halves, evaluations", 2 * budget)
            started = _now()
            try:
                estimate = estimator(game_of(everyone), budget=budget, seed=seed)
                seconds = (_now() - started) / images
                _, halves = split_half(estimator, game_of(everyone), budget=budget, seed=seed + 1)
            except ValueError as error:
                start(f"{name}, budget {budget:,}, is left out: {error}")
                continue
            agreement = correlation(estimate.values.to(true), true)
            row = {"reliability": _by_target(halves.cpu(), target), "correlation": _by_target(agreement, target)}
            means = {
                f"{key}{end}": one for key, both in row.items() for end, one in zip(("", "_other"), both, strict=True)
            }
            table.add(estimator=name, budget=budget, seconds=seconds, **means)
            finished(table)
    return table


def measure_threshold(
    game_of: Callable[[slice], Game],
    images: int,
    threshold: float,
    *,
    budget: int,
    first: int = 0,
    finished: Callable[[Table], object] = lambda table: None,
    start: Start = lambda title, evaluations=None: None,
) -> Table:
    """Measure evaluations and seconds until every class has converged, image by image from the image ``first`` on.

    ``finished`` is called with the table after every image, ``start`` with what is measured next.
    """
    columns = (
        Column("image", ".0f"),
        Column("evaluations", ",.0f"),
        Column("seconds", ".2f", "s"),
        Column("converged"),
    )
    table = Table(f"until error/range < {threshold:g} for every class", columns)
    _warm_up(game_of(slice(0, 1)))
    for i in range(first, images):
        start(f"image {i + 1} of {images} until error/range < {threshold:g}, evaluations")
        started = _now()
        estimate = kernelshap(game_of(slice(i, i + 1)), budget=budget, threshold=threshold)
        seconds = _now() - started
        converged = bool(estimate.converged.all())
        table.add(image=i + 1, evaluations=estimate.evaluations, seconds=seconds, converged=converged)
        finished(table)
    return table


def _warm_up(game: Game) -> None:
    """Evaluate a little, so that compilation is not timed."""
    kernelshap(game, budget=1024 if game.device.type == "cuda" else 64)


def _by_target(per_class: Tensor, target: Tensor) -> tuple[float, float]:
    """Return the means over images ``[B, K]`` of the target class and of the others."""
    own = torch.zeros_like(per_class, dtype=torch.bool).scatter(1, target[:, None], True)
    return float(per_class[own].mean()), float(per_class[~own].mean())


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()
