"""Evaluations allotted by the errors of a pilot: same values, less error, honest intervals."""

from itertools import product
from math import comb, factorial

import pytest
import torch
from torch import Tensor

from tests.estimators.games import digit_like
from vitshap.coalitions import Coalitions
from vitshap.estimators.adaptive import AdaptiveState
from vitshap.estimators.kernel import kernelshap
from vitshap.game import Game

GROUPS, EACH = 5, 6
D = GROUPS * EACH


def certain_early(batch_size: int = 1, classes: int = 3) -> tuple[Game, Tensor]:
    """A classifier that is certain once some of each kind of player is there, with its Shapley values ``[B, d, K]``.

    It sees how many players of each of five kinds take part, so that sums over 7^5 counts give the truth.
    """
    generator = torch.Generator().manual_seed(3)
    kinds = torch.eye(GROUPS, dtype=torch.float64).repeat_interleave(EACH, 0)  # [d, groups]
    inner = torch.randn(GROUPS, 16, generator=generator, dtype=torch.float64)
    outer = torch.randn(batch_size, 16, classes, generator=generator, dtype=torch.float64)
    evidence = torch.rand(batch_size, GROUPS, 1, generator=generator, dtype=torch.float64)

    def by_counts(counts: Tensor) -> Tensor:  # [B, S, groups]
        share = counts / EACH
        logits = 1.5 * torch.tanh(4 * (share - 0.4) @ inner) @ outer
        first = 12 * (share @ evidence) - 3
        return torch.softmax(torch.cat([logits[..., :1] + first, logits[..., 1:]], -1), -1)

    def value(s: Coalitions) -> Tensor:
        return by_counts(s.to(torch.float64) @ kinds)

    lattice = torch.tensor(list(product(range(EACH + 1), repeat=GROUPS)), dtype=torch.float64)
    values = by_counts(lattice.expand(batch_size, -1, -1)).view(batch_size, *[EACH + 1] * GROUPS, classes)
    truth = []
    for g in range(GROUPS):
        low, high = values.narrow(1 + g, 0, EACH), values.narrow(1 + g, 1, EACH)
        weights = []
        for counts in product(*[range(EACH + (h != g)) for h in range(GROUPS)]):
            ways = 1
            for h, n in enumerate(counts):
                ways *= comb(EACH - (h == g), n)
            weights.append(ways * factorial(sum(counts)) * factorial(D - 1 - sum(counts)) / factorial(D))
        weight = torch.tensor(weights, dtype=torch.float64).view(low.shape[1:-1])
        truth.append(((high - low) * weight[..., None]).flatten(1, -2).sum(1))
    game = Game(value, num_players=D, num_outputs=classes, batch_size=batch_size)
    return game, torch.stack(truth, 1).repeat_interleave(EACH, 1)


@pytest.fixture(scope="module")
def repeated() -> tuple[Tensor, Tensor, Tensor]:
    """Values and standard errors of 100 seeds ``[100, d, K]``, and the truth."""
    game, truth = certain_early()
    runs = [kernelshap(game, budget=3000, seed=seed) for seed in range(100)]
    errors = [run.stderr[0] for run in runs if run.stderr is not None]
    return torch.stack([run.values[0] for run in runs]), torch.stack(errors), truth[0]


def test_values_add_up() -> None:
    game, truth = certain_early(2)
    torch.testing.assert_close(truth.sum(1), game.grand - game.null)


def test_error_is_a_fraction_of_that_of_pairs(repeated: tuple[Tensor, Tensor, Tensor]) -> None:
    values, _, truth = repeated
    game, _ = certain_early()
    pairs = torch.stack([kernelshap(game, budget=3000, seed=seed, sampling="balanced").values[0] for seed in range(16)])
    assert (pairs - truth).square().mean() > 1.4 * (values - truth).square().mean()


def test_a_thin_pilot_helps_from_a_few_hundred_evaluations_on() -> None:
    game, truth = certain_early()
    error = {}
    for sampling in ("balanced", "adaptive"):
        runs = [kernelshap(game, budget=256, seed=seed, sampling=sampling) for seed in range(10)]
        error[sampling] = sum(float((run.values - truth).square().mean()) for run in runs)
    assert error["adaptive"] < 0.85 * error["balanced"]
    told = sum(float(run.stderr.square().mean()) for run in runs if run.stderr is not None)
    assert 0.7 < told / error["adaptive"] < 1.4


def test_a_thin_pilot_has_units_of_every_size() -> None:
    state = AdaptiveState(certain_early()[0], True, "auto", "adaptive", 4096, 0)
    assert state.advance(200) <= 200
    assert state.switched
    assert int(state._counts_now.min()) >= 1


def test_bias_is_a_small_part_of_the_error(repeated: tuple[Tensor, Tensor, Tensor]) -> None:
    values, _, truth = repeated
    bias = (values.mean(0) - truth).square() - values.var(0) / len(values)  # what chance leaves of a mean is taken off
    assert float(bias.mean()) < 0.01 * float((values - truth).square().mean())


def test_intervals_contain_the_exact_values(repeated: tuple[Tensor, Tensor, Tensor]) -> None:
    values, stderr, truth = repeated
    inside = ((values - truth).abs() <= 1.96 * stderr).to(torch.float64)
    assert 0.92 < float(inside.mean()) < 0.98
    assert float(inside.mean((0, 2)).min()) > 0.88
    told = stderr.square().mean().sqrt() / (values - truth).square().mean().sqrt()
    assert 0.9 < float(told) < 1.1


def test_inputs_have_their_own_coalitions() -> None:
    game, truth = certain_early(3)
    asked: list[Coalitions] = []
    value = game._value

    def record(s: Coalitions) -> Tensor:
        asked.append(s)
        return value(s)

    watched = Game(record, num_players=D, num_outputs=3, batch_size=3)
    estimate = kernelshap(watched, budget=4001)
    sizes = torch.cat(asked, 1).sum(-1).to(torch.float64)
    assert 3990 <= watched.evaluations <= 4001
    assert watched.evaluations == estimate.evaluations
    assert len(set(sizes.mean(1).tolist())) == 3
    assert float(sizes.mean()) < 0.45 * D  # more small coalitions than large ones
    torch.testing.assert_close(estimate.values.sum(1), game.grand - game.null)
    assert float((estimate.values - truth).abs().max()) < 0.05


def test_watched_runs_switch_too_and_stop_at_the_threshold() -> None:
    game, truth = certain_early(2)
    seen: list[int] = []
    estimate = kernelshap(
        game, budget=60_000, threshold=0.05, progress=lambda partial: seen.append(partial.evaluations)
    )
    assert bool(estimate.converged.all())
    assert seen == sorted(set(seen))
    assert estimate.stderr is not None
    assert float(((estimate.values - truth) / estimate.stderr).square().mean()) < 2


def test_games_whose_coalitions_can_be_listed_stay_with_pairs() -> None:
    game = digit_like(14, 2)
    one, other = (kernelshap(game, budget=900, seed=1, sampling=how) for how in ("adaptive", "balanced"))
    torch.testing.assert_close(one.values, other.values, rtol=0, atol=0)


def test_a_game_of_which_pairs_take_the_noise_stays_with_them() -> None:
    weights = torch.randn(D, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def value(s: Coalitions) -> Tensor:
        x = s.to(torch.float64)
        return x @ weights + ((2 * x - 1) @ weights) ** 2  # even orders cancel within pairs only

    state = AdaptiveState(Game(value, num_players=D, num_outputs=1), True, "auto", "adaptive", 4096, 0)
    assert state.advance(3000) == 3000
    assert not state.switched
    state = AdaptiveState(certain_early()[0], True, "auto", "adaptive", 4096, 0)
    state.advance(3000)
    assert state.switched


@pytest.mark.parametrize("players", [40, 196])
def test_evaluations_in_small_steps_never_exceed_the_goal(players: int) -> None:
    """Pairs of the first steps need not be of every size, which the pilot then adds."""
    weights = torch.linspace(-1, 2, players, dtype=torch.float64)

    def value(coalitions: Coalitions) -> Tensor:
        return torch.sigmoid(coalitions.double() @ weights * 6 / players - 1).view(1, -1, 1)

    game = Game(value, num_players=players, num_outputs=1, batch_size=1)
    switched = 0
    for seed in range(10):
        state = AdaptiveState(game, True, "auto", "adaptive", 4096, seed)
        goal = 2 + players
        while goal < 12 * players:
            assert goal - 4 <= state.advance(goal) <= goal
            goal = int(1.2 * goal)
        switched += state.switched
    assert switched > 0
