"""Theorem 1 against explicit sums over coalitions and orders of arrival."""

from dataclasses import replace
from itertools import chain, combinations, permutations
from math import comb, factorial, isnan, log

import pytest
import torch
from torch import Tensor

from tests.small_nets import random_images, small_net
from vitshap.analytic import AnalyticGame, additive, glove, majority, random_unanimity
from vitshap.coalitions import Coalitions
from vitshap.game import Game
from vitshap.methods import method
from vitshap.metrics import SampledBound, error_bound, shapley_error
from vitshap.metrics.bound import kernel_moments

GAMES = {
    "additive": additive(torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0))),
    "majority": majority(5),
    "glove": glove(2, 3),
    "unanimity": random_unanimity(5, batch_size=3, num_outputs=2, seed=1),
    "two players": random_unanimity(2, batch_size=2, seed=2),
}


def _value(game: Game, members: tuple[int, ...]) -> Tensor:
    s = torch.zeros(game.batch_size, 1, game.num_players, dtype=torch.bool)
    s[:, :, list(members)] = True
    return game(s)[:, 0].double()  # [B, K]


def _by_hand(game: Game, values: Tensor) -> tuple[Tensor, Tensor]:
    """Loss under the Shapley kernel, ``[B, K]``, and Shapley values from all orders of arrival, ``[B, d, K]``."""
    d = game.num_players
    empty = _value(game, ())
    inner = list(chain.from_iterable(combinations(range(d), k) for k in range(1, d)))
    weights = [(d - 1) / (comb(d, len(s)) * len(s) * (d - len(s))) for s in inner]
    loss = torch.zeros_like(empty)
    for s, weight in zip(inner, weights, strict=True):
        loss += weight / sum(weights) * (_value(game, s) - empty - values[:, list(s)].sum(1)).square()
    shapley = torch.zeros(game.batch_size, d, game.num_outputs, dtype=torch.float64)
    for order in permutations(range(d)):
        for place, player in enumerate(order):
            gained = _value(game, order[: place + 1]) - _value(game, order[:place])
            shapley[:, player] += gained / factorial(d)
    return loss, shapley


def _nearby(game: AnalyticGame, scale: float) -> Tensor:
    """Efficient values beside the Shapley values."""
    noise = torch.randn(game.shapley_values.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    return game.shapley_values + scale * (noise - noise.mean(1, keepdim=True))


@pytest.mark.parametrize("name", GAMES)
def test_losses_errors_and_bound_by_hand(name: str) -> None:
    game = GAMES[name]
    values = _nearby(game, 0.3)
    found = error_bound(game, values)
    loss, shapley = _by_hand(game, values)
    optimum, _ = _by_hand(game, shapley)
    error = (values - shapley).norm(dim=1)
    for ours, theirs in ((found.losses, loss), (found.optima, optimum), (found.values, error)):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)
    harmonic = sum(1 / i for i in range(1, game.num_players))
    assert found.mean == pytest.approx(float(error.mean()))
    assert found.bound == pytest.approx(float((2 * harmonic * (loss.mean() - optimum.mean())) ** 0.5))
    assert found.loose_bound == pytest.approx(float((2 * harmonic * loss.mean()) ** 0.5))
    assert found.holds


@pytest.mark.parametrize("name", GAMES)
def test_the_minimiser_is_the_shapley_values(name: str) -> None:
    game = GAMES[name]
    moments = kernel_moments(game, batch=3)
    torch.testing.assert_close(moments.shapley_values(), game.shapley_values, rtol=0, atol=1e-10)


def test_for_one_image_and_class_the_bound_is_the_error() -> None:
    game = random_unanimity(9, seed=3)
    found = error_bound(game, _nearby(game, 0.1))
    assert found.bound == pytest.approx(found.mean, rel=1e-9)
    assert found.holds
    exact = error_bound(game, game.shapley_values)
    assert exact.mean < 1e-12
    assert exact.bound < 1e-6
    assert exact.holds
    assert exact.loose_bound > 0.1  # interactions that no values can express


def test_a_broken_bound_is_seen() -> None:
    game = random_unanimity(4, seed=7)
    found = replace(error_bound(game, game.shapley_values), values=torch.ones(1, 1), optima=torch.zeros(1, 1))
    assert not replace(found, losses=torch.full((1, 1), 0.01)).holds
    assert replace(found, losses=torch.ones(1, 1)).holds


def test_chunks_and_single_precision_change_nothing() -> None:
    game = random_unanimity(10, batch_size=2, num_outputs=3, seed=4)
    values = _nearby(game, 0.05)
    whole, parts = error_bound(game, values), error_bound(game, values.float(), batch=17)
    torch.testing.assert_close(whole.losses, parts.losses, rtol=1e-4, atol=1e-6)
    assert game.evaluations == 2 * (2**10 - 2) + 2  # the endpoints are evaluated once


def test_games_and_values_that_the_theorem_does_not_cover() -> None:
    game = random_unanimity(5, seed=6)
    with pytest.raises(ValueError, match=r"add up to v\(1\) - v\(0\); these miss it by 0.5"):
        error_bound(game, game.shapley_values + 0.1)
    with pytest.raises(ValueError, match="2 to 20 players, not 21"):
        error_bound(additive(torch.ones(1, 21, 1)), torch.ones(1, 21, 1))

    def nothing(s: Coalitions) -> Tensor:
        return s.double().sum(-1, keepdim=True)

    absent = Game(nothing, num_players=3, num_outputs=1, player_mask=torch.tensor([[True, True, False]]))
    with pytest.raises(ValueError, match="absent from some images"):
        error_bound(absent, torch.ones(1, 3, 1))


def test_values_that_do_not_add_up_have_a_distance_but_no_bound() -> None:
    model = small_net(grid=(2, 2))
    images = random_images(model, 3)
    exact, random = (method(name, model)(images, target=[2, 0]) for name in ("exact", "random"))
    found = shapley_error(model, images, random)
    distance = (random.values - exact.values).double().norm(dim=1)
    torch.testing.assert_close(found.values, distance, rtol=0, atol=1e-5)
    assert bool(found.losses.isnan().all())
    assert isnan(found.bound)
    assert not found.holds
    assert not bool(shapley_error(model, images, exact).losses.isnan().any())


def test_sampled_bounds_by_hand() -> None:
    losses = torch.tensor([0.1, 0.3, 0.2, 0.2], dtype=torch.float64)
    found = SampledBound(losses, 3, most=2.0)
    factor = 2 * (1 + 1 / 2)
    assert found.bound == pytest.approx((factor * 0.2) ** 0.5)
    deviation = (0.02 / 3) ** 0.5  # of the four losses
    assert found.chebyshev == pytest.approx((factor * (0.2 + deviation / (4 * 0.05) ** 0.5)) ** 0.5)
    assert found.hoeffding == pytest.approx((factor * (0.2 + 2.0 * (log(20) / 8) ** 0.5)) ** 0.5)
    assert SampledBound(losses, 3).hoeffding is None
    assert SampledBound(-losses, 3).bound == 0
    assert isnan(SampledBound(losses[:1], 3).chebyshev)


def test_sampled_bounds_hold_as_often_as_they_say() -> None:
    """Of images from a skewed distribution, whose mean loss is known."""
    random = torch.Generator().manual_seed(0)
    drawn = torch.rand(2000, 40, generator=random, dtype=torch.float64) ** 4  # mean 1 / 5, at most 1
    true = SampledBound(torch.full((1,), 0.2, dtype=torch.float64), 5).bound
    bounds = [SampledBound(losses, 5, most=1.0) for losses in drawn]
    for name in ("chebyshev", "hoeffding"):
        assert sum(getattr(bound, name) >= true for bound in bounds) / len(bounds) >= 0.95
    assert 0.3 < sum(bound.bound >= true for bound in bounds) / len(bounds) < 0.7
