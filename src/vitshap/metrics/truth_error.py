"""The distance of an explanation from stored reference values (``vitshap.truth``), raw and corrected for their noise.

Reference values are estimates. Their noise adds to a distance and lowers a correlation, even of the exact values. Their
standard errors and their reliability were stored with them: a squared distance is reduced by the sum of the squared
standard errors, and a correlation is divided by the square root of the reliability, which is the correlation that exact
values would have. Intervals of an explanation with standard errors are widened by the reference's own errors before it is
counted how many hold the reference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor

from vitshap.estimators.estimate import correlation
from vitshap.estimators.truth import Truth
from vitshap.explanation import Explanation
from vitshap.methods import ExplainableModel, take_classes
from vitshap.metrics.base import MetricResult, check_matches
from vitshap.metrics.statistics import correlate

Measure: TypeAlias = Literal["l2", "pearson", "spearman"]
Z = 1.96
"""Standard errors on each side of a 95 % interval."""
MIN_RELIABILITY = 0.1
"""Below it reference values are nearly all noise, and a correlation cannot be corrected for that."""


@dataclass(frozen=True, eq=False, kw_only=True)
class TruthError(MetricResult):
    """All measures of the distance from reference values; ``values`` is the one that was asked for. float64 ``[B, T]``."""

    l2: Tensor
    """Euclidean distance over players."""
    pearson: Tensor
    spearman: Tensor
    corrected_l2: Tensor
    corrected_pearson: Tensor
    """NaN where the reliability is below ``MIN_RELIABILITY``, as is ``corrected_spearman``."""
    corrected_spearman: Tensor
    reliability: Tensor
    """Of the reference values."""
    coverage: Tensor
    """Share of the players whose 95 % interval holds the reference value; NaN without standard errors."""


def error(
    surrogate: ExplainableModel,
    images: Any,
    explanation: Explanation,
    /,
    *,
    truth: Truth,
    rows: slice | Tensor | None = None,
    measure: Measure = "l2",
    corrected: bool = False,
) -> TruthError:
    """Compare an explanation with reference values of the same images.

    ``rows``: the positions of the images in ``truth`` (default: all, in order). ``measure``: "l2" (lower is better),
    "pearson" or "spearman" (higher is better); ``corrected``: for the reference's noise. The surrogate is not evaluated.
    """
    if measure not in get_args(Measure):
        raise ValueError(f'measure is "l2", "pearson" or "spearman", got {measure!r}')
    if isinstance(images, Tensor):
        check_matches(surrogate, images if images.ndim == 4 else images[None], explanation)
    which = slice(None) if rows is None else rows
    known, noise, reliability = truth.values[which], truth.stderr[which], truth.reliability[which]
    batch, d, _ = explanation.values.shape
    if list(known.shape) != [batch, d, surrogate.num_classes]:
        raise ValueError(
            f"the explanation is of {batch} images, {d} players and {surrogate.num_classes} classes; the reference values "
            f"are {list(known.shape)}: give rows= the positions of the images in them"
        )
    classes = explanation.classes
    known, noise = take_classes(known, classes), take_classes(noise, classes)  # [B, d, T]
    reliability = reliability.gather(1, classes)
    squared = (explanation.values.double() - known).square().sum(1)
    sides = explanation.values.transpose(1, 2), known.transpose(1, 2)
    present = None if explanation.player_mask is None else explanation.player_mask[:, None]
    pearson, spearman = (correlate(*sides, kind, present) for kind in ("pearson", "spearman"))
    enough = torch.where(reliability >= MIN_RELIABILITY, reliability, torch.nan).sqrt()
    found = {
        "l2": squared.sqrt(),
        "pearson": pearson,
        "spearman": spearman,
        "corrected_l2": (squared - noise.square().sum(1)).clamp(min=0).sqrt(),
        "corrected_pearson": pearson / enough,
        "corrected_spearman": spearman / enough,
    }
    return TruthError(
        metric="error",
        values=found[f"corrected_{measure}" if corrected else measure],
        classes=classes,
        higher_is_better=measure != "l2",
        class_specific=explanation.class_specific,
        reliability=reliability,
        coverage=_coverage(explanation, known, noise),
        **found,
    )


def inside_intervals(explanation: Explanation, known: Tensor, noise: Tensor) -> Tensor:
    """Return which 95 % intervals hold reference values ``known`` with standard errors ``noise``, bool ``[B, d, T]``."""
    if explanation.stderr is None:
        raise ValueError(f"this explanation by {explanation.method} has no standard errors, and so no intervals")
    spread = (explanation.stderr.double().square() + noise.square()).sqrt()
    return (explanation.values.double() - known).abs() <= Z * spread


def _coverage(explanation: Explanation, known: Tensor, noise: Tensor) -> Tensor:
    """Return the share of present players whose interval holds the reference, ``[B, T]``; NaN without intervals."""
    if explanation.stderr is None:
        return torch.full_like(known[:, 0], torch.nan)
    inside = inside_intervals(explanation, known, noise).double()
    present = (
        torch.ones_like(inside[..., :1]) if explanation.player_mask is None else explanation.player_mask[..., None]
    )
    return (inside * present).sum(1) / present.sum(1)


def agreement(values: Tensor, known: Truth, labels: Tensor) -> dict[str, float | None]:
    """Compute the mean Pearson correlation over players of values ``[N, d, K]`` with the reference values.

    It is computed for the images' own classes (``labels`` ``[N]``) and for the other classes, as it is (``raw_*``) and
    divided by the square root of the reference's reliability, which is None where that is below ``MIN_RELIABILITY``.
    """
    found = correlation(values.double().cpu(), known.values)  # [N, K]
    own = torch.zeros_like(found, dtype=torch.bool).scatter(1, labels.cpu()[:, None], True)
    scores: dict[str, float | None] = {}
    for name, where in (("target", own), ("others", ~own)):
        reliability = known.reliability[where].clamp(min=0)
        scores[f"reliability_{name}"] = float(reliability.mean())
        scores[f"raw_{name}"] = float(found[where].mean())
        enough = float(reliability.mean()) >= MIN_RELIABILITY
        scores[name] = float(found[where].mean() / reliability.sqrt().mean()) if enough else None
    return scores
