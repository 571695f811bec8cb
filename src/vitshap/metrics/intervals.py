"""Confidence intervals of a mean over images, and how often they contain the true mean.

Scores of images are bounded and often skewed: most areas lie near one end, and a few images far from it. The interval is
Student's t interval with Hall's correction for skewness (Hall 1992, On the removal of skewness by transformation), which
for symmetric scores is Student's t and for many images the normal approximation. Zeros and ones that count something
(``binary``: whether a prediction is right) have Wilson's interval, which does not shrink to a point when all of them agree.
Scores that only happen to be 0 or 1, such as correlations that are all 1, do not.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

LEVEL = 0.95


def mean_interval(scores: Tensor, /, *, binary: bool = False, level: float = LEVEL) -> tuple[float, float]:
    """Return the confidence interval of the mean of scores ``[n]``; NaN are left out.

    ``binary``: the scores are accuracies, so that zeros and ones are a proportion; shares in between, of several labels
    or seeds, have the interval of other scores. One score that is no proportion has no interval (NaN).
    """
    low, high = mean_intervals(scores[~scores.isnan()][None], binary=binary, level=level)
    return float(low), float(high)


def mean_intervals(scores: Tensor, /, *, binary: bool = False, level: float = LEVEL) -> tuple[Tensor, Tensor]:
    """Return lower and upper ends ``[r]`` of the intervals of the means of samples ``[r, n]`` without NaN."""
    _require_level(level)
    scores = scores.double()
    count = scores.shape[1]
    if binary and count and bool(((scores == 0) | (scores == 1)).all()):
        return wilson(scores.mean(1), count, level=level)
    if count < 2:
        return (torch.full_like(scores.sum(1), torch.nan),) * 2
    mean, spread = scores.mean(1), scores.std(1)
    centred = scores - mean[:, None]
    skewness = centred.pow(3).mean(1) / centred.square().mean(1).clamp(min=torch.finfo(scores.dtype).tiny).pow(1.5)
    quantile, scale = _student(level, count - 1), spread / count**0.5
    low, high = (mean - scale * _without_skewness(skewness, count, x) for x in (quantile, -quantile))
    return low, high


def half_widths(scores: Tensor, /, *, binary: bool = False, level: float = LEVEL) -> Tensor:
    """Return half of the interval of every mean over images of ``[n, ...]``; NaN are left out.

    It is drawn on both sides of the mean: Student's t, or half of Wilson's interval of a proportion (``binary`` as for
    ``mean_interval``). It is NaN for one score that is no proportion.
    """
    _require_level(level)
    scores = scores.double()
    known = ~scores.isnan()
    count, mean = known.sum(0), scores.nanmean(0)
    variance = (scores - mean).square().nansum(0) / (count - 1)
    quantile = variance.new_tensor([_student(level, n - 1) for n in count.flatten().tolist()]).view_as(variance)
    half = quantile * (variance / count).sqrt()
    if not binary:
        return half
    low, high = wilson(mean, count, level=level)
    return torch.where(((scores == 0) | (scores == 1) | ~known).all(0), (high - low) / 2, half)


def wilson(share: Tensor, count: int | Tensor, /, *, level: float = LEVEL) -> tuple[Tensor, Tensor]:
    """Return Wilson's interval of proportions ``share`` observed in ``count`` images each."""
    _require_level(level)
    z = _student(level, None)
    centre = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z / (1 + z**2 / count) * (share * (1 - share) / count + z**2 / (4 * count**2)).sqrt()
    return centre - half, centre + half


@dataclass(frozen=True)
class Coverage:
    """How often intervals contain the mean they are of."""

    images: int
    repetitions: int
    share: float
    """Share of the samples of ``images`` images whose interval contains the mean."""


def interval_coverage(
    scores: Tensor,
    /,
    *,
    images: int,
    repetitions: int = 2000,
    binary: bool = False,
    level: float = LEVEL,
    seed: int = 0,
) -> Coverage:
    """Draw samples of ``images`` scores with replacement and count the intervals that contain the mean of ``scores``.

    ``scores`` ``[n]`` are measured on many images and stand for all images there are; NaN are left out. ``binary`` as for
    ``mean_interval``.
    """
    scores = scores[~scores.isnan()].double()
    if len(scores) < 2 or images < 2:
        raise ValueError(f"coverage needs at least 2 scores and samples of 2, got {len(scores)} and {images}")
    generator = torch.Generator().manual_seed(seed)
    mean, inside = scores.mean(), 0
    for start in range(0, repetitions, 256):
        drawn = torch.randint(len(scores), (min(256, repetitions - start), images), generator=generator)
        low, high = mean_intervals(scores[drawn], binary=binary, level=level)
        inside += int(((low <= mean) & (mean <= high)).sum())
    return Coverage(images, repetitions, inside / repetitions)


def _without_skewness(skewness: Tensor, count: int, quantile: float) -> Tensor:
    """Return the quantile of the studentised mean: the inverse of Hall's cubic transformation, at ``quantile``."""
    tilt = skewness / count**0.5
    cubed = 1 + tilt * (quantile - tilt / 6)
    root = cubed.abs().pow(1 / 3) * cubed.sign()
    safe = torch.where(tilt.abs() > 1e-6, tilt, 1.0)
    return torch.where(tilt.abs() > 1e-6, 3 * (root - 1) / safe, quantile)


def _student(level: float, degrees: int | None) -> float:
    """Return the upper quantile of Student's distribution; of the normal one without degrees of freedom."""
    from scipy import special

    upper = (1 + level) / 2
    return float(special.ndtri(upper) if degrees is None else special.stdtrit(degrees, upper))


def _require_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"the level of an interval is between 0 and 1 (0.95 for 95 %), got {level:g}")
