"""Antithetic permutations: exact where they must be, unbiased, within budget, with errors that fall."""

from itertools import permutations

import pytest
import torch

from tests.estimators.games import digit_like, size_effect
from vitshap.analytic import additive, random_unanimity
from vitshap.estimators.exact import exact
from vitshap.estimators.permutation import permutation
from vitshap.game import Game


def test_additive_and_pairwise_games_need_one_order() -> None:
    """A player before a partner in one order comes after it in the reverse: interactions of two cancel exactly."""
    game = random_unanimity(9, largest=2, num_outputs=2, batch_size=2)
    estimate = permutation(game, budget=2 + 16)
    assert torch.allclose(estimate.values, game.shapley_values, atol=1e-12)
    assert estimate.stderr is None
    assert game.evaluations == estimate.evaluations == 18


def test_marginal_contributions_are_those_of_the_order() -> None:
    """Against a loop over all orders of three players."""
    table = torch.randn(8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    totals = torch.zeros(3, dtype=torch.float64)
    for order in permutations(range(3)):
        seen = 0
        for player in order:
            totals[player] += table[seen | 1 << player] - table[seen]
            seen |= 1 << player
    place = 2 ** torch.arange(3)
    game = Game(lambda s: table[(s * place).sum(-1)][..., None], num_players=3, num_outputs=1)
    estimate = permutation(game, budget=40_000)
    assert estimate.stderr is not None
    assert ((estimate.values[0, :, 0] - totals / 6).abs() < 4 * estimate.stderr[0, :, 0]).all()


def test_error_falls_as_one_over_the_square_root_and_is_known() -> None:
    game = size_effect(20, num_outputs=4, batch_size=4, noise=0.1)

    def errors(budget: int) -> tuple[float, float]:
        runs = [permutation(game, budget=budget, seed=seed) for seed in range(8)]
        true = torch.stack([run.values - game.shapley_values for run in runs]).square().mean().sqrt()
        told = torch.stack([run.stderr for run in runs if run.stderr is not None]).square().mean().sqrt()
        return float(true), float(told)

    (few, few_told), (many, many_told) = errors(2000), errors(8000)
    assert 1.6 < few / many < 2.6
    assert few_told == pytest.approx(few, rel=0.25)
    assert many_told == pytest.approx(many, rel=0.25)


@pytest.mark.parametrize("batch", [2, 31, 5000])
def test_the_budget_is_kept_at_any_chunk(batch: int) -> None:
    game = digit_like(10, 3)
    truth = exact(digit_like(10, 3)).values
    estimate = permutation(game, budget=555, batch=batch)
    assert estimate.evaluations == game.evaluations == 2 + 18 * ((555 - 2) // 18)
    assert estimate.stderr is not None
    assert ((estimate.values - truth).abs() < 5 * estimate.stderr).all()
    assert torch.allclose(estimate.values.sum(1), estimate.full_values - estimate.base_values, atol=1e-10)


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="needs at least 20"):
        permutation(additive(torch.ones(1, 10, 1)), budget=19)
    with pytest.raises(ValueError, match="at least 2"):
        permutation(additive(torch.ones(1, 10, 1)), budget=100, batch=1)


def test_no_interval_without_errors() -> None:
    with pytest.raises(ValueError, match="larger budget"):
        permutation(additive(torch.ones(1, 10, 1)), budget=20).interval()
