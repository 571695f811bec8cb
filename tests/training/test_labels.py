"""Labels of explainers: the same optimum under every distribution of sizes, no bias, less noise."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vitshap.coalitions import CoalitionLaw, all_coalitions, shapley_kernel
from vitshap.estimators.exact import exact
from vitshap.explainers.network import size_basis
from vitshap.game import Game
from vitshap.training.configs import ValuesConfig
from vitshap.training.explainer import ValuesStep
from vitshap.training.values.labels import (
    EQUAL_WEIGHTS,
    NOISE_PER_PLAYER,
    NoiseWeighting,
    Plan,
    Prediction,
    _subtract_local_mean,
    noise_weights,
    residuals,
    weighted_halves,
)

D = 6


def _table(seed: int, classes: int = 2) -> Tensor:
    """A value for each of the 2^D coalitions, ``[2^D, K]``, with an effect of the size that is far from linear."""
    generator = torch.Generator().manual_seed(seed)
    size = all_coalitions(D).sum(1, keepdim=True).double()
    return torch.randn(2**D, classes, generator=generator, dtype=torch.float64) + 3 * (1 - torch.exp(-size))


def _values(table: Tensor, coalitions: Tensor) -> Tensor:
    return table[(coalitions.long() << torch.arange(D)).sum(-1)]


def _shapley(table: Tensor) -> Tensor:
    def value(coalitions: Tensor) -> Tensor:
        return _values(table, coalitions)

    game = Game(value, num_players=D, num_outputs=table.shape[1], batch_size=1)
    return exact(game).values[0].double()  # [D, K]


def _views(
    table: Tensor, law: CoalitionLaw, views: int, n: int, *, paired: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """``n`` coalitions for each of some views of one image, bool ``[views, n, D]``; and its v(0), v(1) ``[views, K]``."""
    drawn = law.sample(views * n, paired=paired, generator=torch.Generator().manual_seed(0)).view(views, n, D)
    return drawn, table[:1].expand(views, -1).float(), table[-1:].expand(views, -1).float()


def _plan(law: CoalitionLaw, *, paired: bool) -> Plan:
    straight = torch.linspace(0, 1, D + 1, dtype=torch.float64)
    return Plan(law, paired, straight, 1.0, torch.ones(2))


def _law(weights: list[float]) -> CoalitionLaw:
    inner = torch.tensor(weights, dtype=torch.float64)
    return CoalitionLaw(D, torch.cat([torch.zeros(1), inner / inner.sum(), torch.zeros(1)]).double())


laws = st.lists(st.floats(0.05, 1), min_size=D - 1, max_size=D - 1).map(_law)


@given(law=laws, seed=st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_under_every_law_the_optimum_is_the_shapley_values(law: CoalitionLaw, seed: int) -> None:
    table = _table(seed)
    inner = all_coalitions(D)[1:-1]
    sizes = inner.sum(1)
    counts = torch.bincount(sizes, minlength=D + 1).double()
    probability = law.size_probabilities[sizes] / counts[sizes]  # of each coalition
    left = residuals(
        _plan(law, paired=False),
        inner[None],
        _values(table, inner)[None],
        table[:1],
        table[-1:],
        remove_size_effect=False,
    )
    shapley = _shapley(table)
    centred, weights = left.centred[0].double(), left.weights[0].double() * probability
    moved = torch.randn(D + 1, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)[sizes]
    misfit = left.values[0].double() - moved - centred @ shapley  # any function of the size may be taken away
    gradient = torch.einsum("nd,n,nk->dk", centred, weights, misfit)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), atol=1e-5, rtol=0)
    # and the scale is that of the squared distance: the second moment is the identity among players' differences
    moment = torch.einsum("nd,n,ne->de", centred, weights, centred)
    torch.testing.assert_close(moment, torch.eye(D).double() - 1 / D, atol=1e-6, rtol=0)


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("remove_size_effect", [False, True])
def test_labels_have_no_bias(paired: bool, remove_size_effect: bool) -> None:
    table, views, n = _table(3), 20_000, 12
    law = shapley_kernel(D) if paired else _law([0.5, 0.2, 0.1, 0.1, 0.1])
    drawn, base, full = _views(table, law, views, n, paired=paired)
    left = residuals(
        _plan(law, paired=paired), drawn, _values(table, drawn), base, full, remove_size_effect=remove_size_effect
    )
    labels = left.labels().double()
    shapley = _shapley(table)
    error = labels.mean(0) - (shapley - shapley.mean(0))
    standard_error = labels.std(0) / views**0.5
    assert float((error / standard_error).abs().max()) < 4.5
    # the guess of their variance is right, too, within what the fitted curve hides and the mean's own part adds
    variance = labels.var(0).sum(0)
    guessed = left.noise().mean((0, 1)).double() / left.values.shape[1]
    torch.testing.assert_close(guessed, variance, rtol=0.25, atol=0)


@pytest.mark.parametrize("paired", [False, True])
def test_weights_by_the_other_half_leave_no_bias_and_weights_by_the_own_half_do(paired: bool) -> None:
    table, views, n = _table(3), 40_000, 24
    law = shapley_kernel(D) if paired else _law([0.5, 0.2, 0.1, 0.1, 0.1])
    plan = _plan(law, paired=paired)
    drawn, base, full = _views(table, law, views, n, paired=paired)
    values = _values(table, drawn)
    noise = residuals(plan, drawn, values, base, full).noise()
    plan = replace(plan, typical_noise=float(noise.mean()), class_noise=noise.mean((0, 1)))
    centred = _shapley(table) - _shapley(table).mean(0)
    halves = weighted_halves(plan, drawn, values, base, full, weighting=NoiseWeighting())

    def deviation(weights: list[torch.Tensor]) -> float:
        """Of the weighted mean of labels from the values, in standard errors."""
        errors = [
            weight[:, None].double() * (half.labels() - centred)
            for (half, _), weight in zip(halves, weights, strict=True)
        ]
        both = errors[0] + errors[1]
        return float((both.mean(0) / (both.std(0) / views**0.5)).abs().max())

    own_first, own_second = (weights for _, weights in reversed(halves))
    assert deviation([weights for _, weights in halves]) < 4.5
    assert deviation([own_first, own_second]) > 6


def test_a_single_unit_is_weighed_by_its_class() -> None:
    plan = replace(_plan(shapley_kernel(D), paired=False), typical_noise=1.0, class_noise=torch.tensor([1.0, 4.0]))
    drawn = torch.ones(3, 1, D, dtype=torch.bool)
    drawn[:, :, 0] = False
    [(whole, weights)] = weighted_halves(
        plan, drawn, torch.randn(3, 1, 2), torch.zeros(3, 2), torch.ones(3, 2), weighting=NoiseWeighting(1.0)
    )
    assert whole.values.shape == (3, 1, 2)
    torch.testing.assert_close(weights, noise_weights(plan.class_noise, 1.0, NoiseWeighting()).expand(3, 2))


def test_the_explainers_values_tell_noisy_views_from_quiet_ones() -> None:
    """Views that differ in scale only: how much of the information that the best weights would keep is kept."""
    table, law, views, n = _table(3), _law([0.4, 0.2, 0.2, 0.1, 0.1]), 4000, 16
    drawn, base, full = _views(table, law, views, n)
    scale = torch.logspace(-1.5, 0, views)[torch.randperm(views, generator=torch.Generator().manual_seed(1))]
    sized = scale[:, None]
    values = (_values(table, drawn) * scale[:, None, None]).float()
    unit = residuals(_plan(law, paired=False), drawn, _values(table, drawn), base, full).noise().mean((0, 1)).float()
    noise = unit * sized.square()  # [views, K]
    plan = replace(_plan(law, paired=False), typical_noise=float(noise.mean()), class_noise=noise.mean(0))

    def kept(predicted: Tensor | None) -> float:
        halves = weighted_halves(
            plan, drawn, values, sized * base, sized * full, weighting=NoiseWeighting(), predicted=predicted
        )
        weights = halves[0][1]
        variance = (weights.square() * noise).sum(0) / weights.sum(0).square()
        return float((1 / ((1 / noise).sum(0) * variance)).mean())

    informed = kept(_shapley(table).float() * scale[:, None, None])
    assert kept(None) < 0.5 < 0.7 < informed < 1


def test_a_single_unit_is_weighed_by_the_explainers_values() -> None:
    plan = replace(_plan(shapley_kernel(D), paired=False), typical_noise=1.0)
    drawn = torch.arange(D).expand(2, 1, D) > 2
    predicted = torch.stack([torch.arange(D), 2 * torch.arange(D)])[..., None].expand(2, D, 2).float()
    zero = torch.zeros(2, 2)
    [(_, weights)] = weighted_halves(
        plan, drawn, torch.randn(2, 1, 2), zero, zero, weighting=NoiseWeighting(), predicted=predicted
    )
    noise = NOISE_PER_PLAYER * D * 17.5 * torch.tensor([1.0, 4.0])  # 17.5: the sum of squares of 0..5 about their mean
    torch.testing.assert_close(weights, noise_weights(noise, 1.0, NoiseWeighting())[:, None].expand(2, 2))


def test_removing_the_size_effect_removes_noise() -> None:
    table, law = _table(5), shapley_kernel(D)
    drawn, base, full = _views(table, law, 500, 20)
    spread = [
        residuals(_plan(law, paired=False), drawn, _values(table, drawn), base, full, remove_size_effect=on)
        .labels()
        .var(0)
        .sum()
        for on in (False, True)
    ]
    assert spread[1] < 0.8 * spread[0]


@pytest.mark.parametrize("odd", [False, True])
def test_the_curve_leaves_each_coalition_out(odd: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(1, 20, (1, 9), generator=generator)
    values = torch.randn(1, 9, 2, generator=generator)
    left = _subtract_local_mean(values, sizes, 20, odd=odd)
    moved = values.clone()
    moved[0, 4] += 1
    step = _subtract_local_mean(moved, sizes, 20, odd=odd) - left
    torch.testing.assert_close(step[0, 4], torch.ones(2))  # no part of its own curve
    assert float(step[0, :4].abs().max()) > 0  # but of others'


@pytest.mark.parametrize("odd", [False, True])
def test_the_curve_follows_the_size_and_ends_at_the_pilots(odd: bool) -> None:
    sizes = torch.arange(1, 100).repeat(4)[None]
    position = (sizes / (100 - sizes)).log() / 2
    smooth = torch.sin(position)[..., None] if odd else torch.cos(position)[..., None]
    left = _subtract_local_mean(smooth, sizes, 100, odd=odd)
    assert float(left.square().mean()) < 0.02 * float(smooth.square().mean())
    alone = torch.tensor(
        [[1, 99 if not odd else 50]]
    )  # nothing of a similar size: the pilot's curve, which is zero here
    torch.testing.assert_close(_subtract_local_mean(torch.ones(1, 2, 1), alone, 100, odd=odd), torch.ones(1, 2, 1))


def test_settled_values_are_not_disturbed_by_the_spread_at_other_sizes() -> None:
    """Half of the coalitions are small and vary, half are large and do not: nothing is left of the large ones."""
    generator = torch.Generator().manual_seed(0)
    sizes = torch.cat([torch.randint(*ends, (20,), generator=generator) for ends in ((1, 4), (100, 190))])
    values = torch.randn(1, 40, 1, generator=generator) * (sizes < 50)[None, :, None]
    left = _subtract_local_mean(values, sizes[None], 196, odd=False)
    assert float(left[0, 20:].abs().max()) < 1e-6


def test_weights_fall_with_noise_and_are_bounded() -> None:
    noise = torch.tensor([0.0, 1.0, 4.0])
    assert noise_weights(noise, 1.0, NoiseWeighting()).tolist() == pytest.approx([1 / 0.003, 1 / 1.003, 1 / 4.003])
    assert noise_weights(noise, 1.0, EQUAL_WEIGHTS).tolist() == [1, 1, 1]
    root = NoiseWeighting(0.5)
    scaled, plain = noise_weights(4 * noise, 4.0, root), noise_weights(noise, 1.0, root)
    assert scaled.tolist() == pytest.approx((plain / 4).tolist())


def test_the_offset_matters_where_noise_is_large() -> None:
    noise = torch.tensor([0.02, 2.0, 200.0])
    alone, added = (noise_weights(noise, 2.0, NoiseWeighting(1.0, offset)) for offset in (0.0, 0.1))
    torch.testing.assert_close(added - alone, torch.full((3,), 0.1 / 2))
    assert (added / alone).tolist() == pytest.approx([1.0, 1.1, 11.0], rel=5e-3)


def test_pairs_of_the_shapley_kernel_have_one_weight() -> None:
    drawn = shapley_kernel(D).sample(40, paired=True, generator=torch.Generator().manual_seed(0))[None]
    zero = torch.zeros(1, 2)
    left = residuals(_plan(shapley_kernel(D), paired=True), drawn, torch.zeros(1, 40, 2), zero, zero)
    assert left.values.shape == (1, 20, 2)
    assert float(left.weights.max() - left.weights.min()) < 1e-5


def _prediction(seed: int, views: int, scale: float = 1.0) -> Prediction:
    """Some explainer's answer, the same for all views: wrong values and profiles that differ between classes."""
    generator = torch.Generator().manual_seed(seed)
    bumps = len(size_basis(D))
    values = scale * torch.randn(1, D, 2, generator=generator)
    shares = torch.randn(1, bumps, 2, generator=generator).softmax(1)
    return Prediction(values.expand(views, -1, -1), shares.expand(views, -1, -1))


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("remove_size_effect", [False, True])
def test_a_control_variate_leaves_no_bias_however_wrong_it_is(paired: bool, remove_size_effect: bool) -> None:
    table, views, n = _table(3), 20_000, 12
    law = shapley_kernel(D) if paired else _law([0.5, 0.2, 0.1, 0.1, 0.1])
    drawn, base, full = _views(table, law, views, n, paired=paired)
    predicted = _prediction(5, views)
    left = residuals(
        _plan(law, paired=paired),
        drawn,
        _values(table, drawn).float(),
        base,
        full,
        remove_size_effect=remove_size_effect,
        prediction=predicted,
    )
    labels = left.labels().double() + predicted.values - predicted.values.mean(1, keepdim=True)
    shapley = _shapley(table)
    error = labels.mean(0) - (shapley - shapley.mean(0))
    assert float((error / (labels.std(0) / views**0.5)).abs().max()) < 4.5


@pytest.mark.parametrize("paired", [False, True])
def test_the_right_values_and_profile_leave_no_noise(paired: bool) -> None:
    """A game whose effects differ between sizes, but are linear at each: nothing is left of it."""
    generator = torch.Generator().manual_seed(0)
    effects, shares = torch.randn(D, 2, generator=generator), torch.rand(len(size_basis(D)), 2, generator=generator)
    effects, shares = effects - effects.mean(0), shares / shares.sum(0)
    law = shapley_kernel(D)
    drawn = law.sample(30 * 8, paired=paired, generator=generator).view(30, 8, D)
    sizes = drawn.sum(2)
    profile = size_basis(D).T.float()[sizes] @ shares
    values = profile * (drawn.float() @ effects)
    predicted = Prediction(effects.expand(30, -1, -1), shares.expand(30, -1, -1))
    zero = torch.zeros(30, 2)
    plan = _plan(law, paired=paired)
    left = residuals(plan, drawn, values, zero, zero, remove_size_effect=False, prediction=predicted)
    assert float(residuals(plan, drawn, values, zero, zero, remove_size_effect=False).noise().mean()) > 0.1
    assert float(left.values.abs().max()) < 1e-5


def test_the_explainers_gradient_is_the_one_of_unbiased_labels() -> None:
    """The step's loss, differentiated: its mean over many draws is the distance to the Shapley values."""
    table, views, n = _table(3), 20_000, 8
    law = _law([0.4, 0.2, 0.2, 0.1, 0.1])
    drawn, base, full = _views(table, law, views, n)
    predicted = _prediction(6, views, scale=0.3)
    values = predicted.values.clone().requires_grad_()
    halves = weighted_halves(
        _plan(law, paired=False),
        drawn,
        _values(table, drawn).float(),
        base,
        full,
        weighting=EQUAL_WEIGHTS,
        prediction=predicted,
    )
    step = ValuesStep.__new__(ValuesStep)
    step.config = ValuesConfig(loss="control_variate")
    total = sum(step._errors(half, values, predicted).sum() for half, _ in halves) / 2
    (gradient,) = torch.autograd.grad(total, values)
    wrong = predicted.values[0] - predicted.values[0].mean(0) - (_shapley(table) - _shapley(table).mean(0))
    error = gradient.double() / 2 - wrong
    assert float((error.mean(0) / (error.std(0) / views**0.5)).abs().max()) < 4.5
