"""Games: counting, endpoints, checks; and the textbook games against all orders of arrival."""

from itertools import permutations
from math import factorial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitshap.analytic import AnalyticGame, additive, glove, majority, random_unanimity
from vitshap.coalitions import all_coalitions, uniform_size
from vitshap.game import NUMBERS_AT_ONCE, Game


def _shapley_by_permutations(game: Game) -> torch.Tensor:
    d = game.num_players
    table = game(all_coalitions(d))  # [B, 2^d, K]
    values = torch.zeros(game.batch_size, d, game.num_outputs, dtype=torch.float64)
    for order in permutations(range(d)):
        before = 0
        for player in order:
            values[:, player] += table[:, before | 1 << player] - table[:, before]
            before |= 1 << player
    return values / factorial(d)


@pytest.mark.parametrize(
    "game",
    [
        additive(torch.tensor([[[1.0, 2.0], [-3.0, 0.5], [0.0, 4.0]]])),
        majority(5),
        majority(6, quota=2),
        glove(1, 2),
        glove(4, 2),
        random_unanimity(6, terms=20, batch_size=2, num_outputs=3),
    ],
)
def test_textbook_values_are_the_mean_over_all_orders(game: AnalyticGame) -> None:
    torch.testing.assert_close(game.shapley_values, _shapley_by_permutations(game), rtol=0, atol=1e-12)


@given(d=st.integers(2, 12), seed=st.integers(0, 50))
@settings(deadline=None, max_examples=25)
def test_textbook_values_share_out_the_whole(d: int, seed: int) -> None:
    game = random_unanimity(d, seed=seed)
    torch.testing.assert_close(game.shapley_values.sum(1), game.grand - game.null)


def test_evaluations_are_counted_once_for_the_endpoints() -> None:
    game = majority(5)
    game(uniform_size(5).sample(7))
    assert game.evaluations == 7
    _ = game.null, game.grand, game.null, game.grand
    assert game.evaluations == 9
    assert game.null.item() == 0
    assert game.grand.item() == 1


def test_targets_pick_outputs_per_input() -> None:
    game = random_unanimity(4, batch_size=2, num_outputs=3)
    coalitions = uniform_size(4).sample(5)
    every, some = game(coalitions), game(coalitions, torch.tensor([[2, 0], [1, 1]]))
    assert torch.equal(some[0], every[0][:, [2, 0]])
    assert torch.equal(some[1], every[1][:, [1, 1]])


def test_streaming_gives_the_same_values_whatever_the_chunk() -> None:
    game = random_unanimity(6)
    coalitions = uniform_size(6).sample(25)
    whole = game(coalitions)
    for chunk in (1, 4, 25, 100):
        torch.testing.assert_close(torch.cat(list(game.stream(coalitions, chunk=chunk)), dim=1), whole)
    parts = (coalitions[i : i + 1] for i in range(25))
    torch.testing.assert_close(torch.cat(list(game.stream(parts)), dim=1), whole)


@pytest.mark.parametrize(
    ("coalitions", "says"),
    [
        (torch.ones(2, 4), "must be a bool tensor over 4 players.*got torch.float32"),
        (torch.ones(2, 5, dtype=torch.bool), "4 players.*got torch.bool \\[2, 5\\]"),
        (torch.ones(0, 4, dtype=torch.bool), r"got torch.bool \[0, 4\]"),
        (torch.ones(3, 2, 4, dtype=torch.bool), r"with B = 1, got \[3, 2, 4\]"),
        (torch.ones(4, dtype=torch.bool), r"\[B, S, d\]"),
    ],
)
def test_bad_coalitions_are_named(coalitions, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        majority(4)(coalitions)


@pytest.mark.parametrize(
    ("value", "says"),
    [(lambda s: torch.full((1, s.shape[1], 1), float("nan")), "not finite"), (lambda s: s.float(), "shape")],
)
def test_a_broken_game_is_named(value, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Game(value, num_players=4, num_outputs=1)(uniform_size(4).sample(3))


def test_chunks_are_bounded_and_never_empty():
    small = Game(lambda s: s.double(), num_players=4, num_outputs=4)
    assert small.bounded_chunk * 8 <= NUMBERS_AT_ONCE
    huge = Game(lambda s: s.double(), num_players=4, num_outputs=10**9)
    assert huge.bounded_chunk == 1
