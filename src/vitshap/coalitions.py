"""Distributions over subsets of players.

All distributions here are *exchangeable*: a size is drawn first, then that many members uniformly. A distribution is
therefore given by the probabilities of the sizes, in which all expectations that the estimators need (``E[s]``,
``E[ss']``) have a closed form.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

import torch
from torch import Tensor

from vitshap.counter_rng import random_bits, sample_keys, whole_numbers

Coalitions: TypeAlias = Tensor
"""A boolean tensor ``[..., d]``; ``True`` marks the members."""
_SIZE_BITS = 53


@dataclass(frozen=True)
class CoalitionLaw:
    """An exchangeable distribution over the subsets of ``num_players`` players."""

    num_players: int
    size_probabilities: Tensor
    """Probability of each size 0..d, float64 ``[d + 1]``."""

    @property
    def is_symmetric(self) -> bool:
        """Whether a coalition and its complement are equally likely, so that pairing keeps the distribution."""
        return bool(torch.allclose(self.size_probabilities, self.size_probabilities.flip(0), rtol=1e-9, atol=1e-15))

    def second_moment(self) -> Tensor:
        """Return ``E[ss']`` in closed form, float64 ``[d, d]``."""
        d = self.num_players
        size = torch.arange(d + 1, dtype=torch.float64)
        together = (self.size_probabilities * size * (size - 1)).sum() / max(d * (d - 1), 1)
        alone = (self.size_probabilities * size).sum() / d
        return torch.full((d, d), float(together), dtype=torch.float64).fill_diagonal_(float(alone))

    def sample(
        self,
        n: int,
        *,
        paired: bool = False,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
    ) -> Coalitions:
        """Draw ``n`` coalitions, bool ``[n, d]``; with ``paired`` rows 2i and 2i+1 are complements of each other.

        The same generator state on the same device gives the same coalitions.
        """
        _require_count("n", n)
        if device is None:
            device = generator.device if generator is not None else "cpu"
        if not paired:
            return _draw_members(self._draw_sizes(n, device, generator), self.num_players, generator)
        _require_pairs(self, n)
        first = _draw_members(self._draw_sizes(n // 2, device, generator), self.num_players, generator)
        return torch.stack([first, ~first], dim=1).flatten(0, 1)

    def _draw_sizes(self, n: int, device: torch.device | str, generator: torch.Generator | None) -> Tensor:
        # Inverse of the distribution function in float64: exact to 2^-53, and cheap on every device.
        edges = self.size_probabilities.cumsum(0)
        last = int(self.size_probabilities.nonzero()[-1])
        edges[last:] = 1.0
        uniform = torch.rand(n, dtype=torch.float64, device=device, generator=generator)
        return torch.searchsorted(edges.to(device), uniform, right=True)


def shapley_kernel(d: int) -> CoalitionLaw:
    """Return the distribution p_Sh, whose weighted-least-squares problem has the Shapley values as its solution.

    ``p(size = k)`` is proportional to ``1 / (k (d - k))`` for k = 1..d-1, and 0 for the empty and the full coalition.
    """
    _require_count("d", d, least=2)
    size = torch.arange(1, d, dtype=torch.float64)
    probabilities = torch.zeros(d + 1, dtype=torch.float64)
    # sum over k of 1 / (k (d - k)) is 2 H_{d-1} / d
    probabilities[1:d] = d / (2 * harmonic_number(d - 1)) / (size * (d - size))
    return CoalitionLaw(d, probabilities)


def authors_sampler(d: int) -> CoalitionLaw:
    """Return the distribution that the published code of the paper samples instead of ``shapley_kernel``.

    It draws k = 0..d-2 with the probabilities of the sizes 1..d-1, and keeps every player independently with probability
    ``1 - k/d`` (in the complement, ``k/d``). For 196 players 12.14 % of the coalitions are empty or full.
    """
    k = torch.arange(d - 1, dtype=torch.float64)
    drawn = shapley_kernel(d).size_probabilities[1:d]
    rates = torch.distributions.Binomial(d, 1 - k[:, None] / d)
    sizes: Tensor = rates.log_prob(torch.arange(d + 1, dtype=torch.float64)).exp()  # type: ignore[no-untyped-call]
    probabilities = drawn @ sizes
    return CoalitionLaw(d, (probabilities + probabilities.flip(0)) / 2)


def uniform_size(d: int) -> CoalitionLaw:
    """Return the distribution with equally likely sizes 0..d, which surrogates are trained with."""
    _require_count("d", d)
    return CoalitionLaw(d, torch.full((d + 1,), 1 / (d + 1), dtype=torch.float64))


def fixed_size(d: int, n: int) -> CoalitionLaw:
    """Return the uniform distribution over the subsets of exactly ``n`` players."""
    _require_count("d", d)
    _require_count("n", n, least=0)
    probabilities = torch.zeros(d + 1, dtype=torch.float64)
    probabilities[n] = 1.0
    return CoalitionLaw(d, probabilities)


def of_sizes(sizes: Tensor, d: int, *, generator: torch.Generator | None = None) -> Coalitions:
    """Draw one coalition of each of the given sizes (int ``[n]``), uniformly; bool ``[n, d]`` on their device."""
    _require_count("d", d)
    return _draw_members(sizes, d, generator)


def harmonic_number(n: int) -> float:
    """Return ``H_n = 1 + 1/2 + ... + 1/n``, correctly rounded up to n = 1,000."""
    if n > 1000:  # exact fractions grow too long; summing the small terms first keeps the error near 1e-16
        return float((1 / torch.arange(n, 0, -1, dtype=torch.float64)).sum())
    return float(sum((Fraction(1, i) for i in range(1, n + 1)), Fraction(0)))


def all_coalitions(d: int, *, device: torch.device | str = "cpu") -> Coalitions:
    """Return all ``2^d`` subsets, bool ``[2^d, d]``; bit i of the row number is the membership of player i."""
    _require_count("d", d, least=0)
    if d > 20:
        raise ValueError(f"{d} players have 2^{d} coalitions: they can be enumerated for at most 20 players")
    number = torch.arange(2**d, device=device)
    return (number[:, None] >> torch.arange(d, device=device)) & 1 > 0


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
    """Draw ``n`` coalitions for each sample, bool ``[B, n, d]``, as a pure function of (seed, epoch, sample index).

    ``indices`` (int ``[B]``) are the samples' numbers; the result is on their device. ``CoalitionLaw.sample`` draws from a
    generator, which suits an estimator; in training a sample has the same coalitions in whatever batch, process or device
    it is processed.

    With ``paired`` coalitions 2i and 2i+1 of a sample are complements. The first coalitions do not depend on ``n``.
    Another ``purpose`` gives other coalitions, for example for validation.
    """
    # Sizes come from the law's distribution function in integers of 53 bits, so that no device rounds differently. Members
    # are the players with the smallest random keys; the player's number is in a key's last bits, so that keys never tie.
    if paired:
        _require_pairs(law, n)
    sample = sample_keys(purpose, indices, seed=seed, epoch=epoch)  # [B]
    draw = random_bits(sample, n // 2 if paired else n)  # [B, n] a key for every coalition
    first = _members_by_key(draw, _sizes_by_key(law, draw), law.num_players)
    return torch.stack([first, ~first], dim=2).flatten(1, 2) if paired else first


def _draw_members(sizes: Tensor, d: int, generator: torch.Generator | None) -> Coalitions:
    """Draw uniform members for each size by selection sampling: d vector steps, no sort, no ``[n, d]`` random keys.

    Player j joins with probability (members still needed) / (players still left).
    """
    members = torch.empty(d, len(sizes), dtype=torch.bool, device=sizes.device)
    needed = sizes.to(torch.float32)
    uniform = torch.empty_like(needed)
    for j in range(d):
        uniform.uniform_(generator=generator)
        joins = torch.lt(uniform.mul_(d - j), needed, out=members[j])
        needed.add_(joins, alpha=-1)
    return members.t().contiguous()


def _sizes_by_key(law: CoalitionLaw, draw: Tensor) -> Tensor:
    """Draw a size for every key, int64 ``[B, n]``, by the inverse of the law's distribution function."""
    last = int(law.size_probabilities.nonzero()[-1])
    edges = (law.size_probabilities.cpu().cumsum(0) * 2**_SIZE_BITS).round().long()  # [d + 1]
    edges[last:] = 2**_SIZE_BITS
    uniform = whole_numbers(draw, 1, bits=_SIZE_BITS).squeeze(-1)
    return torch.searchsorted(edges.to(draw.device, non_blocking=True), uniform, right=True)


def _members_by_key(draw: Tensor, sizes: Tensor, d: int) -> Coalitions:
    """Take the players with the smallest keys as members, as many as each size: bool ``[B, n, d]``."""
    low = (1 << d.bit_length()) - 1
    keys = random_bits(draw, d + 1)[..., 1:]  # [B, n, d]; number 0 gave the size
    keys = (keys & ~low) | torch.arange(d, device=draw.device)
    largest = keys.sort(dim=-1).values.gather(-1, (sizes - 1).clamp(min=0)[..., None])  # [B, n, 1]
    return (keys <= largest) & (sizes > 0)[..., None]


def _require_count(name: str, value: int, least: int = 1) -> None:
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def _require_pairs(law: CoalitionLaw, n: int) -> None:
    if n % 2 or not law.is_symmetric:
        raise ValueError(
            f"paired sampling needs an even n, got {n}, and a distribution with equal probability of complements"
        )
