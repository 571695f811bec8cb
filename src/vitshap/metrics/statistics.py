"""Correlations over the last dimension, on any device; NaN where one of the two sides does not vary."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor

Correlation: TypeAlias = Literal["pearson", "spearman"]
ROUNDING = {torch.float64: 1e-12, torch.float32: 5e-7}
"""A range below this part of the largest magnitude is rounding: the numbers are constant."""


def correlate(one: Tensor, two: Tensor, kind: Correlation, where: Tensor | None = None) -> Tensor:
    """Return the Pearson or Spearman correlation of ``one`` and ``two`` ``[..., n]``, float64 ``[...]``.

    Only places that are True in ``where`` count. It is NaN where one side is constant up to the rounding of its type.
    """
    if where is None:
        where = torch.ones((), dtype=torch.bool, device=one.device)
    one, two, where = torch.broadcast_tensors(one, two, where)  # type: ignore[no-untyped-call]
    undefined = is_constant(one, where) | is_constant(two, where)
    if kind == "spearman":
        one, two = average_ranks(one, where), average_ranks(two, where)
    count = where.sum(-1).clamp(min=1)
    a, b = (_centred(side.double(), where, count) for side in (one, two))
    scale = (a.square().sum(-1) * b.square().sum(-1)).sqrt()
    found = (a * b).sum(-1) / scale.clamp(min=torch.finfo(scale.dtype).tiny)
    return found.masked_fill(undefined | (scale == 0), torch.nan)


def is_constant(numbers: Tensor, where: Tensor) -> Tensor:
    """Return whether the numbers ``[..., n]`` are all equal up to rounding, bool ``[...]``."""
    high = numbers.masked_fill(~where, -torch.inf).amax(-1)
    low = numbers.masked_fill(~where, torch.inf).amin(-1)
    return high - low <= ROUNDING.get(numbers.dtype, 0.0) * torch.maximum(high.abs(), low.abs())


def average_ranks(numbers: Tensor, where: Tensor) -> Tensor:
    """Return ranks from 1, float64 ``[..., n]``; equal numbers share the mean of their ranks."""
    numbers = numbers.masked_fill(~where, torch.inf).contiguous()  # places that do not count come last
    ordered = numbers.sort(-1).values
    below = torch.searchsorted(ordered, numbers)
    up_to = torch.searchsorted(ordered, numbers, right=True)
    return (below + up_to + 1).double() / 2


def _centred(numbers: Tensor, where: Tensor, count: Tensor) -> Tensor:
    inside = numbers.masked_fill(~where, 0.0)
    return (inside - (inside.sum(-1) / count)[..., None]).masked_fill(~where, 0.0)
