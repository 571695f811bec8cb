"""Split-half reliability against what it claims to be: the squared correlation with the truth."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from tests.estimators.games import size_effect
from tests.small_nets import random_images, small_net
from vitshap import method
from vitshap.analytic import additive
from vitshap.estimators.estimate import (
    correlation,
    error_ratios,
    reliability_from_errors,
    spearman_brown,
    split_half,
)
from vitshap.estimators.kernel import kernelshap
from vitshap.estimators.permutation import permutation


def test_reliability_is_the_squared_correlation_with_exact_values() -> None:
    game = size_effect(40, batch_size=8, num_outputs=3, noise=0.3)
    estimate, reliability = split_half(partial(kernelshap, size_effect=False), game, budget=1000)
    squared = correlation(estimate.values, game.shapley_values) ** 2
    assert 0.2 < float(squared.mean()) < 0.98  # neither hopeless nor trivial
    assert float(reliability.mean()) == pytest.approx(float(squared.mean()), abs=0.06)
    assert float(reliability_from_errors(estimate).mean()) == pytest.approx(float(squared.mean()), abs=0.06)


def test_the_budget_is_that_of_both_halves() -> None:
    game = size_effect(20)
    estimate, _ = split_half(kernelshap, game, budget=1001)
    assert game.evaluations == estimate.evaluations <= 1001
    assert estimate.evaluations > 990


def test_both_halves_are_better_than_one() -> None:
    game = size_effect(20, batch_size=4, noise=0.3)
    both, _ = split_half(kernelshap, game, budget=2000)
    one = kernelshap(game, budget=1001)
    assert both.stderr is not None
    assert one.stderr is not None
    assert float(both.stderr.mean() / one.stderr.mean()) == pytest.approx(0.5**0.5, rel=0.1)


def test_spearman_brown_by_hand() -> None:
    assert spearman_brown(torch.tensor([0.5, 1.0, 0.0, -1.0])).tolist() == pytest.approx([2 / 3, 1, 0, -1])


def test_outputs_without_differences_between_players() -> None:
    same = torch.ones(1, 5, 1)
    assert correlation(same, same).item() == 1
    assert correlation(same, 2 * same).item() == 0


def test_the_reliability_of_an_explanation_is_per_image_and_class_and_knows_absent_players() -> None:
    labels = torch.stack([torch.arange(9).view(3, 3), (torch.arange(9) % 4).view(3, 3)])
    model = small_net()
    explain = method("kernelshap", model, players=labels, budget=60, sampling="shapley")
    found = reliability_from_errors(explanation := explain(random_images(model, 2), target=[1, 3]))
    assert found.shape == (2, 2)
    for image, players in ((0, 9), (1, 4)):
        values, stderr = explanation.values[image, :players].double(), explanation.stderr[image, :players].double()
        expected = (1 - stderr.square().mean(0) / values.var(0)).clamp(min=0)
        torch.testing.assert_close(found[image], torch.where((stderr > 0).any(0), expected, 1.0))
    assert 0 < float(found[0].min()) < 1
    with pytest.raises(ValueError, match="this leave-one-out estimate has no standard errors"):
        reliability_from_errors(method("leave-one-out", model)(random_images(model, 1)))


def test_pure_noise_has_no_reliability() -> None:
    estimate = permutation(additive(torch.ones(1, 10, 1)), budget=200)
    noisy = replace(estimate, stderr=torch.ones_like(estimate.values))
    assert reliability_from_errors(noisy).tolist() == [[0.0]]  # equal values: nothing but error differs between players


def test_no_reliability_without_errors() -> None:
    with pytest.raises(ValueError, match="larger budget"):
        reliability_from_errors(permutation(additive(torch.ones(1, 10, 1)), budget=20))


def test_absent_players_count_neither_in_ratios_nor_in_correlations() -> None:
    generator = torch.Generator().manual_seed(0)
    one, two = (3 + torch.randn(2, 6, 3, generator=generator, dtype=torch.float64) for _ in range(2))
    stderr = torch.rand(2, 6, 3, generator=generator, dtype=torch.float64)
    mask = torch.tensor([[True] * 4 + [False] * 2, [True] * 6])
    absent = ~mask[..., None]
    masked = [each.masked_fill(absent, 0.0) for each in (one, two, stderr)]
    ratios, found = error_ratios(masked[0], masked[2], mask), correlation(masked[0], masked[1], mask)
    torch.testing.assert_close(ratios[:1], error_ratios(one[:1, :4], stderr[:1, :4]))
    torch.testing.assert_close(found[:1], correlation(one[:1, :4], two[:1, :4]))
    torch.testing.assert_close(found[1:], correlation(one[1:], two[1:]))
    assert bool((error_ratios(masked[0], masked[2])[0] < ratios[0]).all()), "zeros of absent players widen the range"
