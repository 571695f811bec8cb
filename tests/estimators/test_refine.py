"""A prior corrected by evaluations: its limits, the posterior by direct linear algebra, honest intervals, bad priors."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.estimators.games import digit_like, noisy_prior, relative_error, size_effect
from tests.models import nets
from tests.small_nets import random_images, small_net
from vitshap.analytic import additive
from vitshap.estimators.estimate import error_share, reliability_from_errors
from vitshap.estimators.exact import exact
from vitshap.estimators.kernel import kernelshap
from vitshap.estimators.posterior import Prior, posterior
from vitshap.estimators.priors import explained_prior, read_tokens, token_prior
from vitshap.estimators.refine import correction_needs, equal_shares, refine
from vitshap.explainers import Explainer
from vitshap.methods import method
from vitshap.models import wrap

RANDOM = torch.Generator().manual_seed(0)


def test_the_posterior_is_that_of_linear_algebra() -> None:
    d, white, amplitude, noise = 7, 0.3, 0.4, 0.05
    tokens = torch.randn(1, d, 3, generator=RANDOM, dtype=torch.float64)
    similarity = torch.exp(-(torch.cdist(tokens, tokens) ** 2))
    residual = 0.5 * torch.randn(1, d, 2, generator=RANDOM, dtype=torch.float64)
    residual = residual - residual.mean(1, keepdim=True)
    present = torch.ones(1, d, dtype=torch.bool)
    centring = torch.eye(d, dtype=torch.float64) - 1 / d
    covariance = centring @ ((1 - white) * similarity[0] + white * torch.eye(d, dtype=torch.float64)) @ centring
    covariance = covariance * (d - 1) / covariance.trace()
    prior = Prior(
        torch.zeros(1, d, 2, dtype=torch.float64),
        similarity[:, None],
        torch.full((1, 2), amplitude, dtype=torch.float64),
        spread=1e-9,
        white=white,
    )
    stderr = torch.full_like(residual, (noise * (d - 1) / d) ** 0.5)
    mean, error, spread = posterior(prior, residual, stderr, present)
    assert float(spread.max()) < 1e-6  # the size of the prior error is known
    signal = amplitude * covariance
    gain = signal @ torch.linalg.pinv(signal + noise * centring)
    torch.testing.assert_close(mean[0], gain @ residual[0])
    torch.testing.assert_close(error[0, :, 0].square(), (signal - gain @ signal).diagonal(), rtol=1e-5, atol=1e-9)


def test_similarities_are_weighted_by_their_evidence() -> None:
    d, white, amplitude, noise = 6, 0.2, 0.5, 0.1
    places = torch.randn(2, 1, d, 2, generator=RANDOM, dtype=torch.float64)
    similarity = torch.exp(-(torch.cdist(places, places) ** 2)).transpose(0, 1)  # [1, 2, d, d]
    residual = 0.5 * torch.randn(1, d, 3, generator=RANDOM, dtype=torch.float64)
    residual = residual - residual.mean(1, keepdim=True)
    known = {"variance": torch.full((1, 3), amplitude, dtype=torch.float64), "spread": 1e-9, "white": white}
    prior = Prior(torch.zeros(1, d, 3, dtype=torch.float64), similarity, **known)
    stderr = torch.full_like(residual, (noise * (d - 1) / d) ** 0.5)
    everyone = torch.ones(1, d, dtype=torch.bool)
    mean, error, _ = posterior(prior, residual, stderr, everyone)
    contrasts = torch.linalg.svd(torch.eye(d, dtype=torch.float64) - 1 / d)[0][:, : d - 1]  # of centred values
    alone, densities = [], []
    for one in similarity[0]:
        covariance = contrasts.T @ ((1 - white) * one + white * torch.eye(d, dtype=torch.float64)) @ contrasts
        covariance = amplitude * covariance * (d - 1) / covariance.trace()
        density = torch.distributions.MultivariateNormal(
            torch.zeros(d - 1, dtype=torch.float64), covariance + noise * torch.eye(d - 1, dtype=torch.float64)
        )
        densities.append(density.log_prob((contrasts.T @ residual[0]).T).sum())  # all outputs
        alone.append(posterior(replace(prior, similarity=one[None, None]), residual, stderr, everyone))
    weight = torch.stack(densities).softmax(0)
    assert float(weight.min()) > 0.01  # otherwise one of them would be all
    expected = (weight[:, None, None] * torch.stack([one.mean[0] for one in alone])).sum(0)
    torch.testing.assert_close(mean[0], expected)
    apart = torch.stack([one.stderr[0].square() + (one.mean[0] - expected).square() for one in alone])
    torch.testing.assert_close(error[0].square(), (weight[:, None, None] * apart).sum(0))


def test_near_players_are_alike_in_the_second_similarity(model: Any) -> None:
    pixels = random_images(model, 1)
    tokens = read_tokens(model.adapter, pixels, model.game(pixels).players)
    assert tokens is not None
    alike, near = tokens.similarity[0]
    ratio = near / alike
    torch.testing.assert_close(ratio[0, 1], torch.tensor(-1 / (2 * 1.5**2), dtype=torch.float64).exp())  # neighbours
    torch.testing.assert_close(ratio[0, 8], torch.tensor(-8 / (2 * 1.5**2), dtype=torch.float64).exp())  # corners


@pytest.mark.parametrize("name", nets.FAMILIES)
def test_attention_of_the_last_block_is_that_of_the_method(name: str) -> None:
    model = wrap(nets.FAMILIES[name]().eval())
    pixels = random_images(model, 2).float()
    game = model.game(pixels)
    tokens = read_tokens(model.adapter, pixels, game.players)
    assert tokens is not None
    if model.adapter.readout_weights() is not None:  # an attention pooling head reads through its own attention
        read = method("attention-last", model)(pixels).values[..., 0].double()
        torch.testing.assert_close(tokens.attention, read / read.mean(1, keepdim=True), rtol=1e-4, atol=1e-5)
    expected = tokens.attention
    torch.testing.assert_close(expected.mean(1), torch.ones(2, dtype=torch.float64))
    prior = token_prior(game, tokens)
    assert prior.similarity is not None
    variance = prior.similarity.diagonal(dim1=2, dim2=3)  # [B, 4, d]
    wanted = [expected.sqrt() + 0.1, expected.sqrt() + 0.1, expected + 0.1, expected + 0.1]
    torch.testing.assert_close(variance, torch.stack(wanted, 1), rtol=1e-5, atol=1e-7)


def test_without_evaluations_it_is_the_prior_and_with_all_of_them_exact() -> None:
    game = digit_like(8, 3)
    truth = exact(game).values
    prior = noisy_prior(truth, 0.02)
    few = refine(game, prior, budget=correction_needs(8) - 1)
    torch.testing.assert_close(few.values, prior.mean)
    assert few.stderr is not None
    assert few.evaluations == 2
    torch.testing.assert_close(few.stderr, prior.stderr)
    torch.testing.assert_close(refine(game, prior, budget=256).values, truth, atol=1e-9, rtol=0)


def test_efficiency_is_exact_whatever_the_prior_adds_up_to() -> None:
    game = size_effect(12, batch_size=2)
    wrong = Prior(torch.randn(2, 12, 2, generator=RANDOM, dtype=torch.float64))
    for budget in (0, 40, 300):
        estimate = refine(game, wrong, budget=budget)
        torch.testing.assert_close(estimate.values.sum(1), game.grand - game.null)
        assert estimate.evaluations <= max(budget, 2)


def test_an_additive_game_and_its_own_values_need_nothing() -> None:
    game = additive(torch.randn(1, 6, 2, generator=RANDOM))
    estimate = refine(game, Prior(game.shapley_values), budget=40)
    torch.testing.assert_close(estimate.values, game.shapley_values)


@pytest.mark.parametrize("size", [0.003, 0.03])
def test_never_worse_than_the_better_of_prior_and_kernelshap(size: float) -> None:
    game = digit_like(12, 6)
    truth = exact(game).values
    for budget in (60, 200, 500):
        errors = torch.zeros(3)
        for seed in range(8):
            prior = noisy_prior(truth, size, seed)
            sampled = kernelshap(game, budget=budget, seed=seed)
            refined = refine(game, prior, budget=budget, seed=seed)
            found = [relative_error(v, truth) ** 2 for v in (prior.mean, sampled.values, refined.values)]
            errors += torch.tensor(found)
        assert float(errors[2]) <= 1.05 * float(errors[:2].min()), (budget, errors)


def test_intervals_of_prior_and_posterior_hold_the_exact_values() -> None:
    game = digit_like(12, 6)
    truth = exact(game).values
    for budget in (0, 60, 200, 500):
        inside, estimated, true = [], [], []
        for seed in range(20):
            estimate = refine(game, noisy_prior(truth, 0.01, seed), budget=budget, seed=seed)
            low, high = estimate.interval()
            inside.append(((low <= truth) & (truth <= high)).double())
            estimated.append(error_share(estimate))
            error = (estimate.values - truth).square().mean(1)
            true.append(error / (truth - truth.mean(1, keepdim=True)).square().mean(1))
        assert 0.92 < float(torch.stack(inside).mean()) < 0.98, budget
        ratio = float(torch.stack(estimated).mean() / torch.stack(true).mean())
        assert 0.6 < ratio < 1.4, (budget, ratio)  # the estimated accuracy is about the true one


def test_a_wrong_size_of_the_prior_error_is_corrected_by_the_evaluations() -> None:
    game = digit_like(12, 6)
    truth = exact(game).values
    prior = noisy_prior(truth, 0.05)
    assert prior.variance is not None
    assert prior.stderr is not None
    trusting = replace(prior, variance=prior.variance / 100, stderr=prior.stderr / 10, spread=1.0)
    refined = refine(game, trusting, budget=800)
    sampled = kernelshap(game, budget=800)
    assert relative_error(refined.values, truth) < 1.3 * relative_error(sampled.values, truth)


@pytest.mark.parametrize("variance", [0.0, 1e-12])
def test_a_prior_that_is_certain_and_wrong_is_corrected_by_the_evaluations(variance: float) -> None:
    game = digit_like(9, 4)
    truth = exact(game).values
    mean = equal_shares(game).mean
    certain = Prior(mean, None, torch.full((1, 4), variance, dtype=torch.float64), stderr=torch.zeros_like(mean))
    errors = [relative_error(refine(game, certain, budget=budget).values, truth) for budget in (2, 200, 512)]
    assert errors[0] > 0.5
    assert errors[1] < 1.1 * relative_error(kernelshap(game, budget=200).values, truth)
    assert errors[2] < 1e-6
    right = refine(game, replace(certain, mean=truth), budget=200)
    assert relative_error(right.values, truth) < 0.1 * errors[1]


def test_equal_values_of_an_explainer_are_not_taken_for_certain(model: Any) -> None:
    pixels = random_images(model, 3)
    truth = method("exact", model)(pixels)
    equal = (truth.full_values - truth.base_values)[:, None] / 9
    prior = replace(truth, values=equal.expand_as(truth.values).clone())
    refined = method("refine", model, prior=prior, budget=60)(pixels)
    error = (refined.values - truth.values).abs()
    assert refined.stderr is not None
    assert float((error <= 1.96 * refined.stderr).double().mean()) > 0.85
    assert float(error.square().mean()) < 0.1 * float((truth.values - prior.values).square().mean())
    every = method("refine", model, prior=prior, budget=512)(pixels)
    torch.testing.assert_close(every.values, truth.values, atol=1e-6, rtol=0)


def test_absent_players_have_no_value() -> None:
    game = digit_like(10, 2)
    game.player_mask = torch.tensor([[True] * 8 + [False] * 2])
    masked = type(game)(
        lambda s: game._value(s & game.player_mask[0]),
        num_players=10,
        num_outputs=2,
        player_mask=game.player_mask,
    )
    estimate = refine(masked, budget=300)
    assert float(estimate.values[:, 8:].abs().max()) == 0
    torch.testing.assert_close(estimate.values.sum(1), (masked.grand - masked.null).double())
    assert float((estimate.values - exact(masked).values).abs().max()) < 0.05


@pytest.fixture(scope="module")
def model() -> Any:
    return small_net((3, 3))


def test_similar_tokens_and_players_of_several_patches(model: Any) -> None:
    pixels = random_images(model, 2)
    game = model.game(pixels)
    tokens = read_tokens(model.adapter, pixels, game.players)
    assert tokens is not None
    similarity = tokens.similarity
    assert similarity.shape == (2, 2, 9, 9)
    torch.testing.assert_close(similarity.diagonal(dim1=2, dim2=3), torch.ones(2, 2, 9, dtype=torch.float64))
    assert float(torch.linalg.eigvalsh(similarity).min()) > -1e-9
    blocks = model.game(pixels, players=2)
    grouped = read_tokens(model.adapter, pixels, blocks.players)
    assert grouped is not None
    assert grouped.similarity.shape == (2, 2, 4, 4)
    assert grouped.attention.shape == (2, 4)
    refined = method("refine", model, players=2, budget=16)(pixels)
    torch.testing.assert_close(refined.values, method("exact", model, players=2)(pixels).values, atol=1e-5, rtol=0)


def test_images_with_players_of_their_own(model: Any) -> None:
    maps = torch.tensor([[[0, 0, 1], [2, 2, 1], [3, 3, 4]], [[0, 0, 0], [1, 1, 1], [2, 2, -1]]])
    pixels = random_images(model, 2)
    truth = method("exact", model, players=maps)(pixels)
    for options in ({"budget": 32}, {"accuracy": 0.999, "budget": 32}):
        refined = method("refine", model, players=maps, **options)(pixels)
        assert float(refined.values[1, 3:].abs().max()) == 0
        torch.testing.assert_close(refined.values, truth.values, atol=1e-4, rtol=0)


def test_the_method_corrects_an_explainer_and_an_explanation(model: Any) -> None:
    pixels = random_images(model, 3)
    truth = method("exact", model)(pixels).values
    for prior in ("tokens", Explainer(model), method("kernelshap", model, budget=30, seed=5)(pixels)):
        explanation = method("refine", model, prior=prior, budget=200)(pixels, target=[0, 2])
        assert explanation.posterior
        assert explanation.additive
        assert explanation.method == "refine"
        assert float((explanation.values - truth[..., [0, 2]]).abs().max()) < 0.05
        assert 0 < float(reliability_from_errors(explanation).min()) <= 1
        low, high = explanation.interval(0.5)
        assert bool((low <= explanation.values).all())
        assert bool((explanation.values <= high).all())


def test_errors_of_an_uncalibrated_explainer_may_grow_with_attention_or_not(model: Any) -> None:
    images = random_images(model, 2)
    game, tokens = model.game(images), read_tokens(model.adapter, images, model.players)
    explanation = Explainer(model)(images)
    prior = explained_prior(explanation, game, explanation.classes, tokens)
    assert tokens is not None
    assert prior.similarity is not None
    covariances = [tokens.similarity, token_prior(game, tokens).similarity]
    torch.testing.assert_close(prior.similarity, torch.cat(covariances, 1))
    torch.testing.assert_close(prior.mean, explanation.values.double())
    known = explanation.values.double()
    torch.testing.assert_close(prior.variance, 0.2 * torch.maximum(known.var(1), known.mean(1).square()))


def test_too_few_evaluations_return_the_prior_and_say_so(model: Any) -> None:
    pixels = random_images(model, 1)
    explainer = Explainer(model)
    with pytest.warns(UserWarning, match="the values are the prior's"):
        explanation = method("refine", model, prior=explainer, budget=4)(pixels)
    torch.testing.assert_close(explanation.values, explainer(pixels).values, atol=1e-6, rtol=0)
    assert explanation.stderr is None
    assert explanation.evaluations == 2


def test_priors_of_something_else_are_refused(model: Any) -> None:
    pixels, others = random_images(model, 2), random_images(model, 2, seed=9)
    known = method("kernelshap", model, budget=60)(pixels, target=[0, 1])

    def refused(match: str, prior: Any, images: Tensor = pixels, **options: Any) -> None:
        with pytest.raises((ValueError, TypeError), match=match):
            method("refine", model, prior=prior, **options)(images, target=[0, 1])

    refused("other images or another model", known, others)
    refused("explains 2 images, and 1 are given", known, pixels[:1])
    refused("players or their grid", known, players=2)
    refused("lacks some of the classes", known.select([0]))
    refused("not additive", method("leave-one-out", model)(pixels, target=[0, 1]))
    refused("belongs to the surrogate", Explainer(_other()))
    refused("prior is one of tokens", "token")
    refused('prior is "tokens", an Explainer', 3)


def _other() -> Any:
    net = small_net((3, 3))
    with torch.no_grad():
        next(net.net.parameters()).add_(0.1)
    return net


def test_equal_shares_are_the_answer_without_anything() -> None:
    game = digit_like(8, 2)
    expected = ((game.grand - game.null) / 8)[:, None].expand(1, 8, 2)
    torch.testing.assert_close(equal_shares(game).mean, expected.double())
    estimate = refine(game, budget=2)
    assert estimate.stderr is None
    torch.testing.assert_close(estimate.values, expected.double())
