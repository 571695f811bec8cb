"""Shapley values from a prior and evaluations: ``kernelshap`` on what the prior leaves, and the posterior.

Evaluations enter through the regression of ``kernelshap`` on the residual game ``v(s) - v(0) - sum of the members' prior
means``, which also decides where to evaluate. Without evaluations the answer is the prior's, with very many that of
``kernelshap``; in between it is better than either alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vitshap.coalitions import Coalitions
from vitshap.estimators.adaptive import AdaptiveState
from vitshap.estimators.anytime import require_batch, run
from vitshap.estimators.estimate import Estimate, ProgressCallback, endpoints, without_absent
from vitshap.estimators.exact import exact
from vitshap.estimators.posterior import Prior, posterior
from vitshap.estimators.strata import strata
from vitshap.game import Game

FEWEST = 8
"""Pairs that one correction needs, and one of every size: fewer do not tell how large their errors are."""
UNKNOWN_SIZE = 4.5
"""If the size of the prior's error is not known, squared standard errors from n pairs of d players are multiplied by
1 + this sqrt(d) / n: the few pairs that values are estimated from also tell how far to trust them (docs, section 11)."""


def refine(
    game: Game,
    prior: Prior | None = None,
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
    """Correct a prior by at most ``budget`` evaluations per input; other arguments as for ``kernelshap``.

    Without a prior, values are equal shares of v(1) - v(0) before, with an unknown variance that is each player's own. A
    budget below ``correction_needs(game.num_players)`` returns the prior's values.
    """
    if game.num_players == 1:
        return exact(game)
    state = RefineState(game, equal_shares(game) if prior is None else prior, batch, seed)
    return run(state, game, budget=budget, threshold=threshold, accuracy=accuracy, target=target, progress=progress)


def correction_needs(num_players: int) -> int:
    """Return the fewest evaluations that correct a prior, the empty and the full coalition included."""
    design = strata(num_players, paired=True)
    return 2 + 2 * min(max(len(design.population), FEWEST), design.total)


def equal_shares(game: Game) -> Prior:
    """Return the prior that knows nothing: the players that are present share v(1) - v(0) equally."""
    return Prior(_adding_up(torch.zeros(1, game.num_players, 1, device=game.device), game))


class RefineState:
    """A prior and the evaluations so far; implements ``State``."""

    method = "refine"
    posterior = True
    smallest = 0

    def __init__(self, game: Game, prior: Prior, batch: int, seed: int) -> None:
        """Start without evaluations."""
        require_batch(batch)
        self._prior, self._mean = prior, _adding_up(prior.mean, game)
        self._present = _present(game)
        self._residual = _residual_game(game, self._mean)
        self._state = AdaptiveState(self._residual, True, "auto", "adaptive", batch, seed)
        self.first_check = correction_needs(game.num_players)
        self.known_before = prior.stderr is not None
        self._used = 0  # evaluations
        self.error_spread: Tensor | None = torch.full_like(self._mean[:, 0], prior.spread)
        self.evaluated_error: Tensor | None = None

    def advance(self, evaluations: int) -> int:
        """Evaluate up to ``evaluations`` in total, or nothing if they are too few for a correction."""
        if evaluations < self.first_check:
            return 2
        self._used = self._state.advance(evaluations)
        return self._used

    def estimate(self) -> tuple[Tensor, Tensor | None]:
        """Return the posterior's mean and standard deviation, ``[B, d, K]`` each."""
        if not self._used:
            stderr = self._prior.stderr
            return self._mean, None if stderr is None else stderr.expand_as(self._mean)
        residual, stderr = self._estimate_residual()
        self.evaluated_error = stderr.square().sum(1) / self._present.sum(1, keepdim=True)
        correction, stderr, self.error_spread = posterior(self._prior, residual, stderr, self._present)
        if self._prior.variance is None:
            stderr = stderr * (1 + 2 * UNKNOWN_SIZE * self._residual.num_players**0.5 / self._used) ** 0.5
        return self._mean + correction, stderr

    def unbiased(self) -> tuple[Tensor, Tensor | None]:
        """Return the estimate before the posterior: ``kernelshap`` with the prior's mean as a control variate."""
        if not self._used:
            return self.estimate()
        residual, stderr = self._estimate_residual()
        return self._mean + residual, stderr

    def _estimate_residual(self) -> tuple[Tensor, Tensor]:
        residual, stderr = without_absent(self._residual, *self._state.estimate())
        assert stderr is not None
        return residual, stderr


def _residual_game(game: Game, mean: Tensor) -> Game:
    def value(coalitions: Coalitions) -> Tensor:
        return game(coalitions).to(mean) - coalitions.to(mean) @ mean

    residual = Game(
        value,
        num_players=game.num_players,
        num_outputs=game.num_outputs,
        batch_size=game.batch_size,
        device=game.device,
        player_mask=game.player_mask,
    )
    base, full = endpoints(game)
    residual._null, residual._grand = base, full - mean.sum(1)
    return residual


def _present(game: Game) -> Tensor:
    """Return which players are there, bool ``[B, d]``."""
    if game.player_mask is None:
        return torch.ones(game.batch_size, game.num_players, dtype=torch.bool, device=game.device)
    return game.player_mask.to(game.device).expand(game.batch_size, -1)


def _adding_up(mean: Tensor, game: Game) -> Tensor:
    """Return values ``[B, d, K]`` shifted equally, so that those of present players add up to v(1) - v(0)."""
    base, full = endpoints(game)
    present = _present(game).to(base)[..., None]
    mean = mean.to(base) * present
    missing = (full - base)[:, None] - mean.sum(1, keepdim=True)
    return mean + present * missing / present.sum(1, keepdim=True)
