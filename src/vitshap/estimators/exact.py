"""Shapley values without sampling: every coalition is evaluated.

A coalition s of size k adds ``v(s) / (d C(d-1, k-1))`` to the value of its members and subtracts ``v(s) / (d C(d-1, k))``
from that of the others. Both weights depend on the size alone, so one pass over the coalitions is enough.
"""

from __future__ import annotations

from math import comb

import torch
from torch import Tensor

from vitshap.coalitions import all_coalitions
from vitshap.estimators.estimate import Estimate, endpoints, without_absent
from vitshap.game import Game

MOST_PLAYERS = 20


def exact(game: Game, /, *, batch: int = 4096) -> Estimate:
    """Compute exact Shapley values from all ``2^d`` coalitions of at most 20 players, ``batch`` at a time."""
    d = game.num_players
    if d > MOST_PLAYERS:
        raise ValueError(
            f"exact values of {d} players need 2^{d} evaluations; the limit is {MOST_PLAYERS} players. "
            f"Use kernelshap, or fewer players: players=4 makes blocks of 4 x 4 patches (--players 4 in the command)"
        )
    base, full = endpoints(game)  # [B, K]
    joined, left = _shares(d, game.device)
    # The game stores the two endpoints: rows 0 and 2^d - 1 are not evaluated again.
    values = torch.zeros(game.batch_size, d, game.num_outputs, dtype=torch.float64, device=game.device)
    values += joined[d] * full[:, None] - left[0] * base[:, None]
    inner = all_coalitions(d)[1:-1]
    for coalitions in torch.split(inner, batch) if len(inner) else ():
        members = coalitions.to(game.device)  # [S, d]
        size = members.sum(1)
        share = torch.where(members, joined[size][:, None], -left[size][:, None])  # [S, d]
        values += torch.einsum("sd,bsk->bdk", share, game(members).to(torch.float64))
    values, stderr = without_absent(game, values, torch.zeros_like(values))
    converged = torch.ones(game.batch_size, dtype=torch.bool, device=game.device)
    return Estimate(values, stderr, base, full, 2**d, "exact", converged)


def _shares(d: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the weights of a coalition's value for members and for non-members, by size, ``[d + 1]`` each."""
    joined = [0.0] + [1 / (d * comb(d - 1, k - 1)) for k in range(1, d + 1)]
    left = [1 / (d * comb(d - 1, k)) for k in range(d)] + [0.0]
    return (
        torch.tensor(joined, dtype=torch.float64, device=device),
        torch.tensor(left, dtype=torch.float64, device=device),
    )
