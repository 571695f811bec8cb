"""Losses against their definitions, and Theorem 1 where everything is exact."""

import pytest
import torch
from torch.distributions import Bernoulli, Categorical, kl_divergence
from transformers import ViTConfig, ViTForImageClassification

from vitshap.analytic import random_unanimity
from vitshap.coalitions import all_coalitions, harmonic_number, shapley_kernel
from vitshap.data import CachedPixels
from vitshap.explainers.network import normalised
from vitshap.models import wrap
from vitshap.training.objectives import (
    class_importance,
    class_weights,
    classification_loss,
    classification_metrics,
    explainer_loss,
    surrogate_loss,
    uniform_explanation,
)
from vitshap.training.recipes import load_recipe


def _logits(*shape: int, seed: int = 0) -> torch.Tensor:
    return 3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_surrogate_losses_are_divergences() -> None:
    f, g = _logits(4, 5), _logits(4, 3, 5, seed=1)
    wide = f[:, None].expand_as(g)
    softmax = kl_divergence(Categorical(logits=wide), Categorical(logits=g)).mean()
    sigmoid = kl_divergence(Bernoulli(logits=wide), Bernoulli(logits=g)).sum(-1).mean()
    torch.testing.assert_close(surrogate_loss(f, g, "softmax"), softmax)
    torch.testing.assert_close(surrogate_loss(f, g, "sigmoid"), sigmoid)
    torch.testing.assert_close(surrogate_loss(f, g, "identity"), (wide - g).square().sum(-1).mean())
    for output in ("softmax", "sigmoid", "identity"):
        assert surrogate_loss(f, f, output).abs() < 1e-6


def test_surrogate_losses_survive_half_precision_and_extreme_logits() -> None:
    f, g = torch.tensor([[40.0, -40.0]]), torch.tensor([[-40.0, 40.0]])
    for output in ("softmax", "sigmoid"):
        loss = surrogate_loss(f.half(), g.half().requires_grad_(), output)
        assert loss.dtype == torch.float32
        assert torch.isfinite(loss)
        assert loss > 70


def test_classification_losses() -> None:
    logits, labels = _logits(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
    weights = torch.tensor([1.0, 2.0, 3.0])
    picked = -logits.log_softmax(-1)[torch.arange(6), labels]
    torch.testing.assert_close(classification_loss(logits, labels, "softmax"), picked.mean())
    weighted = classification_loss(logits, labels, "softmax", weights)
    torch.testing.assert_close(weighted, (weights[labels] * picked).mean())
    halves = [classification_loss(logits[i::2], labels[i::2], "softmax", weights) for i in range(2)]
    torch.testing.assert_close(weighted, sum(halves) / 2)  # as two processes take them
    one, binary = _logits(6, 1), torch.tensor([0, 1, 1, 0, 1, 0])
    chance = one[:, 0].sigmoid()
    losses = -torch.where(binary == 1, chance.log(), (1 - chance).log())
    torch.testing.assert_close(classification_loss(one, binary, "sigmoid"), losses.mean())
    pair = torch.tensor([1.0, 4.0])
    torch.testing.assert_close(classification_loss(one, binary, "sigmoid", pair), (pair[binary] * losses).mean())
    torch.testing.assert_close(classification_loss(one, binary, "identity"), (one[:, 0] - binary).square().mean())


def test_smoothed_labels_are_of_the_class_that_they_are_nearer_to() -> None:
    logits, hard = torch.tensor([[3.0], [-3.0], [2.0], [-1.0]]), torch.tensor([1, 0, 1, 0])
    smooth = 0.05 + 0.9 * hard
    found = classification_metrics(logits, smooth, "sigmoid")
    assert (found["accuracy"], found["kappa"]) == (1, 1)
    loss = -(smooth * logits[:, 0].sigmoid().log() + (1 - smooth) * (-logits[:, 0]).sigmoid().log())
    weights = torch.tensor([1.0, 4.0])
    by_hand = ((1 - smooth) * weights[0] + smooth * weights[1]) * loss
    torch.testing.assert_close(classification_loss(logits, smooth, "sigmoid", weights), by_hand.mean())


def test_muras_weights_make_the_frequent_class_count_more_and_balanced_ones_less() -> None:
    """As the authors did it: 21,935 normal and 14,873 abnormal images, each weighed by its own share, a plain mean."""
    weights = torch.tensor(load_recipe("paper-mura").classifier.class_weights)
    torch.testing.assert_close(weights, torch.tensor([21935.0, 14873.0]) / 36808, rtol=0, atol=5e-4)
    logits, labels = _logits(8, 1), torch.tensor([0, 0, 0, 1, 0, 0, 1, 0])
    share = torch.where(labels == 1, 14873.0, 21935.0) / 36808
    by_hand = share * torch.nn.functional.softplus(torch.where(labels == 1, -1, 1) * logits[:, 0])
    torch.testing.assert_close(
        classification_loss(logits, labels, "sigmoid", weights), by_hand.mean(), rtol=1e-3, atol=0
    )
    source = CachedPixels(torch.zeros(8, 1, 8, 8), labels, torch.arange(8))
    size = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    vit = ViTConfig(image_size=8, patch_size=4, num_channels=1, num_labels=1, **size)
    model = wrap(ViTForImageClassification(vit), output="sigmoid")
    balanced = class_weights("balanced", source, model)
    torch.testing.assert_close(balanced, torch.tensor([8 / 12, 8 / 4]))
    torch.testing.assert_close(class_weights((0.596, 0.404), source, model), weights)
    with pytest.raises(ValueError, match="class_weights must be 2 numbers"):
        class_weights((1.0,), source, model)


def test_the_predicted_class_counts_more_where_outputs_are_probabilities() -> None:
    full = torch.tensor([[1.0, 0, 0, 0], [0.5, 0.5, 0, 0]])
    torch.testing.assert_close(class_importance(full, "softmax", 0.0), torch.ones(2, 4))
    expected = torch.tensor([[1 + 3.0, 1, 1, 1], [2.5, 2.5, 1, 1]])  # 3: as all others together
    torch.testing.assert_close(class_importance(full, "softmax", 1.0), expected)
    for output in ("sigmoid", "identity"):
        torch.testing.assert_close(class_importance(full, output, 1.0), torch.ones(2, 4))


def test_explainer_loss_is_the_mean_over_tuples_times_d() -> None:
    values, coalition_values, base = _logits(2, 4, 3), _logits(2, 5, 3, seed=1), _logits(2, 3, seed=2)
    coalitions = torch.rand(2, 5, 4, generator=torch.Generator().manual_seed(3)) < 0.5
    total = 0.0
    for i in range(2):
        for j in range(5):
            for c in range(3):
                predicted = sum(float(values[i, p, c]) for p in range(4) if coalitions[i, j, p])
                total += (float(coalition_values[i, j, c]) - float(base[i, c]) - predicted) ** 2
    assert float(explainer_loss(values, coalitions, coalition_values, base)) == pytest.approx(4 * total / 30, rel=1e-5)


def _exact_loss(game, values: torch.Tensor) -> torch.Tensor:
    """The unscaled objective by enumeration, [B, K]."""
    coalitions = all_coalitions(game.num_players)
    law = shapley_kernel(game.num_players)
    size = coalitions.sum(1)
    count = torch.bincount(size)
    weight = (law.size_probabilities / count)[size]  # [2^d]
    residual = game(coalitions) - game.null[:, None] - coalitions.double() @ values
    return (weight[:, None] * residual.square()).sum(1)


def test_theorem_1_and_the_optimum_at_the_shapley_values() -> None:
    game = random_unanimity(7, batch_size=3, num_outputs=2, terms=40)
    truth = game.shapley_values
    best = _exact_loss(game, truth)
    for seed in range(5):
        noise = torch.randn(truth.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        values = normalised(truth + 0.3 * noise, game.null, game.grand)
        torch.testing.assert_close(values.sum(1), game.grand - game.null)
        loss = _exact_loss(game, values)
        assert (loss > best).all()
        bound = (2 * harmonic_number(6) * (loss - best)).sqrt()
        distance = (values - truth).norm(dim=1)
        assert (distance <= bound + 1e-9).all()
        assert (distance > 0.5 * bound).all(), "the bound is tight on vectors that sum to zero"
    uniform = uniform_explanation(game.null, game.grand, 7)
    torch.testing.assert_close(uniform.sum(1), game.grand - game.null)
