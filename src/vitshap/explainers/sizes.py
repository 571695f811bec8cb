"""At which sizes of coalitions the values of an image come about.

Shapley values are the mean over sizes of the linear effects at each size, and most effects are those of few sizes: where a
few patches settle the answer, further ones hardly matter. Such a profile is a mixture of bumps along the sizes.
"""

from __future__ import annotations

import torch
from torch import Tensor


def size_bumps(d: int) -> Tensor:
    """Bumps around sizes that double towards d/2 from both ends, each of mean 1 over the sizes 1 to d - 1: float64
    ``[J, d + 1]``."""
    sizes, knots = torch.arange(d + 1, dtype=torch.float64), _knots(d)
    hats = torch.zeros(len(knots), d + 1, dtype=torch.float64)
    place = torch.searchsorted(knots, sizes).clamp(1, max(len(knots) - 1, 1))
    if len(knots) == 1:
        hats[0] = 1
    else:
        part = ((sizes - knots[place - 1]) / (knots[place] - knots[place - 1])).clamp(0, 1)
        hats.scatter_(0, place[None] - 1, (1 - part)[None])
        hats.scatter_(0, place[None], part[None])
    hats[:, 0] = hats[:, d] = 0  # nothing and everything have no effects
    return hats * (d - 1) / hats.sum(1, keepdim=True)


def even_shares(d: int) -> Tensor:
    """The mixture of bumps that is 1 at every size, float64 ``[J]``."""
    return 1 / size_bumps(d).amax(1)


def _knots(d: int) -> Tensor:
    doubling = [2**i for i in range(d.bit_length()) if 2**i <= d / 2]
    return torch.tensor(sorted({*doubling, d // 2, *(d - size for size in doubling)} - {0}), dtype=torch.float64)
