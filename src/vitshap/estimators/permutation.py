"""Permutation sampling: players join in random order, and a player's value is its mean marginal contribution.

Every order is followed by its reverse (antithetic sampling), which cancels effects of the position. The mean over the two
is one observation. Observations are independent, so only their sums and sums of squares are stored.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vitshap.coalitions import Coalitions
from vitshap.estimators.anytime import require_batch, run
from vitshap.estimators.estimate import Estimate, ProgressCallback, endpoints
from vitshap.estimators.exact import exact
from vitshap.game import Game


def permutation(
    game: Game,
    /,
    *,
    budget: int,
    threshold: float | None = None,
    accuracy: float | None = None,
    target: Tensor | None = None,
    batch: int = 4096,
    seed: int = 0,
    progress: ProgressCallback | None = None,
) -> Estimate:
    """Sample antithetic permutations with at most ``budget`` evaluations per input; an order and its reverse take 2(d-1).

    Arguments as for ``kernelshap``. A single order and its reverse give values without standard errors.
    """
    require_batch(batch)
    if game.num_players == 1:
        return exact(game)
    state = PermutationState(game, batch, seed)
    return run(state, game, budget=budget, threshold=threshold, accuracy=accuracy, target=target, progress=progress)


class PermutationState:
    """Running sums over antithetic orders; implements ``State``."""

    posterior, known_before = False, False
    error_spread: Tensor | None = None
    evaluated_error: Tensor | None = None

    def __init__(self, game: Game, batch: int, seed: int) -> None:
        """Start without evaluations."""
        self.method = "permutation"
        self._game = game
        self._cost = 2 * (game.num_players - 1)
        self.smallest = 2 + self._cost
        self.first_check = 2 + 4 * self._cost
        self._orders_at_once = max(batch // self._cost, 1)
        self._generator = torch.Generator(device=game.device).manual_seed(seed)
        shape = (game.batch_size, game.num_players, game.num_outputs)
        self._mean = torch.zeros(shape, dtype=torch.float64, device=game.device)
        self._squares = torch.zeros_like(self._mean)
        self._n = 0

    def advance(self, evaluations: int) -> int:
        """Evaluate new orders up to ``evaluations`` in total."""
        wanted = (evaluations - 2) // self._cost
        while self._n < wanted:
            self._add(self._walk(min(self._orders_at_once, wanted - self._n)))
        return 2 + self._cost * self._n

    def _walk(self, number: int) -> Tensor:
        """Return marginal contributions, averaged over an order and its reverse; float64 ``[B, number, d, K]``."""
        game, d = self._game, self._game.num_players
        keys = torch.rand(number, d, generator=self._generator, device=game.device)
        order = keys.argsort(1)  # [number, d]: the first player, the second, ...
        rank = order.argsort(1)
        step = torch.arange(1, d, device=game.device)[:, None]  # sizes 1..d-1
        forward = rank[:, None, :] < step  # [number, d - 1, d]
        # The first k players of the reverse order are the complement of the first d - k players.
        backward = ~forward.flip(1)
        coalitions: Coalitions = torch.cat([forward, backward], dim=1).flatten(0, 1)
        values = game(coalitions).to(torch.float64).reshape(game.batch_size, number, 2, d - 1, -1)
        base, full = (end[:, None, None, None].expand(-1, number, 2, -1, -1) for end in endpoints(game))
        added = torch.cat([base, values, full], dim=3).diff(dim=3)  # [B, number, 2, d, K], in the order of joining
        both = (added[:, :, 0] + added[:, :, 1].flip(2)) / 2  # the reverse order, read backwards
        index = rank[None, :, :, None].expand_as(both)
        return both.gather(2, index)

    def _add(self, new: Tensor) -> None:
        # Chan's update of mean and sum of squared deviations, which is numerically stable.
        m = new.shape[1]
        mean = new.mean(1)
        shift = mean - self._mean
        total = self._n + m
        self._squares += (new - mean[:, None]).square().sum(1) + shift**2 * (self._n * m / total)
        self._mean += shift * (m / total)
        self._n = total

    def estimate(self) -> tuple[Tensor, Tensor | None]:
        """Return values and standard errors, ``[B, d, K]`` each."""
        if self._n < 2:
            return self._mean.clone(), None
        return self._mean.clone(), (self._squares / (self._n - 1) / self._n).sqrt()
