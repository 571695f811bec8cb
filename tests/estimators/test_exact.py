"""Exact values: textbook games to 1e-10, the axioms, and what is refused."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitshap.analytic import AnalyticGame, additive, glove, majority, random_unanimity
from vitshap.bench.estimators import from_table
from vitshap.estimators.exact import exact
from vitshap.game import Game


@pytest.mark.parametrize(
    "game",
    [
        additive(torch.randn(3, 7, 2, generator=torch.Generator().manual_seed(0))),
        majority(9),
        majority(10, 3),
        glove(3, 5),
        random_unanimity(12, batch_size=2, num_outputs=3),
        random_unanimity(1, terms=3),
        random_unanimity(2, terms=3),
    ],
)
def test_textbook_games(game: AnalyticGame) -> None:
    estimate = exact(game)
    assert (estimate.values - game.shapley_values).abs().max() < 1e-10
    assert estimate.stderr is not None
    assert estimate.stderr.abs().max() == 0
    assert estimate.evaluations == game.evaluations == 2**game.num_players
    assert bool(estimate.converged.all())


def test_the_batch_size_changes_nothing() -> None:
    game = random_unanimity(9, num_outputs=2)
    assert torch.allclose(exact(game, batch=7).values, exact(game, batch=512).values, rtol=0, atol=1e-13)


@settings(max_examples=25, deadline=None)
@given(d=st.integers(2, 7), seed=st.integers(0, 10_000), factor=st.floats(-3, 3))
def test_axioms(d: int, seed: int, factor: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    one, two = torch.randn(2, 2**d, 1, generator=generator, dtype=torch.float64)
    a, b = exact(from_table(one)), exact(from_table(two))
    mixed = exact(from_table(one + factor * two))
    assert torch.allclose(mixed.values, a.values + factor * b.values, atol=1e-10)
    assert torch.allclose(a.values.sum(1), a.full_values - a.base_values, atol=1e-10)
    without_last = one[: 2 ** (d - 1)]
    dummy = exact(from_table(torch.cat([without_last, without_last])))  # the last player changes nothing
    assert dummy.values[0, -1].abs() < 1e-12
    exchanged = torch.arange(2**d)
    exchanged = (exchanged & ~3) | ((exchanged & 1) << 1) | ((exchanged >> 1) & 1)
    symmetric = exact(from_table(one + one[exchanged]))
    assert torch.allclose(symmetric.values[0, 0], symmetric.values[0, 1], atol=1e-12)


def test_absent_players_have_the_value_zero() -> None:
    weights = torch.tensor([[[1.0], [2.0], [0.0]], [[3.0], [-1.0], [4.0]]])
    full = additive(weights)
    game = Game(
        full._value,
        num_players=3,
        num_outputs=1,
        batch_size=2,
        player_mask=torch.tensor([[True, True, False], [True, True, True]]),
    )
    assert torch.allclose(exact(game).values, weights.to(torch.float64))


def test_too_many_players() -> None:
    with pytest.raises(ValueError, match=r"2\^21 evaluations.*players=4 makes blocks of 4 x 4 patches \(--players 4"):
        exact(additive(torch.ones(1, 21, 1)))


@pytest.mark.parametrize("broken", ["nan", "shape"])
def test_a_broken_game_is_refused(broken: str) -> None:
    def value(s: torch.Tensor) -> torch.Tensor:
        return s.sum(-1, keepdim=True) / 0.0 if broken == "nan" else s.sum(-1).to(torch.float64)

    with pytest.raises(ValueError, match=r"not finite|shape"):
        exact(Game(value, num_players=4, num_outputs=1))
