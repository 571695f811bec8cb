"""The stopping rule, partial results and the progress bar."""

import io
from typing import Any

import pytest
import torch
from rich.console import Console

from tests.estimators.games import digit_like, relative_error, size_effect
from vitshap.estimators.estimate import Checkpoint, Estimate, describe_progress, error_ratios, forecast, progress_bar
from vitshap.estimators.exact import exact
from vitshap.estimators.kernel import kernelshap
from vitshap.estimators.permutation import permutation


@pytest.mark.parametrize("estimator", [kernelshap, permutation])
def test_stops_once_the_worst_class_is_converged(estimator: Any) -> None:
    game = digit_like(14, 3)
    estimate = estimator(game, budget=16_000, threshold=0.1)
    assert bool(estimate.converged.all())
    assert game.evaluations == estimate.evaluations < 16_000
    assert float(estimate.ratios().max()) == estimate.history[-1].worst_ratio < 0.1
    assert all(checkpoint.worst_ratio >= 0.1 for checkpoint in estimate.history[:-1])
    assert all(checkpoint.target_ratio <= checkpoint.worst_ratio for checkpoint in estimate.history)


def test_a_threshold_out_of_reach_is_flagged_not_raised() -> None:
    game = digit_like(14, 3)
    estimate = kernelshap(game, budget=700, threshold=1e-4)
    assert not bool(estimate.converged.any())
    assert estimate.evaluations <= 700
    assert len(estimate.history) > 2


def test_inputs_converge_one_by_one() -> None:
    game = size_effect(20, batch_size=2, num_outputs=1)
    easy = game.shapley_values - game.shapley_values.mean(1, keepdim=True)
    inner = game._value
    game._value = lambda s: torch.cat([s[:1].to(torch.float64) @ easy[:1], inner(s)[1:]])  # additive: nothing to err on
    estimate = kernelshap(game, budget=300, threshold=1e-4, moments="sampled")
    assert estimate.converged.tolist() == [True, False]


def test_partial_estimates_improve_and_the_last_is_returned() -> None:
    game = digit_like(14, 3)
    truth = exact(game).values
    seen: list[Estimate] = []
    last = kernelshap(game, budget=6000, progress=seen.append)
    assert seen[-1] is last
    used = [estimate.evaluations for estimate in seen]
    assert used == sorted(set(used))
    errors = [relative_error(estimate.values, truth) for estimate in seen]
    assert errors[-1] < errors[0] / 4
    assert [checkpoint.evaluations for checkpoint in last.history] == used


def test_stages_cost_nothing_in_accuracy() -> None:
    game = digit_like(14, 3)
    truth = exact(game).values
    at_once = [relative_error(kernelshap(game, budget=2000, seed=seed).values, truth) for seed in range(6)]
    staged = [
        relative_error(kernelshap(game, budget=2000, seed=seed, progress=lambda _: None).values, truth)
        for seed in range(6)
    ]
    assert sum(staged) < 1.25 * sum(at_once)


def test_ratio_of_the_given_target() -> None:
    game = digit_like(12, 4)
    estimate = kernelshap(game, budget=300, target=torch.tensor([2]))
    assert estimate.history[-1].target_ratio == pytest.approx(float(estimate.ratios()[0, 2]))


def test_ratios_by_hand() -> None:
    values = torch.tensor([[[1.0, 2.0], [5.0, 2.0]]])
    stderr = torch.tensor([[[0.5, 0.0], [1.0, 0.0]]])
    assert error_ratios(values, stderr).tolist() == [[0.25, 0.0]]
    assert torch.isinf(error_ratios(values, None)).all()


def test_forecast_follows_the_square_root() -> None:
    assert forecast(Checkpoint(1000, 0.2, 0.1), 0.1) == pytest.approx(3000)
    assert forecast(Checkpoint(1000, 0.05, 0.01), 0.1) == 0
    assert "about 3,000 left" in describe_progress(Checkpoint(1000, 0.2, 0.1), 0.1)
    assert "not known yet" in describe_progress(Checkpoint(1000, float("inf"), 0.1), 0.1)


def test_the_forecast_is_about_right() -> None:
    game = size_effect(24, noise=0.1)
    early = kernelshap(game, budget=1000)
    expected = early.evaluations + forecast(early.history[-1], 0.02)
    reached = kernelshap(game, budget=200_000, threshold=0.02).evaluations
    assert expected / 2 < reached < expected * 2


def test_the_bar_shows_ratio_and_what_is_left() -> None:
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=140)
    with progress_bar(4000, 0.05, console=console) as watch:
        kernelshap(digit_like(14, 3), budget=4000, threshold=0.05, progress=watch)
    assert "error/range" in text.getvalue()
    assert "left" in text.getvalue()
    assert "evaluations" in text.getvalue()
