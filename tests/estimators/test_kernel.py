"""KernelSHAP with and without the size effect: exactness, efficiency, convergence, unbiasedness, budgets, bad input."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.estimators.games import digit_like, relative_error, size_effect
from vitshap.analytic import additive, random_unanimity
from vitshap.bench.estimators import from_table, softmax_table
from vitshap.estimators import regression
from vitshap.estimators.exact import exact
from vitshap.estimators.kernel import kernelshap, kernelshap_original
from vitshap.estimators.size_effect import LARGEST_FACTOR, SMALL_SAMPLE, standard_errors
from vitshap.game import Game

MODES: list[dict[str, Any]] = [
    {},
    {"moments": "exact"},
    {"moments": "sampled"},
    {"sampling": "leverage"},
    {"sampling": "shapley"},
    {"paired": False},
    {"size_effect": False},
    {"size_effect": False, "moments": "exact"},
    {"size_effect": False, "paired": False, "moments": "sampled"},
    {"size_effect": False, "paired": False, "moments": "exact"},
    {"size_effect": False, "sampling": "leverage"},
]


@pytest.mark.parametrize("options", [{}, {"paired": False}, {"moments": "exact"}, {"moments": "sampled"}])
@pytest.mark.parametrize("d", [1, 2, 3, 4, 9, 10])
def test_a_budget_for_all_coalitions_gives_exact_values(d: int, options: dict[str, Any]) -> None:
    game = random_unanimity(d, num_outputs=3, batch_size=2)
    estimate = kernelshap(game, budget=2**d + 5, **options)
    assert (estimate.values - game.shapley_values).abs().max() < 1e-9
    assert estimate.stderr is not None
    assert estimate.stderr.max() == 0
    assert bool(estimate.converged.all())
    assert game.evaluations <= 2**d


@settings(max_examples=40, deadline=None)
@given(
    d=st.integers(2, 24),
    extra=st.integers(0, 300),
    mode=st.sampled_from(MODES),
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_efficiency_and_budget_at_any_size(
    d: int, extra: int, mode: dict[str, Any], seed: int, data: st.DataObject
) -> None:
    batch = data.draw(st.integers(2, 64), label="batch")
    game = random_unanimity(d, batch_size=2, num_outputs=2, seed=seed)
    budget = 2 + 12 * (d + 3) + extra  # plain KernelSHAP with fewer may draw too few different coalitions
    estimate = kernelshap(game, budget=budget, seed=seed, batch=batch, **mode)
    total = estimate.full_values - estimate.base_values
    assert torch.allclose(estimate.values.sum(1), total, rtol=0, atol=1e-6)
    assert game.evaluations <= budget
    assert estimate.evaluations <= budget
    assert estimate.stderr is not None
    assert bool(torch.isfinite(estimate.stderr).all())


@pytest.mark.parametrize("options", MODES)
def test_error_falls_as_one_over_the_square_root(options: dict[str, Any]) -> None:
    """24 players: too many for without-replacement sampling to help, so quadrupling the budget halves the error."""
    game = size_effect(24, num_outputs=4, batch_size=4, noise=0.1)

    def error(budget: int) -> float:
        runs = [kernelshap(game, budget=budget, seed=seed, **options).values - game.shapley_values for seed in range(4)]
        return float(torch.stack(runs).square().mean().sqrt())

    few, many = error(3000), error(12_000)
    assert 1.6 < few / many < 2.9


@pytest.mark.parametrize("options", MODES)
def test_converges_to_exact_values_of_a_classifier_like_game(options: dict[str, Any]) -> None:
    game = digit_like(12, 5)
    truth = exact(game).values
    estimate = kernelshap(game, budget=3000, **options)
    assert estimate.stderr is not None
    assert relative_error(estimate.values, truth) < 0.15
    assert ((estimate.values - truth).abs() <= 5 * estimate.stderr + 1e-9).all()


@pytest.mark.parametrize(
    "options",
    [{"moments": "exact"}, {"moments": "exact", "paired": False}, {}, {"size_effect": False, "moments": "exact"}],
)
def test_mean_over_seeds_is_exact(options: dict[str, Any]) -> None:
    game = digit_like(9, 3)
    truth = exact(game).values
    runs = torch.stack([kernelshap(game, budget=100, seed=seed, **options).values for seed in range(300)])
    z = (runs.mean(0) - truth) / (runs.std(0) / len(runs) ** 0.5)
    assert z.abs().max() < 4.2  # 27 comparisons
    assert z.square().mean() < 2


@pytest.mark.parametrize(("players", "budget"), [(4, 6), (5, 8)])
def test_mean_over_seeds_is_exact_from_the_fewest_evaluations(players: int, budget: int) -> None:
    game = from_table(softmax_table(players))
    runs = [kernelshap(game, budget=budget, moments="exact", seed=seed).values[0] for seed in range(400)]
    values = torch.stack(runs)
    error = (values.mean(0) - exact(game).values[0]).abs()
    assert float((error / (values.std(0) / len(runs) ** 0.5)).max()) < 4.5


def test_size_effect_is_worth_a_factor_of_twenty_in_variance() -> None:
    game = size_effect(196)
    plain = kernelshap(game, budget=6000, size_effect=False).values - game.shapley_values
    ours = kernelshap(game, budget=6000).values - game.shapley_values
    assert plain.square().mean() / ours.square().mean() > 20


def test_additive_game_with_a_size_effect_is_solved_by_the_regression() -> None:
    game = size_effect(30, noise=0.0)
    estimate = kernelshap(game, budget=1000, moments="sampled")
    assert relative_error(estimate.values, game.shapley_values) < 0.01


@pytest.mark.parametrize("options", MODES)
def test_a_batch_is_its_inputs_one_by_one(options: dict[str, Any]) -> None:
    weights = torch.randn(3, 10, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def game_of(rows: torch.Tensor) -> Game:
        return Game(
            lambda s: torch.sigmoid(2 * s.to(torch.float64) @ rows),
            num_players=10,
            num_outputs=2,
            batch_size=len(rows),
        )

    together = kernelshap(game_of(weights), budget=400, **options)
    for index in range(3):
        alone = kernelshap(game_of(weights[index : index + 1]), budget=400, **options)
        assert torch.allclose(together.values[index], alone.values[0], atol=1e-9)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), factor=st.floats(-2, 2), moments=st.sampled_from(["exact", "sampled"]))
def test_linear_in_the_game_when_the_moments_are_fixed(seed: int, factor: float, moments: Any) -> None:
    generator = torch.Generator().manual_seed(seed)
    one, two = torch.randn(2, 256, 1, generator=generator, dtype=torch.float64)

    def values(table: torch.Tensor) -> torch.Tensor:
        return kernelshap(from_table(table), budget=90, moments=moments, seed=seed).values

    assert torch.allclose(values(one + factor * two), values(one) + factor * values(two), atol=1e-6)


def test_symmetric_players_and_dummies_within_their_errors() -> None:
    game = random_unanimity(12, terms=30, seed=3, largest=11)
    inner = game._value

    def value(s: torch.Tensor) -> torch.Tensor:
        swapped = s[..., [1, 0, *range(2, 12)]]
        return inner(s[..., :12]) + inner(swapped)  # players 0 and 1 are alike, player 12 does nothing

    made = Game(value, num_players=13, num_outputs=1)
    estimate = kernelshap(made, budget=2000)
    assert estimate.stderr is not None
    z = estimate.values / estimate.stderr
    assert z[0, 12].abs() < 4
    difference = (estimate.values[0, 0] - estimate.values[0, 1]).abs()
    assert difference < 4 * (estimate.stderr[0, 0] ** 2 + estimate.stderr[0, 1] ** 2).sqrt()


def test_same_seed_same_values_another_seed_others() -> None:
    game = digit_like(10, 2)
    one, same, other = (kernelshap(game, budget=200, seed=seed).values for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_the_number_of_coalitions_at_a_time_changes_nothing() -> None:
    game = digit_like(10, 2)
    assert torch.allclose(
        kernelshap(game, budget=300, batch=2).values, kernelshap(game, budget=300, batch=1000).values, atol=1e-9
    )


def test_absent_players_get_zero_and_the_rest_still_adds_up() -> None:
    present = torch.tensor([[True] * 9 + [False], [True] * 10])
    whole = random_unanimity(10, batch_size=2, seed=1)
    game = Game(
        lambda s: whole._value(s & present[:, None]),
        num_players=10,
        num_outputs=1,
        batch_size=2,
        player_mask=present,
    )
    estimate = kernelshap(game, budget=200)
    assert estimate.values[0, 9] == 0
    assert estimate.stderr is not None
    assert estimate.stderr[0, 9] == 0
    assert torch.allclose(estimate.values.sum(1), estimate.full_values - estimate.base_values, atol=1e-9)


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"budget": 5}, ValueError, "needs at least 6"),
        ({"budget": 20, "moments": "sampled"}, ValueError, "needs at least 28"),
        ({"budget": 20, "moments": "sampled", "size_effect": False}, ValueError, "needs at least 22"),
        ({"budget": 100, "moments": "both"}, ValueError, "auto, exact, sampled"),
        ({"budget": 100, "sampling": "uniform"}, ValueError, "balanced, shapley, leverage"),
        ({"budget": 100, "batch": 1}, ValueError, "at least 2"),
        ({"budget": 100, "threshold": 0.0}, ValueError, "positive"),
    ],
)
def test_bad_input(options: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        kernelshap(additive(torch.ones(1, 10, 1)), **options)


def test_a_singular_moment_matrix_is_named() -> None:
    game = additive(torch.ones(1, 30, 1))
    with pytest.raises(ValueError, match=r"singular moment matrix.*larger budget"):
        kernelshap(game, budget=62, size_effect=False, moments="sampled", seed=1)


def test_a_game_that_returns_nan_is_refused() -> None:
    def value(s: torch.Tensor) -> torch.Tensor:
        return torch.where(s.sum(-1, keepdim=True) == 3, torch.nan, 1.0)

    with pytest.raises(ValueError, match="not finite"):
        kernelshap(Game(value, num_players=8, num_outputs=1), budget=100)


def constrained_least_squares(game: Game, members: torch.Tensor) -> torch.Tensor:
    """KernelSHAP by the formula of the papers: A and b of the sample, and a Lagrange multiplier for efficiency; [d, K]."""
    s = members.to(torch.float64)
    null, grand = game.null[0], game.grand[0]
    a = s.T @ s / len(s)
    b = s.T @ (game(members)[0] - null) / len(s)
    ones = torch.ones(len(a), 1, dtype=torch.float64)
    solved, share = torch.linalg.solve(a, b), torch.linalg.solve(a, ones)
    return solved - share * (solved.sum(0) - (grand - null)) / share.sum()


@pytest.mark.parametrize("paired", [True, False])
def test_the_published_estimator_is_the_constrained_regression_on_its_own_sample(paired: bool) -> None:
    table = digit_like(10, 3)
    asked: list[torch.Tensor] = []

    def value(s: torch.Tensor) -> torch.Tensor:
        asked.append(s[0])
        return table(s)

    game = Game(value, num_players=10, num_outputs=3)
    estimate = kernelshap_original(game, budget=102, paired=paired, batch=16, seed=3)
    drawn = torch.cat([s for s in asked if 0 < int(s.sum()) < s.numel()])
    assert estimate.method == "kernelshap-original"
    assert len(drawn) == 100 == estimate.evaluations - 2
    assert paired == torch.equal(drawn[::2], ~drawn[1::2])
    expected = constrained_least_squares(table, drawn)
    torch.testing.assert_close(estimate.values[0], expected, rtol=0, atol=1e-9)
    # Twenty evaluations per player are where the same regression with moments="auto" takes the exact moment matrix.
    automatic = kernelshap(table, budget=102, size_effect=False, paired=paired, batch=16, seed=3)
    assert not torch.allclose(automatic.values, estimate.values, atol=1e-4)


def test_the_published_estimator_draws_from_the_shapley_kernel() -> None:
    asked: list[torch.Tensor] = []

    def value(s: torch.Tensor) -> torch.Tensor:
        asked.append(s[0])
        return s.to(torch.float64).sum(-1, keepdim=True)

    kernelshap_original(Game(value, num_players=6, num_outputs=1), budget=40_002, seed=0)
    sizes = torch.cat(asked).sum(1)
    shares = torch.bincount(sizes, minlength=7)[1:6] / 40_000
    expected = torch.tensor([1 / (k * (6 - k)) for k in range(1, 6)])
    torch.testing.assert_close(shares, expected / expected.sum(), rtol=0, atol=0.01)


@pytest.mark.parametrize(("players", "budget"), [(5, 6), (9, 7), (12, 8), (12, 4)])
def test_the_fewest_evaluations_do_not_claim_to_be_exact(players: int, budget: int) -> None:
    game = from_table(softmax_table(players))
    truth, inside = exact(game).values, []
    for seed in range(40):
        estimate = kernelshap(game, budget=budget, seed=seed, paired=budget > 4)
        assert not bool(estimate.converged.any())
        low, high = estimate.interval()
        inside.append(((low <= truth) & (truth <= high)).double().mean())
    assert float(torch.stack(inside).mean()) > 0.5


def test_a_published_regression_that_fits_all_its_values_has_no_standard_errors() -> None:
    game = random_unanimity(5, num_outputs=2)
    known = []
    for seed in range(40):
        asked: set[tuple[bool, ...]] = set()

        def value(s: torch.Tensor, asked: set[tuple[bool, ...]] = asked) -> torch.Tensor:
            asked.update(tuple(one.tolist()) for one in s[0])
            return game(s)

        try:
            estimate = kernelshap_original(Game(value, num_players=5, num_outputs=2), budget=12, seed=seed)
        except ValueError:  # too few different coalitions
            continue
        pairs = len(asked) // 2 - 1  # different ones; the empty and the full coalition are no pair of the sample
        assert (estimate.stderr is None) == (pairs == 4)
        assert not bool(estimate.converged.any())
        known.append(estimate.stderr is not None)
    assert 0 < sum(known) < len(known)


@pytest.mark.parametrize(
    ("game", "budget"),
    [(from_table(softmax_table(16)), 40), (random_unanimity(12, terms=60, seed=3, num_outputs=4), 30)],
)
def test_as_many_pairs_as_players_do_not_lead_far_off(game: Game, budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def error() -> float:
        runs = [kernelshap(game, budget=budget, seed=seed).values - truth for seed in range(30)]
        return float(torch.stack(runs).square().mean())

    truth = exact(game).values
    careful = error()
    monkeypatch.setattr(regression, "CAUTION", 0.0)
    assert careful < 0.85 * error()


@pytest.mark.parametrize("pairs", [1, 5, 20, 100, 10_000])
def test_variances_of_players_are_pooled_while_pairs_are_few(pairs: int) -> None:
    variance = torch.rand(2, 6, 3, dtype=torch.float64)
    squares = standard_errors(variance, pairs).square() / min(1 + SMALL_SAMPLE / pairs, LARGEST_FACTOR)
    assert torch.allclose(squares.mean(1), variance.mean(1))  # the mean over players stays
    own = pairs / (pairs + 4 * 6)
    deviation = variance - variance.mean(1, keepdim=True)
    assert torch.allclose(squares - squares.mean(1, keepdim=True), own * deviation)


def test_standard_errors_of_known_values_are_zero() -> None:
    assert standard_errors(torch.zeros(1, 4, 2), 0).max() == 0
