"""Coalitions as a pure function of (seed, epoch, sample index).

``CoalitionLaw.sample`` draws from a generator: right for an estimator that works alone, wrong for training, where a
sample must meet the same coalitions whatever batch, process or device it falls to. Sizes come from the law's
distribution function in whole numbers of 53 bits, so that no device rounds differently; members are the players with
the smallest random keys. The player's number stands in a key's last bits: keys never tie, so sizes are exact.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vitshap.coalitions import CoalitionLaw, Coalitions
from vitshap.counter_rng import random_bits, sample_keys, whole_numbers

_SIZE_BITS = 53


def sample_coalitions(
    law: CoalitionLaw,
    indices: Tensor,
    *,
    seed: int,
    epoch: int,
    n: int,
    paired: bool = False,
    purpose: str = "coalitions",
) -> Coalitions:
    """``n`` coalitions for each sample, bool ``[B, n, d]``, on the device of ``indices`` (int ``[B]``).

    With ``paired`` coalitions 2i and 2i+1 of a sample are complements. Asking for more keeps those that fewer gave.
    Another ``purpose`` gives other coalitions: validation tuples, say, that training never meets.
    """
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    if paired and n % 2:
        raise ValueError(f"paired sampling draws whole pairs: n must be even, got {n}")
    if paired and not law.is_symmetric:
        raise ValueError("paired sampling needs a law that gives a coalition and its complement equal probability")
    sample = sample_keys(purpose, indices, seed=seed, epoch=epoch)  # [B]
    draw = random_bits(sample, n // 2 if paired else n)  # [B, n] a key for every coalition
    first = _members(draw, _sizes(law, draw), law.num_players)
    return torch.stack([first, ~first], dim=2).flatten(1, 2) if paired else first


def _sizes(law: CoalitionLaw, draw: Tensor) -> Tensor:
    """A size for every key, int64 ``[B, n]``: the inverse of the law's distribution function."""
    last = int(law.size_probabilities.nonzero()[-1])
    edges = (law.size_probabilities.cpu().cumsum(0) * 2**_SIZE_BITS).round().long()  # [d + 1]
    edges[last:] = 2**_SIZE_BITS
    uniform = whole_numbers(draw, 1, bits=_SIZE_BITS).squeeze(-1)
    return torch.searchsorted(edges.to(draw.device, non_blocking=True), uniform, right=True)


def _members(draw: Tensor, sizes: Tensor, d: int) -> Coalitions:
    """The players with the smallest keys, as many as the size says: bool ``[B, n, d]``."""
    low = (1 << d.bit_length()) - 1
    keys = random_bits(draw, d + 1)[..., 1:]  # [B, n, d]; number 0 gave the size
    keys = (keys & ~low) | torch.arange(d, device=draw.device)
    largest = keys.sort(dim=-1).values.gather(-1, (sizes - 1).clamp(min=0)[..., None])  # [B, n, 1]
    return (keys <= largest) & (sizes > 0)[..., None]
