"""The pilot: single coalitions or pairs, and the sizes where values spread."""

import pytest
import torch
from torch import Tensor

from vitshap.coalitions import shapley_kernel
from vitshap.training.values.labels import NoiseWeighting, Plan, noise_weights
from vitshap.training.values.pilot import pilot


def _pilot(value, cost: Tensor | None = None) -> Plan:
    """``value``: coalitions ``[S, d]`` to values ``[S]``, the same for three images."""
    d = 20

    def evaluate(coalitions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        ends = torch.stack([torch.zeros(d), torch.ones(d)]).bool()
        base, full = value(ends)
        coalition_values = value(coalitions)[None, :, None].expand(3, -1, -1)
        return coalition_values, base.expand(3, 1), full.expand(3, 1)

    return pilot(evaluate, d, seed=0, repeats=40, weigh=lambda noise, full: torch.ones_like(noise), cost=cost)


def test_the_pilot_pairs_where_both_sides_are_noisy_and_alike() -> None:
    weights = torch.linspace(-1, 1, 20)
    plan = _pilot(lambda s: (s.float() - 0.5) @ weights + 5 * ((s.float() - 0.5) @ weights).square())
    assert plan.paired
    assert plan.law.is_symmetric


def test_the_pilot_evaluates_the_noisy_side_alone() -> None:
    weights = torch.linspace(-1, 1, 20)
    plan = _pilot(lambda s: torch.where(s.sum(-1) <= 10, s.float() @ weights, torch.zeros(len(s))))
    assert not plan.paired
    assert float(plan.law.size_probabilities[:11].sum()) > 0.9
    assert plan.relative_noise["coalitions"] < plan.relative_noise["pairs"]
    assert float(plan.law.size_probabilities.sum()) == pytest.approx(1)


def test_a_game_without_noise_keeps_the_shapley_kernel() -> None:
    plan = _pilot(lambda s: s.sum(-1).double() / 20)
    torch.testing.assert_close(plan.law.size_probabilities, shapley_kernel(20).size_probabilities)
    torch.testing.assert_close(plan.curve, torch.linspace(0, 1, 21, dtype=torch.float64), atol=1e-9, rtol=0)


def test_dear_coalitions_are_evaluated_less_and_noise_at_equal_cost_falls() -> None:
    weights, size = torch.linspace(-1, 1, 20), torch.arange(21, dtype=torch.float64)

    def value(s: Tensor) -> Tensor:
        return torch.where(s.sum(-1) <= 12, s.float() @ weights, torch.zeros(len(s)))

    cost = 1 + size.square()
    free, priced = (_pilot(value, price) for price in (None, cost))
    means = [float((plan.law.size_probabilities * size).sum()) for plan in (free, priced)]
    assert means[1] < means[0] / 1.5
    spent = []
    for plan in (free, priced):
        assert not plan.paired
        k, q = size[1:20], plan.law.size_probabilities[1:20]
        # the variance of a sum over k members drawn without replacement, and a weight of d / (k (d - k) q)
        spread = torch.where(k <= 12, k * (20 - k), 0.0)
        spent.append(float((20 / (k * (20 - k) * q) * spread).sum() * (q * cost[1:20]).sum()))
    assert spent[1] < 0.8 * spent[0]


def test_sizes_are_those_of_the_images_that_count() -> None:
    players = torch.linspace(-1, 1, 20)

    def evaluate(coalitions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """An image whose values spread in small coalitions, and one with ten times the spread in large ones."""
        effect, small = coalitions.float() @ players, coalitions.sum(-1) <= 10
        coalition_values = torch.stack([effect * small, 10 * effect * ~small])[..., None]
        return coalition_values, torch.zeros(2, 1), torch.ones(2, 1)

    shares = []
    for power in (0.0, 1.0):
        weighing = NoiseWeighting(power)
        plan = pilot(
            evaluate,
            20,
            seed=0,
            repeats=40,
            weigh=lambda noise, _, how=weighing: noise_weights(noise, float(noise.mean()), how),
        )
        shares.append(float(plan.law.size_probabilities[:11].sum()))
    assert shares[0] < 0.2  # by size of the noise: that of the second
    assert shares[1] == pytest.approx(0.5, abs=0.1)  # by relative noise: both equal
