"""95 % intervals hold the truth in 95 % of repetitions, as look-ups in a table of all values."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from vitshap.bench.estimators import digit_tables, from_table, softmax_table
from vitshap.estimators.estimate import Estimate
from vitshap.estimators.exact import exact
from vitshap.estimators.kernel import kernelshap
from vitshap.estimators.permutation import permutation
from vitshap.game import Game


def coverage(table: Tensor, estimator: Callable[[Game, int], Estimate], repetitions: int) -> tuple[float, float]:
    """Share of intervals that hold the truth: mean over players and classes, and the smallest player's.

    ``table``: values of all coalitions, ``[2^d, K]``; row number's bits are the members.
    """
    game = from_table(table)
    truth = exact(game).values
    inside = torch.zeros_like(truth)
    for seed in range(repetitions):
        low, high = estimator(game, seed).interval()
        inside += (low <= truth) & (truth <= high)
    share = inside / repetitions
    return float(share.mean()), float(share.mean((0, 2)).min())


@pytest.mark.parametrize(
    "estimator",
    [
        lambda game, seed: kernelshap(game, budget=1500, seed=seed),
        lambda game, seed: kernelshap(game, budget=1500, seed=seed, moments="exact"),
        lambda game, seed: kernelshap(game, budget=1500, seed=seed, moments="sampled"),
        lambda game, seed: kernelshap(game, budget=1500, seed=seed, paired=False),
        lambda game, seed: kernelshap(game, budget=1500, seed=seed, size_effect=False),
        lambda game, seed: kernelshap(game, budget=1500, seed=seed, size_effect=False, moments="exact"),
        lambda game, seed: permutation(game, budget=1500, seed=seed),
    ],
    ids=["default", "exact", "sampled", "unpaired", "plain", "plain-exact", "permutation"],
)
def test_intervals_of_twelve_players(estimator: Callable[[Game, int], Estimate]) -> None:
    mean, least = coverage(softmax_table(12, 10), estimator, repetitions=80)
    assert 0.92 < mean < 0.98
    assert least > 0.88


@pytest.mark.parametrize(("players", "budget"), [(12, 72), (16, 48), (16, 96)])
def test_intervals_from_few_evaluations(players: int, budget: int) -> None:
    mean, least = coverage(
        softmax_table(players, 10), lambda game, seed: kernelshap(game, budget=budget, seed=seed), 60
    )
    assert 0.93 < mean < 0.98
    assert least > 0.90


@pytest.fixture(scope="module")
def digit_table() -> Tensor:
    """All 65,536 values of a digit under a small ViT."""
    return digit_tables(1)[0]


@pytest.mark.long
@pytest.mark.parametrize("budget", [2000, 8000])
@pytest.mark.parametrize("which", ["digit", "random softmax net"])
def test_intervals_of_sixteen_players(budget: int, which: str, digit_table: Tensor) -> None:
    table = digit_table if which == "digit" else softmax_table(16)
    mean, least = coverage(table, lambda game, seed: kernelshap(game, budget=budget, seed=seed), 250)
    print(f"{which}, {budget} evaluations: coverage {mean:.4f}, worst player {least:.4f}")
    assert 0.93 <= mean <= 0.97
    assert least >= 0.90
