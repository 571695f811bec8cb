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
    undefined = is_constant(one, where) | is_constant(two, where)
    if kind == "spearman":
        one, two = average_ranks(one, where), average_ranks(two, where)
    a, b = _centred(one.double(), where), _centred(two.double(), where)
    scale = (a.square().sum(-1) * b.square().sum(-1)).sqrt()
    found = (a * b).sum(-1) / scale.clamp(min=torch.finfo(scale.dtype).tiny)
    return found.masked_fill(undefined | (scale == 0), torch.nan)


def is_constant(numbers: Tensor, where: Tensor | None = None) -> Tensor:
    """Return whether the numbers ``[..., n]`` are all equal up to rounding, bool ``[...]``."""
    high, low = _filled(numbers, where, -torch.inf).amax(-1), _filled(numbers, where, torch.inf).amin(-1)
    return high - low <= ROUNDING.get(numbers.dtype, 0.0) * torch.maximum(high.abs(), low.abs())


def average_ranks(numbers: Tensor, where: Tensor | None = None) -> Tensor:
    """Return ranks from 1, float64 ``[..., n]``; equal numbers share the mean of their ranks."""
    numbers = _filled(numbers, where, torch.inf).contiguous()  # places that do not count come last
    ordered = numbers.sort(-1).values
    below = torch.searchsorted(ordered, numbers)
    up_to = torch.searchsorted(ordered, numbers, right=True)
    return (below + up_to + 1).double() / 2


def _centred(numbers: Tensor, where: Tensor | None) -> Tensor:
    inside = _filled(numbers, where, 0.0)
    count = numbers.shape[-1] if where is None else where.expand_as(numbers).sum(-1, keepdim=True).clamp(min=1)
    return _filled(inside - inside.sum(-1, keepdim=True) / count, where, 0.0)


def _filled(numbers: Tensor, where: Tensor | None, value: float) -> Tensor:
    return numbers if where is None else numbers.masked_fill(~where, value)
