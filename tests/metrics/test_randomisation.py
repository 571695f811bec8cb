"""Randomisation: the user's network stays as it is, the copy does not, and its complexity is that of Quantus."""

from dataclasses import replace

import numpy as np
import pytest
import timm
import torch
from quantus.functions.complexity_func import discrete_entropy
from scipy import stats

from tests.metrics.games import additive_model
from tests.small_nets import random_images, small_net
from vitshap.explainers import Explainer
from vitshap.methods import method
from vitshap.metrics import randomisation
from vitshap.metrics.randomisation import complexity, weight_groups
from vitshap.models import wrap


def test_layers_are_randomised_from_the_head_and_the_network_is_left_alone():
    model = small_net()
    images = random_images(model, 3)
    explanation = method("leave-one-out", model)(images, target=[0, 2])
    before = model.fingerprint()
    state = torch.get_rng_state()
    found = randomisation(model, images, explanation, layer_by_layer=True)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.fingerprint() == before
    assert found.layers == ("head", "block 1", "block 0", "embedding")
    assert found.similarity.shape == (3, 2, 4)
    assert float(found.similarity[..., -1].abs().mean()) < 0.9
    at_once = randomisation(model, images, explanation, method=lambda copy: method("leave-one-out", copy))
    torch.testing.assert_close(at_once.values, found.values)
    assert at_once.layers == ()
    assert not torch.equal(randomisation(model, images, explanation, seed=7).after, found.after)
    torch.testing.assert_close(found.values, (found.after - found.before) / found.before)


def test_a_method_that_ignores_the_model_is_unchanged():
    model = small_net()
    images = random_images(model, 3)
    explanation = method("random", model)(images)
    found = randomisation(model, images, explanation, layer_by_layer=True)
    torch.testing.assert_close(found.similarity, torch.ones_like(found.similarity))
    assert float(found.values.abs().max()) == 0


def test_similarity_by_hand():
    model = small_net()
    images = random_images(model, 2)
    explanation = method("leave-one-out", model)(images)
    maps = []

    def make(copy):
        def explain(pixels, target):
            maps.append(method("leave-one-out", copy)(pixels, target=target))
            return maps[-1]

        return explain

    found = randomisation(model, images, explanation, method=make, layer_by_layer=True)
    assert len(maps) == 4
    for layer, other in enumerate(maps):
        expected = stats.spearmanr(explanation.values[1, :, 3], other.values[1, :, 3]).statistic
        assert float(found.similarity[1, 3, layer]) == pytest.approx(expected, abs=1e-6)


def test_the_complexity_is_that_of_quantus():
    values = torch.randn(3, 196, 2, generator=torch.Generator().manual_seed(0))
    found = complexity(values)
    for i in range(3):
        for t in range(2):
            theirs = discrete_entropy(values[i, :, t].double().numpy(), np.empty(0))
            assert float(found[i, t]) == pytest.approx(theirs, abs=1e-9)
    values[0] = 0.5
    assert bool(complexity(values)[0].isnan().all())


def test_groups_of_weights_are_complete():
    torch.manual_seed(0)
    nets = [
        small_net(),
        wrap(timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, num_classes=3).eval()),
        additive_model(2, 2),
    ]
    for model in nets:
        grouped = [id(p) for _, ms in weight_groups(model) for m in ms for p in m.parameters(recurse=False)]
        assert sorted(grouped) == sorted(id(p) for p in model.net.parameters())


def test_the_model_of_the_method_is_randomised():
    surrogate, classifier = small_net(), small_net()
    with torch.no_grad():
        classifier.net.classifier.weight.mul_(-1)
    images = random_images(surrogate, 2)
    made = method("leave-one-out", classifier)
    found = randomisation(surrogate, images, made(images), method=made, layer_by_layer=True)
    expected = randomisation(classifier, images, made(images), layer_by_layer=True)
    assert torch.equal(found.similarity, expected.similarity)
    head_only = randomisation(surrogate, images, made(images), layer_by_layer=True).similarity[..., :1]
    assert torch.equal(
        head_only, expected.similarity[..., :1]
    )  # they differ in the head alone, which is random by then


def test_a_trained_explainer_and_stored_values_have_no_other_model():
    model = small_net()
    images = random_images(model, 2)
    explainer = Explainer(model)
    for found in (
        randomisation(model, images, explainer(images), method=explainer),
        randomisation(model, images, explainer(images)),
        randomisation(model, images, replace(method("random", model)(images), method="truth"), layer_by_layer=True),
    ):
        assert found.undefined == 2
        assert found.layers == ()


def test_what_it_refuses():
    model = small_net()
    images = random_images(model, 2)
    explained = method("random", model)(images)
    with pytest.raises(ValueError, match="give it the same players"):
        randomisation(model, images, explained, method=lambda copy: method("random", copy, players=2))
    with pytest.raises(ValueError, match="at least 2 bins, got 1"):
        randomisation(model, images, explained, bins=1)
